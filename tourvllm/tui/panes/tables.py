"""The block tables."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events

from ...tour.text import token as shown_token
from .. import theme
from ..lines import PLAIN, UNDERLINED, Part, joined, width_of
from ..pane import SELECTS, Pane, first_ones, named, pointing, tint
from ..view import View

NUMBER = re.compile(r"\d+")

ROWS, ZOOMED_ROWS = 2, 12
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
        # By the blocks' owners: to look at every request would decode all that have finished long ago.
        holders = set(chain.from_iterable(state["blocks"]["owners"].values()))
        return [seq_id for seq_id in order if seq_id in holders]

    def build(self, view: View, width: int, height: int) -> list[Text]:
        self.set_title(f"block tables · logical {theme.arrow()} physical")
        holders = self.requests(view)
        shown = first_ones(view, holders, 2 * height)
        lines = self._in_full(view, shown, width, height) if self.zoomed else []
        lines = lines or self._lines_of(view, shown, width, height)
        if len(holders) > len(shown):
            lines.append(Text(f"… {len(holders) - len(shown):,} more", theme.style("dim")))
        return lines or [Text("Nobody holds a block.", style=theme.style("dim"))]

    def _in_full(self, view: View, shown: list[str], width: int, height: int) -> list[Text]:
        """A row for each entry of the tables, or of the followed request's; none if that is too much to read."""
        chosen, seqs = view.selection.seq, view.state["seqs"]
        if chosen in shown:
            shown = [str(chosen)]
        elif sum(len(seqs[seq_id]["block_table"]) for seq_id in shown) > 2 * height:
            return []
        return [line for seq_id in shown for line in _entries(view, seq_id, width, 2 * height)]

    def _lines_of(self, view: View, shown: list[str], width: int, height: int) -> list[Text]:
        """The tables as long as they are; if there is no room for that, short ones if each fits on a line."""
        zoomed = self.zoomed
        most = ZOOMED_ROWS if zoomed else ROWS
        lines: list[Text] = []
        left = list(shown)
        while left and len(lines) <= height:
            lines += _table(view, left.pop(0), width, most, aligned=zoomed)
        if len(lines) > height:
            short = [_table(view, seq_id, width, 1, True, zoomed) for seq_id in shown]
            if all(len(table) == 1 for table in short):
                self.set_title(f"block tables · logical {theme.arrow()} physical, computed")
                rows = [table[0] for table in short]
                return rows if zoomed else _side_by_side(rows, width)
        return lines + [line for seq_id in left for line in _table(view, seq_id, width, most)]

    def point(self, event: events.Click) -> None:
        """Select the block whose number is under the mouse, or the request."""
        offset, seq_id = event.get_content_offset(self), event.style.meta.get("seq")
        if "block" in event.style.meta:
            super().point(event)
            return
        if offset is None or seq_id is None:
            return
        at = offset.x + int(self.scroll_offset.x)
        line = self._lines[offset.y + int(self.scroll_offset.y)].plain
        found = [number for number in NUMBER.finditer(line) if number.start() <= at < number.end()]
        if found and at > len(seq_id):
            self.pick(block=int(found[0].group()))
        else:
            self.pick(seq=seq_id)


def _table(
    view: View, seq_id: str, width: int, most: int, short: bool = False, aligned: bool = False
) -> list[Text]:
    """A request's table on lines of `width`, about `most` of them; `aligned`: the counts at the right edge."""
    line = [named(view, seq_id), (" ", PLAIN)]
    used = width_of(line)
    indent, tail = used + 1, _tail(view, seq_id, short)
    lines = []
    for text, style in _cells(view, seq_id, (width - indent) * most - len(tail)):
        if used + len(text) > width:
            lines.append(joined(line))
            line, used = [(" " * indent, PLAIN)], indent
        line += [(text, style), (" ", PLAIN)]
        used += len(text) + 1
    brief = tail.replace("last block", "last")
    if used + len(tail) > width >= used + len(brief):
        tail = brief
    if used + len(tail) > width:
        lines.append(joined(line))
        line, used = [(" " * indent, PLAIN)], indent
    if aligned:
        line.append((" " * (width - used - len(tail)), PLAIN))
    return [*lines, joined([*line, (tail, theme.style("dim"))])]


def _entries(view: View, seq_id: str, width: int, most: int) -> list[Text]:
    """A request, and below it the entries of its table, each with what the block holds."""
    table = view.state["seqs"][seq_id]["block_table"]
    lines = [joined([named(view, seq_id), (_tail(view, seq_id, False), theme.style("dim"))])]
    for index in range(max(0, len(table) - most), len(table)):
        lines.append(_entry(view, seq_id, index))
        lines[-1].truncate(width, overflow="ellipsis")
    return lines


def _entry(view: View, seq_id: str, index: int) -> Text:
    """One logical block: the physical one, its positions, how full it is, who holds it, its hash and its words."""
    seq, blocks, dim = view.state["seqs"][seq_id], view.state["blocks"], theme.style("dim")
    size, block = blocks["size"], seq["block_table"][index]
    first = index * size
    done = min(size, max(0, seq["num_cached_tokens"] - first))
    now = min(
        size - done, max(0, seq["num_cached_tokens"] + seq["num_scheduled_tokens"] - first - done)
    )
    filled = f"{done}+{now}/{size}" if now else f"{done}/{size}"
    known = str(blocks["hash"].get(str(block), "-"))[:8]
    told = (
        f"  positions {f'{first}–{first + size - 1}':<7} filled {filled:<{2 * len(str(size)) + 3}}"
        f"  ref_count {blocks['ref_count'].get(str(block), 0)}  hash {known:<8}  "
    )
    number = str(block)
    return joined(
        (
            (f"{index:>5} {theme.arrow()} {' ' * (4 - len(number))}", dim),
            (number, _look(view, seq_id, block) + pointing(block=block)),
            (told, theme.style("faded") if view.faded(seq_id) else PLAIN),
            (" ".join(map(shown_token, seq["pieces"][first : first + done + now])), dim),
        )
    )


def _look(view: View, seq_id: str, block: int) -> Style:
    """How a block of a request's table is shown."""
    style = tint(view, seq_id) + pointing(seq_id)
    if len(view.state["blocks"]["owners"].get(str(block), ())) > 1:
        style += UNDERLINED
    elif block in view.new_blocks:
        style += theme.style("new")
    return style + theme.style("chosen") if block == view.selection.block else style


def _cells(view: View, seq_id: str, room: int) -> list[Part]:
    """The table's entries, so many that they take about `room` cells."""
    table: list[int] = view.state["seqs"][seq_id]["block_table"]
    blocks = view.state["blocks"]
    count = max(4, room // (len(str(max(0, blocks["total"] - 1))) + 1) - 2)
    cut = len(table) > count
    shown = [*table[: count // 2], *table[-(count // 2) :]] if cut else table
    cells = [(str(block), _look(view, seq_id, block)) for block in shown]
    if cut:
        left_out = f".. {len(table) - count // 2 * 2:,} .."
        cells.insert(count // 2, (left_out, theme.style("dim")))
    return cells


def _tail(view: View, seq_id: str, short: bool) -> str:
    """How much of the request is computed."""
    seq, size = view.state["seqs"][seq_id], view.state["blocks"]["size"]
    cached, scheduled = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
    tail = f"  {cached}{f'+{scheduled}' if scheduled else ''}/{seq['num_tokens']}"
    if short:
        return tail
    last = cached + scheduled - (len(seq["block_table"]) - 1) * size
    return f"{tail} computed" + (f", last block {last}/{size}" if 0 <= last <= size else "")


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
