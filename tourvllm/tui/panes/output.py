"""The answers."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from ...tour.text import line as one_line
from .. import theme
from ..lines import BOLD, PLAIN, first_words, joined, last_words, width_of, wrap
from ..pane import SELECTS, Pane, first_ones, named, shared_out
from ..view import View

Rows = list[Text]


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
            self._text(view, seq_id, width, height) if few or seq_id == chosen else ([], [])
            for seq_id in shown
        ]
        rows = shared_out([len(prompt) + len(answer) for prompt, answer in texts], height)
        lines: list[Text] = []
        for seq_id, text, most in zip(shown, texts, rows, strict=True):
            if most > 1 or seq_id == chosen:
                most = height if seq_id == chosen else most
                lines += _paragraph(view, seq_id, *text, width, most)
            else:
                lines.append(_one_row(view, seq_id, width))
        if len(ids) > len(shown):
            lines.append(Text(f"… {len(ids) - len(shown):,} more", theme.style("dim")))
        return lines or [Text("No request yet.", style=theme.style("dim"))]

    def _text(self, view: View, seq_id: str, width: int, height: int) -> tuple[Rows, Rows]:
        """A request's prompt, when zoomed, and what it has said: of both what could fit."""
        seq = view.state["seqs"][seq_id]
        room = max(4, width - _head(view, seq_id).cell_len)
        most = room * (height + 1)
        prompt: Rows = []
        if self.zoomed:
            pieces = seq["pieces"][: seq["num_prompt_tokens"]]
            prompt = wrap(_part(pieces, most, True), room, theme.style("dim"))
        pieces, end = seq["text"], _is_read_from_its_end(view, seq_id)
        answer = wrap(_part(pieces, most, end) or "…", room, _style(view, seq_id))
        if pieces and view.is_new("seqs", seq_id, "text"):
            answer[-1].stylize(BOLD, max(0, len(answer[-1]) - len(one_line(pieces[-1]).strip())))
        return prompt, answer


def _head(view: View, seq_id: str) -> Text:
    return joined([named(view, seq_id), (" ", PLAIN)])


def _is_read_from_its_end(view: View, seq_id: str) -> bool:
    """Of who still speaks the newest words matter; a finished answer is read from its beginning."""
    is_finished = view.state["seqs"][seq_id]["status"] == "finished"
    return not is_finished or view.is_new("seqs", seq_id, "text")


def _part(pieces: list[str], most: int, end: bool) -> str:
    """`most` cells of a text, or more, or all of it: its end or its beginning."""
    # A character of two cells may have come in four pieces, all but one of them empty.
    few = pieces[-2 * most :] if end else pieces[: 2 * most]
    text = "".join(few).strip(" ")
    return one_line(text[-most:] if end else text[:most])


def _paragraph(
    view: View, seq_id: str, prompt: Rows, answer: Rows, width: int, most: int
) -> list[Text]:
    """`most` rows behind the request's name: of the answer first, then of the end of the prompt."""
    head = _head(view, seq_id)
    room = max(4, width - head.cell_len)
    answer = _cut(answer, most, room, _is_read_from_its_end(view, seq_id))
    prompt = _cut(prompt, most - len(answer), room, True)
    indent = " " * head.cell_len
    return [Text.assemble(indent if i else head, row) for i, row in enumerate(prompt + answer)]


def _cut(rows: Rows, most: int, room: int, end: bool) -> Rows:
    """The last or the first `most` rows, with an ellipsis where words are left out."""
    if len(rows) <= most or most <= 0:
        return rows[: max(0, most)]
    if end:
        first, *rest = rows[-most:]
        return [Text(last_words(f" {first.plain}", room), first.style), *rest]
    *rest, last = rows[:most]
    return [*rest, Text(first_words(f"{last.plain} ", room), last.style)]


def _one_row(view: View, seq_id: str, width: int) -> Text:
    """The newest words of an answer, or the first ones of a finished one."""
    head, pieces = [named(view, seq_id), (" ", PLAIN)], view.state["seqs"][seq_id]["text"]
    room, end = max(4, width - width_of(head)), _is_read_from_its_end(view, seq_id)
    style = _style(view, seq_id)
    text = _part(pieces, room + 1, end)
    if not text:
        return joined([*head, ("…", theme.style("dim"))])
    if cell_len(text) > room:
        text = last_words(text, room) if end else first_words(text, room)
    new = len(text)
    if view.is_new("seqs", seq_id, "text"):
        new = max(0, new - len(one_line(pieces[-1])))
    return joined([*head, (text[:new], style), (text[new:], style + BOLD)])


def _style(view: View, seq_id: str) -> Style:
    return theme.style("faded") if view.faded(seq_id) else PLAIN
