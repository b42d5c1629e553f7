"""The base of all panes: lines of styled text, drawn line by line, scrolled when there are more than fit."""

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from .view import View

HUES = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")
"""Colours that colour-blind people can tell apart (Okabe and Ito); the letters alone suffice."""

DIM = Style(dim=True)
BOLD = Style(bold=True)
NEW = Style(bold=True, reverse=True)


class Pane(ScrollView, can_focus=True, inherit_bindings=False):
    """A titled box of text lines. A subclass says in `build` what stands in it at a moment of the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("shift+left", "scroll_left", show=False),
        Binding("shift+right", "scroll_right", show=False),
    ]
    TITLE = ""
    TERMS: ClassVar[tuple[str, ...]] = ()
    """Terms of the glossary that this pane shows."""
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Keys of its own, each with what it does."""

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
        self._strips: dict[int, Strip] = {}
        self.border_title = self.TITLE

    def build(self, view: View, width: int, height: int) -> list[Text]:
        """The lines of this pane, for a visible area of `width` x `height` cells."""
        raise NotImplementedError

    def show(self, view: View | None) -> None:
        """Show a moment of the run; a hidden pane keeps it until it is seen."""
        self.view = view
        if self.display:
            self._rebuild()

    def on_resize(self) -> None:
        """Lay the same moment out anew."""
        self._rebuild()

    def _rebuild(self) -> None:
        size = self.scrollable_content_region.size
        lines = self._build(size.width, size.height) if size.width > 0 and size.height > 0 else []
        self._strips.clear()
        self._lines = lines
        self.virtual_size = Size(max((line.cell_len for line in lines), default=0), len(lines))
        self.refresh()

    def _build(self, width: int, height: int) -> list[Text]:
        if self.view is None:
            return []
        try:
            return self.build(self.view, width, height)
        except Exception as error:
            # A trace from a stranger may hold anything: one pane that cannot be drawn must not end the app.
            return [
                Text(
                    f"(this cannot be drawn here: {type(error).__name__}: {error})"[:500], style=DIM
                )
            ]

    def render_line(self, y: int) -> Strip:
        """One line of the visible area."""
        x, top = self.scroll_offset
        number, width = y + top, self.size.width
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        if number not in self._strips:
            line = self._lines[number]
            line.end = ""
            line.stylize_before(line.style)  # rich leaves a text's own style to the console
            self._strips[number] = Strip(line.render(self.app.console)).apply_style(self.rich_style)
        return self._strips[number].crop_extend(x, x + width, self.rich_style)

    def show_line(self, number: int, height: int) -> None:
        """Scroll so that line `number` stands a third down, if it is out of sight."""
        top = int(self.scroll_offset.y)
        if not top + 1 <= number < top + height - 2:
            self.scroll_to(y=max(0, number - height // 3), animate=False, force=True)


def name(view: View, seq_id: str) -> Text:
    """A request's letter on its hue."""
    hue = HUES[view.hues.get(seq_id, 0) % len(HUES)]
    return Text(seq_id, style=Style(color="black", bgcolor=hue, bold=True))


def tint(view: View, seq_id: str) -> Style:
    """A request's hue as the colour of text."""
    return Style(color=HUES[view.hues.get(seq_id, 0) % len(HUES)])


def wrap(text: str, width: int, style: Style | str = "") -> list[Text]:
    """A paragraph broken into lines of at most `width` cells."""
    from rich.cells import cell_len

    lines, row = [], ""
    for word in text.split(" "):
        while cell_len(word) > width > 0:
            cut = max(1, width // 2)
            lines.append(f"{row} {word[:cut]}".strip()) if not row else lines.append(row)
            word, row = (word[cut:], "") if not row else (word, "")
        if row and cell_len(row) + 1 + cell_len(word) > width:
            lines.append(row)
            row = word
        else:
            row = f"{row} {word}" if row else word
    return [Text(line, style=style) for line in [*lines, row]]
