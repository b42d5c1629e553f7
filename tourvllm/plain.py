"""The walk as readable text: one block a step, with queues, blocks, decisions and their causes."""

import reprlib
from collections.abc import Callable
from typing import Any

from .tour.errors import ExpressionError
from .tour.expressions import evaluate, names
from .tour.scenario import CHOICE_LETTERS
from .tour.text import line, printable, token
from .tour.trace import Ask, Event
from .tour.why import plural, why

WIDTH = 100
TOLD = (
    "add_request",
    "reject",
    "can_allocate",
    "admit",
    "chunk",
    "wait",
    "preempt",
    "evict",
    "finish",
)
"""Stops told with their causes. The rest of a step is told by its tables."""


def is_told(event: Event) -> bool:
    """Whether a step's summary tells this event; room for a prompt only where there is a prefix hit."""
    return event.stop in TOLD and (event.stop != "can_allocate" or bool(event.facts.get("hits")))


class PlainWalk:
    """Writes a run as text. Feed it every event with the state after it, live or from a trace."""

    def __init__(
        self,
        write: Callable[[str], None],
        watch: list[str] | None = None,
        changes: Callable[[Event, dict[str, Any]], list[str]] = lambda event, state: [],
    ) -> None:
        """`watch`: values to tell at each step's end; `changes` tells of those that an event has changed."""
        self._write = write
        self._watch = watch or []
        self._changes = changes
        self._told: list[str] = []
        self._notes: list[str] = []
        self._rejected: list[dict[str, Any]] = []

    def title(self, title: str, about: str) -> None:
        """Write what the scenario is about."""
        self._write(
            "\n".join(printable(text) for text in [title, *about.strip().splitlines()]) + "\n"
        )

    def _answers(self, state: dict[str, Any]) -> list[str]:
        """What became of each request."""
        rows = [
            (seq_id, str(seq.get("finish_reason")), line("".join(seq.get("text") or ())).strip())
            for seq_id, seq in state["seqs"].items()
        ]
        rows += [(str(f["seq"]), "rejected", str(f["reason"])) for f in self._rejected]
        return [printable(f"{seq_id:<4} {ended:<9} {text}") for seq_id, ended, text in sorted(rows)]

    def note(self, say: str) -> None:
        """Take in a narration that belongs to the event that comes next."""
        self._notes.append(f"  » {line(' '.join(say.split()))}")

    def ask(self, ask: Ask) -> None:
        """Take in a question that belongs to the event that comes next; its answer is told with it."""
        choices = "".join(
            f" ({letter}) {text}" for letter, text in zip(CHOICE_LETTERS, ask.choices, strict=False)
        )
        self.note(f"Question: {ask.ask}{choices} Answer: {ask.answer}")
        self.note(ask.say)

    def event(self, event: Event, state: dict[str, Any]) -> None:
        """Take in one event; a step's block is written when the step ends."""
        if is_told(event):
            self._told.append(f"  {event.stop:<13} {why(event, state)}")
        at = f"   (at {event.stop}, {':'.join(map(str, event.at))})" if event.at else ""
        self._told += [f"  {'watch':<13} {line}{at}" for line in self._changes(event, state)]
        self._told += self._notes
        self._notes.clear()
        if event.stop == "reject":
            self._rejected.append(event.facts)
        if event.stop == "generate":
            self._write("\n".join([why(event, state), *self._told]) + "\n")
            self._told.clear()
            if event.facts.get("when") == "end":
                self._write("\n".join(self._answers(state)))
        elif event.stop == "step" and event.facts.get("when") == "end":
            self._write("\n".join(self._block(event, state)) + "\n")
            self._told.clear()

    def _block(self, event: Event, state: dict[str, Any]) -> list[str]:
        facts, blocks = event.facts, state["blocks"]
        used = blocks["total"] - len(blocks["free"])
        count = plural(abs(facts.get("num_tokens", 0)), "token")
        title = f"── step {event.step} · {facts.get('phase', '?')} · {count} · KV {used}/{blocks['total']} blocks "
        lines = [title.ljust(WIDTH, "─")]
        lines += [f"  {_row('waiting', [_waiting(state, seq_id) for seq_id in state['waiting']])}"]
        lines += [f"  {_row('running', state['running'])}"]
        lines += [f"  {'finished':<9} {' '.join(state['finished'])}"] if state["finished"] else []
        lines += self._told
        lines += self._tables(state) + self._batch(state) + self._values(event, state)
        # Names and texts come from prompts, models and strangers' traces.
        return [printable(text) for text in lines]

    def _tables(self, state: dict[str, Any]) -> list[str]:
        size = state["blocks"]["size"]
        lines = []
        for seq_id in state["running"] + state["waiting"]:
            seq = state["seqs"][seq_id]
            if seq["block_table"]:
                fill = f"{seq['num_cached_tokens']} of {seq['num_tokens']} tokens computed, {size} a block"
                lines.append(f"  table {seq_id:<4} [{_numbers(seq['block_table'])}]  {fill}")
        return lines

    def _batch(self, state: dict[str, Any]) -> list[str]:
        batch = state["batch"]
        if not batch:
            return []
        return [
            f"  batch      {' '.join(batch['seqs'])}",
            f"  tokens     {_limited([token(piece) for piece in batch_pieces(state)], 10)}",
            f"  slots      {_numbers(batch['slot_mapping'])}",
            f"  cu_seqlens q {_numbers(batch['cu_seqlens_q'])}   k {_numbers(batch['cu_seqlens_k'])}",
            *self._new_tokens(state),
        ]

    def _new_tokens(self, state: dict[str, Any]) -> list[str]:
        lines = []
        for seq_id in state["batch"]["seqs"]:
            seq = state["seqs"][seq_id]
            if seq["text"]:
                lines.append(
                    f"  output {seq_id:<3} {_end_of(line(''.join(seq['text'])), WIDTH - 14)}"
                )
        return lines

    def _values(self, event: Event, state: dict[str, Any]) -> list[str]:
        values = names(state, event)
        return [f"  watch      {printable(text)} = {watched(text, values)}" for text in self._watch]


