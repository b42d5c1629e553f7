"""Lines of styled text: made of pieces, broken into lines, drawn."""

from collections.abc import Callable, Iterable

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Span, Text
from textual.strip import Strip

from ..tour.text import printable
from . import theme

BOLD = Style(bold=True)
PLAIN, UNDERLINED = Style(), Style(underline=True)

Part = tuple[str, Style]
"""A piece of a line."""

Look = tuple[str, list[Span], str | Style]


def look_of(line: Text) -> Look:
    """All that makes two lines look the same."""
    return line.plain, list(line.spans), line.style


def joined(parts: Iterable[Part]) -> Text:
    """A line of these pieces. The same as Text.assemble, in a third of the time: a screen has a thousand."""
    texts: list[str] = []
    spans: list[Span] = []
    end = 0
    for text, style in parts:
        if not (text.isascii() and text.isprintable()):
            text = printable(text)
        start, end = end, end + len(text)
        texts.append(text)
        if style and text:
            spans.append(Span(start, end, style))
    return Text("".join(texts), spans=spans)


def width_of(parts: Iterable[Part]) -> int:
    """The cells that these pieces take."""
    return sum(cell_len(text) for text, _ in parts)


def wrap(text: str, width: int, style: Style | str = "") -> list[Text]:
    """A paragraph broken into lines of at most `width` cells."""
    lines, row, used = [], "", 0
    width = max(1, width)
    cells: Callable[[str], int] = len if text.isascii() else cell_len
    for word in text.split(" "):
        wide = cells(word)
        if wide > width:
            # rich begins with an empty piece where not even the first character fits
            *pieces, word = filter(None, chop_cells(word, width))
            lines += [row] * bool(row) + pieces
            row, wide = "", cells(word)
        if row and used + 1 + wide > width:
            lines.append(row)
            row, used = word, wide
        else:
            row, used = (f"{row} {word}", used + 1 + wide) if row else (word, wide)
    return [Text(line, style=style) for line in [*lines, row]]


def first_words(text: str, width: int) -> str:
    """As many words from the beginning of a text as `width` cells hold, and an ellipsis."""
    piece = text[: width - 1]
    while cell_len(piece) > width - 1:
        piece = piece[:-1]
    end = piece.rfind(" ", len(piece) // 2) + 1
    return piece[: end or None] + "…"


def last_words(text: str, width: int) -> str:
    """The same from the end, behind an ellipsis. A word longer than half of it is cut."""
    piece = text[1 - width :]
    while cell_len(piece) > width - 1:
        piece = piece[1:]
    start = piece.find(" ", 0, len(piece) // 2 + 1)
    return "…" + piece[max(0, start) :]


def drawn(line: Text, base: Style, console: Console) -> Strip:
    """A line as it stands on the ground `base`, as long as it is."""
    line = theme.draw(line)
    pieces = _pieces(line, base + _as_style(line.style))
    if pieces is None:
        line.end = ""
        line.stylize_before(line.style)  # rich leaves a text's own style to the console
        pieces = list(Segment.apply_style(line.render(console), base))
    return Strip(pieces, line.cell_len)


def in_sight(strip: Strip, x: int, width: int, base: Style) -> Strip:
    """`width` cells of a line from `x` on. A cut number is another number, so that a cut line says it is one."""
    if not strip.crop(x + width).text.strip():
        return strip.crop_extend(x, x + width, base)
    mark = Segment(theme.shown("…"), base + theme.style("dim"))
    return Strip([*strip.crop(x, x + width - 1), mark]).extend_cell_length(width, base)


def _pieces(line: Text, ground: Style) -> list[Segment] | None:
    """What rich makes of a line, in a third of the time; None if its spans lie one over the other, as few do."""
    plain, at = line.plain, 0
    pieces: list[Segment] = []
    for start, end, style in line.spans:
        if start < at or end > len(plain):
            return None
        if start > at:
            pieces.append(Segment(plain[at:start], ground))
        pieces.append(Segment(plain[start:end], ground + _as_style(style)))
        at = end
    if at < len(plain):
        pieces.append(Segment(plain[at:], ground))
    return pieces


def _as_style(style: str | Style) -> Style:
    return style if isinstance(style, Style) else Style.parse(style)
