"""Two runs side by side: what differs first, what it came to, and the queues and the pool step by step."""

from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from ..tour.compare import TIMES_VARY, Comparison, Row, StepRow, Summary, compare
from ..tour.text import printable
from ..tour.trace import Trace
from . import theme
from .background import in_background
from .dialog import Modal, paragraphs, put
from .rows import Rows

TOTALS = (
    ("steps", "steps", 8),
    ("computed", "tokens", 10),
    ("from cache", "cached_tokens", 12),
    ("recomputed", "recomputed_tokens", 12),
    ("preemptions", "preemptions", 13),
    ("evictions", "evictions", 11),
)
"""Label, attribute of a `Summary`, width."""

COLUMNS = ("prefill", "decode", "waiting", "running", "in_use")
"""The columns of the table that have bars, where there is room; preemptions have a number alone."""

STEP_WIDTH, COUNT_WIDTH, NUMBER_WIDTH = 8, 5, 4
MIN_BAR = 3
"""Cells that a bar needs to tell more than its number."""

MAX_SETTINGS, MAX_SENTENCE = 2, 3
"""Lines that the settings that differ, and the first difference, may take."""

CODE = ".py, line "
"""What the name of a difference in the engine's source has in it."""

LOW = 32
"""A terminal with fewer lines has none to spare between the parts of the summary."""


class CompareScreen(Modal[int | None]):
    """Shows how run `a` differs from run `b`. Returns the number of the step that was taken, or None."""

    DEFAULT_CSS: ClassVar[str] = """
    CompareScreen { background: $background; layout: vertical; }
    CompareScreen #title, CompareScreen #keys { background: $panel; }
    CompareScreen Rows { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "leave", "back"),
        Binding("f", "first", "to the first difference"),
    ]

    def __init__(self, a: Trace, b: Trace, name_a: str, name_b: str) -> None:
        super().__init__()
        self.traces = a, b
        self.names = printable(name_a), printable(name_b)
        self.comparison: Comparison | None = None
        self._problem = ""
        self._most: dict[str, int] = {}
        self._first_row: int | None = None

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="title", markup=False)
        yield Static(id="summary", markup=False)
        yield Rows(self._row, id="rows")
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Compare, off the screen's thread: long runs take a while."""
        self.query_one(Rows).focus()
        self._show()
        in_background(self, lambda: compare(*self.traces), self._compared)

    def _compared(self, result: Comparison | Exception) -> None:
        if isinstance(result, Exception):  # a stranger's trace may hold anything
            self._problem = f"These runs cannot be compared: {result}"
            self._show()
            return
        self.comparison = result
        self._most = {name: _most(result.rows, name) for name in COLUMNS}
        self._first_row = self._find_first(result)
        self._show()
        self.query_one(Rows).fill(len(result.rows), self._first_row or 0)

    def _find_first(self, result: Comparison) -> int | None:
        """The row of the step in which the first difference lies."""
        if result.position is None or self._goes_on(result):
            return None
        steps = [trace.step_at(result.position) for trace in self.traces]
        number = max((step.number for step in steps if step), default=0)
        return next((i for i, row in enumerate(result.rows) if row.step >= number), None)

    def on_resize(self, event: events.Resize) -> None:
        """Lay the summary out for the new width."""
        self._show(event.size.width)

    def _show(self, width: int = 0) -> None:
        width = (width or self.app.size.width) - 1
        title = Text.assemble((" COMPARE ", theme.style("here")))
        for number, name in enumerate(self.names):
            title.append("  ").append_text(_run(number)).append(f" {name}", style="bold")
        title.truncate(width, overflow="ellipsis")
        keys = " ↑ ↓ a step   Enter goes there   f first difference (≠)   Esc leaves"
        self._put("title", [title])
        self._put("keys", [Text(keys, theme.style("dim"))])
        self._put("summary", [_fit(line, width) for line in self._summary(width)])

    def _put(self, name: str, lines: list[Text]) -> None:
        put(self.query_one(f"#{name}", Static), lines)

    # The summary

    def _summary(self, width: int) -> list[Text]:
        """Settings, first difference, totals, requests, and the head of the table."""
        found = self.comparison
        if found is None:
            return paragraphs(self._problem or "comparing …", width, theme.style("bold"))
        going_on = self._goes_on(found)
        difference = going_on or found.first_difference or self._sameness()
        gap = [Text()] if self.app.size.height >= LOW else []
        return [
            *_settings(found.settings, width),
            *_labelled("first difference", difference, width, MAX_SENTENCE),
            *gap,
            *self._totals(found, width),
            *gap,
            _requests("steps to first token", "time_to_first_token", found, width, going_on),
            _requests("finished in step", "finish_step", found, width, going_on),
            _times(found.a, found.b),
            *gap,
            *_head(width),
        ]

    def _goes_on(self, found: Comparison) -> str:
        """What to say where all that differs is that one run is not recorded to its end; else nothing."""
        shorter = 0 if found.a.events < found.b.events else 1
        one = (found.a, found.b)[shorter]
        if self.traces[shorter].complete or (found.position or 0) <= one.events:
            return ""
        return f"None so far: the {('first', 'second')[shorter]} run has come to step {one.steps}."

    def _sameness(self) -> str:
        if all(trace.complete for trace in self.traces):
            return "The two runs are the same, event for event."
        return "None so far: not both runs have come to their end."

    def _totals(self, found: Comparison, width: int) -> list[Text]:
        """A line for each run, and how the second differs."""
        name_width = min(40, width - sum(size for _, _, size in TOTALS))
        head = Text(" " * name_width, theme.style("dim"))
        for label, _, size in TOTALS:
            head.append(f"{label:>{size}}")
        lines = [head]
        for number, summary in enumerate((found.a, found.b)):
            line = Text.assemble(" ", _run(number), f" {self.names[number]}")
            line.truncate(name_width, overflow="ellipsis", pad=True)
            for _, name, size in TOTALS:
                line.append(f"{getattr(summary, name):>{size},}")
            lines.append(line)
        whole = all(trace.complete for trace in self.traces)
        return [*lines, _differences(found.a, found.b, name_width) if whole else Text()]

    # The table

    def _row(self, number: int, width: int) -> Text:
        """One step of both runs, beside each other."""
        if self.comparison is None:
            return Text()
        row = self.comparison.rows[number]
        first = number == self._first_row
        mark = " " if not first else "!" if theme.is_ascii() else "≠"
        line = Text(f"  {mark}{row.step:>5}", "bold" if first else "")
        size = _cell_width(width)
        for name in COLUMNS:
            for step, other in ((row.a, row.b), (row.b, row.a)):
                line.append_text(_cell(name, step, other, self._most[name], size))
        for step in (row.a, row.b):
            line.append(f"{_short(step.preemptions) if step else '':>{COUNT_WIDTH}}")
        return line

    def on_rows_taken(self, message: Rows.Taken) -> None:
        """Return the step of the row that was taken."""
        if self.comparison:
            self.dismiss(self.comparison.rows[message.number].step)

    def action_leave(self) -> None:
        """Leave without a step."""
        self.dismiss(None)

    def action_first(self) -> None:
        """Choose the first step that differs."""
        if self._first_row is not None:
            self.query_one(Rows).action_go(self._first_row)


