"""A place in a trace and the state there: forwards, backwards, to any event, to any step."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .patch import Patch, apply, undo
from .trace import Event, Step, Trace

FAR = 16_384
"""Events that are walked one by one; what is farther away is reached from a stored state."""

_LEFT = 2
"""Places that are kept when a far jump leaves them: one often goes back there."""


@dataclass(eq=False)
class _Place:
    """A position, the state there, and for each of the last events what takes it back."""

    position: int
    state: dict[str, Any]
    undo: deque[list[tuple[Any, ...]]] = field(default_factory=lambda: deque(maxlen=FAR))

    def walk_to(self, target: int) -> int:
        """How many events are to be walked from here to `target`; very many if it cannot be done."""
        if target < self.position - len(self.undo):
            return 2**62
        return abs(target - self.position)


class Cursor:
    """Walks a trace. `state` is the state after `position` events; it must not be changed by callers.

    Stepping forward keeps what is needed to step back, so neighbours cost one event; a far jump starts from the
    nearest keyframe, or from a place that an earlier jump has left. What a position shows never depends on how
    one came there.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._here = _Place(0, trace.initial_state())
        self._left: deque[_Place] = deque(maxlen=_LEFT)

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

    def seek(self, position: int) -> None:
        """Go to `position`, clamped to what is recorded. Raises TraceError where an event does not apply."""
        target = max(0, min(position, len(self.trace)))
        if self._here.walk_to(target) > FAR:
            self._jump(target)
        here = self._here
        while here.position > target:
            for token in reversed(here.undo.pop()):
                undo(here.state, token)
            here.position -= 1
        if here.position < target:
            self._walk(target)

    def _jump(self, target: int) -> None:
        """Go to where the walk to `target` is shortest: a keyframe, a place that was left, or here."""
        start = self.trace.keyframe_at_or_before(target)
        nearest = min([self._here, *self._left], key=lambda place: place.walk_to(target))
        if target - start < nearest.walk_to(target):
            nearest = _Place(start, self.trace.keyframe(start))
        if nearest is not self._here:
            if nearest in self._left:
                self._left.remove(nearest)
            self._left.append(self._here)
            self._here = nearest

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

    def changes(self) -> list[Patch]:
        """The patches that led here: of the whole step at a step's end, else of the one event."""
        step = self.step
        if step is None:
            return []
        first = step.start if self.at_step_end else self.position - 1
        return [
            patch for patches in self.trace.each_patches(first, self.position) for patch in patches
        ]

    def _walk(self, target: int) -> None:
        """Forward to `target`; what takes an event back is kept for the last ones."""
        here, trace = self._here, self.trace
        for patches in trace.each_patches(here.position, target):
            done = _apply_all(here.state, patches)
            if target - here.position <= FAR:
                here.undo.append(done)
            here.position += 1
            trace.compare_keyframe(here.position, here.state)


def _apply_all(state: dict[str, Any], patches: list[Patch]) -> list[tuple[Any, ...]]:
    """Apply an event's patches, all or none. What `undo` needs, in their order."""
    done: list[tuple[Any, ...]] = []
    try:
        for patch in patches:
            done.append(apply(state, patch))
    except Exception:
        for token in reversed(done):
            undo(state, token)
        raise
    return done
