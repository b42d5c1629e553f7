"""Two runs side by side: the first thing that differs, what differs in their settings, and what it came to."""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .difference import FirstDifference
from .timings import tokens_of, whole
from .trace import Event, Trace

TIMES_VARY = "varies by itself from run to run"
"""What is said beside the times of two runs: a reader would take them for a result."""


@dataclass
class Summary:
    """What a run came to.

    tokens: computed by the model, prompts and decodes. cached_tokens: found in the prefix cache instead, also by
    a request that comes back after a preemption. recomputed_tokens: those of `tokens` that had been computed
    before, and were lost to a preemption. time_to_first_token: request -> engine steps from its arrival to its
    first token, that step included. finish_step: request -> the step in which it ended. most_blocks: in use at a
    step's end. total_ms: of all steps; it differs from run to run, and is no result.
    """

    steps: int = 0
    events: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    recomputed_tokens: int = 0
    most_blocks: int = 0
    time_to_first_token: dict[str, int] = field(default_factory=dict)
    finish_step: dict[str, int] = field(default_factory=dict)
    total_ms: float = 0.0


@dataclass(frozen=True)
class StepRow:
    """One step: prompt tokens and decodes that it computed, its preemptions, and what it left behind.

    in_use: blocks. Not the free ones: in another pool these differ from the start, when nothing has been decided
    yet. For the same reason the pool's size, `total`, does not make two rows differ.
    """

    waiting: int
    running: int
    in_use: int
    prefill: int
    decode: int
    preemptions: int
    total: int = field(compare=False)


@dataclass(frozen=True)
class Row:
    """One step in both runs; None where a run has no such step."""

    step: int
    a: StepRow | None
    b: StepRow | None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; `a` is the first run, `b` the second.

    first_difference: a sentence, None where all events are the same. position: in both, right after the events
    that differ. settings: (key, value in a, value in b) of those that differ.
    """

    first_difference: str | None
    position: int | None
    settings: list[tuple[str, Any, Any]]
    a: Summary
    b: Summary
    rows: list[Row]


def compare(a: Trace, b: Trace) -> Comparison:
    """Compare two runs. Times and source lines do not count as differences.

    A decision that differs (who is admitted, who is preempted, which block, which token) goes before a number
    that only follows from the settings. Raises TraceError where an event cannot be read.
    """
    tallies = Tally(), Tally()
    first = FirstDifference()
    for index in range(max(len(a), len(b))):
        one, other = (trace.event(index) if index < len(trace) else None for trace in (a, b))
        for tally, event in zip(tallies, (one, other), strict=True):
            if event:
                tally.add(event)
        first.look(index, one, other)
    return Comparison(
        first.sentence,
        first.position,
        settings_that_differ(a, b),
        tallies[0].summary,
        tallies[1].summary,
        _rows(a, b),
    )


def settings_that_differ(a: Trace, b: Trace) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b): the engine's settings, other changes, model, scenario, code, platform."""
    found = _differing("engine.", a.table("engine"), b.table("engine"))
    found = (
        _differing("", _changes(a), _changes(b)) | found
    )  # a change of the engine's is in there already
    found |= _differing("model.", a.table("model"), b.table("model"))
    found |= _differing_texts(_scenario_text(a), _scenario_text(b))
    found |= _differing_texts(a.table("sources"), b.table("sources"))
    found |= _differing("platform.", a.table("platform"), b.table("platform"))
    return [(key, *values) for key, values in found.items()]


Differing = dict[str, tuple[Any, Any]]


def _differing(prefix: str, a: dict[str, Any], b: dict[str, Any]) -> Differing:
    keys = [*a, *(key for key in b if key not in a)]
    return {f"{prefix}{key}": (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}


def _differing_texts(a: dict[str, Any], b: dict[str, Any]) -> Differing:
    """For each text that differs its first line that does."""
    found: Differing = {}
    for key in [*a, *(key for key in b if key not in a)]:
        if a.get(key) != b.get(key):
            lines = zip_longest(str(a.get(key, "")).splitlines(), str(b.get(key, "")).splitlines())
            differing = ((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
            number, pair = next(differing, (0, ("", "")))
            found[f"{key}, line {number}"] = pair
    return found


def _changes(trace: Trace) -> dict[str, Any]:
    settings = trace.table("scenario").get("settings")
    return settings if isinstance(settings, dict) else {}


def _scenario_text(trace: Trace) -> dict[str, Any]:
    return {"scenario": trace.table("scenario").get("text", "")}


def _rows(a: Trace, b: Trace) -> list[Row]:
    left, right = _step_rows(a), _step_rows(b)
    return [Row(number, left.get(number), right.get(number)) for number in sorted({*left, *right})]


def _step_rows(trace: Trace) -> dict[int, StepRow]:
    """The rows of the steps that are recorded to their end."""
    preempts = [mark.position for mark in trace.marks if mark.letter == "P"]
    rows, before = {}, 0
    for step in trace.steps:
        if step.is_whole:
            waiting, running, free, total = (
                whole(step.facts.get(key)) for key in ("waiting", "running", "free", "total")
            )
            so_far = bisect_right(preempts, step.end)
            rows[step.number] = StepRow(
                waiting, running, total - free, *tokens_of(step.facts), so_far - before, total
            )
            before = so_far
    return rows


class Tally:
    """Counts one run's events into its summary."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._arrived: dict[str, int] = {}
        self._computed: dict[
            str, int
        ] = {}  # request -> tokens that were computed once, from its first on
        self._began: int | None = None

    def add(self, event: Event) -> None:
        """Take in the next event."""
        self.summary.events += 1
        if event.stop in _COUNTED:
            getattr(self, f"_{event.stop}")(event, str(event.facts.get("seq")))

    def _add_request(self, event: Event, seq: str) -> None:
        self._arrived[seq] = event.step
        for known in (self._computed, self.summary.time_to_first_token, self.summary.finish_step):
            known.pop(seq, None)  # an id may come again when its request has ended

    def _step(self, event: Event, seq: str) -> None:
        if event.facts.get("when") != "end":
            self._began = event.t
            return
        self.summary.steps += 1
        self.summary.tokens += abs(whole(event.facts.get("num_tokens")))
        in_use = whole(event.facts.get("total")) - whole(event.facts.get("free"))
        self.summary.most_blocks = max(self.summary.most_blocks, in_use)
        if self._began is not None:
            self.summary.total_ms += max(0, event.t - self._began) / 1e6

    def _allocate(self, event: Event, seq: str) -> None:
        self.summary.cached_tokens += max(0, whole(event.facts.get("num_cached_tokens")))

    def _preempt(self, event: Event, seq: str) -> None:
        self.summary.preemptions += 1

    def _evict(self, event: Event, seq: str) -> None:
        self.summary.evictions += 1

    def _postprocess(self, event: Event, seq: str) -> None:
        end = whole(event.facts.get("num_cached_tokens"))
        before = self._computed.get(seq, 0)
        begin = end - whole(event.facts.get("computed"))
        self.summary.recomputed_tokens += max(0, min(end, before) - max(0, begin))
        self._computed[seq] = max(end, before)

    def _append_token(self, event: Event, seq: str) -> None:
        if seq in self._arrived and seq not in self.summary.time_to_first_token:
            self.summary.time_to_first_token[seq] = event.step - self._arrived[seq] + 1

    def _finish(self, event: Event, seq: str) -> None:
        self.summary.finish_step[seq] = event.step


_STOPS = "add_request step allocate preempt evict postprocess append_token finish"
_COUNTED = frozenset(_STOPS.split())
