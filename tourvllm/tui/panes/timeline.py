"""The run as a whole."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.message import Message

from ...tour.timings import tokens_of, whole
from ...tour.trace import Mark, Step, Trace
from .. import theme
from ..lines import PLAIN, Part, joined, wrap
from ..pane import Kept, Pane
from ..view import View

LABEL = 17
"""Cells of a row's name and scale."""

WIDEST = 4
"""Cells of a step, at most."""

BOOKMARKED = Style(underline=True, bold=True)
"""A step whose bookmark gave way to a more telling mark."""

TELLING = "PRFEB"
"""Marks: a preemption tells more than a rejection, an end, an eviction, a bookmark."""

MOST_KEPT = 4000
"""Columns."""

LEGEND = "P preempt  F finish  E evict  R reject  B bookmark"


def _kv_use(facts: dict[str, Any]) -> float:
    total = whole(facts.get("total"))
    return (total - whole(facts.get("free", total))) / total if total else 0


def _prefill(facts: dict[str, Any]) -> float:
    return tokens_of(facts)[0]


def _decode(facts: dict[str, Any]) -> float:
    return tokens_of(facts)[1]


def _waiting(facts: dict[str, Any]) -> float:
    return whole(facts.get("waiting"))


@dataclass(frozen=True)
class Row:
    """A row of bars: its name, a step's value, how that is told, in which style."""

    name: str
    value: Callable[[dict[str, Any]], float]
    told: str = "{:,.0f}"
    style: str = ""


ROWS = (
    Row("KV use", _kv_use, "{:.0%}"),
    Row("prefill", _prefill, style="prefill"),
    Row("decode", _decode, style="decode"),
    Row("waiting", _waiting),
)


Bars = tuple[Row, list[float], list[str]]
"""A row with its values, step by step, and its lines of bars."""


@dataclass(frozen=True)
class Column:
    """What is told of a step: its values in the order of `ROWS`, its most telling mark, if any is a bookmark."""

    facts: dict[str, Any]
    values: tuple[float, ...]
    letter: str
    bookmarked: bool


class _Columns:
    """The columns of steps. They are kept, for a step changes only while it is recorded or gets a bookmark."""

    def __init__(self) -> None:
        self._made_of: tuple[Trace, int] | None = None
        self._kept: dict[int, Column] = {}

    def of(self, trace: Trace, steps: list[Step]) -> list[Column]:
        """A column for each of these steps."""
        if self._made_of != (trace, len(trace.marks)) or len(self._kept) > MOST_KEPT:
            self._made_of, self._kept = (trace, len(trace.marks)), {}
        return [self._column(trace, step) for step in steps]

    def _column(self, trace: Trace, step: Step) -> Column:
        column = self._kept.get(step.start)
        if column is None or column.facts is not step.facts:
            values = tuple(row.value(step.facts) for row in ROWS)
            letters = {mark.letter for mark in _marks_of(trace, step)}
            letter = min(letters, key=TELLING.find, default="")
            column = self._kept[step.start] = Column(step.facts, values, letter, "B" in letters)
        return column


