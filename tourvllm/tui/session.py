"""What the app shows and how keys move it: a trace, a place in it, and, for a live run, the engine behind it.

Everything recorded is walked with the cursor alone. Only a key that leads past the recorded end drives the engine;
going back never disturbs it. Keys that come while the engine is on its way wait their turn, in order.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from ..host import FIRST_HALT, Command
from ..tour.cursor import Cursor
from ..tour.errors import TraceError
from ..tour.stops import MARKS, group_of
from ..tour.trace import Event, Trace, ends_phase
from ..tour.triggers import Search, search
from .links import Link

MAX_WAITING_KEYS = 1000
LONG_RUNS = ("break", "end")


class Session:
    """A replay (no link) or a live run (with one). `changed` is called whenever there is something new to show."""

    def __init__(self, trace: Trace, link: Link | None = None, steps: int | None = None) -> None:
        self.trace = trace
        self.link = link
        self.steps = steps
        self.cursor = Cursor(trace) if trace.header is not None else None
        self.status = "" if link is None else "starting"
        self.error: str | None = None
        self.message = ""
        self.ended = link is None
        self.changed: Callable[[], None] = lambda: None
        self._goal: Command | None = None
        self._search: Search | None = None
        self._searches_forward = True
        self._waiting: deque[Callable[[], None]] = deque()
        if self.cursor is not None:
            self._go_to_first_step()

    @property
    def live(self) -> bool:
        """Whether an engine is behind the trace."""
        return self.link is not None

    @property
    def searching(self) -> bool:
        """Whether a search over what is recorded is on its way."""
        return self._search is not None

    @property
    def busy(self) -> bool:
        """Whether the engine is on its way to where a key sent it."""
        return (
            self._goal is not None
            or self.searching
            or (self.live and self.status != "ready" and not self.ended)
        )

    async def start(self, order: dict[str, Any]) -> None:
        """Start the engine of a live run and let it go to the first step."""
        if self.link:
            await self.link.start(order, self.receive, self.lost)

    async def close(self) -> None:
        """End the engine."""
        if self.link:
            await self.link.close()

    # What keys do

    def do(self, action: Callable[[], None]) -> None:
        """Run a moving action now, or after those that are on their way."""
        self.message = ""
        if self.busy:
            if self._goal and self._goal.get("until") in LONG_RUNS and self.link:
                self.link.send({"cmd": "pause"})
            if len(self._waiting) < MAX_WAITING_KEYS:
                self._waiting.append(action)
        else:
            self._run(action)
        self.changed()

    def next_step(self) -> None:
        """To the end of the next step."""
        cursor = self._cursor()
        step = self.trace.step_at(cursor.position + 1)
        if self._can_drive() and (cursor.at_end or (step and step.facts.get("when") != "end")):
            self._drive({"until": "step"})
        elif not cursor.next_step():
            self._say_end()

    def previous_step(self) -> None:
        """To the end of the step before."""
        if not self._cursor().previous_step():
            self.message = "This is the start."

    def next_stop(self) -> None:
        """One stop on."""
        cursor = self._cursor()
        if not cursor.at_end:
            cursor.seek(cursor.position + 1)
        elif self._can_drive():
            self._drive({"until": "event"})
        else:
            self._say_end()

    def previous_stop(self) -> None:
        """One stop back."""
        cursor = self._cursor()
        if cursor.position == 0:
            self.message = "This is the start."
        cursor.seek(cursor.position - 1)

    def next_in_group(self, key: int) -> None:
        """To the next stop of group `key` (1 to 6)."""

        def in_group(event: Event) -> bool:
            group = group_of(event.stop)
            return group is not None and group.key == key

        self._to_next(in_group, {"until": "group", "group": key})

    def finish_phase(self) -> None:
        """On to the end of this phase of the step: the scheduling, the model's pass, the closing."""
        self._to_next(ends_phase, {"until": "phase"})

    def _to_next(self, wanted: Callable[[Event], bool], goal: Command) -> None:
        """To the next recorded event that is wanted; with none, let the engine run to `goal`."""
        cursor = self._cursor()
        for position in range(cursor.position + 1, len(self.trace) + 1):
            if wanted(self.trace.event(position - 1)):
                cursor.seek(position)
                return
        cursor.seek(len(self.trace))
        if self._can_drive():
            self._drive(goal)
        else:
            self._say_end()

    def next_mark(self) -> None:
        """On to the next preemption, end, eviction, rejection or bookmark."""
        cursor = self._cursor()
        ahead = [mark.position for mark in self.trace.marks if mark.position > cursor.position]
        if ahead:
            cursor.seek(min(ahead))
            return
        cursor.seek(len(self.trace))
        if self._can_drive():
            self._drive({"until": "break", "breakpoints": list(MARKS)})
        else:
            self.message = "No mark after this."

    def previous_mark(self) -> None:
        """Back to the last mark."""
        cursor = self._cursor()
        behind = [mark.position for mark in self.trace.marks if mark.position < cursor.position]
        if behind:
            cursor.seek(max(behind))
        else:
            self.message = "No mark before this."

    def run_on(self) -> None:
        """To the next breakpoint; with none ahead, to the end."""
        self._search = search(self._cursor(), self.breakpoints, forward=True)
        self._searches_forward = True
        self.search_on(0.1)

    def run_back(self) -> None:
        """Back to the last breakpoint; with none behind, to the start."""
        self._search = search(self._cursor(), self.breakpoints, forward=False)
        self._searches_forward = False
        self.search_on(0.1)

    def search_on(self, seconds: float) -> None:
        """Go on with a search over what is recorded, for a while: the screen must not stand still meanwhile."""
        until = time.monotonic() + seconds
        try:
            while self._search is not None and time.monotonic() < until:
                next(self._search)
        except StopIteration as done:
            self._search = None
            self._searched(done.value)
            self._run_waiting()
        except Exception as error:  # a stranger's trace may hold anything
            self._search = None
            self.message = f"The trace is damaged here: {error}"

    def _searched(self, hit: str | None) -> None:
        if hit is not None:
            self.message = f"Breakpoint: {hit}"
        elif not self._searches_forward:
            self.message = "No breakpoint before this: this is the start."
        elif self._can_drive():
            self._drive({"until": "break", "breakpoints": self.breakpoints})
        else:
            self._say_end()

    def go_to_step(self, number: int) -> None:
        """To the end of step `number`, if it is recorded."""
        for step in self.trace.steps:
            if step.number == number:
                self._cursor().seek(step.end)
                return
        last = self.trace.steps[-1].number if self.trace.steps else 0
        more = " Press n to go on from the end." if self._can_drive() else ""
        self.message = f"There is no step {number}: steps 1 to {last} are recorded.{more}"

    def go_to_start(self) -> None:
        """To the initial state."""
        self._cursor().seek(0)

    def go_to_end(self) -> None:
        """To the end of what is recorded."""
        self._cursor().seek(len(self.trace))

    def pause(self) -> None:
        """Halt a run or a search that is on its way."""
        if self._search is not None:
            self._search = None
            self._waiting.clear()
            self.message = "The search was stopped here."
        if self._goal and self.link:
            self.link.send({"cmd": "pause"})
            self._waiting.clear()

    # What the engine's side says

    def receive(self, lines: list[bytes]) -> None:
        """Take in lines from the engine's side."""
        for line in lines:
            try:
                kind = (
                    self.trace.feed(line) if self.trace.header or b'"header"' in line[:20] else ""
                )
                if kind in ("", "status", "paused", "failed", "done"):
                    self._control(msgspec.json.decode(line))
            except (TraceError, msgspec.MsgspecError) as error:
                self.error = f"The engine sent what is not a trace: {error}"
        self.changed()

    def lost(self, reason: str) -> None:
        """The engine's side is gone. `reason` is empty if it ended well."""
        self._end()
        if reason and not self.error:
            self.error = f"{reason} What was recorded until then is here."
        self.changed()

    def follow(self) -> None:
        """Show the newest event while the engine is on a long way."""
        if self._goal and self.cursor:
            self.cursor.seek(len(self.trace))

    def _control(self, said: dict[str, Any]) -> None:
        kind = said.get("kind")
        if kind == "status":
            self.status = said["text"]
            if self.status == "ready":
                self.cursor = Cursor(self.trace)
                self._drive(FIRST_HALT)
        elif kind == "paused":
            if (
                said.get("breakpoint")
                and self._goal
                and self._goal["breakpoints"] == self.breakpoints
            ):
                self.message = f"Breakpoint: {said['breakpoint']}"
            self._arrive()
        elif kind == "done":
            self._end()
        elif kind == "failed":
            self.error = said["error"]
            self._end()

    def _arrive(self) -> None:
        self._goal = None
        if self.cursor:
            self.cursor.seek(len(self.trace))
        self._run_waiting()

    def _run_waiting(self) -> None:
        """The keys that came meanwhile, in order."""
        while self._waiting and not self.busy:
            self._run(self._waiting.popleft())

    def _end(self) -> None:
        self.ended = True
        self.status = "ready"
        self._arrive()

    def _run(self, action: Callable[[], None]) -> None:
        if self.cursor is None:
            return
        try:
            action()
        except Exception as error:  # a stranger's trace may hold anything
            self.message = f"The trace is damaged here: {error}"

    def _cursor(self) -> Cursor:
        if self.cursor is None:
            raise TraceError("nothing is recorded yet")
        return self.cursor

    def _can_drive(self) -> bool:
        if self.steps and self.trace.steps and self.trace.steps[-1].facts.get("when") == "end":
            return self.live and not self.ended and self.trace.steps[-1].number < self.steps
        return self.live and not self.ended

    def _drive(self, goal: Command) -> None:
        if self.link:
            self._goal = {**goal, "cmd": "go"}
            self.link.send(self._goal)

    @property
    def breakpoints(self) -> list[str]:
        """The scenario's breakpoints."""
        found = self.trace.table("scenario").get("breakpoints")
        return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []

    def _go_to_first_step(self) -> None:
        cursor = self._cursor()
        try:
            for position in range(1, min(len(self.trace), 2000) + 1):
                if self.trace.event(position - 1).stop == "step":
                    cursor.seek(position)
                    return
        except TraceError as error:
            self.message = f"The trace is damaged: {error}"

    def _say_end(self) -> None:
        if self.error:
            self.message = "This is the end: the engine stopped here."
        elif self.live and not self.ended:
            self.message = f"This is the end: --steps {self.steps} is reached."
        else:
            self.message = "This is the end of the run. p goes back, q quits."
