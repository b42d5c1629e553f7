"""The batch."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text

from ...tour.text import printable
from ...tour.text import token as shown_token
from .. import theme
from ..lines import BOLD, PLAIN, Part, joined, width_of
from ..pane import SELECTS, Pane, name, named, pointing, tint
from ..view import View

LABEL = 15
"""Cells of a row's name."""

ROWS = ("cu_seqlens_q", "token", "position", "block*size+off", "slot_mapping")

MORE_ROW = "position"
"""Where how many tokens do not fit is told: its numbers are short, so that it costs no column."""

EXPLAINED = "│ a request begins   █ computed before   ▒ computed in this step   · later"

Column = dict[str, list[Part]]
Parts = tuple[int, int, int]


class BatchPane(Pane):
    """The flat batch of this step: one column a token, with the arithmetic that gives its KV slot.

    Above them a ruler: where in the flat row each request begins. Below, how far each request is. Only whole
    columns are shown, for half a number is another number; Shift+arrows move along the batch.
    """

    TITLE = "batch tensors"
    EMPTY = "The tokens of a step in one flat row, each with its slot in the KV cache."
    TERMS: ClassVar[tuple[str, ...]] = (
        "slot",
        "slot_mapping",
        "cu_seqlens",
        "position",
        "context_lens",
    )
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("Shift+← Shift+→", "along the batch"),
        *SELECTS,
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._first = 0

    def action_scroll_right(self) -> None:
        """Move along the batch."""
        self._first += 4
        self._rebuild()

    def action_scroll_left(self) -> None:
        """Move back along the batch."""
        self._first = max(0, self._first - 4)
        self._rebuild()

    def requests(self, view: View) -> Sequence[str]:
        return view.state["batch"]["seqs"] if view.state["batch"] else ()

    def _rebuild(self) -> None:
        super()._rebuild()
        self.set_class(not (self.view and self.view.state.get("batch")), "-none")

    def build(self, view: View, width: int, height: int) -> list[Text]:
        batch = view.state["batch"]
        if not batch:
            self.set_title("batch tensors")
            return _plan(view, max(1, height - 1)) or [Text(_no_batch(view), theme.style("dim"))]
        phase = printable(str(view.state["phase"]))
        self.set_title(f"batch tensors · {phase} · slot = block_id * block_size + offset")
        below = [_lengths(batch, width)] if height > len(ROWS) else []
        if height >= 20:
            below += [Text(), *_progress_table(view, batch, height // 3)]
        elif height >= 7:
            below.append(_progress_line(view, batch, width))
        if height >= 8:
            below.append(Text(EXPLAINED, theme.style("dim")))
        return [*self._bands(view, batch, width, height - len(below)), *below]

    def _bands(self, view: View, batch: dict[str, Any], width: int, height: int) -> list[Text]:
        """The columns in as many bands, one below the other, as there is room for."""
        total = len(batch["slot_mapping"])
        self._first = number = min(self._first, max(0, total - 1))
        lines: list[Text] = []
        bands = max(1, (height + 1) // (len(ROWS) + 1))
        for band in range(bands):
            lines += [Text()] if band else []
            last = band == bands - 1
            band_lines, number = self._band(view, batch, number, width, last)
            lines += band_lines
            if number >= total:
                break
        return lines

    def _band(
        self,
        view: View,
        batch: dict[str, Any],
        number: int,
        width: int,
        last: bool,
    ) -> tuple[list[Text], int]:
        """One band of whole columns from token `number`; also the first token that did not fit."""
        total, first = len(batch["slot_mapping"]), number
        columns: list[Column] = []
        room = width - LABEL
        while number < total:
            column = _column(view, batch, number, number == first)
            wide = width_of(column["token"])
            if wide + _behind(column, total - number - 1, total, last) > room and columns:
                break
            room -= wide
            columns.append(column)
            number += 1
        lines = []
        for row in ROWS:
            line = [(f"{row:<{LABEL}}", theme.style("dim"))]
            line += [part for column in columns for part in column[row]]
            if row == "cu_seqlens_q" and number == total:
                line.append(("│" + str(total), BOLD))
            if row == MORE_ROW and last and number < total:
                line[-1] = (_more(total - number), BOLD)
            lines.append(joined(line))
        return lines, number


def _more(left: int) -> str:
    return f" … {left} more"


def _behind(column: Column, left: int, total: int, last: bool) -> int:
    """The cells needed behind a column: for the ruler's end, or for how many are `left` if no band follows."""
    if not left:
        return len(f"│{total}")
    filler, _ = column[MORE_ROW][-1]
    return max(0, len(_more(left)) - len(filler)) if last else 0


def _column(view: View, batch: dict[str, Any], number: int, leads: bool) -> Column:
    """A token's cells by row, all equally wide. `leads`: it is the first of its line."""
    size, starts = view.state["blocks"]["size"], batch["cu_seqlens_q"]
    index = bisect_right(starts, number) - 1
    seq_id, opens = batch["seqs"][index], starts[index] == number
    pieces = view.state["seqs"][seq_id]["pieces"]
    position, slot = batch["positions"][number], batch["slot_mapping"][number]
    words, dim = theme.style("faded") if view.faded(seq_id) else PLAIN, theme.style("dim")
    head: list[Part] = [(f"{number} ", BOLD), named(view, seq_id)] if opens else []
    if leads and not opens:
        head = [("… ", PLAIN), named(view, seq_id)]
    piece = shown_token(pieces[position] if position < len(pieces) else "?")
    cells: Column = {
        "cu_seqlens_q": head,
        "token": [(piece, tint(view, seq_id) + pointing(seq_id))],
        "position": [(str(position), words)],
        "block*size+off": [(f"{slot // size}*{size}+{slot % size}", words)],
        "slot_mapping": [(str(slot), words + pointing(block=slot // size))],
    }
    wide = max(map(width_of, cells.values())) + 1
    columns = {}
    for row, cell in cells.items():
        filler = "─" if row == "cu_seqlens_q" else " "
        border = "│" if opens else filler
        own = cell[0][1] if row != "cu_seqlens_q" else PLAIN
        columns[row] = [(border, dim), *cell, (filler * (wide - width_of(cell)), own + dim)]
    return columns


def _lengths(batch: dict[str, Any], width: int) -> Text:
    """The lists that have one entry a request, each as long as there is room for."""
    names = ("cu_seqlens_q", "cu_seqlens_k", "context_lens")
    room = width - sum(len(key) + 2 for key in names)
    if sum(len(_numbers(batch[key], room)) + 1 for key in names) > room:
        room //= len(names)
    line = Text()
    for key in names:
        line.append(f"{key} ", theme.style("dim"))
        line.append(_numbers(batch[key], room) + "  ")
    return line


def _numbers(values: list[Any], room: int) -> str:
    """The numbers in at most `room` cells: whole ones only, and the last one in any case."""
    shown = " ".join(map(str, values[: max(1, room)]))
    if len(shown) <= room and len(values) <= room:
        return shown
    last = f" .. {values[-1]}"
    shown = shown[: max(0, room - len(last)) + 1]
    return shown[: shown.rfind(" ")] + last if " " in shown else last.strip()


def _batch_parts(view: View, batch: dict[str, Any], index: int) -> Parts:
    """The same for a request of the batch, as it was when the batch was laid out."""
    starts = batch["cu_seqlens_q"]
    first, now = starts[index], starts[index + 1] - starts[index]
    return _parts(view, batch["seqs"][index], batch["positions"][first], now)


def _parts(view: View, seq_id: str, computed: int, now: int) -> Parts:
    """Tokens of a request: computed before, computed in this step, and still to come of those it has."""
    return computed, now, max(0, view.state["seqs"][seq_id]["num_tokens"] - computed - now)


def _bar(parts: Parts, cells: int) -> str:
    """The parts as a bar; one that is not empty has a cell at least."""
    total = sum(parts) or 1
    lengths = [max(1, round(part * cells / total)) if part else 0 for part in parts]
    lengths[lengths.index(max(lengths))] += cells - sum(lengths)
    signs = zip("█▒·", lengths, strict=True)
    return "".join(sign * length for sign, length in signs)


def _progress_line(view: View, batch: dict[str, Any], width: int) -> Text:
    """How far each request of the batch is, side by side."""
    line = Text.assemble(("computed+now/all ", theme.style("dim")))
    for i, seq_id in enumerate(batch["seqs"]):
        parts = _batch_parts(view, batch, i)
        told = f" {parts[0]}+{parts[1]}/{sum(parts)}  "
        style = theme.style("faded") if view.faded(seq_id) else Style()
        bar = (_bar(parts, 5), tint(view, seq_id))
        entry = Text.assemble(name(view, seq_id), " ", bar, (told, style))
        if line.cell_len + entry.cell_len > width - 8 * (i < len(batch["seqs"]) - 1) and i:
            return line.append(f"+{len(batch['seqs']) - i} more", BOLD)
        line = Text.assemble(line, entry)
    return line


def _progress_table(view: View, batch: dict[str, Any], most: int) -> list[Text]:
    """The same with a line for each request."""
    shown = batch["seqs"][:most]
    lines = [
        _progress_row(view, seq_id, _batch_parts(view, batch, i)) for i, seq_id in enumerate(shown)
    ]
    if len(batch["seqs"]) > most:
        lines.append(Text(f"… {len(batch['seqs']) - most:,} more", theme.style("dim")))
    return lines


def _progress_row(view: View, seq_id: str, parts: Parts) -> Text:
    computed, now, later = parts
    counts = f"  computed {computed} | now {now} | later {later}"
    style = theme.style("faded") if view.faded(seq_id) else Style()
    bar = (_bar(parts, 30), tint(view, seq_id))
    return Text.assemble(name(view, seq_id), " ", bar, (counts, style))


def _no_batch(view: View) -> str:
    state = view.state
    if state["finished"] and not state["running"] and not state["waiting"]:
        return "No batch: every request has finished."
    return "No batch yet: schedule chooses first. Press 4 to go to where it is laid out."


def _plan(view: View, most: int) -> list[Text]:
    """Before a batch is laid out: who has been chosen so far, and for how many tokens."""
    state = view.state
    lines = []
    for seq_id in chain(state["running"], state["waiting"][:1]):
        seq = state["seqs"][seq_id]
        if seq["num_scheduled_tokens"]:
            counts = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
            lines.append(_progress_row(view, seq_id, _parts(view, seq_id, *counts)))
        if len(lines) == most:
            break
    if lines:
        lines.insert(0, Text("No batch yet. Chosen so far for this step:", theme.style("dim")))
    return lines
