"""How keys move a session.

Everything recorded is walked with the cursor alone. Only a key that leads past the recorded end drives the engine;
going back never disturbs it. Keys that come while the engine or a search is on its way wait their turn, in order.
"""

import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from ..host import Command
from ..tour.errors import TourError, TraceError
from ..tour.expressions import names
from ..tour.lessons import Score
from ..tour.stops import STOPS
from ..tour.trace import Ask, Step, Trace
from ..tour.triggers import search
from . import breakpoints, find
from .ahead import Ahead
from .bookmarks import Bookmarks
from .driver import Driver
from .links import Link
from .rerun import ids_in_scenario

MAX_WAITING_KEYS = 100_000
FIRST_LOOK = 0.1
"""Seconds that a search may take before the screen shows that it goes on."""


class Session(Driver):
    """A run as its reader walks it."""

    def __init__(
        self,
        trace: Trace,
        link: Link | None = None,
        steps: int | None = None,
        path: Path | None = None,
    ) -> None:
        self._search: Generator[None, None, Any] | None = None
        self._found: Callable[[Any], None] = lambda found: None
        self._forward = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._ids: set[str] = set()
        self._came_from: int | None = None
        self.ahead = Ahead(self)
        super().__init__(trace, link, steps, path)
        if self.cursor is not None:
            self._go_to_first_step()

    @property
    def pending_ask(self) -> Ask | None:
        """The question to ask now."""
        return None if self.busy else self.asks.pending

    @property
    def score(self) -> Score:
        """How the questions were answered so far."""
        return self.asks.score

    @property
    def walked(self) -> bool:
        """Whether the reader is at the end of a run that is whole, with no question left open."""
        if self.cursor is None or not self.cursor.at_end or self.error:
            return False
        if self._came_from is not None:  # merely seen, while a step is typed
            return False
        whole = self.trace.complete and (self.ended or not self.live)
        return (whole or self._all_served()) and self.asks.all_closed

    def _all_served(self) -> bool:
        """Whether the live engine halts where every request of the scenario has come and gone."""
        if not self.live or not self.place().at_step_end:
            return False
        state = self.place().state
        left = state.get("waiting") or state.get("running") or self.request_ids - set(state["seqs"])
        return not left

    @property
    def request_ids(self) -> set[str]:
        """Every request of the scenario, and of the state on the screen."""
        if not self._ids:
            self._ids = ids_in_scenario(self.trace)
        return self._ids | set(self.place().state.get("seqs") or ())

    @property
    def reading(self) -> bool:
        """Whether the trace's file is still read."""
        return self.trace.share < 1

    def read_on(self, seconds: float) -> bool:
        """Read more of the file, for a while. Whether there is something new to show."""
        before, until = self.trace.share, time.monotonic() + seconds
        for _ in self.trace.rest:
            if time.monotonic() > until:
                return int(100 * before) < int(100 * self.trace.share)
        self.message = self.trace.problem or Bookmarks(self.trace).load() or self.message
        return True

    # A step is typed

    def expect_step(self, number: int) -> str:
        """The reader may want to go to step `number` next. What to say if it is not recorded."""
        end = self._end_of(number)
        if end is not None:
            self.ahead.expect(end)
            return ""
        self.peek_no_more()
        if self.can_drive:
            return f"Step {number} has not been made yet: Enter lets the engine run on to it."
        return self._no_step(number)

    def peek(self) -> bool:
        """Be at the expected step already, if the way there is short. Whether there is something new to show."""
        cursor, position = self.place(), self.ahead.expected
        if position is None or position == cursor.position or not cursor.is_near(position):
            return False
        first = self._came_from is None
        if first:
            self._came_from = cursor.position
        # What is kept is where the reader came from.
        if not self._succeeds(partial(cursor.seek, position, keep=first)):
            self.ahead.expect(None)
        return True

    def stay(self, number: int) -> bool:
        """Be at step `number` for good. False if the reader does not see it yet: then go there."""
        cursor = self.place()
        seen = self._came_from is not None and cursor.at_step_end
        if not seen or cursor.position != self._end_of(number):
            return False
        self.ahead.expect(None)
        self._came_from = None
        return True

    def peek_no_more(self) -> None:
        """Be where the reader was before a step was typed."""
        self.ahead.expect(None)
        came_from, self._came_from = self._came_from, None
        if came_from is not None:
            self._succeeds(partial(self.place().seek, came_from))

    def _end_of(self, number: int) -> int | None:
        """The position after step `number`; the last one, should a trace have several."""
        ends = [step.end for step in self.trace.steps if step.number == number]
        return ends[-1] if ends else None

    @property
    def searching(self) -> bool:
        """Whether a search over what is recorded is on its way."""
        return self._search is not None

    @property
    def busy(self) -> bool:
        """Whether the engine or a search is on its way to where a key sent it."""
        return self.driven or self.searching

    def do(self, action: Callable[[], None]) -> None:
        """Run a moving action now, or after those that are on their way."""
        self.message = ""
        self.ahead.expect(None)
        if self.busy:
            if self.goal and (self.goal["until"] in ("break", "mark") or "number" in self.goal):
                self.halt()
            if len(self._waiting) < MAX_WAITING_KEYS:
                self._waiting.append(action)
        else:
            self._run(action)
        self.changed()

    # By steps and stops

    def next_step(self) -> None:
        """To the end of the next step."""
        step = self._step_ahead()
        if self.place().at_end or (step and not step.is_whole and self.can_drive):
            self._go_on({"until": "step"})
        else:
            self.advance(step.end if step else len(self.trace))

    def _step_ahead(self) -> Step | None:
        """The next step. Where its file is still being read, that goes on to its end, if that is not far."""
        here, until = self.place().position, time.monotonic() + FIRST_LOOK
        while True:
            step = self.trace.step_at(here + 1) if here < len(self.trace) else None
            whole = step is not None and step.is_whole
            if whole or not self.reading or time.monotonic() > until:
                return step
            self.read_on(0)

    def play_step(self) -> None:
        """To the end of the next step, or to a breakpoint before it."""
        cursor = self.place()
        goal = {"until": "step", "breaks": True}
        if cursor.at_end:
            self._go_on(goal)
            return
        step = self._step_ahead()
        target = step.end if step else len(self.trace)

        def arrived(hit: str | None) -> None:
            if hit is not None:
                self.tell_hit(hit)
            elif cursor.at_end and not cursor.at_step_end and self.can_drive:
                self._go_on(goal)

        steps = breakpoints.search_to(cursor, self.lines, target)
        self._look(steps, arrived, forward=True)

    def previous_step(self) -> None:
        """To the end of the step before."""
        if not self.place().previous_step():
            self.message = "This is the start."

    def next_stop(self) -> None:
        """One stop on."""
        cursor = self.place()
        if cursor.at_end:
            self._go_on({"until": "event"})
        else:
            self.advance(cursor.position + 1)

    def previous_stop(self) -> None:
        """One stop back."""
        cursor = self.place()
        if cursor.position == 0:
            self.message = "This is the start."
        cursor.seek(cursor.position - 1)

    def next_in_group(self, key: int) -> None:
        """To the next stop of group `key` (1 to 6)."""
        names = {name for name, stop in STOPS.items() if stop.group.key == key}
        position = self.trace.next_position(names, self.place().position)
        self._to_next(position, {"until": "group", "group": key})

    def finish_phase(self) -> None:
        """On to the end of this phase of the step: the scheduling, the model's pass, the closing."""
        self._to_next(self.trace.next_phase_end(self.place().position), {"until": "phase"})

    def _to_next(self, position: int | None, goal: Command) -> None:
        """On to a recorded position; with none, let the engine run to `goal`."""
        if position is None:
            self._go_on(goal)
        else:
            self.advance(position)

    def _go_on(self, goal: Command) -> None:
        """From the recorded end on to `goal`, if there is an engine."""
        if not self.advance(len(self.trace)):
            return
        if self.can_drive:
            self.drive(goal)
        else:
            self._say_end()

    def next_mark(self) -> None:
        """On to the next note, question, preemption, end, eviction, rejection or bookmark."""
        here = self.place().position
        ahead = [position for position in self._landmarks() if position > here]
        if ahead:
            self.advance(min(ahead))
        elif not self.advance(len(self.trace)):
            return
        elif self.can_drive:
            self.drive({"until": "mark"})
        else:
            self.message = "No note or mark after this."

    def previous_mark(self) -> None:
        """Back to the last of them."""
        cursor = self.place()
        behind = [position for position in self._landmarks() if position < cursor.position]
        if behind:
            cursor.seek(max(behind))
        else:
            self.message = "No note or mark before this."

    def _landmarks(self) -> set[int]:
        """The positions where something is told or asked, or that the timeline marks."""
        marks = {mark.position for mark in self.trace.marks}
        return marks | self.trace.notes.keys() | self.trace.asks.keys()

    # Jumps: they never ask

    def go_to_step(self, number: int) -> None:
        """To the end of step `number`: if it is not recorded yet, a live engine runs there."""
        end = self._end_of(number)
        if end is None:
            self.peek_no_more()
        else:
            self.place().seek(end)
            self._came_from = None
        last = self._last_step
        ahead = number > last or (number == last and not self.place().at_step_end)
        if ahead and self.can_drive:
            self.place().seek(len(self.trace))
            goal = {"until": "step", "number": min(number, self.steps or number)}
            self.drive(goal, asking=False)
        elif end is None:
            self.message = self._no_step(number)

    @property
    def _last_step(self) -> int:
        """The number of the last step that is recorded; 0 if there is none."""
        return self.trace.steps[-1].number if self.trace.steps else 0

    def _no_step(self, number: int) -> str:
        last = self._last_step
        if self.reading:
            return f"There is no step {number} in what is read so far, steps 1 to {last}."
        if self.live and self.place().at_end:
            return (
                f"There is no step {number}: the run ended with step {last}, and you are there now."
            )
        return f"There is no step {number}: steps 1 to {last} are recorded."

    def go_to_start(self) -> None:
        """To the initial state."""
        self.place().seek(0)

    def go_to_end(self) -> None:
        """To the end of what is recorded."""
        self.place().seek(len(self.trace))
        if self.can_drive:
            self.message = "This is the end of what is recorded; c lets the engine run on."
        elif self.reading:
            self._say_end()

    # Searches

    def run_on(self) -> None:
        """To the next breakpoint; with none ahead, to the end."""
        if self._say_broken():
            return
        steps = search(self.place(), self.lines, forward=True)
        self._look(steps, self._breakpoint_ahead, forward=True)

    def run_back(self) -> None:
        """Back to the last breakpoint; with none behind, to the start."""
        if self._say_broken():
            return
        steps = search(self.place(), self.lines, forward=False)
        self._look(steps, self._breakpoint_behind)

    def find_text(self, text: str) -> None:
        """On to the next recorded stop that has to do with `text`; after the last one, to the first."""
        here = self.place().position

        def found(position: int | None) -> None:
            if position is None:
                so_far = "read so far" if self.reading else "recorded"
                self.message = f"{text!r} is nowhere in what is {so_far}."
            elif position == here:
                self.message = f"{text!r} is only here."
            else:
                self.place().seek(position)
                again = ", from the start again" if position < here else ""
                self.message = f"Found {text!r}{again}. / and Enter: the next one."

        self._look(find.next_text(self.trace, here, text), found)

    def _say_broken(self) -> bool:
        """Whether a breakpoint that is on cannot be evaluated here: then it says so."""
        broken = breakpoints.broken(self.place(), self.lines)
        if broken:
            self.tell_hit(broken)
        return broken is not None

    def _breakpoint_ahead(self, hit: str | None) -> None:
        if hit is not None:
            self.tell_hit(hit)
        else:
            self._go_on({"until": "break"})

    def _breakpoint_behind(self, hit: str | None) -> None:
        if hit is not None:
            self.tell_hit(hit)
        else:
            self.message = "No breakpoint before this: this is the start."

    def _look(
        self,
        steps: Generator[None, None, Any],
        found: Callable[[Any], None],
        forward: bool = False,
    ) -> None:
        """Search; what it finds is handed to `found`. `forward`: it moves the cursor on by itself."""
        self._search, self._found, self._forward = steps, found, forward
        self.search_on(FIRST_LOOK)

    def search_on(self, seconds: float) -> None:
        """Go on with a search over what is recorded, for a while: the screen must not stand still meanwhile."""
        until = time.monotonic() + seconds
        try:
            while self._search is not None and time.monotonic() < until:
                self._search_step(self._search)
        except Exception as error:  # a stranger's trace may hold anything
            self._search = None
            self._tell(error)
        if self._search is None:
            self._run_waiting()

    def _search_step(self, steps: Generator[None, None, Any]) -> None:
        """One step of a search; it ends when it has found something, or passes an open question."""
        before, done = self.place().position, None
        try:
            next(steps)
        except StopIteration as end:
            self._search, done = None, end
        after = self.place().position
        if self._forward and self.asks.ahead(before, after):
            self._search = None
            self.place().seek(before)
            self.advance(after)
        elif done is not None:
            self._found(done.value)

    def pause(self) -> None:
        """Halt a run or a search that is on its way."""
        if self._search is not None:
            self._search = None
            self._waiting.clear()
            self.message = "The search was stopped here."
        if self.goal:
            self.halt()
            self._waiting.clear()

    # Questions and bookmarks

    def answer(self, text: str | None) -> None:
        """Take the answer to the pending question (None: it was skipped) and show what really happens."""
        ask = self.asks.pending
        if ask is not None:
            self.asks.close(ask, text)
            self.place().seek(ask.i)

    def bookmark(self, say: str) -> None:
        """Mark this place with a note: in the trace while it is recorded, else beside the user's data."""
        if self.reading:
            raise TourError("The trace is still being read: bookmark it when it is whole.")
        cursor = self.place()
        where = {"i": cursor.position, "step": cursor.step.number if cursor.step else 0}
        if self.link and self.recording:
            self.link.send({"cmd": "bookmark", "say": say, **where})
        else:
            Bookmarks(self.trace).add(say=say, **where)
        self.message = f"Bookmark: {say}"

    # The keys that came meanwhile

    def _run_waiting(self) -> None:
        while self._waiting and not self.busy and not self.asks.pending:
            self._run(self._waiting.popleft())
        if self.asks.pending:
            self._waiting.clear()  # typed before the question was seen: they are no answer to it

    def _run(self, action: Callable[[], None]) -> None:
        if self.cursor is None:
            return
        self.asks.pending = None
        self._succeeds(action)

    def _succeeds(self, action: Callable[[], None]) -> bool:
        """Do it, and say so if it cannot be done: a stranger's trace may hold anything."""
        try:
            action()
        except Exception as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        known = isinstance(error, TourError) and not isinstance(error, TraceError)
        self.message = str(error) if known else f"The trace is damaged here: {error}"

    def is_sound(self) -> bool:
        """Whether the place can be talked about; if not, it is said why."""
        cursor = self.place()
        try:
            names(cursor.state, cursor.event)
            if not isinstance(cursor.state.get("seqs"), dict):
                raise TraceError("seqs is no table of requests")
        except Exception as error:  # a stranger's trace may hold anything
            self._tell(error)
            return False
        return True

    def _arrive(self, hit: str | None) -> None:
        number = self.goal.get("number", 0) if self.goal else 0
        super()._arrive(hit)
        if number > self._last_step and self.ended and not self.error:
            self.message = self._no_step(number)
        self._run_waiting()

    def _open(self) -> None:
        super()._open()
        if not self.live and not self.reading:
            self.message = Bookmarks(self.trace).load()

    def _go_to_first_step(self) -> None:
        try:
            position = self.trace.next_position({"step"}, 0)
            if position is not None:
                self.advance(position)
        except Exception as error:  # a stranger's trace may hold anything
            self._tell(error)

    def _say_end(self) -> None:
        if self.reading:
            self.message = "The trace is read to here; the rest is still being read."
        elif self.error:
            self.message = "This is the end: the engine stopped here."
        elif self.live and not self.ended:
            self.message = f"This is the end: --steps {self.steps} is reached."
        else:
            self.message = "This is the end of the run. p goes back, q quits."
