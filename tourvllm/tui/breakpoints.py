"""The breakpoints of a session: the scenario's and the user's own, on or off, and how often each triggers."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from ..tour.cursor import Cursor
from ..tour.errors import ExpressionError
from ..tour.trace import Trace
from ..tour.triggers import Search, Status, Trigger, count, search


@dataclass
class BreakpointEntry:
    """One breakpoint. `count` is how often it has triggered in what is recorded; None while nobody has counted."""

    line: str
    enabled: bool = True
    from_scenario: bool = False
    count: int | None = None


def of_scenario(trace: Trace) -> list[BreakpointEntry]:
    """The breakpoints that the trace's header names; what is none (a stranger wrote it) is left out."""
    found = trace.table("scenario").get("breakpoints")
    lines = found if isinstance(found, list) else []
    return [BreakpointEntry(line, from_scenario=True) for line in lines if _is_one(line)]


def _is_one(line: object) -> bool:
    try:
        return isinstance(line, str) and Trigger(line) is not None
    except ExpressionError:
        return False


def broken(cursor: Cursor, lines: Iterable[str]) -> str | None:
    """What to say of the first breakpoint whose condition cannot be evaluated at the cursor."""
    for line in lines:
        trigger = Trigger(line)
        status = trigger.status(cursor.event, cursor.state)
        if status is Status.BROKEN:
            return trigger.say(status)
    return None


def search_to(cursor: Cursor, lines: Iterable[str], position: int) -> Search:
    """Move the cursor on to `position`, or to a breakpoint on the way: then what to say of it is returned."""
    lines = list(lines)
    if not lines:
        cursor.seek(position)
        return None
    steps = search(cursor, lines, forward=True)
    while cursor.position < position:
        try:
            next(steps)
        except StopIteration as found:
            hit: str | None = found.value
            return hit
        yield
    return None


def count_hits(trace: Trace, entries: Iterable[BreakpointEntry]) -> Generator[None, None, None]:
    """Count how often the entries that nobody has counted trigger in what is recorded, one event a step."""
    new = {entry.line: entry for entry in entries if entry.count is None}
    if not new:
        return
    triggers = [Trigger(line) for line in new]
    yield from count(trace, triggers)
    for trigger in triggers:
        new[trigger.text].count = trigger.count
