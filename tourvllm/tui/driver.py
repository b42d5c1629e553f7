"""A trace, a place in it, and the engine behind it, if there is one: commands go out, trace lines come in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..host import FIRST_HALT, Command
from ..tour.cursor import Cursor
from ..tour.errors import TraceError
from ..tour.trace import Trace
from . import breakpoints, garbage, watch
from .asks import Asks
from .breakpoints import BreakpointEntry
from .links import Link


class Driver:
    """A replay (no link) or a live run (with one). `changed` is called whenever there is something new to show.

    The cursor never moves forward over an open question: it halts before it and `pending_ask` holds it.
    """

    def __init__(
        self,
        trace: Trace,
        link: Link | None = None,
        steps: int | None = None,
        path: Path | None = None,
    ) -> None:
        self.trace = trace
        self.link = link
        self.steps = steps
        self.path = path
        self.asks = Asks(trace)
        self.breakpoints: list[BreakpointEntry] = []
        self.watches: list[str] = []
        self.cursor: Cursor | None = None
        self.status = "" if link is None else "starting"
        self.error: str | None = None
        self.message = ""
        self.ended = link is None
        self.changed: Callable[[], None] = lambda: None
        self.goal: Command | None = None
        self._asking = True
        if trace.header is not None:
            self._open()

    @property
    def live(self) -> bool:
        """Whether this is a run of an engine, also one that has ended."""
        return self.link is not None

    @property
    def recording(self) -> bool:
        """Whether the trace file is still written."""
        return self.live and not self.ended

    @property
    def name(self) -> str:
        """The scenario's name, and the settings that were changed."""
        table = self.trace.table("scenario")
        settings = table.get("settings")
        changes = settings.items() if isinstance(settings, dict) else ()
        told = ", ".join(f"{key.removeprefix('engine.')}={value}" for key, value in changes)
        return f"{table.get('name', '')} {told}".strip()

    @property
    def driven(self) -> bool:
        """Whether the engine is on its way to where a key sent it, or still starting."""
        return self.goal is not None or (self.live and self.status != "ready" and not self.ended)

    @property
    def can_drive(self) -> bool:
        """Whether the engine can go on from the recorded end."""
        if self.steps and self.trace.steps and self.trace.steps[-1].is_whole:
            return self.live and not self.ended and self.trace.steps[-1].number < self.steps
        return self.live and not self.ended

    async def start(self, order: dict[str, Any]) -> None:
        """Start the engine of a live run and let it go to the first step."""
        if self.link:
            await self.link.start(order, self.receive, self.lost)

    async def close(self) -> None:
        """End the engine."""
        self.ended = True
        if self.link:
            await self.link.close()

    def place(self) -> Cursor:
        """The cursor. Raises TraceError while there is nothing to walk."""
        if self.cursor is None:
            raise TraceError("nothing is recorded yet")
        return self.cursor

    # Moving

    def advance(self, position: int) -> bool:
        """Go on to `position`, or to just before the first open question on the way. Whether it was reached."""
        cursor = self.place()
        self.asks.pending = self.asks.ahead(cursor.position, position)
        cursor.seek(self.asks.pending.i - 1 if self.asks.pending else position)
        return self.asks.pending is None

    def drive(self, goal: Command, asking: bool = True) -> None:
        """Let the engine run to `goal`. Without `asking` the questions on the way stay open."""
        if not self.link:
            return
        for _ in breakpoints.count_hits(self.trace, self.breakpoints):
            pass  # the engine counts on from here
        self.goal, self._asking = goal, asking
        self.link.send(
            {
                **goal,
                "cmd": "go",
                "breakpoints": self.lines,
                "counts": {entry.line: entry.count for entry in self.breakpoints},
            }
        )

    def halt(self) -> None:
        """Ask the engine to halt at its next stop."""
        if self.goal and self.link:
            self.link.send({"cmd": "pause"})

    @property
    def lines(self) -> list[str]:
        """The breakpoints that are on."""
        return [entry.line for entry in self.breakpoints if entry.enabled]

    def follow(self) -> None:
        """Show what is newest while the engine is on a long way.

        The very last event is left out: a question that belongs before it may still be on the wire.
        """
        if self.goal and self.cursor and not self.asks.pending:
            self._go_along(max(self.cursor.position, len(self.trace) - 1))
            if self.asks.pending:
                self.halt()

    def _go_along(self, position: int) -> bool:
        """With the engine to `position`; whether no question came between."""
        if self._asking:
            return self.advance(position)
        self.place().seek(position)
        return True

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

    def _control(self, said: dict[str, Any]) -> None:
        kind = said.get("kind")
        if kind == "status":
            self.status = said["text"]
            if self.status == "ready":
                self._open()
                self.drive(FIRST_HALT)
        elif kind == "paused":
            for entry in self.breakpoints:
                entry.count = said["counts"].get(entry.line, entry.count)
            self._arrive(said["breakpoint"])
        elif kind == "done":
            self._end()
        elif kind == "failed":
            self.error = said["error"]
            self._end()

    def _open(self) -> None:
        """The header is there: what the scenario asks for holds from now on."""
        # Frozen, a long trace's states are not looked through for cycles again and again, 0.2 s each time.
        self.cursor = Cursor(self.trace, has_grown=garbage.keep)
        self.breakpoints = breakpoints.of_scenario(self.trace) + self.breakpoints
        self.watches = watch.of_scenario(self.trace) + self.watches

    def _end(self) -> None:
        self.ended = True
        self.status = "ready"
        for entry in self.breakpoints:
            entry.count = (
                None  # the engine tells its counts where it halts, and it did not halt here
            )
        self._arrive(None)

    def _arrive(self, hit: str | None) -> None:
        """The engine has halted. `hit` is the breakpoint that it halts at, or why one cannot be evaluated."""
        there = self.cursor is not None and not self.asks.pending
        there = there and self._go_along(len(self.trace))
        self.goal = None
        if hit is not None and there:
            self.tell_hit(hit)

    def tell_hit(self, hit: str) -> None:
        """Say at which breakpoint the walk has halted, or why one cannot be evaluated: that one is turned off."""
        self.message = f"Breakpoint: {hit}"
        for entry in self.breakpoints:
            if hit.startswith(f"{entry.line} cannot be evaluated"):
                entry.enabled = False
                self.message = f"{hit}. It is turned off; B lists and mends it."
