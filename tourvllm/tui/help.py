"""The help screen: keys, signs, words and stops, from the same tables that the rest of the program uses."""

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from ..tour.glossary import GLOSSARY
from ..tour.stops import GROUPS, STOPS
from . import theme
from .dialog import Modal, plain_border
from .keys import table
from .pane import Pane, wrap

WIDTH = 86
FRAME = 7
"""Cells that border, padding and scrollbar take."""

SIGNS = """\
A            a request; its letter and colour are the same everywhere
·  :  ×      a free block; free, its content still remembered; freed just now
underlined   a block that several requests share
reversed     a block taken just now
bold         changed: by this stop, or at the end of a step by that step
▶  →         the line that just ran; the line of the next stop, if recorded
14t+1        a request of 14 tokens, 1 of them scheduled in this step
13+1/14      13 tokens computed (their keys and values are in the cache) and 1
             scheduled, of 14; last 1/4: its last block holds 1 token of 4
num_tokens   of a step: positive for prompts, negative for decodes (nano-vllm)
█ ▒ ·        in the batch: tokens that are cached, computed now, still to come
faded        not of the request or block that is followed (x, a click, Enter)
timeline     a column a step: KV use, prefill and decode tokens, who waits, marks;
             a mark is underlined where its step has a bookmark too
"""


class HelpScreen(Modal[None]):
    """The focused pane's keys and words first, then all keys, signs and stops."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Back"),
    ]

    def __init__(self, pane: Pane | None, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._pane = pane
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        """Lay the page out."""
        with VerticalScroll() as box:
            plain_border(box)
            yield Static(markup=False)

    def on_mount(self) -> None:
        """The page takes the scrolling keys."""
        for box in self.query(VerticalScroll):  # none, if a fast key has closed the page already
            box.focus()

    def on_resize(self) -> None:
        """Break the lines for this width."""
        width = max(20, min(WIDTH, self.app.size.width) - FRAME)
        lines = [
            *_of_pane(self._pane, width),
            *_keys(self._keymap, width),
            *_signs(),
            *_stops(width),
        ]
        for page in self.query(Static):
            page.update(Text("\n").join(theme.draw(line) for line in lines))


def _of_pane(pane: Pane | None, width: int) -> list[Text]:
    """What a pane is controlled by, and the words that stand in it."""
    if pane is None:
        told = "Tab chooses a pane; then this page begins with its keys and its words."
        return [*wrap(told, width), Text()]
    lines = [_heading(f"THIS PANE: {(pane.id or '').upper()}")]
    lines += [row for key, what in pane.KEYS for row in _row(key, what, width)]
    for term in pane.TERMS:
        if term in GLOSSARY:
            lines += [Text(term, theme.style("bold")), *_indented(GLOSSARY[term], width)]
    return [*lines, Text()]


def _keys(keymap: Mapping[str, str], width: int) -> list[Text]:
    lines: list[Text] = []
    for title, section in table(keymap):
        lines.append(_heading(title))
        lines += [row for keys, about in section for row in _row(keys, about, width)]
        lines.append(Text())
    return lines


def _signs() -> list[Text]:
    return [_heading("SIGNS"), *(Text(line) for line in SIGNS.splitlines()), Text()]


def _stops(width: int) -> list[Text]:
    lines = []
    for group in GROUPS:
        lines.append(_heading(f"STOPS {group.key}: {group.name.upper()}"))
        for name, stop in STOPS.items():
            if stop.group is group:
                lines += [Text(name, theme.style("bold")), *_indented(stop.about, width)]
    return lines


def _heading(text: str) -> Text:
    return Text(text, theme.style("note"))


def _row(key: str, about: str, width: int) -> list[Text]:
    """A key and what it does, which may take more lines."""
    key = f"{key:<12} " if len(key) < 13 else f"{key}  "
    first, *rest = wrap(about, max(10, width - len(key)))
    head = Text.assemble((key, theme.style("bold")), first)
    return [head, *(Text.assemble(" " * len(key), line) for line in rest)]


def _indented(text: str, width: int) -> list[Text]:
    return [Text.assemble("    ", line) for line in wrap(text, max(10, width - 4))]
