"""Conditions and watch expressions over the state, in the state's own words.

`A.block_table[-1] * block_size + 3`, `len(free_block_ids)`, `free < 2 and len(waiting) > 0`. Evaluated by
`simpleeval`, narrowed to what a trace from a stranger may safely ask for: it reads the state and never changes it,
a dot finds a key and nothing else, the only calls are those named here, and arithmetic is for numbers alone.
"""

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

import simpleeval

from .errors import ExpressionError, UnknownNameError
from .state import REQUEST_FIELDS
from .stops import FACTS, STOPS
from .trace import Event

MAX_LENGTH = 500
MAX_POWER = 64
MAX_BITS = 4096
"""Size of the greatest number that arithmetic may make."""

# Of all comprehensions of an expression together; simpleeval's own limit is ten times that.
simpleeval.MAX_COMPREHENSION_LENGTH = 1000


def _sum(values: Iterable[Any]) -> Any:
    return sum(values)  # of numbers: with a start value it would also join lists, slowly


def _of_numbers(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`compute` for numbers only: texts and lists could be made huge with +, * and %."""

    def checked(a: Any, b: Any) -> Any:
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            raise TypeError("arithmetic is for numbers")
        return compute(a, b)

    return checked


def _power(a: float, b: float) -> Any:
    if abs(b) > MAX_POWER or _bits(a) * max(1, abs(b)) > MAX_BITS:
        raise ValueError("the number is too large")
    return a**b


def _times(a: float, b: float) -> Any:
    if _bits(a) + _bits(b) > MAX_BITS:
        raise ValueError("the number is too large")
    return a * b


def _bits(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else 64


_FUNCTIONS = {
    function.__name__: function for function in (len, min, max, abs, sorted, any, all)
} | {"sum": _sum}
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Mult: _times,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_NUMBERS_ONLY = {kind: _of_numbers(compute) for kind, compute in _ARITHMETIC.items()}
_OPERATORS = simpleeval.DEFAULT_OPERATORS | _NUMBERS_ONLY


class _Evaluator(simpleeval.EvalWithCompoundTypes):
    """simpleeval without methods (`waiting.clear()` would change the state) and without f-strings (any width)."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(names=values, functions=_FUNCTIONS, operators=_OPERATORS)
        del self.nodes[ast.JoinedStr]

    def let_go(self) -> None:
        """Its table of nodes points back to it: a whole state would stay until Python looks for such cycles."""
        self.nodes.clear()

    def _check_disallowed_items(self, item: Any) -> None:
        """Nothing to look for: values come from JSON. simpleeval would walk the whole state at every node."""

    def _eval_attribute(self, node: ast.Attribute) -> Any:
        owner = self._eval(node.value)
        if isinstance(owner, dict) and node.attr in owner:
            value = owner[node.attr]
            # The pieces of a request's output: who asks for its text wants it whole.
            return "".join(value) if node.attr == "text" and isinstance(value, list) else value
        if owner is None:  # the batch before it is laid out
            raise UnknownNameError(f"there is no {ast.unparse(node.value)} yet")
        raise ExpressionError(f"there is no {node.attr}")


def names(state: dict[str, Any], event: Event | None = None) -> dict[str, Any]:
    """The names that an expression may use at this state: requests, the event's facts, the state's keys.

    Where two share a name, the state's own key wins over the event's fact, and that over a request's id.
    """
    blocks = state.get("blocks") or {}
    free = blocks.get("free") or []
    seqs = state.get("seqs")
    found: dict[str, Any] = seqs.copy() if isinstance(seqs, dict) else {}
    if event is not None:
        found.update(event.facts)
        found.update(stop=event.stop, facts=event.facts)
    found.update(state)
    found.update(
        free=len(free),
        free_block_ids=free,
        total=blocks.get("total"),
        block_size=blocks.get("size"),
        ref_count=blocks.get("ref_count"),
    )
    return found


_STATE_NAMES = (
    "step phase waiting running finished seqs blocks batch free free_block_ids total block_size "
    "ref_count stop facts"
)
STATE_NAMES = frozenset(_STATE_NAMES.split())
"""The names that every state has."""

_KNOWN = STATE_NAMES | {name for facts in FACTS.values() for name in facts.split()}

_OTHER_NAMES = {
    "num_blocks": "total",
    "num_gpu_blocks": "total",
    "num_kvcache_blocks": "total",
    "num_free_blocks": "free",
    "free_blocks": "free_block_ids",
    "free_block_queue": "free_block_ids",
    "requests": "seqs",
    "hash_to_block_id": "blocks.hash",
    "used_block_ids": "ref_count",
}
_OTHER_FIELDS = {
    "num_computed_tokens": "{0}.num_cached_tokens",
    "num_new_tokens": "{0}.num_scheduled_tokens",
    "num_output_tokens": "{0}.num_tokens - {0}.num_prompt_tokens",
    "num_completion_tokens": "{0}.num_tokens - {0}.num_prompt_tokens",
    "all_token_ids": "{0}.token_ids",
    "block_ids": "{0}.block_table",
    "num_preemptions": "{0}.preemptions",
    "output_text": "{0}.text",
    "stop_reason": "{0}.finish_reason",
}
"""What vLLM or nano-vllm calls it, and what it is here: names of the state, and fields of a request."""


def bare_word(text: str) -> bool:
    """Whether `text` is one name and nothing else: the name of a stop or of a request."""
    return isinstance(_parse(text), ast.Name)


def check_syntax(text: str) -> None:
    """Raise ExpressionError if `text` is not an expression at all."""
    _parse(text)


def check_names(text: str, request_ids: Iterable[str]) -> None:
    """Raise ExpressionError if `text` is no expression, or uses a name that nothing will ever have."""
    nodes = list(ast.walk(_parse(text)))
    words = [node for node in nodes if isinstance(node, ast.Name)]
    own = {word.id for word in words if isinstance(word.ctx, ast.Store)}
    called = {
        node.func.id
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    request_ids = set(request_ids)
    known = _KNOWN | own | request_ids
    for word in words:
        if word.id in called:
            if word.id not in _FUNCTIONS:
                raise ExpressionError(
                    f"there is no function {word.id}; there are {', '.join(sorted(_FUNCTIONS))}"
                )
        elif word.id not in known:
            raise ExpressionError(_no_such_name(word.id, known, request_ids))
    _check_fields(nodes, request_ids - _KNOWN - own)


def _check_fields(nodes: Iterable[ast.AST], request_ids: Collection[str]) -> None:
    for node in nodes:
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        owner, field = node.value.id, node.attr
        if owner in request_ids and field not in REQUEST_FIELDS:
            likely = closest(field, [*REQUEST_FIELDS, *_OTHER_FIELDS])
            meant = _of_request(owner, field) or _of_request(owner, likely)
            has = f"did you mean {meant}?" if meant else f"it has {', '.join(REQUEST_FIELDS)}"
            raise ExpressionError(f"a request has no {field}: {has}")


def _of_request(owner: str, field: str | None) -> str | None:
    """How a request is asked for a field that it has, also if under another engine's name."""
    if field in REQUEST_FIELDS:
        return f"{owner}.{field}"
    return _OTHER_FIELDS[field].format(owner) if field in _OTHER_FIELDS else None


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None


def _no_such_name(word: str, known: Iterable[str], request_ids: Iterable[str]) -> str:
    if word in STOPS:
        return f"{word} is a stop and has no value: compare with stop == '{word}', or name it alone"
    one = min(filter(str.isidentifier, request_ids), default="A")
    meant = _OTHER_NAMES.get(word) or _of_request(one, word) or closest(word, known)
    advice = (
        f"did you mean {meant}?" if meant else f"the state has {', '.join(sorted(STATE_NAMES))}"
    )
    return f"there is no {word}, neither in the state nor as a request or a fact: {advice}"


@lru_cache(maxsize=256)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"an expression of {len(text)} characters is over the limit of {MAX_LENGTH}"
        )
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # of Python's compiler, on the style of the text
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(
            f"{text!r} is not an expression: {_what_is_wrong(text, error)}"
        ) from error


def _what_is_wrong(text: str, error: Exception) -> str:
    """The parser's words; for two words side by side (`step 12`) what was probably meant."""
    words = text.split()
    if len(words) == 2 and words[0] in _KNOWN:
        return f"did you mean {words[0]} == {words[1]}?"
    return error.msg if isinstance(error, SyntaxError) else str(error)


def evaluate(text: str, values: dict[str, Any]) -> Any:
    """The value of `text` where its names have the given values. Raises ExpressionError with the reason."""
    parsed, evaluator = _parse(text), _Evaluator(values)
    try:
        return evaluator.eval(text, previously_parsed=parsed)
    except Exception as error:  # simpleeval lets any error of the expression itself through
        unknown = isinstance(error, simpleeval.NameNotDefined | UnknownNameError)
        kind = UnknownNameError if unknown else ExpressionError
        reason = _reason(error)
        raise kind(f"{text!r} cannot be evaluated here: {reason}", reason) from error
    finally:
        evaluator.let_go()


def _reason(error: Exception) -> str:
    """Why an expression has no value, for somebody who does not know Python's words for it."""
    if isinstance(error, simpleeval.NameNotDefined):
        is_fact = error.name in _KNOWN - STATE_NAMES
        return f"there is no {error.name} {'at this stop' if is_fact else 'yet'}"
    if isinstance(error, IndexError):
        return "the list is shorter"
    if isinstance(error, KeyError):
        return f"there is no entry {error}"
    return str(error)
