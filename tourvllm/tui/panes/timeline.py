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
from ..pane import PLAIN, Kept, Pane, Part, joined, wrap
from ..view import View

LABEL, SCALE = 8, 17
"""Cells of a row's name; and of its scale too, when the pane has the screen for itself."""

WIDEST = 4
"""Cells of a step, at most."""

BOOKMARKED = Style(underline=True, bold=True)
"""A step whose bookmark gave way to a more telling mark."""

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
        self._label, self._cells = LABEL, 1
        self._kept: Kept[list[Bars]] = Kept()
        self._letters: Kept[tuple[dict[int, str], set[int]]] = Kept()

    def build(self, view: View, width: int, height: int) -> list[Text]:
        steps, zoomed = view.trace.steps, self.zoomed
        here = bisect_right(steps, view.step.start, key=_start) - 1 if view.step else 0
        self._label = SCALE if zoomed else LABEL
        room = max(1, width - self._label)
        # Several cells a step, if there is still room for the legend beside them.
        free = room if zoomed else room - len(LEGEND) - 3
        self._cells = max(1, min(WIDEST, free // max(1, len(steps))))
        room = max(1, room // self._cells)
        first = max(0, min(here - room // 2, len(steps) - room))
        self._shown = steps[first : first + room]
        self.set_title(self._heading(view, width))
        if not self._shown:
            return [Text("No step yet.", theme.style("dim"))]
        draw = self._tall if zoomed else self._low
        return draw(view, here - first, width, height)

    def _rows(self, tall: int) -> list[Bars]:
        facts = [step.facts for step in self._shown]
        return self._kept.get((facts, tall), partial(_rows_of, facts, tall))

    def _low(self, view: View, here: int, width: int, height: int) -> list[Text]:
        """A line for each row; only the most telling ones, if there is no room for all."""
        lines = [
            self._line(f"{row.name:<{LABEL}}", bars[0], here, row) for row, _, bars in self._rows(1)
        ]
        lines.append(self._marks(view.trace, here, width))
        fewer = {1: (0,), 2: (0, 4), 3: (0, 1, 4), 4: (0, 1, 2, 4)}.get(height)
        return [lines[i] for i in fewer] if fewer else lines

    def _tall(self, view: View, here: int, width: int, height: int) -> list[Text]:
        """Bars of several lines, with their scale and this step's value; what explains them stands below."""
        below = [
            Text(" " * SCALE + self._numbers(), theme.style("dim")),
            self._marks(view.trace, here, 0),
            Text(" " * SCALE + LEGEND, theme.style("dim")),
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
        if shown and (width >= 100 or self.zoomed):
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

    def _marks(self, trace: Trace, here: int, width: int) -> Text:
        """The steps' letters; in `width` cells with what they mean, if that fits."""
        shown = self._shown
        marks = _marks_of(trace, shown)
        letters, bookmarked = self._letters.get(marks, partial(_letters, marks))
        parts: list[Part] = [(f"{'marks':<{self._label}}", theme.style("dim"))]
        for i, step in enumerate(shown):
            sign = letters.get(step.number, "│" if i == here else " ")
            style = theme.style("here") if i == here else PLAIN
            if step.number in bookmarked and sign != "B":
                style += BOOKMARKED
            sign = sign.ljust(self._cells)
            if parts[-1][1] is style:
                parts[-1] = parts[-1][0] + sign, style
            else:
                parts.append((sign, style))
        room = width - self._label - len(shown) * self._cells - len(LEGEND) - 3
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
        column = offset.x + int(self.scroll_offset.x) - self._label if offset else -1
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
    lines = zip(left, right, strict=True)
    return [f"{name:<{LABEL + 2}}{number:>{SCALE - LABEL - 3}} " for name, number in lines]


def _rows_of(facts: list[dict[str, Any]], tall: int) -> list[Bars]:
    found = [(row, [row.value(each) for each in facts]) for row in ROWS]
    return [(row, values, _bars(values, tall)) for row, values in found]


def _bars(values: list[float], tall: int) -> list[str]:
    """Lines of bars from the top, full at the most of those shown (a share: at 1)."""
    most = max(1, *values)
    levels = [8 * tall * value / most for value in values]
    return ["".join(_bar(level - 8 * line) for level in levels) for line in reversed(range(tall))]


def _bar(eighths: float) -> str:
    return theme.BARS[min(7, int(eighths))] if eighths > 0 else " "


def _marks_of(trace: Trace, shown: list[Step]) -> list[Mark]:
    """The marks of these steps."""
    first = bisect_left(trace.marks, shown[0].start, key=_position)
    return trace.marks[first : bisect_right(trace.marks, shown[-1].end, key=_position)]


def _position(mark: Mark) -> int:
    return mark.position


def _letters(marks: list[Mark]) -> tuple[dict[int, str], set[int]]:
    """The most telling mark of each step: a preemption before a rejection, an end, an eviction, a bookmark.

    And the steps that have a bookmark.
    """
    order = "PRFEB"
    found: dict[int, str] = {}
    bookmarked: set[int] = set()
    for mark in marks:
        best = found.get(mark.step, mark.letter)
        found[mark.step] = min(best, mark.letter, key=order.find)
        if mark.letter == "B":
            bookmarked.add(mark.step)
    return found, bookmarked
