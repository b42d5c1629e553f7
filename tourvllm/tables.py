"""Tables on the terminal, or as wide as they need to be where the output goes elsewhere."""

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .tour.text import printable

WIDE = 1000
"""Columns of an output that is no terminal: nothing is wrapped, so that it can be searched."""


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    marked: Sequence[int] = (),
    whole: Sequence[int] = (),
    gap: int = 2,
) -> None:
    """Write a table. Texts are taken literally; a column's name may have two lines.

    right: columns of numbers. marked: rows that stand out. whole: columns whose texts are not broken into lines.
    gap: between two columns.
    """
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for index, name in enumerate(columns):
        lines = (printable(text) for text in name.split("\n"))
        justify: Literal["left", "right"] = "right" if index in right else "left"
        table.add_column(
            Text("\n".join(lines)), justify=justify, overflow="fold", no_wrap=index in whole
        )
    for index, row in enumerate(rows):
        cells = (Text(printable(cell)) for cell in row)
        table.add_row(*cells, style="bold" if index in marked else "")
    console.print(table)
