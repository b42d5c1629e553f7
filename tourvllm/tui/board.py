"""The main screen: its panes, what is shown of them on a terminal of this size, and in which theme."""

from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.widgets import Static

from . import theme
from .bars import Bar, key_line, status_line
from .config import Config
from .keys import NARROW_LINE, WIDE_LINE, while_zoomed
from .keys import key_line as keys_now
from .pane import Pane
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
from .terminal import TerminalApp
from .view import Selection, View, look
from .welcome import NARROW_WELCOME, WELCOME

VIEWS = {
    "state": ("why", "queues", "tables", "batch"),
    "code": ("loop", "source", "why", "timeline"),
    "blocks": ("queues", "pool", "tables", "timeline"),
    "output": ("output", "timeline"),
}
"""What each view of a small terminal shows."""

NARROW_BELOW = (110, 32)
NOT_PRESENTED = {"loop", "output", "timeline"}
"""What presenter mode leaves out of a large terminal, so that the rest can be read from the last row."""


class PlainScrollBars(ScrollBarRender):
    """Scroll bars without parts of blocks, for terminals that have ASCII only."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


class Board(TerminalApp[None]):
    """Shows a session. A move is one repaint: panes that are hidden are not built."""

    CSS_PATH = "app.tcss"
    TITLE = "tourvllm"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll_why(-1)", show=False),
        Binding("pagedown", "scroll_why(1)", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = ""
    DEFAULT_CSS: ClassVar[str] = "#hint { display: none; height: auto; background: $panel; }"

    def __init__(self, session: Session, config: Config | None = None, hint: bool = False) -> None:
        super().__init__()
        self.session = session
        self.config = config or Config()
        self.selection = Selection()
        self.playing_as = ""
        self._hint = hint
        self._view_name = "state"
        self._zoomed: str | None = None
        self._dirty = True
        self._refresh_queued = False
        self._coloured: tuple[str, int] | None = None
        self.set_keymap(self.config.keys)
        for name in theme.NAMES:
            self.register_theme(theme.textual_theme(name))
        self.use_theme(self.config.theme)

    def compose(self) -> ComposeResult:
        """Lay the screen out: causes left, effects right."""
        yield Bar("status", by_parts=True)
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
        yield Static(id="hint", markup=False)
        yield Bar("keys")

    @property
    def base(self) -> Screen[None]:
        """The screen of the panes, also while a dialog stands over it."""
        return self.screen_stack[0]

    @property
    def in_front(self) -> bool:
        """Whether no dialog stands over the panes."""
        return len(self.screen_stack) == 1

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout for the new size."""
        self.fit(event.size)

    # Showing

    def queue_refresh(self) -> None:
        """Show the newest state soon: at once when the engine rests, else at the next tick."""
        self._dirty = True
        if not self.session.busy and not self._refresh_queued:
            self._refresh_queued = True
            self.call_later(self._show_news)  # after the keys that have come already

    def _show_news(self) -> None:
        """Show what is new, unless a key has shown it meanwhile."""
        self._refresh_queued = False
        if self._dirty:
            self.show()

    def show(self) -> None:
        """Draw the moment that the session is at."""
        self._dirty = self._refresh_queued = False
        if not self.is_running or not self.screen_stack:
            return
        view = self._look()
        self._colour_sources()
        base = self.base
        narrow = base.has_class("-narrow")
        status = status_line(self.session, view, self.playing_as, narrow)
        base.query_one("#status", Bar).set(status)
        line = NARROW_LINE if narrow else WIDE_LINE
        keys = keys_now(while_zoomed(line) if self._zoomed else line, self.config.keys)
        base.query_one("#keys", Bar).set(key_line(self.session.message, keys))
        base.query_one("#why", WhyPane).error = self.session.error
        for pane in base.query(Pane):
            pane.show(view)

    def _look(self) -> View | None:
        cursor = self.session.cursor
        if cursor is None:
            return None
        try:
            return look(cursor, self.selection, self.session.watches)
        except Exception as error:  # a stranger's trace may hold anything
            self.session.message = f"The trace is damaged here: {error}"
            return None

    def _colour_sources(self) -> None:
        """Once the header is there, colour its source files off the UI's thread."""
        wanted = theme.name(), id(self.session.trace)
        if self._coloured != wanted and self.session.trace.header is not None:
            self._coloured = wanted
            texts = [
                text
                for text in self.session.trace.table("sources").values()
                if isinstance(text, str)
            ]
            self.run_worker(partial(prepare_sources, texts), thread=True)

    # Layout

    def fit(self, size: Size | None = None) -> None:
        """Choose the layout: all panes; or one view of them on a small terminal; or the zoomed one alone."""
        if not self.screen_stack:
            return
        screen = self.base
        width, height = size or self.size
        narrow = width < NARROW_BELOW[0] or height < NARROW_BELOW[1]
        screen.set_class(narrow, "-narrow")
        screen.set_class(not narrow, "-large")
        screen.set_class(not narrow and height >= 50, "-tall")
        screen.set_class(not narrow and width >= 140, "-wide")
        screen.set_class(self._zoomed is not None, "-zoomed")
        screen.set_class(theme.is_ascii(), "-ascii")
        for view_name in VIEWS:
            screen.set_class(view_name == self._view_name, f"view-{view_name}")
        if self._zoomed:
            self._show_only({self._zoomed})
        else:
            self._show_only(set(VIEWS[self._view_name]) if narrow else self._all_panes())
        hint = screen.query_one("#hint", Static)
        hint.display = self._hint and height > 12
        if hint.display:
            hint.update(NARROW_WELCOME if narrow else WELCOME)
        screen.query_one("#tabs", Bar).set(self._tabs())
        self.queue_refresh()

    def _tabs(self) -> Text:
        """The views of a small terminal, the shown one marked; or the way back from a zoomed pane."""
        ((view_key, _), (zoom_key, _)) = keys_now((("view", ""), ("zoom", "")), self.config.keys)
        if self._zoomed:
            return Text(f"  one pane alone   {zoom_key} or Esc: back", theme.style("bold"))
        tabs = Text(" ")
        for view_name in VIEWS:
            here = view_name == self._view_name
            tabs.append(f" {view_name} ", style=theme.style("here" if here else "dim"))
            tabs.append(" ")
        return tabs.append(f"  {view_key}: next view", style=theme.style("dim"))

    def _all_panes(self) -> set[str]:
        """The panes of a large terminal; on a small one, those of all views."""
        presented = self.base.has_class("-presenter") and not self.base.has_class("-narrow")
        hidden = NOT_PRESENTED if presented else set()
        return {str(pane.id) for pane in self.base.query(Pane)} - hidden

    def _show_only(self, shown: set[str]) -> None:
        """Hide all panes but those named, and the boxes that are left empty."""
        for pane in self.base.query(Pane):
            pane.display = pane.id in shown
        for name in ("middle", "right", "main", "bottom"):
            box = self.base.query_one(f"#{name}")
            box.display = any(child.display for child in box.children)

    def dismiss_hint(self) -> None:
        """Take the first run's hint away."""
        if self._hint:
            self._hint = False
            self.fit()

    def use_theme(self, name: str) -> None:
        """Draw in this theme from now on."""
        theme.use(name, self.config.ascii)
        ScrollBar.renderer = PlainScrollBars if self.config.ascii else ScrollBarRender
        self.theme = theme.textual_theme(name).name

    # Keys that change what is shown of the panes

    def action_next_pane(self, step: int) -> None:
        """Focus the next pane; on a small terminal, with the view that it is in."""
        panes = [pane for pane in self.base.query(Pane) if pane.id in self._all_panes()]
        at = next((i for i, pane in enumerate(panes) if pane is self.focused), min(-step, 0))
        pane = panes[(at + step) % len(panes)]
        if self._zoomed:
            self._zoomed = pane.id
        elif pane.id not in VIEWS[self._view_name]:
            self._view_name = next(
                (name for name, ids in VIEWS.items() if pane.id in ids), self._view_name
            )
        self.fit()
        self.base.set_focus(pane)

    def action_scroll_why(self, pages: int) -> None:
        """Scroll the words by pages, so that what is below can be read without a pane in focus."""
        if self.in_front and self.focused is None:
            why = self.base.query_one("#why", WhyPane)
            why.scroll_relative(y=pages * why.size.height, animate=False, immediate=True)

    def action_view(self) -> None:
        """The next view of a small terminal; from a zoomed pane, back to the view."""
        order = list(VIEWS)
        if not self._zoomed:
            self._view_name = order[(order.index(self._view_name) + 1) % len(order)]
        self._zoomed = None
        self.fit()

    def action_zoom(self) -> None:
        """Give the focused pane (or the block tables) the whole screen; again: back."""
        focused = self.focused.id if isinstance(self.focused, Pane) else "tables"
        self._zoomed = None if self._zoomed else focused
        self.fit()

    def action_presenter(self) -> None:
        """Presenter mode, for a projector, and back."""
        on = not self.base.has_class("-presenter")
        self.base.set_class(on, "-presenter")
        self.session.message = self._presented() if on else "Presenter mode is off."
        self.fit()

    def _presented(self) -> str:
        narrow = self.base.has_class("-narrow")
        return "Presenter mode" + (" needs a larger terminal to show less." if narrow else ".")

    def action_theme(self) -> None:
        """The next theme."""
        order = theme.NAMES
        self.use_theme(order[(order.index(theme.name()) + 1) % len(order)])
        self.session.message = f"Theme: {theme.name()}."
        self.fit()
