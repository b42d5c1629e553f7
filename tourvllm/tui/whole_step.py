"""What a step's end tells of the whole step. It stands in all the step's events, hundreds in a long run.

So it is found once, and while nobody presses a key, for the steps that a key may lead to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from ..plain import TOLD, is_told
from ..tour.errors import TraceError
from ..tour.patch import Patch
from ..tour.timings import StepTimes, step_times
from ..tour.trace import Step, Trace
from .past import decision

KEPT = 12
"""Steps."""

MOST_DECISIONS = 100
"""Decisions of a step that are told."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Changes:
    """The blocks that tables took and that became free, as they stand after it all, and the paths that changed.

    With each path are those above it.
    """

    new_blocks: frozenset[int]
    freed_blocks: frozenset[int]
    paths: frozenset[Path]


def changes(trace: Trace, first: int, end: int) -> Changes:
    """What the events `first` .. `end - 1` changed."""
    patches = [patch for event in trace.each_patches(first, end) for patch in event]
    new, freed = _moved_blocks(patches)
    return Changes(frozenset(new - freed), frozenset(freed - new), _changed_paths(patches))


class WholeStep:
    """A step that is recorded to its end."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self._trace, self._step = trace, step

    @cached_property
    def changes(self) -> Changes:
        """What its patches changed."""
        return changes(self._trace, self._step.start, self._step.end)

    @cached_property
    def times(self) -> StepTimes | None:
        """How long its parts took; None where its events are damaged."""
        try:
            return step_times(self._trace, self._step)
        except TraceError:
            return None

    @cached_property
    def decisions(self) -> list[str]:
        """What the scheduler decided, with the causes: a step is judged as a whole at its end."""
        found: list[str] = []
        at, total = self._step.start, self._trace.table("state")["blocks"]["total"]
        while len(found) < MOST_DECISIONS:
            at = self._trace.next_position(TOLD, at) or self._step.end
            if at >= self._step.end:
                break
            event = self._trace.event(at - 1)
            found += [f"{event.stop}: {decision(event, total)}"] if is_told(event) else []
        return found


_known: WeakKeyDictionary[Trace, dict[int, WholeStep]] = WeakKeyDictionary()


def whole_step(trace: Trace, step: Step | None) -> WholeStep | None:
    """What is known of `step`; None for one that is not recorded to its end."""
    if step is None or not step.is_whole:
        return None
    known = _known.setdefault(trace, {})
    if step.start not in known:
        if len(known) >= KEPT:
            del known[next(iter(known))]
        known[step.start] = WholeStep(trace, step)
    return known[step.start]


def prepare(trace: Trace, position: int) -> Iterator[None]:
    """Find, a few milliseconds a turn, what will be told at `position`, if that is a step's end."""
    step = trace.step_at(position)
    whole = whole_step(trace, step) if step and step.end == position else None
    if whole is None:
        return
    yield
    _ = whole.changes
    yield
    _ = whole.times, whole.decisions
    if position < len(trace):
        trace.event(position)  # so that its text is at hand


def _moved_blocks(patches: list[Patch]) -> tuple[set[int], set[int]]:
    new: set[int] = set()
    freed: set[int] = set()
    for patch in patches:
        kind, path = patch[0], patch[1]
        if kind in ("append", "prepend") and path == ["blocks", "free"]:
            freed.update(patch[2])
            new.difference_update(patch[2])
        elif kind == "append" and path[0] == "seqs" and path[-1] == "block_table":
            new.update(patch[2])
            freed.difference_update(patch[2])
    return new, freed


def _changed_paths(patches: list[Patch]) -> frozenset[Path]:
    level = {tuple(patch[1]) for patch in patches}  # a step changes most of its paths often
    found = set(level)
    while level:
        level = {path[:-1] for path in level if len(path) > 1}
        found |= level
    return frozenset(found)
