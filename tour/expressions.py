"""Conditions and watch expressions over the state, in the state's own words.

`A.block_table[-1] * block_size + 3`, `len(free_block_ids)`, `free < 2 and len(waiting) > 0`. Evaluated by
`simpleeval`, which knows no imports, no attributes that begin with `_`, no calls but those named here.
"""

from typing import Any

import simpleeval

from .errors import ExpressionError
from .trace import Event

MAX_LENGTH = 500
_FUNCTIONS = {"len": len, "min": min, "max": max, "sum": sum, "abs": abs, "sorted": sorted, "any": any, "all": all}


def names(state: dict[str, Any], event: Event | None = None) -> dict[str, Any]:
    """The names that an expression may use at this state: requests, the event's facts, the state's keys.

    Where two share a name, the state's own key wins over the event's fact, and that over a request's id.
    """
    blocks = state.get("blocks") or {}
    free = blocks.get("free") or []
    found: dict[str, Any] = dict(state.get("seqs") or {})
    if event is not None:
        found.update(event.facts)
        found.update(stop=event.stop)
    found.update(state)
    found.update(
        free=len(free),
        free_block_ids=free,
        total=blocks.get("total"),
        block_size=blocks.get("size"),
        ref_count=blocks.get("ref_count"),
    )
    return found


def check_syntax(text: str) -> None:
    """Raise ExpressionError if `text` is not an expression at all."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters is over the limit of {MAX_LENGTH}")
    try:
        simpleeval.SimpleEval.parse(text)
    except (SyntaxError, ValueError, simpleeval.InvalidExpression, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression: {error}") from error


def evaluate(text: str, values: dict[str, Any]) -> Any:
    """The value of `text` where its names have the given values. Raises ExpressionError with the reason."""
    check_syntax(text)
    evaluator = simpleeval.EvalWithCompoundTypes(names=values, functions=_FUNCTIONS)
    try:
        return evaluator.eval(text)
    except Exception as error:  # simpleeval lets any error of the expression itself through
        raise ExpressionError(f"{text!r} cannot be evaluated here: {error}") from error
