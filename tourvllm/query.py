"""Expressions over a recorded run: their values step by step, as a table or as CSV."""

import csv
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

from .errors import UsageError
from .plain import shown
from .tour.cursor import Cursor
from .tour.errors import ExpressionError
from .tour.expressions import check_names, check_syntax, closest, evaluate, names
from .tour.stops import STOPS
from .tour.text import printable
from .tour.trace import Event, Trace

Row = list[str]


def query(trace: Trace, texts: list[str], at: str, as_csv: bool) -> None:
    """Print the values of expressions at the places that `at` names: `step` (each step's end), `stop`, or a stop.

    Where one cannot be evaluated its cell is empty. Raises UsageError for one that has a value nowhere.
    """
    _check(texts, at)
    place = ["step"] if at == "step" else ["step", "event", "stop"]
    rows = _settled(_Values(trace, texts, at, as_csv))
    first = next(rows)  # so that an error comes before the first line of output
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(printable(name) for name in [*place, *texts])
        writer.writerows(chain([first], rows))
    else:
        from .tables import print_table

        print_table([*place, *texts], chain([first], rows), right=(0, 1)[: len(place)])


def _check(texts: list[str], at: str) -> None:
    """Raise UsageError for what is no expression, and for a place that there is not."""
    for text in texts:
        try:
            check_syntax(text)
        except ExpressionError as error:
            raise UsageError(str(error)) from error
    if at not in ("step", "stop", *STOPS):
        meant = closest(at, ["step", "stop", *STOPS])
        advice = f"did you mean {meant}?" if meant else "`tourvllm stops` lists the stops"
        raise UsageError(f"--at {at}: there is no such stop; {advice}")


class _Values:
    """The rows of a query. `missing` holds each expression that had no value yet, with the last reason."""

    def __init__(self, trace: Trace, texts: list[str], at: str, whole: bool) -> None:
        self.missing = dict.fromkeys(texts, "")
        self.at = at
        self._trace = trace
        self._cursor = Cursor(trace)
        self._texts = texts
        self._whole = whole

    def __iter__(self) -> Iterator[Row]:
        cursor = self._cursor
        for position in self._positions():
            cursor.seek(position)
            event = cursor.event
            if event:
                values = names(cursor.state, event)
                yield [*self._place(event), *(self._cell(text, values) for text in self._texts)]

    def why_nowhere(self, text: str) -> str:
        """Why an expression had no value at any place."""
        try:
            check_names(text, self._cursor.state["seqs"])
        except ExpressionError as error:
            return str(error)
        return self.missing[text]

    def _positions(self) -> Iterator[int]:
        """The positions right after the events that are asked for."""
        if self.at == "step":
            return (end for step in self._trace.steps if (end := self._end(step.start, step.end)))
        ends = range(1, len(self._trace) + 1)
        return (end for end in ends if self.at in ("stop", self._trace.event(end - 1).stop))

    def _end(self, start: int, end: int) -> int | None:
        """The position after a step's closing event; None for a step that was cut short."""
        for position in range(end, start, -1):
            event = self._trace.event(position - 1)
            if event.stop == "step":
                return position if event.facts.get("when") == "end" else None
        return None

    def _place(self, event: Event) -> Row:
        return (
            [str(event.step)] if self.at == "step" else [str(event.step), str(event.i), event.stop]
        )

    def _cell(self, text: str, values: dict[str, Any]) -> str:
        try:
            value = evaluate(text, values)
            cell = _whole(value) if self._whole else shown(value)
        except ExpressionError as error:
            if text in self.missing:
                self.missing[text] = error.reason
            return ""
        self.missing.pop(text, None)
        return cell


def _settled(values: _Values) -> Iterator[Row]:
    """The rows, held back until each expression has had a value. Raises UsageError if one never has."""
    held: list[Row] = []
    for row in values:
        held.append(row)
        if not values.missing:
            yield from held
            held.clear()
    for text, reason in values.missing.items():
        if not reason:
            raise UsageError(f"{values.at} never happens in this trace: there is nothing to show")
        raise UsageError(f"{text} has a value nowhere in this trace: {values.why_nowhere(text)}")


def _whole(value: Any) -> str:
    """A value with nothing left out, for a program."""
    try:
        return printable(value if isinstance(value, str) else str(value))
    except ValueError as error:  # a number of thousands of digits has no text
        raise ExpressionError(str(error)) from error
