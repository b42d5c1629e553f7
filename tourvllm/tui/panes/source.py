"""The code."""

from functools import lru_cache
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Span, Text

from ...tour.text import printable
from .. import theme
from ..lines import BOLD
from ..pane import Pane
from ..view import View

MAX_HIGHLIGHTED = 200_000
"""Characters of a source file; a longer one (no engine has it) is shown without colours."""

MARGIN = 5
"""Cells of the mark and the line number."""

NARROW = 100
"""Cells below which code is shown with half its indentation: so more of its lines end inside the pane."""


def prepare_sources(texts: list[str]) -> None:
    """Colour source files before they are looked at. Meant for another thread: it takes 50 ms a file."""
    for text in texts:
        if len(text) <= MAX_HIGHLIGHTED:
            _numbered(text, theme.name(), True)


@lru_cache(maxsize=128)
def _numbered(text: str, theme_name: str, is_narrow: bool) -> list[Text]:
    """The lines with their numbers, after room for a mark, in the colours of the theme of that name (in use)."""
    dim = theme.style("dim")
    lines = []
    for number, code in enumerate(_highlighted(text, theme_name), 1):
        head, plain = f" {number:>3} ", code.plain
        left_out = (len(plain) - len(plain.lstrip())) // 2 if is_narrow else 0
        moved = len(head) - left_out
        spans = [Span(max(len(head), a + moved), b + moved, style) for a, b, style in code.spans]
        lines.append(Text(head + plain[left_out:], spans=[Span(0, len(head), dim), *spans]))
    return lines


@lru_cache(maxsize=64)
def _highlighted(text: str, theme_name: str) -> list[Text]:
    """A source file's lines in colour; lines that only report to the probe are dim."""
    if len(text) > MAX_HIGHLIGHTED:
        return [Text(printable(line)) for line in text.split("\n")]
    if not text.isascii():
        text = "".join(c if c == "\n" else printable(c) for c in text)
    syntax = Syntax("", "python", theme=theme.code(), background_color="default")
    lines = list(syntax.highlight(text).split("\n"))
    hook_indent = None
    for line in lines:
        # Only the colours of the theme are wanted, not its background.
        line.style = ""
        line.spans = [Span(a, b, _foreground(style)) for a, b, style in line.spans]
        indent = len(line.plain) - len(line.plain.lstrip())
        if hook_indent is not None and line.plain.strip() and indent <= hook_indent:
            hook_indent = None
        if "if self.probe" in line.plain:
            hook_indent = indent
        if hook_indent is not None:
            line.spans = [Span(0, len(line), theme.style("dim"))]
    return lines


def _foreground(style: str | Style) -> Style:
    if isinstance(style, str):
        return Style()
    return Style(color=theme.code_colour(style.color), bold=style.bold, italic=style.italic)


class SourcePane(Pane):
    """The code that ran, from the trace itself; the line that ran is marked, and the next one when known."""

    TITLE = "source"
    EMPTY = "The engine's code will stand here, with the line that has just run."
    TERMS: ClassVar[tuple[str, ...]] = ("stop",)
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("↑ ↓ PgUp PgDn", "scroll; the next stop brings its line back"),
        ("Shift+← Shift+→", "sideways"),
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._ran: int | None = None

    def build(self, view: View, width: int, height: int) -> list[Text]:
        self._ran = None
        at = view.event.at if view.event else None
        self.set_title(printable(at[0]) if at else "source")
        if not at:
            missing = "This stop names no line." if view.event else "Press n for the first step."
            return [Text(missing, style=theme.style("dim"))]
        text = view.trace.table("sources").get(at[0])
        if not isinstance(text, str):
            missing = f"The trace holds no source of {printable(at[0])}."
            return [Text(missing, style=theme.style("dim"))]
        following = view.next_event.at if view.next_event and view.next_event.at else None
        next_line = following[1] if following and following[0] == at[0] else None
        lines = list(_numbered(text, theme.name(), width < NARROW))
        marked = {next_line: ("→", BOLD), at[1]: ("▶", theme.style("here"))}
        self._ran = at[1] - 1
        # From below: a folded line moves those under it.
        for number in sorted(filter(None, marked), reverse=True):
            if 0 < number <= len(lines):
                mark, style = marked[number]
                rows = _folded(mark + lines[number - 1].plain[1:].rstrip(), width)
                lines[number - 1 : number] = [_padded(row, width, style) for row in rows]
                self._ran += (len(rows) - 1) * (number < at[1])
        return lines

    def bring_in_sight(self, height: int) -> None:
        """Bring the line that ran in sight."""
        if self._ran is not None:
            self.show_line(self._ran, height)


def _padded(text: str, width: int, style: Style) -> Text:
    line = Text(text, style=style)
    line.pad_right(max(0, width - line.cell_len))
    return line


def _folded(line: str, width: int) -> list[str]:
    """The line that ran in pieces that the pane holds; all but the first stand further in."""
    indent = min(len(line) - len(line[MARGIN:].lstrip()) + 2, width // 2)
    if cell_len(line) <= width or width - indent < 8:
        return [line]
    rows: list[str] = []
    while line and len(rows) < 5:
        lead = " " * indent if rows else ""
        piece = _piece(line, width - len(lead))
        rows.append(lead + piece)
        line = line[len(piece) :]
    return rows


def _piece(text: str, room: int) -> str:
    """As much of `text` as fits, up to a space or bracket if there is one in its second half."""
    piece = str(chop_cells(text, room)[0])
    end = max(map(piece.rfind, " ([,")) + 1
    return piece if len(piece) == len(text) or 2 * end < len(piece) else piece[:end]
