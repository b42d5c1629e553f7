"""The run as a whole."""

from bisect import bisect_left, bisect_right
from functools import partial
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.message import Message

from ...tour.timings import tokens_of, whole
from ...tour.trace import Mark, Step, Trace
from .. import theme
from ..pane import PLAIN, Kept, Pane, Part, joined
from ..view import View

LABEL = 8
"""Cells of a row's name."""

BOOKMARKED = Style(underline=True, bold=True)
"""A step whose bookmark gave way to a more telling mark."""

LEGEND = " │ P preempt  F finish  E evict  R reject  B bookmark"


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
        self._bars: Kept[list[str]] = Kept()
        self._letters: Kept[tuple[dict[int, str], set[int]]] = Kept()

    def build(self, view: View, width: int, height: int) -> list[Text]:
        steps = view.trace.steps
        here = bisect_right(steps, view.step.start, key=_start) - 1 if view.step else 0
        room = max(1, width - LABEL)
        first = max(0, min(here - room // 2, len(steps) - room))
        shown = self._shown = steps[first : first + room]
        self.set_title(self._heading(view, width))
        if not shown:
            return [Text("No step yet.", theme.style("dim"))]
        facts = [step.facts for step in shown]
        use, prefill, decode, waiting = self._bars.get(facts, partial(_bars_of, facts))
        rows = [
            _row("KV use", use, here - first, PLAIN),
            _row("prefill", prefill, here - first, theme.style("prefill")),
            _row("decode", decode, here - first, theme.style("decode")),
            _row("waiting", waiting, here - first, PLAIN),
            self._marks(view.trace, shown, here - first, width),
        ]
        fewer = {1: (0,), 2: (0, 4), 3: (0, 1, 4), 4: (0, 1, 2, 4)}.get(height)
        return [rows[i] for i in fewer] if fewer else rows

    def _heading(self, view: View, width: int) -> str:
        shown, text = self._shown, "timeline"
        if shown and width >= 100:
            text += f" · steps {shown[0].number}–{shown[-1].number}"
        if view.step and view.times:
            parts = "  ".join(f"{part} {ms:.1f}" for part, ms in view.times.parts.items())
            text += f" · step {view.step.number}: {view.times.total_ms:.1f} ms = {parts}"
        return text

    def _marks(self, trace: Trace, shown: list[Step], here: int, width: int) -> Text:
        marks = _marks_of(trace, shown)
        letters, bookmarked = self._letters.get(marks, partial(_letters, marks))
        parts: list[Part] = [(f"{'marks':<{LABEL}}", theme.style("dim"))]
        for i, step in enumerate(shown):
            sign = letters.get(step.number, "│" if i == here else " ")
            style = theme.style("here") if i == here else PLAIN
            if step.number in bookmarked and sign != "B":
                style += BOOKMARKED
            if parts[-1][1] is style:
                parts[-1] = parts[-1][0] + sign, style
            else:
                parts.append((sign, style))
        room = width - LABEL - len(shown) - len(LEGEND)
        if room >= 0:
            parts.append((" " * room + LEGEND, theme.style("dim")))
        return joined(parts)

    def point(self, event: events.Click) -> None:
        """Ask for the step of the column under the mouse."""
        offset = event.get_content_offset(self)
        column = offset.x + int(self.scroll_offset.x) - LABEL if offset else -1
        if 0 <= column < len(self._shown):
            self.post_message(self.Jump(self._shown[column].number))


def _start(step: Step) -> int:
    return step.start


def _row(label: str, bars: str, here: int, style: Style) -> Text:
    """A line of bars; that of the step that we are at stands out."""
    return joined(
        (
            (f"{label:<{LABEL}}", theme.style("dim")),
            (bars[:here], style),
            (bars[here : here + 1], style + theme.style("column")),
            (bars[here + 1 :], style),
        )
    )


def _bars_of(facts: list[dict[str, Any]]) -> list[str]:
    """For each row a bar for each step, full at the most of those shown (KV use: at the whole pool)."""
    rows = []
    for value in (_kv_use, _prefill, _decode, _waiting):
        values = [value(each) for each in facts]
        most = max(1, *values)
        rows.append("".join(_bar(number / most) for number in values))
    return rows


def _bar(share: float) -> str:
    return theme.BARS[min(7, int(share * 8))] if share > 0 else " "


def _kv_use(facts: dict[str, Any]) -> float:
    total = whole(facts.get("total"))
    return (total - whole(facts.get("free", total))) / total if total else 0


def _prefill(facts: dict[str, Any]) -> float:
    return tokens_of(facts)[0]


def _decode(facts: dict[str, Any]) -> float:
    return tokens_of(facts)[1]


def _waiting(facts: dict[str, Any]) -> float:
    return whole(facts.get("waiting"))


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
