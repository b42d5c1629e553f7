"""The panes of the main screen, each a picture of one part of the state. Causes stand left, effects right."""

from functools import lru_cache
from typing import Any

from rich.style import Style
from rich.syntax import Syntax
from rich.text import Span, Text
from textual.message import Message

from ..plain import batch_pieces, waits_for, watched
from ..tour.expressions import names
from ..tour.stops import GROUPS, STOPS, group_of
from ..tour.text import line as one_line
from ..tour.text import printable
from ..tour.text import token as shown_token
from .pane import BOLD, DIM, NEW, Pane, name, tint, wrap
from .view import View

HERE = Style(bold=True, reverse=True)


class LoopPane(Pane):
    """The rail: six groups with their keys, and the stops of the group that the run is in."""

    TITLE = "loop"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        stop = view.event.stop if view.event else ""
        current = group_of(stop)
        lines = []
        for group in GROUPS:
            here = group is current
            lines.append(
                Text(f"{'▶' if here else ' '}{group.key} {group.short}", style=BOLD if here else "")
            )
            if here:
                lines += [
                    Text(f"   {name}", style=HERE if name == stop else DIM)
                    for name, entry in STOPS.items()
                    if entry.group is group
                ]
        return lines


MAX_HIGHLIGHTED = 200_000
"""Characters of a source file; a longer one (no engine has it) is shown without colours."""


def prepare_sources(texts: list[str]) -> None:
    """Colour source files before they are looked at. Meant for another thread: it takes 50 ms a file."""
    for text in texts:
        if len(text) <= MAX_HIGHLIGHTED:
            _numbered(text)


@lru_cache(maxsize=64)
def _highlighted(text: str) -> list[Text]:
    """A source file's lines in colour; lines that only report to the probe are dim."""
    if len(text) > MAX_HIGHLIGHTED:
        return [Text(printable(line)) for line in text.split("\n")]
    if not text.isascii():
        text = "".join(c if c == "\n" else printable(c) for c in text)
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    lines = list(syntax.highlight(text).split("\n"))
    hook_indent = None
    for line in lines:
        # Only the colours of the theme are wanted, not its background.
        line.style = ""
        line.spans = [Span(a, b, _foreground(style)) for a, b, style in line.spans]
        indent = len(line.plain) - len(line.plain.lstrip())
        if hook_indent is not None and line.plain.strip() and indent <= hook_indent:
            hook_indent = None
        if "if self.probe" in line.plain:
            hook_indent = indent
        if hook_indent is not None:
            line.stylize(DIM)
    return lines


@lru_cache(maxsize=64)
def _numbered(text: str) -> list[Text]:
    """The lines with their numbers, after room for a mark."""
    return [
        Text.assemble((f" {number:>3} ", DIM), code)
        for number, code in enumerate(_highlighted(text), 1)
    ]


def _foreground(style: str | Style) -> Style:
    if isinstance(style, str):
        return Style()
    return Style(color=style.color, bold=style.bold, italic=style.italic)


class SourcePane(Pane):
    """The code that ran, from the trace itself; the line that ran is marked, and the next one when known."""

    TITLE = "source"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        at = view.event.at if view.event else None
        text = view.trace.table("sources").get(at[0]) if at else None
        if not at or not isinstance(text, str):
            self.border_title = "source"
            return (
                [Text("No stop yet: press n for the first step.", style=DIM)]
                if not at
                else [Text(f"The trace holds no source of {printable(at[0])}.", style=DIM)]
            )
        following = view.next_event.at if view.next_event and view.next_event.at else None
        next_line = following[1] if following and following[0] == at[0] else None
        self.border_title = printable(at[0])
        lines = list(_numbered(text))
        for number, mark in ((next_line, "→"), (at[1], "▶")):
            if number and 0 < number <= len(lines):
                plain = lines[number - 1].plain
                marked = Text(mark + plain[1:], style=HERE if mark == "▶" else BOLD)
                marked.pad_right(max(0, width - marked.cell_len))
                lines[number - 1] = marked
        self.call_after_refresh(self.show_line, at[1] - 1, height)
        return lines


