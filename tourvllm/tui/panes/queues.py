"""The queues."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from ...plain import waits_for
from ...tour.text import printable
from .. import theme
from ..lines import BOLD, PLAIN, Part, joined, width_of
from ..pane import SELECTS, Pane, named, shared_out
from ..view import View

QUEUES = {
    "waiting": "the front enters first",
    "running": "in the order of entering; the last is preempted first",
    "finished": "the newest first",
}
"""Each queue with its order."""

SHORTER = (
    (" blocks", ""),
    (" then", ""),
    (" of the budget, left", ", budget left"),
    (" reached", ""),
)
"""Words of a reason that would not fit, each with fewer words, in this order."""

MOST_FINISHED = 2
"""Lines of those who have finished: to look at more of them would decode requests that left long ago."""

FINISHED = {"length": "length limit"}
"""Why a request has finished, where the engine's word is too short to be understood."""

COLUMNS = ("prompt", "answer", "computed", "now", "blocks", "preempted")
"""Numbers of a request, when the pane has the screen for itself."""


class QueuesPane(Pane):
    """The two deques, front first, and who has left. A waiting request says what it waits for."""

    TITLE = "queues · front first, finished: newest first"
    EMPTY = "Who waits, who runs, who has finished."
    TERMS: ClassVar[tuple[str, ...]] = ("waiting", "running", "token budget", "max_num_seqs")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = SELECTS

    def requests(self, view: View) -> Sequence[str]:
        return [seq_id for queue in QUEUES for seq_id in _ids(view, queue)]

    def build(self, view: View, width: int, height: int) -> list[Text]:
        if self.zoomed:
            return _table(view, width, height)
        found = {queue: _lines(view, queue, width, height) for queue in QUEUES}
        rows = shared_out([len(lines) for lines in found.values()], height)
        for (queue, lines), most in zip(found.items(), rows, strict=True):
            if len(lines) > max(1, most):
                found[queue] = _lines(view, queue, width, max(1, most))
        return [line for lines in found.values() for line in lines]


def _ids(view: View, queue: str) -> Sequence[str]:
    """Who is in a queue, in the order in which it is shown."""
    ids: list[str] = view.state[queue]
    return ids[::-1] if queue == "finished" else ids


def _count(view: View, queue: str) -> str:
    return f"{queue} {len(view.state[queue]):,}"


# In a small pane: as many lines for each queue as there is room for


def _lines(view: View, queue: str, width: int, most: int) -> list[Text]:
    """A queue on at most `most` lines: those who wait one below the other if they fit, else side by side."""
    ids, indent = _ids(view, queue), max(len(_count(view, queue)) for queue in QUEUES) + 1
    style = BOLD if view.is_new(queue) else theme.style("dim")
    label = f"{_count(view, queue):<{indent}}", style
    if queue == "waiting" and 0 < len(ids) <= most:
        cells = (_waiting(view, seq_id, width - indent) for seq_id in ids)
        return [joined([(" " * indent, PLAIN) if i else label, *c]) for i, c in enumerate(cells)]
    if queue == "finished":
        return _packed(label, _finished(view, ids), len(ids), width, min(most, MOST_FINISHED))
    entry = _waiting if queue == "waiting" else _running
    return _packed(label, (entry(view, seq_id) for seq_id in ids), len(ids), width, most)


def _packed(
    label: Part, cells: Iterable[list[Part]], count: int, width: int, most: int
) -> list[Text]:
    """Entries side by side behind a label; how many more there are, if `most` lines do not hold them."""
    indent = used = len(label[0])
    lines: list[Text] = []
    line = [label]
    for i, cell in enumerate(cells):
        last, gap = len(lines) == most - 1, 2 if used > indent else 0
        more = f"{' ' * gap}… {count - i:,} more"
        wide = gap + width_of(cell)
        if used + wide + (len(more) + 2 if last and i < count - 1 else 0) > width and (
            gap or lines
        ):
            if last:
                line += [(more, theme.style("dim"))] * (used + len(more) <= width)
                break
            lines.append(joined(line))
            line, used, gap = [(" " * indent, PLAIN)], indent, 0
        line += [(" " * gap, PLAIN), *cell]
        used += gap + width_of(cell)
    return [*lines, joined(line)]