def _run(number: int) -> Text:
    """The sign of the first or the second run."""
    return Text(f" {number + 1} ", theme.style("here"))


def _fit(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _labelled(label: str, text: str, width: int, most: int) -> list[Text]:
    """A text beside its label, in `most` lines at most."""
    indent = 18
    lines = paragraphs(text, width - indent, theme.style("bold"))
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1].append(" …")]
    heads = [f" {label:<{indent - 1}}"] + [" " * indent] * (len(lines) - 1)
    return [
        Text.assemble((head, theme.style("dim")), line)
        for head, line in zip(heads, lines, strict=True)
    ]


def _settings(found: list[tuple[str, Any, Any]], width: int) -> list[Text]:
    """The settings that differ, in the engine's own words; of lines of code only in how many files they are."""
    code = [key for key, _, _ in found if CODE in key]
    told = [
        f"{key} {_value(a)} {theme.arrow()} {_value(b)}" for key, a, b in found if CODE not in key
    ]
    if code:
        told.append(f"the engine's code, in {len(code)} {'file' if len(code) == 1 else 'files'}")
    return _labelled("settings", ",  ".join(told) or "the same", width, MAX_SETTINGS)


def _value(value: Any) -> str:
    return printable("–" if value is None else str(value))[:60]


def _differences(a: Summary, b: Summary, name_width: int) -> Text:
    """How the second run's totals differ from the first's."""
    line = Text(f"{' 2 against 1':<{name_width}}", theme.style("dim"))
    for _, name, size in TOTALS:
        less = getattr(b, name) - getattr(a, name)
        line.append(f"{f'{less:+,}' if less else '=':>{size}}", "bold" if less else "")
    return line