_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxdict = 4, 60, 30
_short.maxstring = _short.maxlong = _short.maxother = 100
"""Shortens while it writes: a value may be a table of a million entries."""


def watched(text: str, values: dict[str, Any]) -> str:
    """The value of a watch expression as text, or why it has none here."""
    try:
        return shown(evaluate(text, values))
    except ExpressionError as error:
        return f"({printable(error.reason)[:80]})"


def shown(value: Any) -> str:
    """A value as one short printable line. Raises ExpressionError for one that has no text."""
    try:
        return printable(value[:200] if isinstance(value, str) else _short.repr(value)[:200])
    except ValueError as error:
        raise ExpressionError(f"no text: {error}") from error  # a number of thousands of digits


def batch_pieces(state: dict[str, Any]) -> list[str]:
    """The text of each token of the batch, found by request and position."""
    batch, seqs = state["batch"], state["seqs"]
    starts = batch["cu_seqlens_q"]
    pieces = []
    for seq_id, first, end in zip(batch["seqs"], starts, starts[1:], strict=False):
        own = seqs[seq_id]["pieces"]
        pieces += [
            own[position] if position < len(own) else "?"
            for position in batch["positions"][first:end]
        ]
    return pieces


def waits_for(seq: dict[str, Any], free: int) -> str:
    """Why a waiting request waits, in a few words: `needs 4 blocks, free 1`. `free`: blocks that are free now.

    What was true when it was asked, and may be no more, is told in the past.
    """
    if seq.get("num_scheduled_tokens"):
        return f"{seq['num_scheduled_tokens']} of {seq['num_tokens']} in this step"
    reason = seq.get("waits_for")
    if not reason:
        if seq["num_cached_tokens"]:
            return f"{seq['num_cached_tokens']} computed"
        return "preempted" if seq["preemptions"] else "new"
    cause = reason.get("cause")
    if cause == "no_free_blocks":
        if reason["free"] != free:  # asked earlier in the step, when it was another number
            return f"needed {reason['needs']} blocks, free then {reason['free']}"
        return f"needs {reason['needs']} blocks, free {free}"
    if cause == "token_budget":
        return f"needed {reason['needs']} of the budget, left {reason['left']}"
    if cause == "max_num_seqs":
        return f"max_num_seqs {reason['limit']} reached"
    if cause == "after_preemption":
        return "blocks are short"
    return f"behind {reason.get('behind', '?')}"


def _waiting(state: dict[str, Any], seq_id: str) -> str:
    seq = state["seqs"][seq_id]
    return f"{seq_id} ({seq['num_tokens']} tokens; {waits_for(seq, len(state['blocks']['free']))})"


def _end_of(text: str, width: int) -> str:
    """The end of a long text, with a sign that something stands before it."""
    return text if len(text) <= width else "…" + text[1 - width :]


def _row(name: str, entries: list[str]) -> str:
    return f"{name:<9} {_limited(entries, 6) if entries else '-'}"


def _limited(entries: list[str], limit: int) -> str:
    more = f"  .. {len(entries) - limit} more" if len(entries) > limit else ""
    return "  ".join(entries[:limit]) + more


def _numbers(values: list[int], limit: int = 16) -> str:
    shown = " ".join(map(str, values[:limit]))
    return shown + (f" .. {values[-1]}" if len(values) > limit else "")
