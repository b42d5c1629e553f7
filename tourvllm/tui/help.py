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
f            on to the end of this phase: the first stop of another group
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
·  :  ×      a free block; free, its content still cached; freed just now
underlined   a block that several requests share
reversed     a block taken just now
bold         changed: by this stop, or at the end of a step by that step
▶  →         the line that just ran; the line of the next stop, if recorded
14t+1        a request of 14 tokens, 1 of them scheduled in this step
"""


class HelpScreen(ModalScreen[None]):
    """Keys, signs, and what each stop means."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Back"),
        Binding("up", "scroll('up')", show=False),
        Binding("down", "scroll('down')", show=False),
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

    def action_scroll(self, direction: str) -> None:
        """Scroll the page."""
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=-2 if direction == "up" else 2, animate=False)
