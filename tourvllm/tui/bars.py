"""The two lines that frame the screen: where we are, and which keys there are."""

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from ..tour.text import printable
from . import theme
from .pane import BOLD
from .session import Session
from .view import View


def status_line(session: Session, view: View | None, playing: str) -> Text:
    """LIVE or REPLAY, the scenario, the step, its phase, the stop, the free blocks, the score, its line.

    `playing` is at what speed the app plays by itself, or nothing.
    """
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
    if session.score.asked:
        line.append(f"  predictions {session.score.right}/{session.score.asked}", style=BOLD)
    doing = playing
    if session.busy and not playing:
        doing = "searching … space stops" if session.searching else "running … space halts"
    if session.reading and not doing:
        doing = f"reading {session.trace.share:.0%}"
    if doing:
        line.append("  ").append(f" {doing} ", style=Style(reverse=True))
    if view.event and view.event.at:
        line.append(f"  {printable(view.event.at[0])}:{view.event.at[1]}", style=theme.style("dim"))
    return line.append(f"\t{_speed(view)}", style=theme.style("dim"))


def _speed(view: View) -> str:
    """What the step took, and how many tokens a second that is."""
    times = view.times
    if times is None:
        return ""
    rates = (("prefill", times.prefill_rate), ("decode", times.decode_rate))
    parts = [f"{kind} {rate:,.0f} t/s" for kind, rate in rates if rate]
    total = f"{times.total_ms:.1f} ms"
    return "  ".join([total, *parts]) + f" \t{total} "


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
        """Show a line; of the parts that follow tabs the first that fits stands at the right edge."""
        line, *ends = line.split("\t")
        for end in ends:
            room = self.size.width - line.cell_len - end.cell_len
            if room > 1:
                line = Text.assemble(line, " " * room, end)
                break
        line = theme.draw(line)
        line.no_wrap = True
        line.overflow = "crop" if theme.is_ascii() else "ellipsis"
        self.update(line, layout=False)


def key_line(message: str, keys: Iterable[tuple[str, str]]) -> Text:
    """The keys, or what there is to say just now."""
    if message:
        return Text(f" {printable(message)}", style=Style(bold=True, reverse=True))
    line = Text(" ")
    for key, what in keys:
        line.append(key, style=BOLD)
        line.append(f" {what}  ", style=theme.style("dim"))
    return line
