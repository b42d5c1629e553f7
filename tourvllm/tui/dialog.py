"""A box in the middle of the screen: what the app's questions and forms share."""

from typing import ClassVar, TypeVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from ..tour.text import printable
from . import theme
from .lines import wrap

Result = TypeVar("Result")
WIDTH = 84
FRAME = 5
"""Cells that border, padding and scrollbar take."""


class Modal(ModalScreen[Result]):
    """A screen over the panes that returns once."""

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Return. A second key may reach a screen that is on its way out: it does nothing."""
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()


class Dialog(Modal[Result]):
    """A titled box of literal lines; it grows with them and scrolls when the terminal is too small."""

    DEFAULT_CSS: ClassVar[str] = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > VerticalScroll {
        width: 84; max-width: 100%; height: auto; max-height: 100%;
        border: solid $accent; border-title-style: bold; border-title-color: $text;
        padding: 0 1; background: $background; scrollbar-size: 1 1;
        scrollbar-color: $primary; scrollbar-background: $surface;
    }
    """
    HEADING = ""

    def compose(self) -> ComposeResult:
        """Lay the box out."""
        with VerticalScroll() as box:
            box.can_focus = False
            box.border_title = Text(self.HEADING)  # a str would be markup
            plain_border(box)
            yield Static("", markup=False)

    def on_mount(self) -> None:
        """Fill the box."""
        self.show()

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.call_after_refresh(self.show)

    def lines(self, width: int) -> list[Text]:
        """What stands in the box, for lines of `width` cells."""
        raise NotImplementedError

    def show(self) -> None:
        """Show the lines as they are now."""
        width = min(WIDTH, self.app.size.width) - FRAME
        put(self.query_one(Static), self.lines(width))


def plain_border(box: Widget) -> None:
    """Give a box a border of ASCII signs, where the terminal has no others."""
    if theme.is_ascii():
        box.styles.border = ("ascii", box.app.theme_variables["accent"])


def put(widget: Static, lines: list[Text]) -> None:
    """Show lines that are no wider than the widget, and give it their height.

    With `height: auto`, textual now and then keeps the height of an earlier text that came just before.
    """
    widget.styles.height = len(lines)
    widget.update(Text("\n").join(theme.draw(line) for line in lines))


def paragraphs(text: str, width: int, style: Style | str = "") -> list[Text]:
    """A stranger's text, harmless, broken into lines of at most `width` cells; its own line breaks are kept."""
    return [
        line
        for paragraph in text.rstrip().splitlines() or [""]
        for line in wrap(printable(paragraph), width, style)
    ]


def keys_told(text: str, width: int) -> list[Text]:
    """What some keys do, three spaces between them: no line ends within what one of them does."""
    held = "   ".join(part.replace(" ", "\xa0") for part in text.split("   "))
    lines = wrap(held, width, theme.style("dim"))
    for line in lines:
        line.plain = line.plain.replace("\xa0", " ")
    return lines


def caret() -> str:
    """Where the next letter will stand."""
    return "_" if theme.is_ascii() else "▁"


def flowing(text: str, width: int, style: Style | str = "") -> list[Text]:
    """The same for running text: only an empty line begins a new paragraph, with a gap before it."""
    lines: list[Text] = []
    for paragraph in text.strip().split("\n\n"):
        gap = [Text()] if lines else []
        lines += [*gap, *wrap(printable(" ".join(paragraph.split())), width, style)]
    return lines
