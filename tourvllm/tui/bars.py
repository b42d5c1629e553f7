"""The two lines that frame the screen: where we are, and which keys there are."""

from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from ..tour.text import printable
from .pane import BOLD, DIM
from .session import Session
from .view import View

KEYS = (
    ("n", "step"),
    ("p", "back"),
    ("s", "stop"),
    ("S", "stop back"),
    ("c", "continue"),
    ("[ ]", "marks"),
    ("1-6", "to group"),
    ("space", "play"),
    (":", "go to"),
    ("z", "zoom"),
    ("?", "help"),
    ("q", "quit"),
)
NARROW_KEYS = (
    ("n", "step"),
    ("p", "back"),
    ("s", "stop"),
    ("c", "cont"),
    ("1-6", "group"),
    (":", "go"),
    ("v", "view"),
    ("z", "zoom"),
    ("?", "help"),
    ("q", "quit"),
)


def status_line(session: Session, view: View | None, playing: bool) -> Text:
    """LIVE or REPLAY, the scenario, the step, its phase, the stop, its line, the free blocks."""
    kind = (
        "LIVE" if session.live and not session.ended else "REPLAY" if not session.live else "ENDED"
    )
    if session.error:
        kind = "FAILED"
    line = Text.assemble((f" {kind} ", Style(bold=True, reverse=True)))
    line.append(f" {printable(str(session.trace.table('scenario').get('name', '')))}  ", style=BOLD)
    if view is None:
        return line.append(f"{session.status} …" if not session.error else "")
    if view.step and view.event:
        count = view.step.end - view.step.start
        growing = session.busy or (
            session.live and not session.ended and view.step.facts.get("when") != "end"
        )
        line.append(f"step {view.step.number}  ", style=BOLD)
        line.append(f"{str(view.state.get('phase', '')).upper()}  ")
        line.append(f"stop {view.position - view.step.start}/{count}{'+' if growing else ''} ")
        line.append(f"{printable(view.event.stop)}  ", style=BOLD)
    else:
        line.append("step 0  before the first stop  ")
    line.append(_free(view), style=BOLD)
    if session.busy or playing:
        line.append(
            f"  {'searching … space stops' if session.searching else 'running …'}"
            if session.busy
            else "  playing",
            style=Style(reverse=True),
        )
    if view.event and view.event.at:
        line.append(f"  {printable(view.event.at[0])}:{view.event.at[1]}", style=DIM)
    return line


def _free(view: View) -> str:
    try:
        blocks = view.state["blocks"]
        return f"free {len(blocks['free'])}/{blocks['total']}"
    except (KeyError, TypeError):  # a foreign trace may lack them
        return ""


class Bar(Static):
    """One line of literal text."""

    def __init__(self, id: str) -> None:
        super().__init__("", id=id, markup=False)

    def set(self, line: Text) -> None:
        """Show a line; nothing moves on the screen."""
        line.no_wrap = True
        line.overflow = "ellipsis"
        self.update(line, layout=False)


def key_line(message: str, narrow: bool) -> Text:
    """The keys, or what there is to say just now."""
    if message:
        return Text(f" {printable(message)}", style=Style(bold=True, reverse=True))
    line = Text(" ")
    for key, what in NARROW_KEYS if narrow else KEYS:
        line.append(key, style=BOLD)
        line.append(f" {what}  ", style=DIM)
    return line
