"""The app: panes around one session. It only shows what the session says and hands keys on to it."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from .bars import Bar, key_line, status_line
from .help import HelpScreen
from .pane import DIM, Pane
from .panes import (
    BatchPane,
    LoopPane,
    OutputPane,
    PoolPane,
    QueuesPane,
    SourcePane,
    TablesPane,
    TimelinePane,
    WhyPane,
    prepare_sources,
)
from .session import Session
from .view import View, look

VIEWS = {
    "state": ("why", "queues", "tables", "batch"),
    "code": ("loop", "source", "why", "timeline"),
    "blocks": ("queues", "pool", "tables", "timeline"),
    "output": ("output", "timeline"),
}
"""What each view of a small terminal shows."""

NARROW_BELOW = (110, 32)
PLAY_SECONDS = 0.5


class TourApp(App[None]):
    """Shows a session and moves it by keys."""

    CSS_PATH = "app.tcss"
    TITLE = "tourvllm"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "move('next_step')", "one engine step on"),
        Binding("p,left", "move('previous_step')", "one engine step back"),
        Binding("s", "move('next_stop')", "one stop on"),
        Binding("S", "move('previous_stop')", "one stop back"),
        Binding("c", "move('run_on')", "continue to a breakpoint"),
        Binding("C", "move('run_back')", "back to a breakpoint"),
        *(Binding(str(key), f"group({key})", f"to group {key}") for key in range(1, 7)),
        Binding("f", "move('finish_phase')", "finish this phase"),
        Binding("right_square_bracket", "move('next_mark')", "next mark"),
        Binding("left_square_bracket", "move('previous_mark')", "mark before"),
        Binding("home", "move('go_to_start')", "start"),
        Binding("end", "move('go_to_end')", "end"),
        Binding("space", "play", "play and pause"),
        Binding("colon", "go_to", "go to a step"),
        Binding("tab", "next_pane(1)", "next pane", priority=True),
        Binding("shift+tab", "next_pane(-1)", "pane before", priority=True),
        Binding("v", "view", "next view"),
        Binding("z", "zoom", "zoom the pane"),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, session: Session, order: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.session = session
        self.order = order
        self.playing = False
        self._typed: str | None = None
        self._view_name = "state"
        self._zoomed: str | None = None
        self._dirty = True
        self._refresh_queued = False
        self._sources_prepared = False

    def compose(self) -> ComposeResult:
        """Lay the screen out: causes left, effects right."""
        yield Bar("status")
        yield Bar("tabs")
        with Horizontal(id="main"):
            yield LoopPane("loop")
            with Vertical(id="middle"):
                yield SourcePane("source")
                yield WhyPane("why")
            with Vertical(id="right"):
                yield QueuesPane("queues")
                yield PoolPane("pool")
                yield TablesPane("tables")
        with Horizontal(id="bottom"):
            yield BatchPane("batch")
            yield OutputPane("output")
        yield TimelinePane("timeline")
        yield Bar("keys")

    async def on_mount(self) -> None:
        """Start the engine of a live run once the screen stands."""
        self.session.changed = self._queue_refresh
        self._fit()
        self._show()
        self.set_interval(1 / 30, self._tick)
        self.set_interval(PLAY_SECONDS, self._play_on)
        if self.order is not None:
            self.call_after_refresh(self._start)

    async def on_unmount(self) -> None:
        """End the engine with the app."""
        await self.session.close()

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout for the new size."""
        self._fit(event.size)

    async def _start(self) -> None:
        await self.session.start(self.order or {})

    # Showing

    def _queue_refresh(self) -> None:
        """Show the newest state soon: at once when the engine rests, else at the next tick."""
        self._dirty = True
        if not self.session.busy and not self._refresh_queued:
            self._refresh_queued = True
            self.call_next(self._show_news)

    def _tick(self) -> None:
        if self.session.searching:
            self.session.search_on(0.03)
            self._dirty = True
        if self._dirty:
            self.session.follow()
            self._show()

    def _show_news(self) -> None:
        """Show what is new, unless a key has shown it meanwhile."""
        if self._dirty:
            self._show()

    def _show(self) -> None:
        self._dirty = self._refresh_queued = False
        if not self.is_running or not self.screen_stack:
            return
        view = self._look()
        self._prepare_sources()
        base = self.screen_stack[0]
        base.query_one("#status", Bar).set(status_line(self.session, view, self.playing))
        base.query_one("#keys", Bar).set(self._key_line(base.has_class("-narrow")))
        base.query_one("#why", WhyPane).error = self.session.error
        for pane in base.query(Pane):
            pane.show(view)

    def _prepare_sources(self) -> None:
        """Once the header is there, colour its source files off the UI's thread."""
        if not self._sources_prepared and self.session.trace.header is not None:
            self._sources_prepared = True
            texts = [
                text
                for text in self.session.trace.table("sources").values()
                if isinstance(text, str)
            ]
            self.run_worker(partial(prepare_sources, texts), thread=True)

    def _key_line(self, narrow: bool) -> Text:
        if self._typed is not None:
            return Text(f" go to step: {self._typed}▁   Enter goes, Escape leaves")
        return key_line(self.session.message, narrow)

    def _look(self) -> View | None:
        cursor = self.session.cursor
        if cursor is None:
            return None
        try:
            return look(cursor)
        except Exception as error:  # a stranger's trace may hold anything
            self.session.message = f"The trace is damaged here: {error}"
            return None

    def _fit(self, size: Size | None = None) -> None:
        """Choose the layout: all panes; or one view of them on a small terminal; or the zoomed one alone."""
        if not self.screen_stack:
            return
        screen = self.screen_stack[0]
        width, height = size or self.size
        narrow = width < NARROW_BELOW[0] or height < NARROW_BELOW[1]
        screen.set_class(narrow, "-narrow")
        screen.set_class(not narrow and height >= 50, "-tall")
        screen.set_class(not narrow and width >= 140, "-wide")
        screen.set_class(self._zoomed is not None, "-zoomed")
        for view_name in VIEWS:
            screen.set_class(view_name == self._view_name, f"view-{view_name}")
        if self._zoomed:
            self._show_only({self._zoomed})
        else:
            self._show_only(set(VIEWS[self._view_name]) if narrow else None)
        tabs = Text(" ")
        for view_name in VIEWS:
            tabs.append(
                f" {view_name} ", style="bold reverse" if view_name == self._view_name else DIM
            )
            tabs.append(" ")
        screen.query_one("#tabs", Bar).set(tabs.append("  v: next view", style=DIM))
        self._queue_refresh()

    def _show_only(self, shown: set[str] | None) -> None:
        """Hide all panes but those named (None: hide nothing), and the boxes that are left empty."""
        screen = self.screen_stack[0]
        for pane in screen.query(Pane):
            pane.display = shown is None or pane.id in shown
        for name in ("middle", "right", "main", "bottom"):
            box = screen.query_one(f"#{name}")
            box.display = any(child.display for child in box.children)

    # Keys

    def action_move(self, method: str) -> None:
        """Move the session."""
        self.playing = False
        self._do(getattr(self.session, method))

    def action_group(self, key: int) -> None:
        """Run to the next stop of a group."""
        self.playing = False
        self._do(lambda: self.session.next_in_group(key))

    def _do(self, action: Callable[[], None]) -> None:
        self.session.do(action)
        if not self.session.busy:
            self._show()

    def action_play(self) -> None:
        """Play a step every half second, or halt."""
        if self.session.busy:
            self.session.pause()
            self.playing = False
        else:
            self.playing = not self.playing
            self._play_on()
        self._show()

    def _play_on(self) -> None:
        if self.playing and not self.session.busy:
            self._do(self.session.next_step)
            if self.session.message:
                self.playing = False
                self._show()

    def action_go_to(self) -> None:
        """Ask for a step's number; the next keys are its digits."""
        self._typed = ""
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a number is typed, keys are text; while help is open, they are its own."""
        return self._typed is None and len(self.screen_stack) == 1

    def on_key(self, event: events.Key) -> None:
        """Take in a number that is being typed; Escape leaves it, and the zoom."""
        if self._typed is None:
            if event.key == "escape" and self._zoomed:
                self.action_zoom()
            return
        event.stop()
        typed = self._typed
        if event.key == "escape":
            self._typed = None
        elif event.key == "enter":
            self._typed = None
            self._go_to(typed.strip())
        elif event.key == "backspace":
            self._typed = typed[:-1]
        elif event.is_printable and event.character and len(typed) < 12:
            self._typed += event.character
        self._show()

    def _go_to(self, text: str) -> None:
        if text.isdecimal():
            self._do(lambda: self.session.go_to_step(int(text)))
        elif text:
            self.session.message = f"{text!r} is not a step number."

    def action_next_pane(self, step: int) -> None:
        """Focus the next pane; on a small terminal, with the view that it is in."""
        panes = list(self.screen.query(Pane))
        at = panes.index(self.focused) if isinstance(self.focused, Pane) else -1 if step > 0 else 0
        pane = panes[(at + step) % len(panes)]
        if self._zoomed:
            self._zoomed = pane.id
        elif pane.id not in VIEWS[self._view_name]:
            self._view_name = next(
                (name for name, ids in VIEWS.items() if pane.id in ids), self._view_name
            )
        self._fit()
        self.screen.set_focus(pane)

    def action_view(self) -> None:
        """The next view of a small terminal."""
        order = list(VIEWS)
        self._view_name = order[(order.index(self._view_name) + 1) % len(order)]
        self._fit()

    def action_zoom(self) -> None:
        """Give the focused pane (or the block tables) the whole screen; again: back."""
        focused = self.focused.id if isinstance(self.focused, Pane) else "tables"
        self._zoomed = None if self._zoomed else focused
        self._fit()

    def action_help(self) -> None:
        """Show the help page."""
        self.push_screen(HelpScreen())