def _times(a: Summary, b: Summary) -> Text:
    """How long both runs took, and that this is no result."""
    times = f"{_time(a.total_ms)}, {_time(b.total_ms)}: {TIMES_VARY}"
    return Text(f" {'time':<22}{times}", theme.style("dim"))


def _time(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < 10_000 else f"{ms / 1000:,.1f} s"


def _requests(label: str, name: str, found: Comparison, width: int, going_on: str) -> Text:
    """A number for each request, first run → second run; only those that differ if there are too many.

    While one of them goes on, only what both have come to.
    """
    a, b = getattr(found.a, name), getattr(found.b, name)
    line = Text(f" {label:<22}", theme.style("dim"))
    room = width - line.cell_len
    ids = [seq for seq in {**a, **b} if not going_on or (seq in a and seq in b)]
    told = [_request(seq_id, a.get(seq_id), b.get(seq_id)) for seq_id in ids]
    if sum(text.cell_len for text in told) > room:
        told = [
            text for text, seq_id in zip(told, ids, strict=True) if a.get(seq_id) != b.get(seq_id)
        ]
        room -= 12
    for i, text in enumerate(told):
        room -= text.cell_len
        if room < 0:
            return line.append(f"… {len(told) - i:,} more")
        line.append_text(text)
    return line if told else line.append("the same for all" if ids else "nobody yet")


def _request(seq_id: str, a: int | None, b: int | None) -> Text:
    text = f"{printable(seq_id)[:12]} {'–' if a is None else a}"
    if a == b:
        return Text(f"{text}  ")
    return Text(f"{text} {theme.arrow()} {'–' if b is None else b}  ", "bold")


def _cell_width(width: int) -> int:
    return max(NUMBER_WIDTH + 2, (width - STEP_WIDTH - 2 * COUNT_WIDTH) // (2 * len(COLUMNS)))


def _head(width: int) -> list[Text]:
    """The two lines above the table: what is counted, and whose it is."""
    size = _cell_width(width)
    names, runs = Text(f"{'step':>8}", theme.style("dim")), Text(" " * STEP_WIDTH)
    for name in COLUMNS:
        names.append(f"{name.replace('_', ' '):^{2 * size}}")
        for number in range(2):
            runs.append(" " * (NUMBER_WIDTH - 2)).append_text(_run(number))
            runs.append(" " * (size - NUMBER_WIDTH - 1))
    names.append("preempted")
    for number in range(2):
        runs.append(" " * (COUNT_WIDTH - 3)).append_text(_run(number))
    return [names, runs]


def _most(rows: list[Row], name: str) -> int:
    """What a full bar of a column means: the pool for blocks, else the largest number in both runs."""
    steps = [step for row in rows for step in (row.a, row.b) if step]
    amount = "total" if name == "in_use" else name
    return max((getattr(step, amount) for step in steps), default=0) or 1


def _cell(name: str, step: StepRow | None, other: StepRow | None, most: int, size: int) -> Text:
    """A number and its bar, if there is room for one; bold where the other run has another."""
    if step is None:
        return Text(" " * size)
    value = getattr(step, name)
    differs = other is not None and getattr(other, name) != value
    cell = Text(f"{_short(value):>{NUMBER_WIDTH}} ", Style(bold=differs))
    room = size - NUMBER_WIDTH - 1
    if room < MIN_BAR:
        return cell.append(" " * room)
    halves = max(1, min(2 * room, round(2 * room * value / most))) if value else 0
    half = "" if halves % 2 == 0 else "#" if theme.is_ascii() else "▌"
    style = theme.style(name if name in ("prefill", "decode") else "dim")
    return cell.append(f"{'█' * (halves // 2) + half:<{room}}", style)


def _short(value: int) -> str:
    """A number in four characters; a dot for none, so that what there is stands out."""
    if not value:
        return "·"
    for unit, size in (("", 1), ("k", 1_000), ("M", 1_000_000)):
        if abs(value) < 1_000 * size:
            return f"{value // size}{unit}"
    return "huge"
