"""Which event is of which stop, for a million events: a few bytes each, and the next one is found at once."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection

Wanted = Collection[str] | Callable[[str], bool]
"""Names of stops, or a test that a name passes."""


class StopIndex:
    """The stops of all events in order. The position of an event is the one that it leads to: its number + 1."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._code_of = array("I")
        self._positions: list[array[int]] = []
        self._phase_ends = array("I")

    def add(self, stop: str) -> None:
        """The stop of the next event."""
        code = self._codes.get(stop)
        if code is None:
            code = self._codes[stop] = len(self._names)
            self._names.append(stop)
            self._positions.append(array("I"))
        self._code_of.append(code)
        self._positions[code].append(len(self._code_of))

    def add_phase_end(self, position: int) -> None:
        """A phase of a step ends at `position`."""
        self._phase_ends.append(position)

    def name(self, index: int) -> str:
        """The stop of event `index`."""
        return self._names[self._code_of[index]]

    def next(self, wanted: Wanted, after: int, forward: bool = True) -> int | None:
        """The nearest position after `after` (or before it) of an event whose stop is wanted."""
        test = wanted if callable(wanted) else wanted.__contains__
        found = [
            position
            for name, positions in zip(self._names, self._positions, strict=True)
            if test(name) and (position := _nearest(positions, after, forward)) is not None
        ]
        if not found:
            return None
        return min(found) if forward else max(found)

    def next_phase_end(self, after: int, forward: bool = True) -> int | None:
        """The nearest position after `after` (or before it) where a phase of a step has ended."""
        return _nearest(self._phase_ends, after, forward)


def _nearest(positions: "array[int]", after: int, forward: bool) -> int | None:
    if forward:
        at = bisect_right(positions, after)
        return positions[at] if at < len(positions) else None
    at = bisect_left(positions, after)
    return positions[at - 1] if at else None
