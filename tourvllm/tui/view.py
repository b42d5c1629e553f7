"""What one place in a trace looks like: the facts that all panes share, taken once for each move."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ..tour.cursor import Cursor
from ..tour.timings import StepTimes
from ..tour.trace import Event, Step, Trace
from ..tour.why import why
from .values import Row, values
from .whole_step import WholeStep, changes, whole_step


@dataclass(frozen=True)
class Selection:
    """What is followed in all panes: a request, or a block of the pool, or nothing."""

    seq: str | None = None
    block: int | None = None


@dataclass(frozen=True)
class View:
    """A moment of a run. `state` belongs to the cursor and is valid until the next move."""

    trace: Trace
    state: dict[str, Any]
    position: int
    event: Event | None
    next_event: Event | None
    step: Step | None
    new_blocks: frozenset[int] = frozenset()
    freed_blocks: frozenset[int] = frozenset()
    changed: frozenset[tuple[str, ...]] = frozenset()
    why: str = ""
    notes: tuple[str, ...] = ()
    at_step_end: bool = False
    hues: dict[str, int] = field(default_factory=dict)
    selection: Selection = Selection()
    whole_step: WholeStep | None = None
    """The step, if it is recorded to its end."""
    watched: tuple[Row, ...] = ()
    """(text, value before, value, whether it changed) of each watch expression."""

    def is_new(self, *path: str) -> bool:
        """Whether the value at this path of the state, or one below it, changed on the way here."""
        return path in self.changed

    def faded(self, seq_id: str) -> bool:
        """Whether another request is followed, so that this one stands back."""
        chosen = self.selection.seq
        return chosen is not None and chosen != seq_id and chosen in self.hues

    @property
    def times(self) -> StepTimes | None:
        """How long the parts of this step took; None while it is not recorded to its end."""
        return self.whole_step.times if self.whole_step else None


def look(
    cursor: Cursor, selection: Selection = Selection(), watches: Sequence[str] | None = None
) -> View:
    """The view at the cursor. `watches`: the expressions to show, None for those of the scenario."""
    if watches is None:
        watches = cursor.trace.table("scenario").get("watch") or ()
    rows = values(cursor, [text for text in watches if isinstance(text, str)])
    event, step, trace = cursor.event, cursor.step, cursor.trace
    whole = whole_step(trace, step)
    at_end = cursor.at_step_end
    changed = whole.changes if whole and at_end else changes(trace, cursor.before, cursor.position)
    return View(
        trace=trace,
        state=cursor.state,
        position=cursor.position,
        event=event,
        next_event=trace.event(cursor.position) if cursor.position < len(trace) else None,
        step=step,
        new_blocks=changed.new_blocks,
        freed_blocks=changed.freed_blocks,
        changed=changed.paths,
        why=why(event, cursor.state) if event else "",
        notes=_notes(trace, _first_told(cursor), cursor.position),
        at_step_end=at_end,
        hues=dict(zip(cursor.state.get("seqs") or (), count())),
        selection=selection,
        whole_step=whole,
        watched=rows,
    )


def _first_told(cursor: Cursor) -> int:
    """The first position whose notes are told.

    That is the step's first, but for the end of a run's first step: the app opens where that begins, and has told
    there what came before.
    """
    step, position = cursor.step, cursor.position
    if step is None or position == 0:
        return position
    opened = cursor.trace.next_position(("step",), 0) if step.start == 0 else None
    return opened + 1 if cursor.at_step_end and opened else step.start + 1


def _notes(trace: Trace, first: int, last: int) -> tuple[str, ...]:
    """The narrations of these positions, and what explains the answers of their questions."""
    told: list[str] = []
    for position in range(first, last + 1) if trace.notes or trace.asks else ():
        told += trace.notes.get(position, ())
        ask = trace.asks.get(position)
        if ask and ask.say:
            told.append(ask.say)
    return tuple(told)
