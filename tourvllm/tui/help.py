"""The help screen: keys, signs and stops, from the same tables that the rest of the program uses."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..tour.stops import GROUPS, STOPS

KEYS = """\
n  →            one engine step on            p  ←   one engine step back
s  S            one stop on, one stop back    f-free: every stop is one line of the engine
c  C            on, or back, to a breakpoint (the scenario's; with none, to the end)
1 .. 6          on to the next stop of that group
Home  End       the start, the end of what is recorded
space           play and pause                :      go to a step by its number
Tab             next pane; ↑ ↓ PgUp PgDn scroll it, Shift+← Shift+→ sideways
z               zoom the pane (z again: back) v      next view (small terminals)
?  Esc          this page and back            q      quit
"""

SIGNS = """\
A               a request, on its colour everywhere      front first: the deque's front is left
· : ×           a free block; free but its content is still cached; freed just now
A underlined    a block that several requests share      A reversed: a block taken just now
bold            what changed: at a stop by that stop, at the end of a step by the whole step
▶ →             the line that just ran; the line of the next stop, when it is recorded
t               tokens: 14t+1 has 14 tokens and one is scheduled in this step
"""


class HelpScreen(ModalScreen[None]):
    """Keys, signs, and what each stop means."""

    BINDINGS = [
        Binding("escape,question_mark,q", "dismiss", "Back"),
        Binding("up", "scroll('up')", show=False),
        Binding("down", "scroll('down')", show=False),
    ]

    def compose(self) -> ComposeResult:
        """Lay the page out."""
        stops = []
        for group in GROUPS:
            stops.append(f"{group.key} {group.name}")
            stops += [f"  {name:<16} {stop.about}" for name, stop in STOPS.items() if stop.group is group]
        text = "\n".join(["KEYS", KEYS.replace("f-free: every", "every"), "SIGNS", SIGNS, "STOPS", *stops])
        with VerticalScroll():
            yield Static(text, markup=False)

    def action_scroll(self, direction: str) -> None:
        """Scroll the page."""
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=-2 if direction == "up" else 2, animate=False)
