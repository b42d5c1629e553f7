"""What has happened to one request or one block so far: its events, found in the trace, newest first.

A look back is bounded: in events found and in time. What was looked through is remembered, so that the next look
(one step further on, say) costs what is new.
"""

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ..tour.trace import Event, Trace
from ..tour.why import why

DECISIONS = ("add_request", "reject", "admit", "chunk", "wait", "preempt", "finish")
"""Stops where the scheduler decided something about a request."""

BLOCK_STOPS = ("allocate", "may_append", "hash_blocks", "evict", "deallocate")
"""Stops where something happened to a block."""

ENOUGH = 100
SECONDS = 0.02
_FAR = 5000
"""Events; a jump further on than this starts a new look back."""


@dataclass
class _Found:
    """The events that were found between two positions of the trace, oldest first."""

    low: int
    high: int
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class Past:
    """Events newest first, and the step before which nothing was looked at (None: these are all)."""

    events: list[Event]
    before: int | None


_found: WeakKeyDictionary[Trace, dict[tuple[str, object], _Found]] = WeakKeyDictionary()


def of_request(trace: Trace, position: int, seq_id: str) -> Past:
    """The decisions about a request among the first `position` events."""

    def about(event: Event) -> bool:
        facts = event.facts
        ids = facts.get("seqs")
        return seq_id in (facts.get("seq"), facts.get("needed_by")) or (
            isinstance(ids, list) and seq_id in ids
        )

    return _look_back(trace, position, ("seq", seq_id), DECISIONS, about)


def of_block(trace: Trace, position: int, block: int) -> Past:
    """What happened to a block in the first `position` events."""

    def about(event: Event) -> bool:
        facts = event.facts
        lists = [facts[key] for key in ("block_ids", "hits") if isinstance(facts.get(key), list)]
        return facts.get("block_id") == block or any(block in ids for ids in lists)

    return _look_back(trace, position, ("block", block), BLOCK_STOPS, about)


def filled(trace: Trace, position: int, seq_id: str, tokens: int) -> Event | None:
    """The last event by which the first `tokens` tokens of a request came to be in the cache."""

    def about(event: Event) -> bool:
        cached, computed = event.facts.get("num_cached_tokens"), event.facts.get("computed")
        if event.facts.get("seq") != seq_id:
            return False
        if not isinstance(cached, int) or not isinstance(computed, int):
            return False
        return cached - computed < tokens <= cached

    past = _look_back(trace, position, (f"filled {tokens}", seq_id), ("postprocess",), about, 1)
    return past.events[0] if past.events else None


def _look_back(
    trace: Trace,
    position: int,
    key: tuple[str, object],
    stops: tuple[str, ...],
    about: Callable[[Event], bool],
    enough: int = ENOUGH,
) -> Past:
    known = _found.setdefault(trace, {})
    found = known.get(key)
    if found is None or not found.low <= position <= found.high + _FAR:
        if len(known) > 50:
            known.clear()
        found = known[key] = _Found(position, position)

    def take(position: int) -> list[Event]:
        event = trace.event(position - 1)
        return [event] if about(event) else []

    while (at := trace.next_position(stops, found.high)) is not None and at <= position:
        found.events += take(at)
        found.high = at
    found.high = max(found.high, position)
    older: list[Event] = []
    until = time.monotonic() + SECONDS
    count = bisect_left(found.events, position, key=lambda event: event.i)
    while found.low > 0 and count + len(older) < enough and time.monotonic() < until:
        before = trace.next_position(stops, found.low + 1, forward=False)
        older += take(before) if before else []
        found.low = before - 1 if before else 0
    found.events[:0] = reversed(older)
    shown = found.events[: count + len(older)][::-1]
    if len(shown) > enough:
        return Past(shown[:enough], shown[enough - 1].step)
    step = trace.step_at(found.low + 1) if found.low else None
    return Past(shown, step.number if step else None)


@dataclass(frozen=True)
class Told:
    """One line of a history: the same decision, step after step, is told once."""

    first: int
    last: int
    times: int
    text: str


def story(past: Past, seq_id: str, total: int) -> list[Told]:
    """A request's decisions as sentences, newest first. `total`: blocks of the pool."""
    told: list[Told] = []
    causes: list[object] = []
    for event in past.events:
        cause = (event.stop, event.facts.get("cause")) if event.stop == "wait" else event.i
        if told and causes[-1] == cause:
            newer = told[-1]
            told[-1] = Told(event.step, newer.last, newer.times + 1, newer.text)
        else:
            told.append(Told(event.step, event.step, 1, decision(event, total, seq_id)))
            causes.append(cause)
    return told


def decision(event: Event, total: int, seq_id: str | None = None) -> str:
    """The sentence on an event that lies back: from its facts alone, for the state has moved on since.

    With `seq_id`, an event about several requests is told of that one.
    """
    facts = event.facts
    if event.stop == "preempt":
        victim, by = facts.get("seq"), facts.get("needed_by")
        if victim == by:
            return f"{victim} needs more blocks than are free and gives up its own place."
        return f"{victim} is preempted: {by} needs more blocks than are free."
    if seq_id is not None and event.stop == "wait":
        event = Event(event.i, event.step, event.stop, facts={**facts, "seqs": [seq_id]})
    return why(event, {"blocks": {"total": total, "free": []}})
