"""The app: keys move the session, and its life goes with the screen's."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.timer import Timer

from ..tour.lessons import Progress
from . import garbage, welcome
from .config import Config
from .dialogs import Dialogs
from .keys import bindings
from .pane import Pane
from .panes import TimelinePane
from .session import Session
from .view import Selection

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Steps a second, of playing."""

TICK = 1 / 30
SEARCH_SECONDS = 0.02
"""How long a search goes on at each tick: the rest is for keys and painting."""

READ_SECONDS = 0.015
"""How long a long trace is read on at each tick."""

PREPARE_SECONDS, PREPARE_TYPED_SECONDS = 0.004, 0.008
"""How long what may be wanted next, or what is typed, is prepared before keys and painting have a turn."""

PAINTED = 0.02
"""Seconds after a key, or what it shows, in which nothing is prepared, so that the painting need not wait."""

PAUSE = 0.001

UNSEEN = 0.1
"""Seconds for which keys that come faster than the screen is drawn may go on without a picture."""

LONG_QUIET = 2.0
"""Seconds without a key after which somebody reads."""

QUIET = 0.1
"""Seconds after a key in which nothing is read on, so that the next key need not wait."""


class TourApp(Dialogs):
    """Shows a session and moves it by keys.

    order: what the engine's side is to run, for a live session. hint: show what somebody new needs to know.
    """

    BINDINGS: ClassVar[list[BindingType]] = list(bindings())

    def __init__(
        self,
        session: Session,
        order: dict[str, Any] | None = None,
        config: Config | None = None,
        hint: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(session, config, hint)
        self.order = order
        self.progress = progress
        self.earlier: list[Session] = []
        self.playing = False
        self._preparing = False
        self._noted: Session | None = None
        self._key_at = self._shown_at = 0.0
        self._speed = SPEEDS.index(2.0)
        self._play_timer: Timer | None = None

    # Life

    async def on_mount(self) -> None:
        """Start the engine of a live run once the screen stands."""
        self.session.changed = self.queue_refresh
        if self.config.problem:
            self.session.message = self.config.problem
        self.fit()
        self.show()
        self.set_interval(TICK, self._tick)
        garbage.put_off()
        if self.order is not None:
            self.call_after_refresh(self.session.start, self.order)

    async def on_unmount(self) -> None:
        """End the engine with the app; note what was learned."""
        garbage.put_off_no_more()
        self._note_progress()
        await self.session.close()

    async def begin_anew(self, session: Session, order: dict[str, Any]) -> None:
        """Put a new live session in the place of the one on the screen, which is kept in `earlier`."""
        self._note_progress()
        before, self.session = self.session, session
        before.changed = lambda: None
        self.earlier.append(before)
        self.selection = Selection()
        session.changed = self.queue_refresh
        self.show()
        await before.close()
        await session.start(order)

    def _note_progress(self) -> None:
        """Keep that the scenario was walked to its end, as it is written, and the score."""
        session = self.session
        if self.progress is None or session is self._noted or not session.walked:
            return
        self._noted = session
        scenario = session.trace.table("scenario")
        name = scenario.get("name")
        if isinstance(name, str) and name and not scenario.get("settings"):
            self.progress.finished(name, session.score)

    @property
    def traces(self) -> list[Path]:
        """The trace files that this app has recorded, in order."""
        return [
            session.path
            for session in [*self.earlier, self.session]
            if session.live and session.path and len(session.trace)
        ]

    def _tick(self) -> None:
        still = time.monotonic() - self._key_at
        garbage.collect(quiet=still > QUIET)
        if still > LONG_QUIET and self.in_front:
            garbage.search_kept()
        if self.session.reading and still > QUIET:
            self._dirty |= self.session.read_on(READ_SECONDS)
        else:
            self._prepare_if_idle()
        if self.session.searching:
            self.session.search_on(SEARCH_SECONDS)
            self._dirty = True
        if self._dirty:
            self.session.follow()
            self.show()

    def _prepare_if_idle(self) -> None:
        if not self._preparing:
            self._prepare()

    def _prepare(self) -> None:
        """While nothing else is to do, prepare what may be wanted next."""
        session = self.session
        painted = time.monotonic() - max(self._key_at, self._shown_at) > PAINTED
        busy = session.cursor is None or session.reading or session.busy or self._dirty
        idle = painted and not busy
        typed = session.ahead.expected is not None
        seconds = PREPARE_TYPED_SECONDS if typed else PREPARE_SECONDS
        self._preparing = idle and session.ahead.prepare(seconds)
        if self._preparing:
            asyncio.get_running_loop().call_later(PAUSE, self._prepare)
        elif idle and typed and session.peek():
            super().show()
            self._shown_at = time.monotonic()

    def show(self) -> None:
        """Draw, and put the question that the walk has come to."""
        super().show()
        self._shown_at = time.monotonic()
        self._note_progress()
        if self.is_running:
            self.ask_if_pending()

    # Moving

    def move(self, action: Callable[[], None]) -> None:
        """Move the session."""
        self._key_at = time.monotonic()
        self.session.do(action)
        fresh = self._key_at - self._shown_at < UNSEEN
        if self.message_queue_size and fresh and not self.session.pending_ask:
            return  # the next key is there already: it is shown soon
        if not self.session.busy:
            self.show()

    def action_move(self, method: str) -> None:
        """Move the session by one of its methods."""
        self.stop_playing()
        self.move(getattr(self.session, method))

    def action_group(self, key: int) -> None:
        """Run to the next stop of a group."""
        self.stop_playing()
        self.move(partial(self.session.next_in_group, key))

    # Playing

    def action_play(self) -> None:
        """Play, or halt."""
        if self.playing or self.session.busy:
            self.action_interrupt()
        else:
            self.playing = True
            self.session.message = ""
            self._set_pace()
            self._play_on()
        self.show()

    def action_interrupt(self) -> None:
        """Halt playing, a run or a search."""
        if not self.playing and not self.session.busy:
            self.session.message = "Nothing is on its way. q quits."
        self.stop_playing()
        self.session.pause()
        self.show()

    def stop_playing(self) -> None:
        """Play no more."""
        self.playing = False
        self._set_pace()

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        self._speed = max(0, min(self._speed + by, len(SPEEDS) - 1))
        self.session.message = "" if self.playing else f"Space plays at {self._pace}."
        self._set_pace()
        self.show()

    @property
    def _pace(self) -> str:
        speed = SPEEDS[self._speed]
        return f"{speed:g} step{'s' if speed > 1 else ''} a second"

    def _set_pace(self) -> None:
        """A timer while it plays, and none while it does not."""
        if self._play_timer:
            self._play_timer.stop()
        self._play_timer = None
        self.playing_as = f"playing {self._pace}" if self.playing else ""
        if self.playing:
            self._play_timer = self.set_interval(1 / SPEEDS[self._speed], self._play_on)

    def _play_on(self) -> None:
        if self.playing and not self.session.busy:
            if not self.session.message:
                self.move(self.session.play_step)
            if self.session.message:
                self.stop_playing()
                self.show()

    # Pointing

    @on(Pane.Picked)
    def picked(self, event: Pane.Picked) -> None:
        """The user points at a request or a block; pointing at it again lets it go."""
        event.stop()
        self.session.message = ""
        chosen = Selection(event.seq, event.block)
        self.selection = Selection() if chosen == self.selection else chosen
        self.show()

    @on(TimelinePane.Jump)
    def jump(self, event: TimelinePane.Jump) -> None:
        """The user points at a step."""
        event.stop()
        self.stop_playing()
        self.move(partial(self.session.go_to_step, event.step_number))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a dialog is open, keys are its own."""
        return self.in_front

    async def on_event(self, event: events.Event) -> None:
        """A key takes away what was said of the one before, the first one the hint; and does what it does."""
        shown_at = self._shown_at
        if isinstance(event, events.Key):
            self._key_at = time.monotonic()
            asyncio.get_running_loop().call_later(PAINTED + PAUSE, self._prepare_if_idle)
            if self.in_front and self.session.message:
                self.session.message = ""
                self.queue_refresh()
            if self._hint:
                self.dismiss_hint()
                welcome.remember()
        await super().on_event(event)
        if isinstance(event, events.Key) and self.message_queue_size and self._shown_at != shown_at:
            await asyncio.sleep(PAINTED)  # the screen paints when this task rests

    def on_key(self, event: events.Key) -> None:
        """Escape leaves the zoom, or whoever is followed."""
        if event.key == "escape" and self.in_front:
            if self._zoomed:
                self.action_zoom()
            elif self.selection != Selection():
                self.selection = Selection()
                self.show()
