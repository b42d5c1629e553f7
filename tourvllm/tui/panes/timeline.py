"""The run as a whole."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.message import Message

from ...tour.timings import tokens_of, whole
from ...tour.trace import Step, Trace
from .. import theme
from ..pane import Pane
from ..view import View

LABEL = 8
"""Cells of a row's name."""

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

    def build(self, view: View, width: int, height: int) -> list[Text]:
        steps = view.trace.steps
        here = bisect_right(steps, view.step.start, key=_start) - 1 if view.step else 0
        room = max(1, width - LABEL)
        first = max(0, min(here - room // 2, len(steps) - room))
        shown = self._shown = steps[first : first + room]
        self.set_title(self._heading(view, width))
        if not shown:
            return [Text("No step yet.", theme.style("dim"))]
        rows = [
            self._row("KV use", shown, here - first, _kv_use, Style()),
            self._row("prefill", shown, here - first, _prefill, theme.style("prefill")),
            self._row("decode", shown, here - first, _decode, theme.style("decode")),
            self._row("waiting", shown, here - first, _waiting, Style()),
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

    def _row(
        self,
        label: str,
        shown: list[Step],
        here: int,
        value: Callable[[dict[str, Any]], float],
        style: Style,
    ) -> Text:
        """A bar for each step, full at the most of those shown (KV use: at the whole pool)."""
        line = Text.assemble((f"{label:<{LABEL}}", theme.style("dim")))
        values = [value(step.facts) for step in shown]
        most = max(1, *values)
        for i, number in enumerate(values):
            line.append(_bar(number / most), style + theme.style("column") if i == here else style)
        return line

    def _marks(self, trace: Trace, shown: list[Step], here: int, width: int) -> Text:
        letters, bookmarked = _letters(trace, shown)
        line = Text.assemble((f"{'marks':<{LABEL}}", theme.style("dim")))
        for i, step in enumerate(shown):
            sign = letters.get(step.number, "│" if i == here else " ")
            style = theme.style("here") if i == here else Style()
            both = step.number in bookmarked and sign != "B"
            line.append(sign, style + Style(underline=True, bold=True) if both else style)
        room = width - line.cell_len - len(LEGEND)
        if room >= 0:
            line.append(" " * room + LEGEND, theme.style("dim"))
        return line

    def point(self, event: events.Click) -> None:
        """Ask for the step of the column under the mouse."""
        offset = event.get_content_offset(self)
        column = offset.x + int(self.scroll_offset.x) - LABEL if offset else -1
        if 0 <= column < len(self._shown):
            self.post_message(self.Jump(self._shown[column].number))


def _start(step: Step) -> int:
    return step.start


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


def _letters(trace: Trace, shown: list[Step]) -> tuple[dict[int, str], set[int]]:
    """The most telling mark of each step: a preemption before a rejection, an end, an eviction, a bookmark.

    And the steps that have a bookmark.
    """
    order = "PRFEB"
    found: dict[int, str] = {}
    bookmarked: set[int] = set()
    first = bisect_left(trace.marks, shown[0].start, key=lambda mark: mark.position)
    for mark in trace.marks[first:]:
        if mark.position > shown[-1].end:
            break
        best = found.get(mark.step, mark.letter)
        found[mark.step] = min(best, mark.letter, key=order.find)
        if mark.letter == "B":
            bookmarked.add(mark.step)
    return found, bookmarked
