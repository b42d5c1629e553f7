"""A place in a trace and the state there: forwards, backwards, to any event, to any step."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .errors import TraceError
from .patch import apply_all, undo_all
from .trace import Event, Step, Trace

KEPT = 16_384
"""Events that a place can take back."""

NEAR = 1_000
"""Events that are walked at once; for what is farther away, other ways are looked for."""

_BACK = 8
"""Events that are taken back in the time in which one is applied."""

_BYTES = 700
"""Bytes of a stored state that are read in the time in which an event is applied."""

_SLICE = 16
"""Events that are applied in a turn of a preparation: a millisecond or less."""

_LEFT = 1
"""Places that are kept when a far jump leaves them: one often goes back there. In a long run each takes 30 MB."""

_NEVER = 2**62


@dataclass(eq=False)
class _Place:
    """A position, the state there, and for each of the last events what takes it back."""

    position: int
    state: dict[str, Any]
    undo: deque[list[tuple[Any, ...]]] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def first(self) -> int:
        """The first position that can be gone back to."""
        return self.position - len(self.undo)

    def way_to(self, target: int) -> int:
        """How long the walk to `target` takes, in events that are applied; very long if it cannot be done."""
        if target < self.first:
            return _NEVER
        ahead = target - self.position
        return ahead if ahead >= 0 else -ahead // _BACK

    def walk(self, trace: Trace, target: int) -> None:
        """Go to `target`, event by event. Raises TraceError where one does not apply, and stays there."""
        while self.position > target:
            undo_all(self.state, self.undo.pop())
            self.position -= 1
        while self.position < target:
            pause = min(target, trace.keyframe_after(self.position) or target)
            for patches in trace.each_patches(self.position, pause):
                self.undo.append(apply_all(self.state, patches))
                self.position += 1
            trace.compare_keyframe(pause, self.state)


class Cursor:
    """Walks a trace. `state` is the state after `position` events; it must not be changed by callers.

    Stepping forward keeps what is needed to step back, so neighbours cost one event; a far jump starts from the
    nearest keyframe, or from a place that an earlier jump has left or that was prepared. What a position shows
    never depends on how one came there.

    `has_grown` is called after a far walk, which may have made a million objects.
    """

    def __init__(self, trace: Trace, has_grown: Callable[[], None] = lambda: None) -> None:
        self.trace = trace
        self._has_grown = has_grown
        self._here = _Place(0, trace.initial_state())
        self._left: list[_Place] = []
        self._ready: dict[str, _Place] = {}
        self._damaged = False

    @property
    def position(self) -> int:
        """How many events are applied."""
        return self._here.position

    @property
    def state(self) -> dict[str, Any]:
        """The state there."""
        return self._here.state

    @property
    def event(self) -> Event | None:
        """The event that led here (None at position 0)."""
        return self.trace.event(self.position - 1) if self.position else None

    @property
    def step(self) -> Step | None:
        """The step that the current event belongs to."""
        return self.trace.step_at(self.position)

    @property
    def at_end(self) -> bool:
        """Whether every recorded event is applied."""
        return self.position == len(self.trace)

    @property
    def at_step_end(self) -> bool:
        """Whether the current event closes its step."""
        event = self.event
        return event is not None and event.stop == "step" and event.facts.get("when") == "end"

    @property
    def before(self) -> int:
        """Where what is shown here began: at a step's end the step, else the one event."""
        step = self.step
        if step is None:
            return self.position
        return step.start if self.at_step_end else self.position - 1

    @contextmanager
    def look_back(self, position: int) -> Iterator[dict[str, Any]]:
        """The state at an earlier `position`, inside of the `with` only. Raises TraceError as `seek` does."""
        here, place = self.position, self._best_start(position)
        if place not in self._places():
            self._ready["back"] = place
        try:
            place.walk(self.trace, position)
            yield place.state
        finally:
            self._here.walk(self.trace, here)

    def is_near(self, position: int) -> bool:
        """Whether the way to `position` is short, from here or from a place that is kept."""
        return _is_near(self._places(), position)

    def sees(self, position: int) -> bool:
        """Whether `look_back` to `position` costs little."""
        place = min(self._places(), key=lambda place: place.way_to(position))
        way_back = place.position - position if place is self._here else 0
        return place.way_to(position) <= NEAR and way_back <= 2 * NEAR

    def seek(self, position: int, keep: bool = True) -> None:
        """Go to `position`, clamped to what is recorded. Raises TraceError where an event does not apply.

        keep: after a far jump, the place that is left is kept for a while, so that the way back is short.
        """
        target = max(0, min(position, len(self.trace)))
        if self._here.way_to(target) <= NEAR:
            self._here.walk(self.trace, target)
            return
        self._go_to(self._best_start(target), keep)
        self._here.walk(self.trace, target)
        self._has_grown()
        if len(self._left) > _LEFT + 1:
            self._forget()

    def prepare(self, position: int) -> Iterator[None]:
        """Make the way to `position` short before somebody wants to go there, a few milliseconds a turn."""
        return self._prepare("there", min(position, len(self.trace)))

    def prepare_end(self) -> Iterator[None]:
        """Make the way to the end of what is recorded short."""
        return self._prepare("end", len(self.trace))

    def prepare_way_back(self) -> Iterator[None]:
        """Make the way back short beyond what can be taken back, if that is not far.

        What `prepare` has made and nobody wanted is let go of.
        """
        self._ready.pop("there", None)
        here = self._here
        return self._prepare("back", here.first - 1 if len(here.undo) < KEPT // 4 else 0)

    def _prepare(self, name: str, target: int) -> Iterator[None]:
        """Make a place ready, the only one of that name."""
        self._forget()
        begun = self._ready.get(name)
        others = [place for place in self._places() if place is not begun]
        if target <= 0 or self._damaged or _is_near(others, target):
            return
        try:
            if begun and begun.position <= target <= begun.position + NEAR:
                place = begun
            else:
                self._ready.pop(name, None)
                start = self._stored_before(target)
                yield from self.trace.read_keyframe_ahead(start)
                place = self._ready[name] = self._load(start)
                for seq_id in place.state["running"]:
                    yield
                    place.state["seqs"].get(seq_id)  # decoded now: an event may change them all
            while place.position < target:
                yield
                if self._ready.get(name) is not place:
                    return  # somebody went there, and on from there
                place.walk(self.trace, min(place.position + _SLICE, target))
        except TraceError:  # going there will tell
            self._damaged = True
        else:
            self._has_grown()

    def _places(self) -> list[_Place]:
        return [self._here, *self._left, *self._ready.values()]

    def _best_start(self, target: int) -> _Place:
        """Where the way to `target` is shortest: here, a place that was left or prepared, or a keyframe."""
        nearest = min(self._places(), key=lambda place: place.way_to(target))
        start = self._stored_before(target)
        load = self.trace.keyframe_size(start) // _BYTES
        return self._load(start) if load + target - start < nearest.way_to(target) else nearest

    def _stored_before(self, target: int) -> int:
        """Where to start the way to `target`, so that the last two steps can be taken back, if they are short."""
        for _ in range(2):
            step = self.trace.step_at(target)
            if step and target - step.start <= NEAR:
                target = step.start
        return self.trace.keyframe_at_or_before(target)

    def _load(self, start: int) -> _Place:
        return _Place(start, self.trace.keyframe(start))

    def _go_to(self, place: _Place, keep: bool) -> None:
        """Be at another place."""
        if place is self._here:
            return
        self._ready = {name: ready for name, ready in self._ready.items() if ready is not place}
        self._left = [left for left in self._left if left is not place]
        if keep:
            self._left.append(self._here)
        self._here = place

    def _forget(self) -> None:
        """Let go of places that were left long ago: to free a million objects takes a while."""
        del self._left[:-_LEFT]

    def next_step(self) -> bool:
        """Go to the end of the next step. False at the end of what is recorded."""
        if self.at_end:
            return False
        following = self.trace.step_at(self.position + 1)
        self.seek(following.end if following else len(self.trace))
        return True

    def previous_step(self) -> bool:
        """Go to the end of the step before (or the start). False at the start."""
        step = self.step
        if step is None:
            return False
        self.seek(step.start)
        return True


def _is_near(places: list[_Place], target: int) -> bool:
    return any(place.way_to(target) <= NEAR for place in places)
