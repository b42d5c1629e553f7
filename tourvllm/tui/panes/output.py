"""The answers."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text

from ...tour.text import line as one_line
from .. import theme
from ..pane import BOLD, PLAIN, SELECTS, Pane, first_ones, joined, name, named, width_of, wrap
from ..view import View


class OutputPane(Pane):
    """What each request has said so far."""

    TITLE = "output"
    EMPTY = "What each request says, as its tokens come."
    TERMS: ClassVar[tuple[str, ...]] = ("decode", "sample")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = SELECTS

    def requests(self, view: View) -> Sequence[str]:
        return list(view.state["seqs"])

    def build(self, view: View, width: int, height: int) -> list[Text]:
        seqs = view.state["seqs"]
        wide = height >= 2 * len(seqs) + 4
        lines = []
        shown = first_ones(view, list(seqs), 2 * height)
        for seq_id in shown:
            in_full = wide or seq_id == view.selection.seq
            draw = self._paragraph if in_full else self._end
            lines += draw(view, seq_id, seqs[seq_id], width)
        if len(seqs) > len(shown):
            lines.append(Text(f"… {len(seqs) - len(shown):,} more", theme.style("dim")))
        return lines or [Text("No request yet.", style=theme.style("dim"))]

    def _paragraph(self, view: View, seq_id: str, seq: dict[str, Any], width: int) -> list[Text]:
        head = Text.assemble(name(view, seq_id), " ")
        text = one_line("".join(seq["text"])).strip() or "…"
        first, *rest = wrap(text, max(4, width - head.cell_len), _style(view, seq_id))
        indent = " " * head.cell_len
        return [Text.assemble(head, first), *(Text.assemble(indent, row) for row in rest)]

    def _end(self, view: View, seq_id: str, seq: dict[str, Any], width: int) -> list[Text]:
        """The newest words, on one line."""
        head = [named(view, seq_id), (" ", PLAIN)]
        room = max(4, width - width_of(head))
        pieces = seq["text"][-room:]
        text = one_line("".join(pieces)).strip()
        if not text:
            return [joined([*head, ("…", theme.style("dim"))])]
        cut = len(text) > room or len(pieces) < len(seq["text"])
        tail, style = "…" + text[-(room - 1) :] if cut else text, _style(view, seq_id)
        new = len(tail)
        if pieces and view.is_new("seqs", seq_id, "text"):
            new = max(0, new - len(one_line(pieces[-1])))
        return [joined([*head, (tail[:new], style), (tail[new:], style + BOLD)])]


def _style(view: View, seq_id: str) -> Style:
    return theme.style("faded") if view.faded(seq_id) else PLAIN
