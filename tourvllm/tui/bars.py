"""The two lines that frame the screen: where we are, and which keys there are."""

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from ..tour.text import printable
from . import theme
from .lines import BOLD, drawn, in_sight, look_of
from .session import Session
from .view import View


def status_line(session: Session, view: View | None, playing: str, narrow: bool = False) -> Text:
    """LIVE or REPLAY, the scenario, the step, its phase, the stop, the free blocks, the score, its line.

    `playing` is at what speed the app plays by itself, or nothing. On a `narrow` screen the score, who is
    followed and what goes on by itself take the place of the name and the phase.
    """
    line = Text.assemble((f" {_kind(session)} ", Style(bold=True, reverse=True)))
    doing = _doing(session, playing)
    crowded = narrow and view is not None and bool(session.score.asked or _following(view) or doing)
    if not crowded:
        name = printable(str(session.trace.table("scenario").get("name", "")))
        line.append(f" {name} ", style=BOLD)
    line.append(" ")
    if view is None:
        return line.append(f"{session.status} …" if not session.error else "")
    if view.step and view.event:
        count = view.step.end - view.step.start
        growing = session.busy or (session.live and not session.ended and not view.step.is_whole)
        line.append(f"step {view.step.number}  ", style=BOLD)
        if not crowded:
            line.append(f"{str(view.state.get('phase', '')).upper()}  ")
        line.append(f"stop {view.position - view.step.start}/{count}{'+' if growing else ''} ")
        line.append(f"{printable(view.event.stop)}  ", style=BOLD)
    else:
        line.append("step 0  before the first stop  ")
    line.append(_free(view), style=BOLD)
    if session.score.asked:
        word = "right" if crowded else "predictions"
        line.append(f"  {word} {session.score.right}/{session.score.asked}", style=BOLD)
    line.append(_following(view), style=BOLD)
    if doing:
        line.append("  ").append(f" {doing} ", style=Style(reverse=True))
    if view.event and view.event.at:
        line.append(f"  {printable(view.event.at[0])}:{view.event.at[1]}", style=theme.style("dim"))
    return line.append(f"\t{_speed(view)}", style=theme.style("dim"))


def _kind(session: Session) -> str:
    if session.error:
        return "FAILED"
    if not session.live:
        return "REPLAY"
    return "ENDED" if session.ended else "LIVE"


def _doing(session: Session, playing: str) -> str:
    """What goes on by itself."""
    if session.busy and not playing:
        return "searching … space stops" if session.searching else "running … space halts"
    if session.reading and not playing:
        return f"reading {session.trace.share:.0%}"
    return playing


def _speed(view: View) -> str:
    """What the step took, and how many tokens a second that is; told at its end, when it has been seen."""
    times = view.times
    if times is None or not view.step or view.position < view.step.end:
        return ""
    rates = (("prefill", times.prefill_rate), ("decode", times.decode_rate))
    parts = [f"{kind} {rate:,.0f} t/s" for kind, rate in rates if rate]
    total = f"{times.total_ms:.1f} ms"
    return "  ".join([total, *parts]) + f" \t{total} "


def _following(view: View) -> str:
    """Who is followed in all panes."""
    chosen = view.selection
    if chosen.seq is not None:
        return f"  following {printable(chosen.seq)}"
    return "" if chosen.block is None else f"  following block {chosen.block}"


def _free(view: View) -> str:
    try:
        blocks = view.state["blocks"]
        return f"free {len(blocks['free'])}/{blocks['total']}"
    except (KeyError, TypeError):  # a foreign trace may lack them
        return ""


class Bar(Widget):
    """One line of literal text, drawn as the panes draw theirs.

    Of the parts that follow tabs the first that fits stands at the right edge. `by_parts`: of the line's parts,
    with two spaces between them, those that do not fit are left out.
    """

    def __init__(self, id: str, by_parts: bool = False) -> None:
        super().__init__(id=id)
        self.line = Text()
        self._by_parts = by_parts

    def set(self, line: Text) -> None:
        """Show a line."""
        if look_of(line) != look_of(self.line):
            self.line = line
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line; one that is cut ends in a sign of it."""
        base, width = self.rich_style, self.size.width
        return in_sight(drawn(self._fitted(width), base, self.app.console), 0, width, base)

    def _fitted(self, width: int) -> Text:
        line, *ends = self.line.split("\t")
        while self._by_parts and line.cell_len > width:
            line = line[: max(0, line.plain.rstrip().rfind("  "))]
        for end in ends:
            room = width - line.cell_len - end.cell_len
            if room > 1:
                return Text.assemble(line, " " * room, end)
        return line


def key_line(message: str, keys: Iterable[tuple[str, str]]) -> Text:
    """The keys, or what there is to say just now."""
    if message:
        return Text(f" {printable(message)}", style=Style(bold=True, reverse=True))
    line = Text(" ")
    for key, what in keys:
        line.append(key, style=BOLD)
        line.append(f" {what}  ", style=theme.style("dim"))
    line.rstrip()
    return line