class WhyPane(Pane):
    """What has just happened and why; what the scenario's narrator says; what the step decided."""

    TITLE = "why"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.error: str | None = None

    def _build(self, width: int, height: int) -> list[Text]:
        lines: list[Text] = []
        if self.error:
            lines = wrap(
                "ENGINE STOPPED: " + printable(self.error), width, Style(bold=True, reverse=True)
            )
        return lines + super()._build(width, height)

    def build(self, view: View, width: int, height: int) -> list[Text]:
        lines: list[Text] = []
        if view.event is None:
            scenario = view.trace.table("scenario")
            lines += wrap(printable(str(scenario.get("title", ""))), width, BOLD)
            for paragraph in str(scenario.get("about", "")).split("\n\n"):
                lines += wrap(one_line(" ".join(paragraph.split())), width)
        else:
            stop = Text(f"{view.event.stop}  ", style=BOLD)
            first, *rest = wrap(printable(f"{view.event.stop}  {view.why}"), width)
            lines += [Text.assemble(stop, first.plain[len(stop) :]), *rest]
        # A step as a whole is told in order; while it runs, the newest word comes first.
        for note in view.notes if view.at_step_end else view.notes[::-1]:
            lines += wrap(
                "» " + one_line(" ".join(note.split())), width, Style(italic=True, color="cyan")
            )
        for decision in view.decisions:
            lines += wrap("· " + printable(decision), width)
        lines += self._watched(view, width)
        if view.next_event and not view.at_step_end:
            at = view.next_event.at
            where = f"  {at[0]}:{at[1]}" if at else ""
            lines.append(Text(printable(f"next: {view.next_event.stop}{where}"), style=DIM))
        if self.scroll_offset.y:
            self.scroll_to(y=0, animate=False, force=True)
        return lines

    def _watched(self, view: View, width: int) -> list[Text]:
        watch = view.trace.table("scenario").get("watch")
        if not isinstance(watch, list) or not watch:
            return []
        values = names(view.state, view.event)
        return [
            Text.assemble((f"{printable(text)} = ", DIM), watched(text, values))
            for text in watch[:20]
            if isinstance(text, str)
        ]


class QueuesPane(Pane):
    """The two deques, front first, and who has left. A waiting request says what it waits for."""

    TITLE = "queues · front first"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        state = view.state
        waiting = [self._waiting_entry(view, seq_id) for seq_id in state["waiting"]]
        running = [self._running_entry(view, seq_id) for seq_id in state["running"]]
        finished = [self._finished_entry(view, seq_id) for seq_id in state["finished"]]
        room = max(1, height - len(_rows("", running, width)) - len(_rows("", finished, width)))
        if len(waiting) > room or not waiting:
            lines = _rows("waiting", waiting, width)
        else:
            label = _label("waiting", view.is_new("waiting"))
            lines = [
                Text.assemble(label if i == 0 else " " * label.cell_len, entry)
                for i, entry in enumerate(waiting)
            ]
        lines += _rows("running", running, width, view.is_new("running"))
        return lines + _rows("finished", finished, width, view.is_new("finished"))

    def _waiting_entry(self, view: View, seq_id: str) -> Text:
        seq = view.state["seqs"][seq_id]
        style = BOLD if view.is_new("seqs", seq_id, "waits_for") else Style()
        text = Text.assemble(
            name(view, seq_id),
            f" {seq['num_tokens']}t ",
            (waits_for(seq, len(view.state["blocks"]["free"])), style),
        )
        if seq["preemptions"] and seq["waits_for"]:
            text.append(
                " preempted" + (f" {seq['preemptions']}x" if seq["preemptions"] > 1 else ""),
                style=BOLD,
            )
        return text

    def _running_entry(self, view: View, seq_id: str) -> Text:
        seq = view.state["seqs"][seq_id]
        text = Text.assemble(name(view, seq_id), f" {seq['num_tokens']}t")
        if seq["num_scheduled_tokens"]:
            text.append(f"+{seq['num_scheduled_tokens']}", style=BOLD)
        return text

    def _finished_entry(self, view: View, seq_id: str) -> Text:
        seq = view.state["seqs"][seq_id]
        style = BOLD if view.is_new("seqs", seq_id, "finish_reason") else DIM
        return Text.assemble(name(view, seq_id), (f" {seq['finish_reason']}", style))


