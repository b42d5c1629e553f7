"""The queues."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text

from ...plain import waits_for
from ...tour.text import printable
from .. import theme
from ..pane import BOLD, PLAIN, SELECTS, Pane, Part, joined, named, width_of
from ..view import View

Entry = Callable[[View, str], list[Part]]

LABEL = 9
"""Cells of a queue's name."""


class QueuesPane(Pane):
    """The two deques, front first, and who has left. A waiting request says what it waits for."""

    TITLE = "queues · front first"
    EMPTY = "Who waits, who runs, who has finished."
    TERMS: ClassVar[tuple[str, ...]] = ("waiting", "running", "token budget", "max_num_seqs")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = SELECTS

    def requests(self, view: View) -> Sequence[str]:
        state = view.state
        return [*state["waiting"], *state["running"], *state["finished"]]

    def build(self, view: View, width: int, height: int) -> list[Text]:
        state = view.state
        running = self._queue(view, "running", self._running_entry, width, height)
        finished = self._queue(view, "finished", self._finished_entry, width, height)
        room = max(1, height - len(running) - len(finished))
        waiting = state["waiting"]
        if not waiting or len(waiting) > room:
            return self._queue(view, "waiting", self._waiting_entry, width, height) + (
                running + finished
            )
        label = _label("waiting", view.is_new("waiting"))
        rows = [
            joined(
                [
                    (" " * LABEL, PLAIN) if i else label,
                    *self._waiting_entry(view, seq_id, width - LABEL),
                ]
            )
            for i, seq_id in enumerate(waiting)
        ]
        return rows + running + finished

    def _queue(self, view: View, queue: str, entry: Entry, width: int, height: int) -> list[Text]:
        """Entries side by side after the queue's name, on as many lines as they need; all only where they fit."""
        line = [_label(queue, view.is_new(queue))]
        ids: list[str] = view.state[queue]
        if not ids:
            return [joined([*line, ("-", theme.style("dim"))])]
        lines: list[Text] = []
        most, used = 2 * max(2, height), LABEL
        for i, seq_id in enumerate(ids):
            cell = entry(view, seq_id)
            wide = width_of(cell)
            if used > LABEL and used + 2 + wide > width:
                lines.append(joined(line))
                line, used = [(" " * LABEL, PLAIN)], LABEL
            if len(lines) >= most:
                more = f"… {len(ids) - i:,} more"
                return [*lines, joined([*line, (more, theme.style("dim"))])]
            if used > LABEL:
                line.append(("  ", PLAIN))
                used += 2
            line += cell
            used += wide
        return [*lines, joined(line)]

    def _waiting_entry(self, view: View, seq_id: str, room: int = 1000) -> list[Part]:
        seq = view.state["seqs"][seq_id]
        style = _row(view, seq_id, view.is_new("seqs", seq_id, "waits_for"))
        reason = printable(waits_for(seq, len(view.state["blocks"]["free"])))
        before = ""
        if seq["preemptions"] and seq["waits_for"]:
            times = f" {seq['preemptions']}x" if seq["preemptions"] > 1 else ""
            before = f" preempted{times}"
        head = [named(view, seq_id), (f" {seq['num_tokens']}t ", _row(view, seq_id))]
        if width_of(head) + len(reason) + len(before) > room:
            reason = reason.replace(" blocks", "")
        return [*head, (reason, style), (before, _row(view, seq_id, True))]

    def _running_entry(self, view: View, seq_id: str) -> list[Part]:
        seq = view.state["seqs"][seq_id]
        parts = [named(view, seq_id), (f" {seq['num_tokens']}t", _row(view, seq_id))]
        if seq["num_scheduled_tokens"]:
            parts.append((f"+{seq['num_scheduled_tokens']}", _row(view, seq_id, True)))
        return parts

    def _finished_entry(self, view: View, seq_id: str) -> list[Part]:
        seq = view.state["seqs"][seq_id]
        new = view.is_new("seqs", seq_id, "finish_reason")
        style = BOLD if new else theme.style("dim")
        return [named(view, seq_id), (f" {printable(str(seq['finish_reason']))}", style)]


def _row(view: View, seq_id: str, bold: bool = False) -> Style:
    """The style of words about a request."""
    if view.faded(seq_id):
        return theme.style("faded")
    return BOLD if bold else PLAIN


def _label(text: str, changed: bool) -> Part:
    return f"{text:<{LABEL}}", BOLD if changed else theme.style("dim")
