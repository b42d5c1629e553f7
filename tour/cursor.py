"""A place in a trace and the state there: forwards, backwards, to any event, to any step."""

from collections import deque
from typing import Any

from .patch import Patch, apply, undo
from .trace import Event, Step, Trace

FAR = 4096
"""Events that are walked one by one; what is farther away is reached from a keyframe."""


class Cursor:
    """Walks a trace. `state` is the state after `position` events; it must not be changed by callers.

    Stepping forward keeps what is needed to step back, so neighbours cost one event; a far jump starts from the
    nearest keyframe. What a position shows never depends on how one came there.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.position = 0
        self.state: dict[str, Any] = trace.initial_state()
        self._undo: deque[list[tuple[Any, ...]]] = deque(maxlen=FAR)

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
        forward = target - self.position
        if forward > FAR or -forward > min(len(self._undo), FAR):
            start = self.trace.keyframe_at_or_before(target)
            if forward < 0 or start > self.position:
                self.state = self.trace.keyframe(start)
                self.position = start
                self._undo.clear()
        while self.position > target:
            for token in reversed(self._undo.pop()):
                undo(self.state, token)
            self.position -= 1
        while self.position < target:
            self._forward()

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
            patch for index in range(first, self.position) for patch in self.trace.event(index).do
        ]

    def _forward(self) -> None:
        done: list[tuple[Any, ...]] = []
        try:
            for patch in self.trace.event(self.position).do:
                done.append(apply(self.state, patch))
        except Exception:
            for token in reversed(done):
                undo(self.state, token)
            raise
        self._undo.append(done)
        self.position += 1
        self.trace.compare_keyframe(self.position, self.state)
