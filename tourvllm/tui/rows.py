"""A list of lines, one of them chosen; drawn line by line, so that a million rows cost what is seen of them."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from . import theme


class Rows(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows `count` rows by `draw(number, width)`. Keys and mouse choose among those that `stands` allows.

    The second cell of a row is the sign of the chosen one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", show=False),
        Binding("down", "step(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "go(0)", show=False),
        Binding("end", "go_to_last", show=False),
        Binding("enter", "take", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--chosen"}
    DEFAULT_CSS: ClassVar[str] = """
    Rows {
        scrollbar-size: 1 1; scrollbar-gutter: stable; overflow-x: hidden; background: $background;
        scrollbar-color: $primary; scrollbar-background: $surface;
    }
    Rows > .rows--chosen { background: $primary 40%; text-style: bold; }
    """

    class Moved(Message):
        """The user has chosen another row."""

    class Taken(Message):
        """The user takes row `number`: by Enter, or by a click on the chosen row."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(
        self,
        draw: Callable[[int, int], Text],
        stands: Callable[[int], bool] = lambda number: True,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.chosen = 0
        self.count = 0
        self.moved = False
        self._draw = draw
        self._stands = stands

    def fill(self, count: int, chosen: int) -> None:
        """Show `count` rows; `chosen`, or the nearest that may be, is the chosen one.

        `moved` tells from then on whether the user has chosen another.
        """
        self.count = count
        self.chosen = min(self.chosen, max(0, count - 1))
        self.virtual_size = Size(self.size.width, count)
        self._choose(chosen, 1)
        self.moved = False
        height = self.scrollable_content_region.height
        if self.chosen >= height:
            self.scroll_to(y=self.chosen - height // 3, animate=False, force=True)

    def _choose(self, number: int, direction: int) -> None:
        """Choose row `number`, or else the nearest that may be chosen, first looking in `direction`."""
        ways = (range(number, self.count), range(min(number, self.count - 1), -1, -1))
        for way in ways if direction > 0 else reversed(ways):
            found = next((row for row in way if row >= 0 and self._stands(row)), None)
            if found is not None:
                break
        else:
            return
        self.chosen = found
        self._show_chosen()
        self.refresh()

    def _move(self, number: int, direction: int) -> None:
        """The user chooses a row."""
        self._choose(number, direction)
        self.moved = True
        self.post_message(self.Moved())

    def _show_chosen(self) -> None:
        """Scroll as little as is needed; the first row that may be chosen shows what stands above it."""
        if not self.count:
            return
        top, height = int(self.scroll_offset.y), self.scrollable_content_region.height
        if not any(self._stands(row) for row in range(min(self.chosen, height))):
            top = 0
        elif self.chosen < top + 1:
            top = max(0, self.chosen - 1)
        elif height and self.chosen >= top + height:
            top = self.chosen - height + 1
        self.scroll_to(y=top, animate=False, force=True)

    def on_resize(self) -> None:
        """Lay the rows out for the new width and keep the chosen one in sight."""
        self.virtual_size = Size(self.size.width, self.count)
        self._show_chosen()
        self.refresh()

    def action_step(self, step: int) -> None:
        """One row up or down."""
        if 0 <= self.chosen + step < self.count:
            self._move(self.chosen + step, step)

    def action_page(self, direction: int) -> None:
        """One screen up or down."""
        height = max(1, self.scrollable_content_region.height - 1)
        target = self.chosen + direction * height
        self._move(max(0, min(target, self.count - 1)), direction)

    def action_go(self, number: int) -> None:
        """To row `number`."""
        self._move(number, 1)

    def action_go_to_last(self) -> None:
        """To the last row."""
        self._move(self.count - 1, -1)

    def action_take(self) -> None:
        """Take the chosen row."""
        if self.chosen < self.count and self._stands(self.chosen):
            self.post_message(self.Taken(self.chosen))

    def on_click(self, event: events.Click) -> None:
        """A click chooses a row; one more takes it."""
        number = event.y + int(self.scroll_offset.y)
        if number < self.count and self._stands(number):
            if number == self.chosen:
                self.action_take()
            else:
                self._move(number, 1)

    def render_line(self, y: int) -> Strip:
        """One line of the visible area."""
        number, width = y + int(self.scroll_offset.y), self.size.width
        if number >= self.count:
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if number == self.chosen:
            style = self.get_component_rich_style("rows--chosen")
        line = self._draw(number, width)
        if number == self.chosen and self._stands(number):
            line.spans = [span for span in line.spans if span.style != theme.style("dim")]
            line.plain = f"{line.plain[:1]}{theme.glyph('here')}{line.plain[2:]}"
        line.end = ""
        line.stylize_before(line.style)  # rich leaves a text's own style to the console
        strip = Strip(theme.draw(line).render(self.app.console)).apply_style(style)
        return strip.crop_extend(0, width, style)
