"""The base of all panes: lines of styled text, drawn line by line, scrolled when there are more than fit.

What can be selected on a line carries it in its style (`Style.meta`): a click reads it from there.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from . import theme
from .lines import BOLD, UNDERLINED, Look, Part, drawn, in_sight, look_of, wrap
from .view import View

T = TypeVar("T")

Drawn = tuple[Look, Strip, bool]
"""A line as it looked, what was drawn of it, and whether that is all of it."""


class Pane(ScrollView, can_focus=True, inherit_bindings=False):
    """A titled box of text lines. A subclass says in `build` what stands in it at a moment of the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step_selection(0, -1)", show=False),
        Binding("down", "step_selection(0, 1)", show=False),
        Binding("enter", "pick", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("shift+left", "scroll_left", show=False),
        Binding("shift+right", "scroll_right", show=False),
    ]
    TITLE = ""
    EMPTY = ""
    """What will be here once there is something to show."""
    TERMS: ClassVar[tuple[str, ...]] = ()
    """Terms of the glossary that this pane shows."""
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (("↑ ↓ PgUp PgDn", "scroll"),)
    """Keys of its own, each with what it does."""

    virtual_size = reactive(Size(0, 0), repaint=False)
    """How large all lines are. Textual's own lays the whole screen out anew at each change; no pane's place
    depends on what stands in it, so that here only the scroll bar follows."""

    class Picked(Message):
        """The user points at a request or at a block, to follow it everywhere; with neither, at nothing."""

        def __init__(self, seq: str | None = None, block: int | None = None) -> None:
            super().__init__()
            self.seq = seq
            self.block = block

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.view: View | None = None
        self._lines: list[Text] = []
        self._drawn: dict[int, Drawn] = {}
        self._base: Style | None = None
        self._width = self._seen = 0
        self._title = self.TITLE
        self._titled = "", ""
        self._shown_height = 0

    def build(self, view: View, width: int, height: int) -> list[Text]:
        """The lines of this pane, for a visible area of `width` x `height` cells."""
        raise NotImplementedError

    def show(self, view: View | None) -> None:
        """Show a moment of the run; a hidden pane keeps it until it is seen."""
        self.view = view
        self.set_class(theme.is_ascii(), "-ascii")
        if self.display:
            self._rebuild()

    def on_resize(self) -> None:
        """Lay the same moment out anew."""
        self._rebuild()

    def set_title(self, title: str) -> None:
        """The words in the line above the pane, from `build`; taken literally."""
        self._title = title

    def _draw_title(self) -> None:
        room = max(1, self.size.width - 4)
        title = self._title
        if cell_len(title) > room:
            title = set_cell_size(title, room - 1) + "…"
        name, dot, rest = title.partition(" · ")
        name, rest = theme.shown(name), theme.shown(dot + rest)
        if (name, rest) != self._titled:
            self._titled = name, rest
            told = ((rest, "not bold"),) if rest else ()
            self.border_title = Content.assemble(name, *told)

    @property
    def zoomed(self) -> bool:
        """Whether this pane has the screen for itself."""
        return self.is_mounted and self.screen.has_class("-zoomed")

    def _rebuild(self) -> None:
        size = self.scrollable_content_region.size
        if (self._width, self._seen) != (self.size.width, size.width):
            self._width, self._seen = self.size.width, size.width
            self._drawn.clear()
        lines = self._build(size.width, size.height) if size.width > 0 and size.height > 0 else []
        before, self._lines = len(self._lines), lines
        self._draw_title()
        self.virtual_size = Size(max((line.cell_len for line in lines), default=0), len(lines))
        self.bring_in_sight(size.height)
        self._redraw_what_changed(size.height, before)

    def bring_in_sight(self, height: int) -> None:
        """Scroll to what is to be seen of the lines, after they were built. Here: where the user has scrolled."""

    def watch_virtual_size(self, whole: Size) -> None:
        """Let the scroll bar tell how many lines there are; one that comes or goes costs a layout."""
        height, bar = self.container_size.height, self.vertical_scrollbar
        self.show_vertical_scrollbar = bar.display = whole.height > height
        bar.window_virtual_size, bar.window_size = whole.height, height
        self.scroll_x = min(self.scroll_x, self.max_scroll_x)
        self.scroll_y = min(self.scroll_y, self.max_scroll_y)

    @property
    def allow_horizontal_scroll(self) -> bool:
        """Whether a line is cut off: there is no bar to tell."""
        return self.max_scroll_x > 0

    def _redraw_what_changed(self, height: int, count: int) -> None:
        """Paint the lines that are not as they were, when there were `count`: most stay from stop to stop."""
        top = int(self.scroll_offset.y)
        before, self._drawn = self._drawn, {}
        changed = []
        for number in range(top, min(top + height, max(count, len(self._lines)))):
            drawn = before.get(number)
            if drawn and number < len(self._lines) and drawn[0] == look_of(self._lines[number]):
                self._drawn[number] = drawn
            else:
                changed.append(Region(0, number - top, self._width, 1))
        if changed:
            self.refresh(*changed)

    def notify_style_update(self) -> None:
        """The theme has changed: every line is drawn anew."""
        super().notify_style_update()
        self._base = None
        self._drawn.clear()

    def _build(self, width: int, height: int) -> list[Text]:
        if self.view is None:
            self.set_title(self.TITLE)
            return wrap(self.EMPTY, width, theme.style("dim")) if self.EMPTY else []
        try:
            return self.build(self.view, width, height)
        except Exception as error:
            # A trace from a stranger may hold anything: one pane that cannot be drawn must not end the app.
            reason = f"(this cannot be drawn here: {type(error).__name__}: {error})"[:500]
            return [Text(reason, style=theme.style("dim"))]

    def render_line(self, y: int) -> Strip:
        """One line of the visible area. A cut number is another number, so that a cut line says it is one."""
        x, top = self.scroll_offset
        number, width = y + top, self._width
        if self._base is None:
            self._base = self.rich_style
        if number >= len(self._lines):
            return Strip.blank(width, self._base)
        if number not in self._drawn:
            self._drawn[number] = self._draw(self._lines[number], self._base)
        _, strip, whole = self._drawn[number]
        if whole and x == 0:
            return strip
        return in_sight(strip, x, self._seen, self._base).extend_cell_length(width, self._base)

    def _draw(self, line: Text, base: Style) -> Drawn:
        """Draw a line; if there is room for all of it, it fills the pane's width."""
        look, strip = look_of(line), drawn(line, base, self.app.console)
        whole = strip.cell_length <= self._seen
        return look, strip.extend_cell_length(self._width, base) if whole else strip, whole

    def show_line(self, number: int, height: int) -> None:
        """Scroll so that line `number` stands a third down, if it is out of sight or the height is another one."""
        top = int(self.scroll_offset.y)
        resized, self._shown_height = height != self._shown_height, height
        if resized or not top + 1 <= number < top + height - 2:
            self.scroll_to(y=max(0, number - height // 3), animate=False, force=True)

    # Selecting

    def requests(self, view: View) -> Sequence[str]:
        """The requests that can be selected here, in the order in which they stand."""
        return ()

    def on_click(self, event: events.Click) -> None:
        """Hand a click on. (Textual calls this method of every class, so that it is not for overriding.)"""
        self.point(event)

    def point(self, event: events.Click) -> None:
        """Select what was clicked on."""
        meta = event.style.meta
        if "block" in meta:
            self.pick(block=meta["block"])
        elif "seq" in meta:
            self.pick(seq=meta["seq"])

    def pick(self, seq: str | None = None, block: int | None = None) -> None:
        """Ask for this selection. The app lets go of one that is asked for once more."""
        self.post_message(self.Picked(seq, block))

    def action_pick(self) -> None:
        """Select the first request here, or let go of the one that is selected."""
        found = self.requests(self.view) if self.view else ()
        if self.view and found:
            chosen = self.view.selection.seq
            self.pick(seq=chosen if chosen in found else found[0])

    def action_step_selection(self, across: int, down: int) -> None:
        """Go on from the selected request to the next one here; with none selected, scroll."""
        found = self.requests(self.view) if self.view else ()
        chosen = self.view.selection.seq if self.view else None
        if chosen is not None and chosen in found:
            following = found[(list(found).index(chosen) + down) % len(found)]
            if following != chosen:
                self.pick(seq=following)
        elif down > 0:
            self.scroll_down(animate=False)
        else:
            self.scroll_up(animate=False)


SELECTS = (("Enter", "follow a request everywhere; again: let go"), ("↑ ↓", "the next one"))
"""The keys of a pane whose requests can be selected."""


@lru_cache(maxsize=4096)
def pointing(seq: str | None = None, block: int | None = None) -> Style:
    """A style without looks that says what the text under it stands for."""
    return Style(meta={"seq": seq} if block is None else {"block": block})


def first_ones(view: View, ids: Sequence[str], most: int) -> list[str]:
    """The first `most` requests, so that a screen costs what is on it; the followed one is among them."""
    chosen = view.selection.seq
    shown = list(ids[:most])
    if chosen is not None and chosen in ids and chosen not in shown:
        shown.insert(0, chosen)
    return shown


def shared_out(wanted: Sequence[int], room: int) -> list[int]:
    """How many of `room` rows each gets: those that want few all of them, the others equal parts of the rest."""
    given = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for taken, index in enumerate(by_size):
        given[index] = max(0, min(wanted[index], room // (len(wanted) - taken)))
        room -= given[index]
    return given


class Kept(Generic[T]):
    """A value that is made anew only when what it is made of is no longer the same."""

    def __init__(self) -> None:
        self._kept: tuple[Any, T] | None = None

    def get(self, made_of: Any, make: Callable[[], T]) -> T:
        """The value. `made_of` must be all that `make` looks at, and not be changed later."""
        if self._kept is None or self._kept[0] != made_of:
            self._kept = made_of, make()
        return self._kept[1]


def named(view: View, seq_id: str) -> Part:
    """A request's letter on its hue; without it while another request is followed."""
    style = theme.style("faded") if view.faded(seq_id) else theme.hue(view.hues.get(seq_id, 0))
    if view.selection.seq == seq_id:
        style += UNDERLINED
    return seq_id, style + pointing(seq_id)


def name(view: View, seq_id: str) -> Text:
    """The same as a text."""
    return Text(*named(view, seq_id))


def tint(view: View, seq_id: str) -> Style:
    """A request's hue as the colour of text."""
    if view.faded(seq_id):
        return theme.style("faded")
    style = theme.tint(view.hues.get(seq_id, 0))
    return style + BOLD if view.selection.seq == seq_id else style
