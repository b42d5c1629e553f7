"""The block pool."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from operator import floordiv
from string import ascii_lowercase
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType

from ...tour.text import printable
from ...tour.trace import Trace
from .. import theme
from ..lines import BOLD, PLAIN, joined
from ..pane import Kept, Pane, tint
from ..view import View
from .block import block_lines

MOST_EXACT = 4000
"""Blocks that are drawn one by one where they can be scrolled; more are drawn as shares."""

TOLD = 9
"""Lines for the selected block, where there is room."""

Cell = tuple[str, Style]


@dataclass(frozen=True)
class Grid:
    """How cells lie in the pane: `blocks` of them each, after the row's first block id."""

    blocks: int
    per_row: int
    cell: int
    digits: int

    @property
    def row_blocks(self) -> int:
        """Blocks of a row."""
        return self.per_row * self.blocks


class PoolPane(Pane):
    """The block pool, one cell a block: who holds it, or how free it is. A large pool: shares in use."""

    TITLE = "block pool · 1 cell = 1 block"
    EMPTY = "Every block of the KV cache: who holds it."
    TERMS: ClassVar[tuple[str, ...]] = ("block", "block pool", "free list", "ref_count", "eviction")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("Enter", "select a block; again: follow its owner"),
        ("↑ ↓ ← →", "the block beside it"),
        ("click", "the same"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step_selection(-1, 0)", show=False),
        Binding("right", "step_selection(1, 0)", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._grid = Grid(1, 1, 1, 1)
        self._used: Kept[Counter[int]] = Kept()
        self._signs = _Signs()

    def build(self, view: View, width: int, height: int) -> list[Text]:
        blocks, told = view.state["blocks"], self._told(view, width)
        room = max(1, height - 2 - len(told))
        grid = self._grid = self._lay_out(blocks["total"], width, room)
        cell = f"{grid.blocks:,} blocks" if grid.blocks > 1 else "1 block"
        self.set_title(f"block pool · 1 cell = {cell}")
        free = (
            f"{len(blocks['free']):,} of {blocks['total']:,} free, {blocks['size']} tokens a block"
        )
        foot = Text(free, BOLD if view.freed_blocks else "")
        if grid.blocks > 1:
            rows = self._shares(view, grid)
        else:
            looks = _Looks(view, self._signs.of(view, grid.cell))
            rows = self._exact(view, grid, looks)
            foot = _with_names(foot, looks.names(), width)
        return [*rows, foot, _legend(grid.blocks == 1, width), *told]

    def _told(self, view: View, width: int) -> list[Text]:
        """With room, who is handed out next, and the selected block in words; without one the lines stay empty."""
        if not self.zoomed:
            return []
        block = view.selection.block
        hint = Text("Enter selects a block, arrows move on: what is in it.", theme.style("dim"))
        lines = [hint] if block is None else block_lines(view, block, width)[: TOLD - 1]
        order = _order(view.state["blocks"], width)
        return [order, Text(), *lines, *[Text()] * (TOLD - 1 - len(lines))]

    def _lay_out(self, total: int, width: int, rows: int) -> Grid:
        digits = len(str(max(0, total - 1)))
        room = max(1, width - digits - 1)
        for cell in (2, 1):
            per_row = max(1, room // cell // 10 * 10 or room // cell)
            if total <= per_row * rows or (cell == 1 and self.zoomed and total <= MOST_EXACT):
                return Grid(1, per_row, cell, digits)
        per_row = max(1, room // 10 * 10 or room)
        return Grid(_round_up(-(-total // (per_row * rows))), per_row, 1, digits)

    def _exact(self, view: View, grid: Grid, looks: "_Looks") -> list[Text]:
        total = view.state["blocks"]["total"]
        rows = []
        for start in range(0, total, grid.per_row):
            cells = map(looks.block, range(start, min(start + grid.per_row, total)))
            rows.append(_assemble(start, grid, cells))
        return rows

    def _shares(self, view: View, grid: Grid) -> list[Text]:
        """Each cell as full as its blocks are in use; the followed request's share in its hue."""
        total, used = view.state["blocks"]["total"], self._in_use(view.state["blocks"], grid.blocks)
        style_of = _share_styles(view, grid.blocks)
        plain: Style = theme.style("faded" if view.selection.seq else "dim")
        rows = []
        for start in range(0, total, grid.row_blocks):
            first = start // grid.blocks
            cells = []
            for cell in range(first, min(first + grid.per_row, -(-total // grid.blocks))):
                share = used[cell] / min(grid.blocks, total - cell * grid.blocks)
                sign = theme.BARS[min(7, int(share * 8))] if share > 0 else "·"
                cells.append((sign, style_of.get(cell, plain)))
            rows.append(_assemble(start, grid, cells))
        return rows

    def _in_use(self, blocks: dict[str, Any], per_cell: int) -> Counter[int]:
        """How many blocks of each cell are in use. Most stops take and free none, so that the count is kept."""
        made_of = list(blocks["free"]), list(blocks["owners"]), blocks["total"], per_cell
        return self._used.get(made_of, partial(_in_use, blocks, per_cell))

    # Selecting

    def point(self, event: events.Click) -> None:
        """Select the block, or the first of those, under the mouse."""
        offset = event.get_content_offset(self)
        if self.view is None or offset is None:
            return
        grid = self._grid
        row = offset.y + int(self.scroll_offset.y)
        column = offset.x + int(self.scroll_offset.x) - grid.digits - 1
        block = row * grid.row_blocks + column // grid.cell * grid.blocks
        inside = 0 <= column < grid.per_row * grid.cell
        if inside and 0 <= block < self.view.state["blocks"]["total"]:
            self.pick(block=block)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Left and right are for blocks only while one is selected."""
        sideways = action == "step_selection" and parameters[0] != 0
        return not sideways or (self.view is not None and self.view.selection.block is not None)

    def action_pick(self) -> None:
        """Select the followed request's first block, or the first of all; from a block on to its owner."""
        if self.view is None:
            return
        selection, blocks = self.view.selection, self.view.state["blocks"]
        if selection.block is None:
            seq = self.view.state["seqs"].get(selection.seq)
            table = seq["block_table"] if seq else []
            self.pick(block=table[0] if table else 0)
        else:
            owners = blocks["owners"].get(str(selection.block))
            self.pick(seq=owners[0] if owners else None)

    def action_step_selection(self, across: int, down: int) -> None:
        """Go to a block beside the selected one; with none selected, scroll."""
        block = self.view.selection.block if self.view else None
        if self.view is None or block is None:
            super().action_step_selection(across, down)
            return
        grid, total = self._grid, self.view.state["blocks"]["total"]
        moved = block + across * grid.blocks + down * grid.row_blocks
        if 0 <= moved < total:
            self.pick(block=moved)
            self.show_line(moved // grid.row_blocks, self.scrollable_content_region.height)


def _order(blocks: dict[str, Any], width: int) -> Text:
    """The front of the free list. Blocks that are still cached stand behind the others, to be evicted last."""
    line = Text().append("free list, handed out from its front: ", theme.style("dim"))
    for i, block in enumerate(blocks["free"]):
        sign = f":{block}" if str(block) in blocks["hash"] else str(block)
        more = f" … {len(blocks['free']) - i:,} more"
        if line.cell_len + len(sign) + 1 + len(more) > width:
            return line.append(more)
        line.append(f"{sign} ", PLAIN)
    return line if blocks["free"] else line.append("nothing")


def _round_up(number: int) -> int:
    """The next number that is easy to count in: two digits and zeros."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit


def _legend(exact: bool, width: int) -> Text:
    dim = theme.style("dim")
    if not exact:
        return Text("in use: · nothing  ▁ little  █ all", dim)
    words = (
        "· free   : free, still cached   × just freed   ",
        "· free  : free, cached  × freed  ",
        "· free  : cached  × freed  ",
    )
    return Text.assemble(
        (next((text for text in words if len(text) + 14 <= width), words[-1]), dim),
        ("A", theme.style("new")),
        (" new  ", dim),
        ("A", Style(underline=True)),
        (" shared", dim),
    )


def _with_names(line: Text, names: Iterable[Text], width: int) -> Text:
    """The line with whose sign is whose behind it, as far as there is room."""
    for name in names:
        if line.cell_len + 2 + name.cell_len + 2 > width:
            return line.append(" …", PLAIN)
        line = Text.assemble(line, ("  ", PLAIN), name)
    return line


class _Signs:
    """What stands for each request in a cell: a letter of its id if no request shortly before it has the same.

    Who is in the pool at one time came at about one time. Whatever comes later changes no sign.
    """

    def __init__(self) -> None:
        self._made_of: tuple[Trace, int] | None = None
        self._known: dict[str, str] = {}
        self._recent: deque[str] = deque(maxlen=len(ascii_lowercase) - 1)

    def of(self, view: View, cells: int) -> dict[str, str]:
        """The signs of all who have arrived, of at most `cells` cells."""
        if self._made_of != (view.trace, cells):
            self._made_of, self._known = (view.trace, cells), {}
            self._recent.clear()
        for seq_id in islice(view.hues, len(self._known), None):
            text = printable(seq_id).strip()
            free = (
                sign
                for sign in (text[:1], text[-1:], *ascii_lowercase)
                if sign not in self._recent and 0 < cell_len(sign) <= cells
            )
            self._known[seq_id] = sign = next(free)
            self._recent.append(sign)
        return self._known


def _assemble(start: int, grid: Grid, cells: Iterable[Cell]) -> Text:
    """A row of cells; neighbours that look the same are one piece of text."""
    runs: list[Cell] = []
    for sign, style in cells:
        if grid.cell > 1:
            runs += [(sign, style), (" " * (grid.cell - cell_len(sign)), PLAIN)]
        elif runs and runs[-1][1] is style:
            runs[-1] = (runs[-1][0] + sign, style)
        else:
            runs.append((sign, style))
    return joined([(f"{start:>{grid.digits}} ", theme.style("dim")), *runs])


class _Looks:
    """The sign and style of each block; those that many blocks share are made once."""

    def __init__(self, view: View, signs: dict[str, str]) -> None:
        blocks = view.state["blocks"]
        self._view, self._owners, self._hashes = view, blocks["owners"], blocks["hash"]
        self._signs = signs
        self._chosen, self._followed = view.selection.block, view.selection.seq
        self._moved = view.new_blocks | view.freed_blocks
        self._free = ("·", theme.style("dim")), (":", theme.style("dim"))
        self._held: dict[tuple[str, bool], Cell] = {}

    def block(self, block: int) -> Cell:
        """The look of one block."""
        owners = self._owners.get(str(block))
        if owners:
            owner: str = owners[0]
            if self._followed is not None and self._followed in owners:
                owner = self._followed
            key = (owner, len(owners) > 1)
            cell = self._held.get(key) or self._hold(*key)
        else:
            cell = self._free[str(block) in self._hashes]
        return self._special(block, cell) if self._is_special(block) else cell

    def _is_special(self, block: int) -> bool:
        return block in self._moved or block == self._chosen

    def _special(self, block: int, cell: Cell) -> Cell:
        sign, style = cell
        if block in self._view.freed_blocks:
            sign, style = "×", BOLD
        if block in self._view.new_blocks and not style.underline:
            style += theme.style("new")
        return sign, style + theme.style("chosen") if block == self._chosen else style

    def _hold(self, owner: str, shared: bool) -> Cell:
        style = tint(self._view, owner)
        style += Style(bold=not self._view.faded(owner), underline=shared)
        cell = self._held[owner, shared] = self._signs.get(owner, "?"), style
        return cell

    def names(self) -> list[Text]:
        """`a=AB` of each owner among the drawn blocks whose id does not begin with its sign."""
        signs = {owner: sign for (owner, _), (sign, _) in self._held.items()}
        return [
            joined([(sign, tint(self._view, owner)), (f"={owner}", PLAIN)])
            for owner, sign in signs.items()
            if not owner.startswith(sign)
        ]


def _share_styles(view: View, per_cell: int) -> dict[int, Style]:
    """The cells that look unlike the rest: of the followed request, changed just now, of the selected block."""
    styles: dict[int, Style] = {}
    seq = view.state["seqs"].get(view.selection.seq)
    for block in view.new_blocks | view.freed_blocks:
        styles[block // per_cell] = BOLD
    if seq:
        own = tint(view, view.selection.seq or "") + BOLD
        styles |= dict.fromkeys(map(floordiv, seq["block_table"], repeat(per_cell)), own)
    if view.selection.block is not None:
        styles[view.selection.block // per_cell] = theme.style("chosen")
    return styles


def _in_use(blocks: dict[str, Any], per_cell: int) -> Counter[int]:
    """How many blocks of each cell are in use, counted over the list that costs less."""
    free, owners, total = blocks["free"], blocks["owners"], blocks["total"]
    if 2 * len(owners) < len(free):  # their keys are texts, which costs more
        return Counter(map(floordiv, map(int, owners), repeat(per_cell)))
    empty = Counter(map(floordiv, free, repeat(per_cell)))
    cells = -(-total // per_cell)
    return Counter(
        {cell: min(per_cell, total - cell * per_cell) - empty[cell] for cell in range(cells)}
    )
