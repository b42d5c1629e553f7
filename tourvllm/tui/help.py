"""The help screen: keys, signs, words and stops, from the same tables that the rest of the program uses."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..tour.glossary import GLOSSARY
from ..tour.stops import GROUPS, STOPS
from . import theme
from .keys import table
from .pane import Pane

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
timeline     tokens a step: blue prefill, yellow decode, green mixed
"""


class HelpScreen(ModalScreen[None]):
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
        parts = [*_of_pane(self._pane), *table(self._keymap), "SIGNS", SIGNS, *_stops()]
        with VerticalScroll():
            yield Static(theme.shown("\n".join(parts)), markup=False)

    def on_mount(self) -> None:
        """The page takes the scrolling keys."""
        self.query_one(VerticalScroll).focus()


def _of_pane(pane: Pane | None) -> list[str]:
    """What a pane is controlled by, and the words that stand in it."""
    if pane is None:
        return ["Tab chooses a pane; then this page begins with its keys and words.", ""]
    lines = [f"THIS PANE: {(pane.id or '').upper()}"]
    lines += [f"{key:<12} {what}" for key, what in pane.KEYS]
    for term in pane.TERMS:
        lines += [f"  {term}", f"      {GLOSSARY[term]}"] if term in GLOSSARY else []
    return [*lines, ""]


def _stops() -> list[str]:
    lines = ["STOPS"]
    for group in GROUPS:
        lines.append(f"{group.key} {group.name}")
        lines += [
            f"  {name}\n      {stop.about}" for name, stop in STOPS.items() if stop.group is group
        ]
    return lines
