"""Looking for a text in what is recorded, a slice a step, so that the screen never stands still."""

from collections.abc import Generator

from ..tour.cursor import Cursor
from ..tour.trace import Event, Trace
from ..tour.why import why

SLICE = 32
"""Events that are looked at between two looks at the clock."""


def next_text(trace: Trace, after: int, text: str) -> Generator[None, None, int | None]:
    """The position after the next event whose stop, facts, reason, notes or new prompt hold `text`.

    Capital letters do not count. With none to the end, the search goes on at the start.
    """
    found = yield from _first_between(trace, after, len(trace), text.casefold())
    return found or (yield from _first_between(trace, 0, after, text.casefold()))


def _first_between(
    trace: Trace, after: int, last: int, sought: str
) -> Generator[None, None, int | None]:
    cursor = Cursor(trace)
    cursor.seek(after)
    while cursor.position < last:
        cursor.seek(cursor.position + 1)
        event = cursor.event
        if event and sought in _said(event, cursor, trace).casefold():
            return cursor.position
        if cursor.position % SLICE == 0:
            yield
    return None


def _said(event: Event, cursor: Cursor, trace: Trace) -> str:
    # A fact that is 0, false or empty has nothing to do with its name.
    facts = " ".join(f"{key}={value}" for key, value in event.facts.items() if value)
    notes = " ".join(trace.notes.get(cursor.position, ()))
    prompt = ""
    if event.stop == "add_request":
        prompt = "".join(cursor.state["seqs"][event.facts["seq"]]["pieces"])
    return f"{event.stop} {facts} {why(event, cursor.state)} {notes} {prompt}"
