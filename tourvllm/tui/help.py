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
from .lines import wrap
from .pane import Pane

WIDTH = 86
FRAME = 7
"""Cells that border, padding and scrollbar take."""

KEY_WIDTH = 15
"""Cells of what stands before an explanation."""

WHO = "queues tables pool batch output"
SIGNS = (
    ("A", "a request; its letter and colour are the same everywhere", WHO),
    ("·  :  ×", "a free block; free, its content still cached; freed just now", "pool"),
    ("underlined", "a block that several requests share", "pool tables"),
    ("reversed", "a block taken just now", "pool tables"),
    ("bold", "changed: by this stop, or at the end of a step by that step", "queues tables"),
    ("▶  →", "the line that just ran; the line of the next stop, if recorded", "source"),
    ("14t+1", "a request of 14 tokens, 1 of them scheduled in this step", "queues"),
    (
        "13+1/14",
        "of 14 tokens 13 are computed (their keys and values are in the cache) and 1 is scheduled",
        "tables",
    ),
    (
        "length limit  stop",
        "why it finished: as long as asked for; a token or text that ends it",
        "queues",
    ),
    ("last block 1/4", "its last block holds 1 token of 4", "tables"),
    (
        "num_tokens",
        "of a step: positive for prompts, negative for decodes (nano-vllm)",
        "",
    ),
    ("█ ▒ ·", "tokens computed before, computed now, still to come", "batch"),
    ("faded", "not of the request or block that is followed (x, a click, Enter)", WHO),
    ("a column", "of the timeline is a step: KV use, tokens, who waits, its mark", "timeline"),
    ("P F E R B", "preempted, finished, evicted, rejected, a bookmark of yours", "timeline"),
    ("underlined P", "of these marks: the step has a bookmark too", "timeline"),
)
"""A sign, what it means, and the panes that it stands in."""


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
            box.border_subtitle = theme.shown("↑ ↓ PgUp PgDn scroll   Esc closes")
            box.focus()

    def on_resize(self) -> None:
        """Break the lines for this width."""
        width = max(20, min(WIDTH, self.app.size.width) - FRAME)
        lines = [
            *_of_pane(self._pane, width),
            *_keys(self._keymap, width),
            _heading("SIGNS"),
            *_signs(width),
            Text(),
            *_stops(width),
        ]
        for page in self.query(Static):
            page.update(Text("\n").join(theme.draw(line) for line in lines))


def _of_pane(pane: Pane | None, width: int) -> list[Text]:
    """What a pane is controlled by, and the words that stand in it."""
    if pane is None:
        told = "Tab chooses a pane; then this page begins with its keys and its words."
        return [*wrap(told, width), Text()]
    lines = [_heading(f"THIS PANE: {pane.TITLE.partition(' · ')[0].upper()}")]
    lines += [row for key, what in pane.KEYS for row in _row(key, what, width)]
    lines += [*_signs(width, pane.id or ""), Text()]
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


def _signs(width: int, pane: str = "") -> list[Text]:
    """What the signs mean: all of them, or those of one pane."""
    told = [(sign, what) for sign, what, panes in SIGNS if not pane or pane in panes.split()]
    return [row for sign, what in told for row in _row(sign, what, width)]


def _stops(width: int) -> list[Text]:
    lines = []
    for group in GROUPS:
        lines.append(_heading(f"STOPS {group.key}: {group.name.upper()}"))
        for name, stop in STOPS.items():
            if stop.group is group:
                lines += [Text(name, theme.style("bold")), *_indented(stop.about, width)]
        lines.append(Text())
    return lines


def _heading(text: str) -> Text:
    return Text(text, theme.style("note"))


def _row(key: str, about: str, width: int) -> list[Text]:
    """A key and what it does, which may take more lines."""
    key = f"{key:<{KEY_WIDTH}} " if len(key) <= KEY_WIDTH else f"{key}  "
    first, *rest = wrap(about, max(10, width - len(key)))
    head = Text.assemble((key, theme.style("bold")), first)
    return [head, *(Text.assemble(" " * len(key), line) for line in rest)]


def _indented(text: str, width: int) -> list[Text]:
    return [Text.assemble("    ", line) for line in wrap(text, max(10, width - 4))]
