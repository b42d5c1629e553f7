"""The words: what has just happened and why."""

from typing import ClassVar

from rich.text import Text

from ...tour.text import line as one_line
from ...tour.text import printable
from .. import theme
from ..lines import BOLD, PLAIN, joined, wrap
from ..pane import Pane, name
from ..past import Told, of_request, story
from ..view import Selection, View
from .block import block_lines
from .block import earlier as earlier_events

SHORT, SHORT_NARROW, SHORT_BELOW_SOURCE = 10, 6, 5
"""Lines that the pane holds; app.tcss makes it taller at a stop that has more to tell. The last: where a small
screen has the view of the code."""

WHAT_NOW = (
    "What now? r runs it again, with other settings if wanted, and d compares both runs. Home goes back to "
    "the start, q quits."
)


class WhyPane(Pane):
    """What has just happened and why; what the narrator says; the watches' values; what the step decided.

    Before it all, what the scenario is about. While a request or a block is followed, its history.
    """

    TITLE = "why"
    EMPTY = "What happens and why will be told here, once the engine is ready."
    TERMS: ClassVar[tuple[str, ...]] = ("preemption", "token budget", "prefix hit")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("↑ ↓", "scroll"),
        ("PgUp PgDn", "scroll, also while no pane has the focus"),
        ("x", "follow a request: why does it wait?"),
        ("w", "watch an expression"),
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.error: str | None = None
        self._told_at: tuple[int, object] | None = None

    def _rebuild(self) -> None:
        super()._rebuild()
        narrow, code = (self.screen.has_class(name) for name in ("-narrow", "view-code"))
        short = SHORT if not narrow else SHORT_BELOW_SOURCE if code else SHORT_NARROW
        # A small screen needs the rows for the batch, where it shows one.
        room = not narrow or code or not (self.view and self.view.state.get("batch"))
        long = room and len(self._lines) > short
        self.set_class(long, "-long")
        # Little of the source is needed there: each step begins and ends on the same lines.
        self.set_class(long and self.view is not None and _is_whole(self.view), "-longest")

    def _build(self, width: int, height: int) -> list[Text]:
        lines: list[Text] = []
        if self.error:
            lines = wrap("ENGINE STOPPED: " + printable(self.error), width, theme.style("alarm"))
        return lines + super()._build(width, height)

    def build(self, view: View, width: int, height: int) -> list[Text]:
        notes, below = _notes(view, width)
        lines = _scenario(view, width) if _opens(view) else []
        lines += _event(view, width) if view.event else []
        lines += notes
        lines += wrap(WHAT_NOW, width, BOLD) if _is_end(view) else []
        if view.selection.seq is not None:
            lines += self._request(view, view.selection.seq, width)
        elif view.selection.block is not None:
            lines += block_lines(view, view.selection.block, width)
        lines += _watch_rows(view, width)
        if view.selection == Selection():
            lines += _decisions(view, width)
        lines += below
        key = "PgDn" if self.screen.focused in (None, self) else ""
        self.set_title(
            "why" + _more(len(lines) - height - int(self.scroll_offset.y), key) + _next(view)
        )
        self._to_the_top(view)
        return lines

    def _to_the_top(self, view: View) -> None:
        """Another moment or another selection is read from its beginning."""
        told_at = (view.position, view.selection)
        if told_at != self._told_at:
            self._told_at = told_at
            if self.scroll_offset.y:
                self.scroll_to(y=0, animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scroll, and count anew what is below."""
        super().watch_scroll_y(old_value, new_value)
        if int(old_value) != int(new_value):
            self._rebuild()

    def _request(self, view: View, seq_id: str, width: int) -> list[Text]:
        """Where the followed request stands, and the decisions that brought it there."""
        past = of_request(view.trace, view.position, seq_id)
        history = story(past, seq_id, view.state["blocks"]["total"])
        order = " Newest first:" if len(history) > 1 else ""
        first, *lines = wrap(f"{seq_id} {_standing(view, seq_id)}{order}", width, BOLD)
        lines.insert(0, Text.assemble(name(view, seq_id), first[len(seq_id) :]))
        for told in history:
            lines += _item(f"{_steps(told)}  ", printable(told.text) + _times(told), width)
        return lines + earlier_events(past)


def _more(lines: int, key: str) -> str:
    """How many lines are below, and the key that goes there if it is this pane's now."""
    if lines <= 0:
        return ""
    more = f"{lines} more line{'s' if lines > 1 else ''}"
    return f" · {key}: {more}" if key else f" · {more} below"


def _next(view: View) -> str:
    """The stop that comes next, if it is recorded."""
    event = view.next_event
    if event is None:
        return ""
    stop = event.stop
    if view.at_step_end and stop == "step":
        return f" · next: step {event.step} begins"
    if view.at_step_end and stop != "generate":
        stop = f"step {event.step}, {stop}"
    where = f" {event.at[0].rpartition('/')[-1]}:{event.at[1]}" if event.at else ""
    return printable(f" · next: {stop}{where}")


def _opens(view: View) -> bool:
    """Whether nothing of the run has been seen yet: at its start, and where the app opens."""
    event, step = view.event, view.step
    first = event and event.stop == "step" and step and step.start == 0
    return view.position == 0 or bool(event and first and event.facts.get("when") == "begin")


def _is_end(view: View) -> bool:
    event = view.event
    return bool(event and event.stop == "generate" and event.facts.get("when") == "end")


def _is_whole(view: View) -> bool:
    """Whether a step or the run is looked at as a whole, and not one stop."""
    return view.at_step_end or _opens(view) or _is_end(view)


def _scenario(view: View, width: int) -> list[Text]:
    """What the scenario is about, as its author has set it up."""
    scenario = view.trace.table("scenario")
    title, about = str(scenario.get("title", "")), str(scenario.get("about", ""))
    lines = wrap(printable(title), width, BOLD) if title else []
    if about and scenario.get("settings"):
        about = "Before its settings were changed: " + about
    for paragraph in about.split("\n\n") if about else ():
        lines += wrap(one_line(" ".join(paragraph.split())), width)
    return lines


def _event(view: View, width: int) -> list[Text]:
    stop = printable(view.event.stop) if view.event else ""
    lines = wrap(f"{stop}  {printable(view.why)}", width)
    lines[0].stylize(BOLD, 0, len(stop))
    return lines


def _notes(view: View, width: int) -> tuple[list[Text], list[Text]]:
    """The notes that are told first, and those that are told below.

    A step as a whole tells all in the order in which things happened. Else what is told of this very stop must not
    be below the fold, so the newest stands first.
    """
    notes = ["» " + one_line(" ".join(note.split())) for note in view.notes]
    first = 0 if _is_whole(view) and view.selection == Selection() else len(notes) - 1
    told = [line for note in notes[first:] for line in wrap(note, width, theme.style("note"))]
    before = reversed(notes[: max(0, first)])
    earlier = [line for note in before for line in wrap(note, width, theme.style("dim"))]
    return told, [_label("earlier in this step, newest first:"), *earlier] if earlier else []


def _label(text: str) -> Text:
    return Text(text, theme.style("dim"))


def _decisions(view: View, width: int) -> list[Text]:
    """What was decided in a step, at its end."""
    at_end = view.at_step_end or _is_end(view)
    decisions = view.whole_step.decisions if at_end and view.whole_step else []
    items = [line for told in decisions for line in _item("· ", printable(told), width)]
    return [_label("in this step:"), *items] if items else []


def _watch_rows(view: View, width: int) -> list[Text]:
    """The values of the watch expressions, side by side as far as they fit; since when, if some have changed."""
    since = "the step began" if view.at_step_end else "the stop before"
    any_changed = any(changed for *_, changed in view.watched)
    heading = [_label(f"watch, since {since}:")] if any_changed else []
    lines: list[Text] = []
    for text, old, new, changed in view.watched:
        label = (f"{printable(text)} = ", theme.style("dim"))
        value = (f"{old} {theme.arrow()} {new}", BOLD) if changed else new
        watch = Text.assemble(label, value)
        if lines and lines[-1].cell_len + 3 + watch.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "   ", watch)
        else:
            lines.append(watch)
    return heading + lines


def _item(head: str, text: str, width: int) -> list[Text]:
    """A paragraph that hangs behind its dim head."""
    rows = wrap(text, max(1, width - len(head)))
    heads = [head] + [" " * len(head)] * (len(rows) - 1)
    dim = theme.style("dim")
    return [
        joined([(lead, dim), (row.plain, PLAIN)]) for lead, row in zip(heads, rows, strict=True)
    ]


def _steps(told: Told) -> str:
    return f"step {told.first}" if told.first == told.last else f"steps {told.first}–{told.last}"


def _times(told: Told) -> str:
    return f" ({told.times} times)" if told.times > 1 else ""


_STANDS = {"waiting": "waits", "running": "is running", "finished": "has finished"}


def _standing(view: View, seq_id: str) -> str:
    """One sentence on where a request stands now."""
    seq = view.state["seqs"].get(seq_id)
    if seq is None:
        return "has not arrived yet."
    text = _STANDS.get(seq["status"], printable(str(seq["status"])))
    if seq["status"] == "finished":
        return f"{text} ({printable(str(seq['finish_reason']))})."
    done, now = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
    text += f": {done} of its {seq['num_tokens']} tokens computed"
    return text + (f", {now} in this step." if now else ".")