class TimelinePane(Pane):
    """The whole run: of each step its KV use, its tokens, who waits, its mark, and where we are."""

    TITLE = "timeline"
    EMPTY = "The run at a glance: one column a step."
    TERMS: ClassVar[tuple[str, ...]] = ("step", "prefill", "decode", "preemption", "eviction")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("click", "go to that step"),
        ("[ ]", "the note or mark before, the next one"),
        (":", "go to a step by its number"),
    )

    class Jump(Message):
        """The user points at a step, to go there."""

        def __init__(self, step_number: int) -> None:
            super().__init__()
            self.step_number = step_number

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._shown: list[Step] = []
        self._cells = 1
        self._known = _Columns()
        self._columns: list[Column] = []
        self._bars: Kept[list[Bars]] = Kept()

    def build(self, view: View, width: int, height: int) -> list[Text]:
        steps, zoomed = view.trace.steps, self.zoomed
        here = bisect_right(steps, view.step.start, key=_start) - 1 if view.step else 0
        room = max(1, width - LABEL)
        # Several cells a step, if there is still room for the legend beside them.
        free = room if zoomed else room - len(LEGEND) - 3
        self._cells = max(1, min(WIDEST, free // max(1, len(steps))))
        room = max(1, room // self._cells)
        first = max(0, min(here - room // 2, len(steps) - room))
        self._shown = steps[first : first + room]
        self._columns = self._known.of(view.trace, self._shown)
        self.set_title(self._heading(view, width))
        if not self._shown:
            return [Text("No step yet.", theme.style("dim"))]
        draw = self._tall if zoomed else self._low
        return draw(view, here - first, width, height)

    def _rows(self, tall: int) -> list[Bars]:
        return self._bars.get((self._columns, tall), partial(_rows_of, self._columns, tall))

    def _low(self, view: View, here: int, width: int, height: int) -> list[Text]:
        """A line for each row; only the most telling ones, if there is no room for all."""
        lines = [
            self._line(_label(row.name, _range(row, values)), bars[0], here, row)
            for row, values, bars in self._rows(1)
        ]
        lines.append(self._marks(here, width))
        fewer = {1: (0,), 2: (0, 4), 3: (0, 1, 4), 4: (0, 1, 2, 4)}.get(height)
        return [lines[i] for i in fewer] if fewer else lines

    def _tall(self, view: View, here: int, width: int, height: int) -> list[Text]:
        """Bars of several lines, with their scale and this step's value; what explains them stands below."""
        below = [
            Text(" " * LABEL + self._numbers(), theme.style("dim")),
            self._marks(here, 0),
            Text(" " * LABEL + LEGEND, theme.style("dim")),
            *wrap(_times(view), width),
        ]
        tall = max(1, (height - len(below)) // len(ROWS) - 1)
        lines: list[Text] = []
        for row, values, bars in self._rows(tall):
            labels = _scale(row, values[here], max(1, *values), tall)
            drawn = zip(labels, bars, strict=True)
            lines += [*(self._line(label, line, here, row) for label, line in drawn), Text()]
        return [*lines, *below]

    def _heading(self, view: View, width: int) -> str:
        shown, text = self._shown, "timeline"
        if shown:
            text += f" · steps {shown[0].number}–{shown[-1].number}"
        if view.step and view.times and not self.zoomed:
            text += f" · step {view.step.number}: {view.times.total_ms:.1f} ms"
            text += f" = {_parts(view)}" if width >= 100 else ""
        return text

    def _line(self, label: str, bars: str, here: int, row: Row) -> Text:
        """A line of bars; that of the step that we are at stands out."""
        style = theme.style(row.style) if row.style else PLAIN
        parts = bars[:here], bars[here : here + 1], bars[here + 1 :]
        before, this, after = (_widened(part, self._cells) for part in parts)
        column = (this, style + theme.style("column"))
        return joined(((label, theme.style("dim")), (before, style), column, (after, style)))

    def _marks(self, here: int, width: int) -> Text:
        """The steps' letters; in `width` cells with what they mean, if that fits."""
        parts: list[Part] = [(f"{'marks':<{LABEL}}", theme.style("dim"))]
        for i, column in enumerate(self._columns):
            sign = column.letter or ("│" if i == here else " ")
            style = theme.style("here") if i == here else PLAIN
            if column.bookmarked and sign != "B":
                style += BOOKMARKED
            sign = sign.ljust(self._cells)
            if parts[-1][1] is style:
                parts[-1] = parts[-1][0] + sign, style
            else:
                parts.append((sign, style))
        room = width - LABEL - len(self._shown) * self._cells - len(LEGEND) - 3
        if room >= 0:
            parts.append((" " * room + " │ " + LEGEND, theme.style("dim")))
        return joined(parts)

    def _numbers(self) -> str:
        """Step numbers, each above its column and as many as there is room for."""
        line = ""
        for i, step in enumerate(self._shown):
            at, every = i * self._cells, 5 if self._cells > 1 else 10
            if (i == 0 or step.number % every == 0) and (not line or len(line) + 2 <= at):
                line = line.ljust(at) + str(step.number)
        return line

    def point(self, event: events.Click) -> None:
        """Ask for the step of the column under the mouse."""
        offset = event.get_content_offset(self)
        column = offset.x + int(self.scroll_offset.x) - LABEL if offset else -1
        if 0 <= column < len(self._shown) * self._cells:
            self.post_message(self.Jump(self._shown[column // self._cells].number))


def _start(step: Step) -> int:
    return step.start


def _parts(view: View) -> str:
    times = view.times.parts if view.times else {}
    return "  ".join(f"{part} {ms:.1f}" for part, ms in times.items())


def _times(view: View) -> str:
    """What this step took, in words."""
    if view.step is None or view.times is None:
        return ""
    return f"step {view.step.number} took {view.times.total_ms:.1f} ms = {_parts(view)}"


def _widened(bars: str, cells: int) -> str:
    """Each sign on `cells` cells; where there are many, with a gap to the next."""
    gap = " " if cells > 2 else ""
    return bars if cells == 1 else "".join(sign * (cells - len(gap)) + gap for sign in bars)


def _scale(row: Row, value: float, most: float, tall: int) -> list[str]:
    """What stands before the lines of a row: its name and the top of its scale, this step's value, 0."""
    left = [row.name, f"here {row.told.format(value)}", *[""] * tall][:tall]
    right = [row.told.format(most), *[""] * (tall - 2), "0"][:tall]
    return list(map(_label, left, right))


def _range(row: Row, values: list[float]) -> str:
    """What the lowest and the highest bar stand for, where a row is one line."""
    return f"0–{row.told.format(max(1, *values))}"


def _label(name: str, scale: str) -> str:
    """What stands before a line of bars."""
    return f"{name}{scale:>{LABEL - len(name) - 1}} "


def _rows_of(columns: list[Column], tall: int) -> list[Bars]:
    values = [[column.values[i] for column in columns] for i in range(len(ROWS))]
    return [(row, own, _bars(own, tall)) for row, own in zip(ROWS, values, strict=True)]


def _bars(values: list[float], tall: int) -> list[str]:
    """Lines of bars from the top, full at the most of those shown (a share: at 1)."""
    most = max(1, *values)
    levels = [8 * tall * value / most for value in values]
    return ["".join(_bar(level - 8 * line) for level in levels) for line in reversed(range(tall))]


def _bar(eighths: float) -> str:
    return theme.BARS[min(7, int(eighths))] if eighths > 0 else " "


def _marks_of(trace: Trace, step: Step) -> list[Mark]:
    first = bisect_left(trace.marks, step.start, key=_position)
    marks = trace.marks[first : bisect_right(trace.marks, step.end, key=_position)]
    return [mark for mark in marks if mark.step == step.number]


def _position(mark: Mark) -> int:
    return mark.position
