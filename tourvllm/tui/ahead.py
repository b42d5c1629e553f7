"""What the reader may want next, made ready while nothing else is to do. A key merely finds it there."""

import time
from collections.abc import Iterator
from contextlib import suppress

from . import values, whole_step
from .driver import Driver


class Ahead:
    """Prepares the ways that lead on from where a session is: a step on, a step back, far back, the end.

    Instead of the far ones the way to a step that is being typed, while one is.
    """

    def __init__(self, session: Driver) -> None:
        self._session = session
        self.expected: int | None = None
        """Where the reader may want to go next: the end of a step that is typed."""
        self._near: Iterator[None] = iter(())
        self._far: Iterator[None] | None = None
        self._begun: tuple[object, ...] = ()
        self._begun_far: tuple[object, ...] = ()

    def expect(self, position: int | None) -> None:
        """The reader may want to go to `position` next; None: nothing is typed any more."""
        self.expected = position
        if position is not None:
            self._far = None

    def prepare(self, seconds: float) -> bool:
        """Go on for a while. Whether there is more to do.

        What is near is begun anew after each move; a way from afar goes on, for it takes longer than the pauses
        between keys.
        """
        until = time.monotonic() + seconds
        session = self._session
        wanted = session.place().position, len(session.trace), self.expected, *session.watches
        if wanted != self._begun:
            self._begun, self._near = wanted, self._near_ways()
        if self._far is None and wanted != self._begun_far:
            self._begun_far, self._far = wanted, self._far_ways()
        ways_on = self._near, self._far or ()
        for ways in ways_on if self.expected is None else reversed(ways_on):
            with suppress(Exception):  # a stranger's trace may hold anything; going there will tell
                for _ in ways:
                    if time.monotonic() > until:
                        return True
        self._far = None
        return False

    def _near_ways(self) -> Iterator[None]:
        cursor, trace = self._session.place(), self._session.trace
        step, following = cursor.step, trace.step_at(cursor.position + 1)
        for position in (following and following.end, step and step.start):
            yield from whole_step.prepare(trace, position or 0)
        if step and (before := trace.step_at(step.start)):
            yield from values.prepare(cursor, before.start, self._session.watches)
        if following and cursor.at_step_end:
            yield
            trace.decode_ahead(cursor.position, following.end)

    def _far_ways(self) -> Iterator[None]:
        cursor, trace, expected = self._session.place(), self._session.trace, self.expected
        if expected is not None:
            step = trace.step_at(expected)
            yield from cursor.prepare(expected)
            for position in (expected, step.start if step else 0):
                yield from values.prepare(cursor, position, self._session.watches)
            yield from cursor.prepare(expected)
            yield from whole_step.prepare(trace, expected)
        else:
            yield from cursor.prepare_way_back()
            if not self._session.live:
                yield from cursor.prepare_end()
                yield from whole_step.prepare(trace, len(trace))