def _label(text: str, changed: bool) -> Text:
    return Text(f"{text:<9}", style=BOLD if changed else DIM)


def _rows(label: str, entries: list[Text], width: int, changed: bool = False) -> list[Text]:
    """Entries side by side after a label, on as many lines as they need."""
    line = Text.assemble(_label(label, changed))
    if not entries:
        return [line.append("-", style=DIM)]
    lines = []
    for entry in entries:
        if line.cell_len > 9 and line.cell_len + 2 + entry.cell_len > width:
            lines.append(line)
            line = Text(" " * 9)
        line = Text.assemble(line, "  " if line.cell_len > 9 else "", entry)
    return [*lines, line]


class PoolPane(Pane):
    """The block pool, one cell a block: who holds it, or how free it is."""

    TITLE = "block pool · 1 cell = 1 block"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        blocks = view.state["blocks"]
        total, size = blocks["total"], blocks["size"]
        digits = len(str(max(0, total - 1)))
        room = width - digits - 1
        cell = 2 if total <= room // 2 * max(1, height - 2) else 1
        per_row = max(1, room // cell // 10 * 10 or room // cell)
        lines = [
            self._row(view, start, min(start + per_row, total), digits, cell)
            for start in range(0, total, per_row)
        ]
        free = len(blocks["free"])
        lines.append(
            Text(
                f"{free} of {total} free, {size} tokens a block",
                style=BOLD if view.freed_blocks else "",
            )
        )
        lines.append(
            Text.assemble(
                ("free: ·  : remembered  × now  ", DIM),
                ("A", NEW),
                (" new  ", DIM),
                ("A", Style(underline=True)),
                (" shared", DIM),
            )
        )
        return lines

    def _row(self, view: View, start: int, end: int, digits: int, cell: int) -> Text:
        blocks = view.state["blocks"]
        row = Text.assemble((f"{start:>{digits}} ", DIM))
        for block_id in range(start, end):
            key = str(block_id)
            owners = blocks["owners"].get(key)
            if owners:
                style = tint(view, owners[0]) + Style(bold=True, underline=len(owners) > 1)
                style += NEW if block_id in view.new_blocks else Style()
                row.append(owners[0][0], style=style)
            elif block_id in view.freed_blocks:
                row.append("×", style=BOLD)
            else:
                row.append(":" if key in blocks["hash"] else "·", style=DIM)
            row.append(" " * (cell - 1))
        return row


class TablesPane(Pane):
    """Each request's block table: its logical blocks in order, as the physical blocks that hold them."""

    TITLE = "block tables · logical → physical"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        state = view.state
        order = state["running"] + state["waiting"] + state["finished"]
        holders = [seq_id for seq_id in order if state["seqs"][seq_id]["block_table"]]
        lines = [line for seq_id in holders for line in self._table(view, seq_id, width)]
        if len(lines) > height:
            short = [self._table(view, seq_id, width, short=True) for seq_id in holders]
            if all(len(table) == 1 for table in short):
                lines = _side_by_side([table[0] for table in short], width)
        return lines or [Text("Nobody holds a block.", style=DIM)]

    def _table(self, view: View, seq_id: str, width: int, short: bool = False) -> list[Text]:
        seq = view.state["seqs"][seq_id]
        size, owners = view.state["blocks"]["size"], view.state["blocks"]["owners"]
        head = Text.assemble(name(view, seq_id), " ")
        cached, scheduled = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
        tail = f"  {cached}{f'+{scheduled}' if scheduled else ''}/{seq['num_tokens']}"
        if not short:
            tail += " computed"
        last = cached + scheduled - (len(seq["block_table"]) - 1) * size
        if 0 < last <= size and not short:
            tail += f", last {last}/{size}"
        cells = []
        for block_id in seq["block_table"]:
            style = tint(view, seq_id) + Style(underline=len(owners.get(str(block_id), ())) > 1)
            cells.append(
                Text(str(block_id), style=style + (NEW if block_id in view.new_blocks else Style()))
            )
        lines, line = [], head
        for cell in cells:
            if line.cell_len + 1 + cell.cell_len > width:
                lines.append(line)
                line = Text(" " * (head.cell_len + 1))
            line = Text.assemble(line, cell, " ")
        if line.cell_len + len(tail) > width:
            lines.append(line)
            line = Text(" " * head.cell_len)
        return [*lines, Text.assemble(line, (tail, DIM))]


def _side_by_side(lines: list[Text], width: int) -> list[Text]:
    """Short lines in two columns, if they fit."""
    column = max(line.cell_len for line in lines) + 2
    if 2 * column > width + 2:
        return lines
    packed = []
    for left, right in zip(lines[::2], [*lines[1::2], Text()], strict=False):
        left.pad_right(column - left.cell_len)
        packed.append(Text.assemble(left, right))
    return packed


class BatchPane(Pane):
    """The flat batch of this step: one column a token, with the arithmetic that gives its KV slot.

    Only whole columns are shown, for half a number is another number; Shift+arrows move along the batch.
    """

    TITLE = "batch tensors"
    ROWS = ("cu_seqlens_q", "token", "position", "block*size+off", "slot_mapping")

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._first = 0

    def action_scroll_right(self) -> None:
        """Move along the batch."""
        self._first += 4
        self._rebuild()

    def action_scroll_left(self) -> None:
        """Move back along the batch."""
        self._first = max(0, self._first - 4)
        self._rebuild()

    def build(self, view: View, width: int, height: int) -> list[Text]:
        batch = view.state["batch"]
        if not batch:
            self.border_title = "batch tensors"
            return [
                Text(
                    "No batch yet: it is laid out when the scheduler has chosen (group 4).",
                    style=DIM,
                )
            ]
        phase = view.state["phase"]
        self.border_title = (
            f"batch tensors · {printable(str(phase))} · slot = block_id * block_size + offset"
        )
        shown = [row for row in self.ROWS if height >= 6 or row != "block*size+off"]
        lines = {row: Text.assemble((f"{row:<15}", DIM)) for row in shown}
        columns = self._columns(view, batch)
        self._first = min(self._first, max(0, len(columns) - 1))
        room = width - 15 - 10
        number = self._first
        while number < len(columns) and columns[number]["token"].cell_len <= room:
            room -= columns[number]["token"].cell_len
            for row in shown:
                lines[row].append_text(columns[number][row])
            number += 1
        if hidden := len(columns) - number:
            lines["token"].append(f" +{hidden} more", style=BOLD)
        return [*lines.values(), self._lengths(batch, width)]

    def _lengths(self, batch: dict[str, Any], width: int) -> Text:
        """The lists that have one entry a request, each as long as there is room for."""
        names = ("cu_seqlens_q", "cu_seqlens_k", "context_lens")
        room = (width - sum(len(key) + 2 for key in names)) // len(names)
        parts = [((f"{key} ", DIM), _numbers(batch[key], room) + "  ") for key in names]
        return Text.assemble(*(piece for part in parts for piece in part))

    def _columns(self, view: View, batch: dict[str, Any]) -> list[dict[str, Text]]:
        """For each token of the batch its cells, all equally wide, by row."""
        size = view.state["blocks"]["size"]
        pieces, starts = batch_pieces(view.state), batch["cu_seqlens_q"]
        columns = []
        for seq_id, first, end in zip(batch["seqs"], starts, starts[1:], strict=False):
            for number in range(first, end):
                slot, opens = batch["slot_mapping"][number], number == first
                head = Text.assemble((f"{first} ", BOLD), name(view, seq_id)) if opens else Text()
                cells = {
                    "cu_seqlens_q": head,
                    "token": Text(shown_token(pieces[number]), style=tint(view, seq_id)),
                    "position": Text(str(batch["positions"][number])),
                    "block*size+off": Text(f"{slot // size}*{size}+{slot % size}"),
                    "slot_mapping": Text(str(slot)),
                }
                wide = max(cell.cell_len for cell in cells.values())
                for cell in cells.values():
                    cell.pad_right(wide - cell.cell_len)
                border = ("│" if opens else " ", DIM)
                columns.append({row: Text.assemble(border, cell) for row, cell in cells.items()})
        return columns


def _numbers(values: list[Any], room: int) -> str:
    """The numbers in at most `room` cells: whole ones only, and the last one in any case."""
    shown = " ".join(map(str, values))
    if len(shown) <= room:
        return shown
    last = f" .. {values[-1]}"
    shown = shown[: max(0, room - len(last)) + 1]
    return shown[: shown.rfind(" ")] + last if " " in shown else last.strip()


class OutputPane(Pane):
    """What each request has said so far."""

    TITLE = "output"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        seqs = view.state["seqs"]
        lines = []
        for seq_id, seq in seqs.items():
            head = Text.assemble(name(view, seq_id), " ")
            text = one_line("".join(seq["text"])).strip()
            room = max(4, width - head.cell_len)
            if height >= 2 * len(seqs) + 4:
                first, *rest = wrap(text.strip(), room)
                indent = Text(" " * head.cell_len)
                lines += [Text.assemble(head, first), *(Text.assemble(indent, row) for row in rest)]
                continue
            tail = Text(text[-room:])
            if len(text) > room:
                tail = Text("…" + text[-(room - 1) :])
            if seq["text"] and view.is_new("seqs", seq_id, "text"):
                tail.stylize(BOLD, max(0, len(tail) - len(one_line(seq["text"][-1]))))
            lines.append(Text.assemble(head, tail if text else Text("…", style=DIM)))
        return lines or [Text("No request yet.", style=DIM)]


_PHASE_COLOURS = {"prefill": "cyan", "decode": "yellow", "mixed": "green"}


class TimelinePane(Pane):
    """The whole run on a line: KV use and batch size of each step, marks, and where we are."""

    TITLE = "timeline"

    class Jump(Message):
        """The user points at a step, to go there."""

        def __init__(self, step_number: int) -> None:
            super().__init__()
            self.step_number = step_number

    BARS = "▁▂▃▄▅▆▇█"

    def build(self, view: View, width: int, height: int) -> list[Text]:
        steps, trace = view.trace.steps, view.trace
        here = steps.index(view.step) if view.step else 0
        room = max(1, width - 7)
        first = max(0, min(here - room // 2, len(steps) - room))
        shown = steps[first : first + room]
        self.border_title = (
            f"timeline · steps {shown[0].number}–{shown[-1].number}" if shown else "timeline"
        ) + " · P preempt  F finish  E evict  R reject"
        most = max((abs(_int(step.facts, "num_tokens")) for step in shown), default=1) or 1
        kv, batch, marks = (
            Text.assemble((label, DIM)) for label in ("KV     ", "tokens ", "marks  ")
        )
        letters = _marks_by_step(trace, {step.number for step in shown})
        for i, step in enumerate(shown, first):
            style = HERE if i == here else Style()
            total = _int(step.facts, "total") or 1
            used = total - _int(step.facts, "free", total)
            kv.append(self._bar(used / total), style=style)
            tokens = _int(step.facts, "num_tokens")
            bar = self._bar(abs(tokens) / most)
            colour = _PHASE_COLOURS.get(str(step.facts.get("phase")), "white")
            batch.append(bar, style=style + Style(color=colour))
            marks.append(letters.get(step.number, "│" if i == here else " "), style=style)
        return [kv, batch, marks] if height > 2 else [kv, marks]

    def _bar(self, share: float) -> str:
        if share <= 0:
            return " "
        return self.BARS[min(len(self.BARS) - 1, int(share * len(self.BARS)))]


def _int(facts: dict[str, Any], key: str, default: int = 0) -> int:
    value = facts.get(key, default)
    return value if isinstance(value, int) else default


def _marks_by_step(trace: Any, numbers: set[int]) -> dict[int, str]:
    """The most telling mark of each step: a preemption before a rejection, an end, an eviction."""
    order = "BPRFE"
    found: dict[int, str] = {}
    for mark in trace.marks:
        if mark.step in numbers:
            best = found.get(mark.step, mark.letter)
            found[mark.step] = min(best, mark.letter, key=lambda letter: order.find(letter))
    return found
