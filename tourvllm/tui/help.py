"""The help screen: keys, signs and stops, from the same tables that the rest of the program uses."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..tour.stops import GROUPS, STOPS

KEYS = """\
n  →         one engine step on
p  ←         one engine step back
s  S         one stop on, one stop back
c  C         on, or back, to a breakpoint of the scenario; with none, to the end
f            on to the end of this phase: scheduling, the model's pass, the closing
[  ]         back, or on, to a mark of the timeline: preempt, finish, evict, reject
1 .. 6       on to the next stop of that group
Home  End    the start, the end of what is recorded
:            go to a step by its number
space        play and pause
Tab          next pane; ↑ ↓ PgUp PgDn scroll it, Shift+← Shift+→ sideways
z            zoom the pane; z again or Esc: back
v            next view (on a small terminal)
?            this page; Esc: back
q            quit
"""

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
    """Keys, signs, and what each stop means."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Back"),
    ]

    def compose(self) -> ComposeResult:
        """Lay the page out."""
        stops = []
        for group in GROUPS:
            stops.append(f"{group.key} {group.name}")
            stops += [
                f"  {name}\n      {stop.about}"
                for name, stop in STOPS.items()
                if stop.group is group
            ]
        text = "\n".join(["KEYS", KEYS, "SIGNS", SIGNS, "STOPS", *stops])
        with VerticalScroll():
            yield Static(text, markup=False)

    def on_mount(self) -> None:
        """The page takes the scrolling keys."""
        self.query_one(VerticalScroll).focus()
