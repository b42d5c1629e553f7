"""The block tables."""

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text

from .. import theme
from ..pane import SELECTS, Pane, name, pointing, tint
from ..view import View

MOST = 200
"""Tables that are drawn."""

ROWS, ZOOMED_ROWS = 2, 40
"""Rows of one table; of a longer one the first and the last blocks are shown."""


class TablesPane(Pane):
    """Each request's block table: its logical blocks in order, as the physical blocks that hold them."""

    TITLE = "block tables · logical → physical"
    EMPTY = "Each request's blocks, in the order of its tokens."
    TERMS: ClassVar[tuple[str, ...]] = ("block table", "block", "num_cached_tokens")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (*SELECTS, ("click", "a block or a request"))

    def requests(self, view: View) -> Sequence[str]:
        state = view.state
        order = state["running"] + state["waiting"] + state["finished"]
        return [seq_id for seq_id in order if state["seqs"][seq_id]["block_table"]]

    def build(self, view: View, width: int, height: int) -> list[Text]:
        holders = self.requests(view)
        most = ZOOMED_ROWS if self.zoomed else ROWS
        lines = [
            line for seq_id in holders[:MOST] for line in self._table(view, seq_id, width, most)
        ]
        if len(lines) > height:
            short = [self._table(view, seq_id, width, most, True) for seq_id in holders[:MOST]]
            if all(len(table) == 1 for table in short):
                lines = _side_by_side([table[0] for table in short], width)
        if len(holders) > MOST:
            lines.append(Text(f"… {len(holders) - MOST:,} more", theme.style("dim")))
        return lines or [Text("Nobody holds a block.", style=theme.style("dim"))]

    def _table(
        self, view: View, seq_id: str, width: int, most: int, short: bool = False
    ) -> list[Text]:
        head = Text.assemble(name(view, seq_id), " ")
        tail = _tail(view, seq_id, short)
        cells = self._cells(view, seq_id, (width - head.cell_len) * most - len(tail))
        lines, line = [], head
        for cell in cells:
            if line.cell_len + 1 + cell.cell_len > width:
                lines.append(line)
                line = Text(" " * (head.cell_len + 1))
            line = Text.assemble(line, cell, " ")
        if line.cell_len + len(tail) > width:
            lines.append(line)
            line = Text(" " * head.cell_len)
        return [*lines, Text.assemble(line, (tail, theme.style("dim")))]

    def _cells(self, view: View, seq_id: str, room: int) -> list[Text]:
        """The table's entries, so many that they take about `room` cells."""
        table: list[int] = view.state["seqs"][seq_id]["block_table"]
        owners = view.state["blocks"]["owners"]
        per_entry = len(str(max(0, view.state["blocks"]["total"] - 1))) + 1
        count = max(4, room // per_entry - 2)
        cut = len(table) > count
        cells = []
        for block in [*table[: count // 2], *table[-(count // 2) :]] if cut else table:
            style = tint(view, seq_id) + pointing(block=block)
            if len(owners.get(str(block), ())) > 1:
                style += Style(underline=True)
            if block in view.new_blocks:
                style += theme.style("new")
            if block == view.selection.block:
                style += theme.style("chosen")
            cells.append(Text(str(block), style=style))
        if cut:
            cells.insert(
                count // 2, Text(f".. {len(table) - count // 2 * 2:,} ..", theme.style("dim"))
            )
        return cells


def _tail(view: View, seq_id: str, short: bool) -> str:
    """How much of the request is computed."""
    seq, size = view.state["seqs"][seq_id], view.state["blocks"]["size"]
    cached, scheduled = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
    tail = f"  {cached}{f'+{scheduled}' if scheduled else ''}/{seq['num_tokens']}"
    if short:
        return tail
    last = cached + scheduled - (len(seq["block_table"]) - 1) * size
    return f"{tail} computed" + (f", last {last}/{size}" if 0 < last <= size else "")


def _side_by_side(lines: list[Text], width: int) -> list[Text]:
    """Short lines in two columns, if they fit."""
    column = max(line.cell_len for line in lines) + 2
    if 2 * column > width + 2:
        return lines
    packed = []
    for left, right in zip(lines[::2], [*lines[1::2], Text()], strict=False):
        left.pad_right(column - left.cell_len)
        packed.append(Text.assemble(left, right))
    return packed
