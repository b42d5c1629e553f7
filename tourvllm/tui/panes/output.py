"""The answers."""

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text

from ...tour.text import line as one_line
from .. import theme
from ..lines import BOLD, PLAIN, joined, width_of, wrap
from ..pane import SELECTS, Pane, first_ones, named, shared_out
from ..view import View


class OutputPane(Pane):
    """What each request has said so far; when the pane is zoomed, behind its prompt."""

    TITLE = "output"
    EMPTY = "What each request says, as its tokens come."
    TERMS: ClassVar[tuple[str, ...]] = ("decode", "sample")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = SELECTS

    def requests(self, view: View) -> Sequence[str]:
        """All as they came; if that is more than there is room for, those that run first."""
        state = view.state
        if len(state["seqs"]) <= self.scrollable_content_region.height:
            return list(state["seqs"])
        return [*state["running"], *state["waiting"], *reversed(state["finished"])]

    def build(self, view: View, width: int, height: int) -> list[Text]:
        ids, chosen = self.requests(view), view.selection.seq
        shown = first_ones(view, ids, 2 * height)
        few = len(shown) < height
        texts = [
            self._text(view, seq_id, width, height) if few or seq_id == chosen else []
            for seq_id in shown
        ]
        rows = shared_out([len(text) for text in texts], height)
        lines: list[Text] = []
        for seq_id, text, most in zip(shown, texts, rows, strict=True):
            if most > 1 or seq_id == chosen:
                lines += _paragraph(view, seq_id, text, height if seq_id == chosen else most)
            else:
                lines.append(_end(view, seq_id, width))
        if len(ids) > len(shown):
            lines.append(Text(f"… {len(ids) - len(shown):,} more", theme.style("dim")))
        return lines or [Text("No request yet.", style=theme.style("dim"))]

    def _text(self, view: View, seq_id: str, width: int, height: int) -> list[Text]:
        """What a request has said, in rows, or the newest of it; when zoomed, after its prompt."""
        seq = view.state["seqs"][seq_id]
        room = max(4, width - len(seq_id) - 1)
        most = room * height
        rows = []
        if self.zoomed:
            prompt = "".join(seq["pieces"][: seq["num_prompt_tokens"]])
            rows = wrap(one_line(prompt[-most:]).strip(), room, theme.style("dim"))
        pieces = seq["text"][-most:]
        rows += wrap(one_line("".join(pieces)).strip() or "…", room, _style(view, seq_id))
        if pieces and view.is_new("seqs", seq_id, "text"):
            rows[-1].stylize(BOLD, max(0, len(rows[-1]) - len(one_line(pieces[-1]).strip())))
        return rows


def _paragraph(view: View, seq_id: str, rows: list[Text], most: int) -> list[Text]:
    """The last `most` rows, behind the request's name."""
    head = Text.assemble(named(view, seq_id), " ")
    if len(rows) > most:
        rows = rows[-most:]
        whole_words = rows[0].plain.partition(" ")[2]
        rows[0] = Text(f"… {whole_words}", rows[0].style)
    indent = " " * head.cell_len
    return [Text.assemble(indent if i else head, row) for i, row in enumerate(rows)]


def _end(view: View, seq_id: str, width: int) -> Text:
    """The newest words, on one line."""
    seq, head = view.state["seqs"][seq_id], [named(view, seq_id), (" ", PLAIN)]
    room = max(4, width - width_of(head))
    pieces = seq["text"][-room:]
    text = one_line("".join(pieces)).strip()
    if not text:
        return joined([*head, ("…", theme.style("dim"))])
    cut = len(text) > room or len(pieces) < len(seq["text"])
    tail, style = "…" + text[-(room - 1) :] if cut else text, _style(view, seq_id)
    new = len(tail)
    if pieces and view.is_new("seqs", seq_id, "text"):
        new = max(0, new - len(one_line(pieces[-1])))
    return joined([*head, (tail[:new], style), (tail[new:], style + BOLD)])


def _style(view: View, seq_id: str) -> Style:
    return theme.style("faded") if view.faded(seq_id) else PLAIN