def _waiting(view: View, seq_id: str, room: int = 1000) -> list[Part]:
    seq = view.state["seqs"][seq_id]
    head = [named(view, seq_id), (f" {seq['num_tokens']}t ", _row(view, seq_id))]
    reason = _reason(view, seq)
    for words, fewer in SHORTER:
        if width_of(head) + len(reason) > room:
            reason = reason.replace(words, fewer)
    return [*head, (reason, _row(view, seq_id, _is_news(view, seq_id)))]


def _reason(view: View, seq: dict[str, Any]) -> str:
    """Why a request waits, and whether it has run before."""
    reason = printable(waits_for(seq, len(view.state["blocks"]["free"])))
    if not seq["preemptions"] or reason == "preempted":
        return reason
    times = f" {seq['preemptions']}x" if seq["preemptions"] > 1 else ""
    return f"preempted{times}, {reason}"


def _is_news(view: View, seq_id: str) -> bool:
    """Whether it is new why a request waits or has finished."""
    keys = ("waits_for", "preemptions", "finish_reason")
    return any(view.is_new("seqs", seq_id, key) for key in keys)


def _running(view: View, seq_id: str) -> list[Part]:
    seq = view.state["seqs"][seq_id]
    parts = [named(view, seq_id), (f" {seq['num_tokens']}t", _row(view, seq_id))]
    if seq["num_scheduled_tokens"]:
        parts.append((f"+{seq['num_scheduled_tokens']}", _row(view, seq_id, True)))
    return parts


def _finished(view: View, ids: Iterable[str]) -> Iterator[list[Part]]:
    """Who has left; the reason once, before all who left for it one after the other."""
    told = ""
    for seq_id in ids:
        reason = _end(view.state["seqs"][seq_id])
        style = BOLD if _is_news(view, seq_id) else theme.style("dim")
        yield [(f"{reason}: " if reason != told else "", style), named(view, seq_id)]
        told = reason


def _end(seq: dict[str, Any]) -> str:
    """Why a request has finished."""
    reason = str(seq["finish_reason"])
    return FINISHED.get(reason, printable(reason))


def _row(view: View, seq_id: str, bold: bool = False) -> Style:
    """The style of words about a request."""
    if view.faded(seq_id):
        return theme.style("faded")
    return BOLD if bold else PLAIN


# With the screen for itself: a row for each request


def _table(view: View, width: int, height: int) -> list[Text]:
    """The queues one below the other, with the numbers of each request in columns."""
    counts = [len(view.state[queue]) for queue in QUEUES]
    room = shared_out(counts, height - 2 * len(QUEUES))
    shown = {queue: _ids(view, queue)[:rows] for queue, rows in zip(QUEUES, room, strict=True)}
    indent = max([cell_len(seq_id) for ids in shown.values() for seq_id in ids] or [1])
    heads = "".join(f"{column:>{len(column) + 2}}" for column in COLUMNS)
    lines = [Text(" " * indent + heads, theme.style("dim"))]
    for (queue, ids), count in zip(shown.items(), counts, strict=True):
        order = (f" · {QUEUES[queue]}", theme.style("dim"))
        lines += [Text()] * (queue != "waiting") + [joined([(_count(view, queue), BOLD), order])]
        if len(ids) < count:
            ids = ids[:-1]
        lines += [_table_row(view, queue, seq_id, indent) for seq_id in ids]
        if len(ids) < count:
            lines.append(Text(f"… {count - len(ids):,} more", theme.style("dim")))
    return lines


def _table_row(view: View, queue: str, seq_id: str, indent: int) -> Text:
    seq = view.state["seqs"][seq_id]
    prompt = seq["num_prompt_tokens"]
    numbers = (
        *(prompt, seq["num_tokens"] - prompt, seq["num_cached_tokens"]),
        *(seq["num_scheduled_tokens"], len(seq["block_table"]), seq["preemptions"]),
    )
    cells = "".join(f"{n:>{len(column) + 2},}" for n, column in zip(numbers, COLUMNS, strict=True))
    told = {"waiting": _reason(view, seq), "running": "", "finished": _end(seq)}
    gap = (" " * (indent - cell_len(seq_id)), PLAIN)
    reason = (f"  {told[queue]}", _row(view, seq_id, _is_news(view, seq_id)))
    return joined([named(view, seq_id), gap, (cells, _row(view, seq_id)), reason])
