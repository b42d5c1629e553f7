"""The states that a trace stores on its way, so that a far jump need not start at the beginning.

A keyframe holds a whole state. In a long run most requests have finished long ago and their tokens are most of its
state, so a `partial` keyframe has null in their places; `finished` lines hold each of them once.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import msgspec

from .state import same_state, stored_state
from .storage import Text

LARGE_STATE = 2**18
"""Bytes of a stored state from which on the walk past it does not compare it: a key must not wait for that."""


class _Finished(msgspec.Struct):
    """A line with requests that will not change any more."""

    seqs: dict[str, msgspec.Raw]


_decode_finished = msgspec.json.Decoder(_Finished).decode


class Keyframes:
    """Where in the text the stored states lie. The first is the header's, at position 0."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._positions = array("Q")
        self._places: dict[int, tuple[int, int]] = {}
        self._finished: dict[str, list[tuple[int, msgspec.Raw]]] = {}
        self._compared: set[int] = set()

    def add(self, position: int, start: int, end: int) -> None:
        """There is a stored state in the text from `start` to `end`. Positions must grow; others are left out."""
        if not self._positions or position > self._positions[-1]:
            self._positions.append(position)
            self._places[position] = start, end

    def add_finished(self, position: int, line: bytes) -> None:
        """Keep the requests of a `finished` line. Raises what decoding raises."""
        for seq_id, raw in _decode_finished(line).seqs.items():
            self._finished.setdefault(seq_id, []).append((position, raw.copy()))

    def at_or_before(self, position: int) -> int:
        """The last position not after `position` whose state is stored."""
        return self._positions[bisect_right(self._positions, position) - 1]

    def after(self, position: int) -> int | None:
        """The first position after `position` whose state is stored."""
        index = bisect_right(self._positions, position)
        return self._positions[index] if index < len(self._positions) else None

    def size(self, position: int) -> int:
        """The bytes of the state stored at `position`, which `at_or_before` has returned."""
        start, end = self._places[position]
        return end - start

    def read_ahead(self, position: int) -> Iterator[None]:
        """Have the text of the state stored at `position` at hand, a few milliseconds a turn."""
        return self._text.read_ahead(*self._places[position])

    def state(self, position: int) -> dict[str, Any]:
        """A fresh copy of the state stored at `position`, which `at_or_before` has returned."""

        def finished(seq_id: str) -> msgspec.Raw | None:
            versions = self._finished.get(seq_id, ())
            return next((raw for since, raw in reversed(versions) if since <= position), None)

        return stored_state(self._text.read(*self._places[position]), finished)

    def compare(self, position: int, state: dict[str, Any]) -> bool:
        """Whether `state` is the one stored at `position`. Only the first time, and only if it is small."""
        known = position not in self._places or position in self._compared
        if known or self.size(position) >= LARGE_STATE:
            return True
        self._compared.add(position)
        return same_state(state, self._text.read(*self._places[position]))
