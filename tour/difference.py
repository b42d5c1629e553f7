"""The first thing that differs between two runs, as a sentence."""

from collections.abc import Callable
from typing import Any

from .text import line, token
from .trace import Event

Facts = dict[str, Any]

_FOLLOWS = (
    "free total budget left limit needs needs_at_most num_new num_recomputed_tokens max_tokens waiting "
    "running"
)
FOLLOWS = frozenset(_FOLLOWS.split())
"""Facts that only follow from settings or from earlier decisions: no decision themselves."""


class FirstDifference:
    """Is shown both runs event by event. `sentence` and `position` are None while nothing differs.

    A decision that differs ends the search: from there on it is another run. A mere number (another count of free
    blocks, because the pool is another) is told only if no decision differs.
    """

    def __init__(self) -> None:
        self.sentence: str | None = None
        self.position: int | None = None
        self._found = False

    def look(self, index: int, a: Event | None, b: Event | None) -> None:
        """Compare event `index` of both runs; None where a run has ended. Times and source lines do not count."""
        if self._found or (a and b and _all(a) == _all(b)):
            return
        self._found = a is None or b is None or _decision(a) != _decision(b)
        if self._found:
            self._tell(index, _decisions(a, b))
        elif self.sentence is None and a and b:
            self._tell(index, "the decisions are the same, but not all numbers: " + _detail(a, b))

    def _tell(self, index: int, sentence: str) -> None:
        self.sentence, self.position = line(sentence), index + 1


def _all(event: Event) -> tuple[Any, ...]:
    return event.step, event.stop, event.facts, event.do


def _decision(event: Event) -> tuple[Any, ...]:
    facts = {key: value for key, value in event.facts.items() if key not in FOLLOWS}
    return event.step, event.stop, facts


def _decisions(a: Event | None, b: Event | None) -> str:
    """What each run does, where they part."""
    if a is None or b is None:
        goes_on = b or a
        ended, other = ("first", "second") if a is None else ("second", "first")
        where = f"step {goes_on.step}: " if goes_on else ""
        return f"{where}what is recorded of the {ended} run ends here, the {other} {_does(goes_on)}"
    if a.step != b.step:
        return f"the first run {_does(a)} in step {a.step}, the second {_does(b)} in step {b.step}"
    if _does(a) == _does(b):
        return _detail(a, b)
    return f"step {a.step}: the first run {_does(a)}, the second {_does(b)}"


def _detail(a: Event, b: Event) -> str:
    """The first fact that differs in two events of the same stop."""
    for key in [*a.facts, *b.facts]:
        one, other = (_short(event.facts.get(key)) for event in (a, b))
        if one != other:
            return (
                f"step {a.step}: {a.stop} tells {key} {one} in the first run, {other} in the second"
            )
    return f"step {a.step}: {a.stop} changes the state in another way in each run"


def _does(event: Event | None) -> str:
    """What a run does at this event, as a verb with its objects."""
    if event is None:
        return "goes on"
    try:
        return _VERBS[event.stop](event.facts)
    except (
        Exception
    ):  # a stranger's trace: facts may be missing or odd, and it may have other stops
        return f"comes to {event.stop}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:60] + ".."


def _names(values: Any) -> str:
    return _short(" ".join(str(value) for value in values)) or "nobody"


def _begins(what: str) -> Callable[[Facts], str]:
    return lambda f: f"{'begins' if f['when'] == 'begin' else 'ends'} {what}"


_VERBS: dict[str, Callable[[Facts], str]] = {
    "generate": _begins("its loop"),
    "step": _begins("the step"),
    "schedule": lambda f: (
        "begins to schedule"
        if f["when"] == "begin"
        else f"plans a {f['phase']} of {_names(f['seqs'])}"
    ),
    "add_request": lambda f: f"takes in {f['seq']} ({f['num_prompt_tokens']} prompt tokens)",
    "reject": lambda f: f"rejects {f['seq']}",
    "admit": lambda f: f"admits {f['seq']} with {f['num_scheduled_tokens']} tokens to compute",
    "chunk": lambda f: f"computes {f['num_scheduled_tokens']} tokens of {f['seq']}'s prompt",
    "wait": lambda f: f"lets {_names(f['seqs'])} wait ({f['cause']})",
    "decode": lambda f: f"decodes {f['seq']}",
    "preempt": lambda f: f"preempts {f['seq']}",
    "can_allocate": lambda f: (
        f"finds {'' if f['ok'] else 'no '}room for {f['seq']}"
        + f" (needs {f['needs']}, free {f['free']}"
        + (f", prefix hit: block {_names(f['hits'])})" if f["hits"] else ")")
    ),
    "allocate": lambda f: f"gives {f['seq']} the blocks {_names([*f['hits'], *f['block_ids']])}",
    "can_append": lambda f: f"finds {'' if f['ok'] else 'no '}room for {f['seq']} to grow",
    "may_append": lambda f: (
        f"gives {f['seq']} block {_names(f['block_ids'])}"
        if f["block_ids"]
        else f"lets {f['seq']} be"
    ),
    "hash_blocks": lambda f: (
        f"keeps {f['seq']}'s full blocks {_names(f['block_ids'])} in the prefix cache"
    ),
    "evict": lambda f: f"evicts what block {f['block_id']} held",
    "deallocate": lambda f: f"takes back {f['seq']}'s blocks",
    "prepare_prefill": lambda f: f"lays out {f['num_tokens']} tokens of {_names(f['seqs'])}",
    "prepare_decode": lambda f: f"lays out one token each of {_names(f['seqs'])}",
    "store_kvcache": lambda f: f"writes keys and values in layer {f['layer'] + 1}",
    "attention": lambda f: f"reads keys and values in layer {f['layer'] + 1}",
    "sample": lambda f: (
        "samples "
        + _short(
            ", ".join(f"{token(p)} for {s}" for s, p in zip(f["seqs"], f["pieces"], strict=True))
        )
    ),
    "postprocess": lambda f: f"counts {f['computed']} tokens of {f['seq']} as computed",
    "append_token": lambda f: f"appends {token(f['piece'])} to {f['seq']}",
    "finish": lambda f: f"finishes {f['seq']} ({f['reason']})",
}
