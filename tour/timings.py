"""How long the parts of a step took, and how many tokens a second that is. From a trace's clock alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .trace import Step, Trace

PARTS = ("schedule", "prepare", "forward", "sample", "postprocess")
"""The parts of a step, in their order."""

_PART_OF = {
    "prepare_prefill": "prepare",
    "prepare_decode": "prepare",
    "store_kvcache": "forward",
    "attention": "forward",
    "sample": "sample",
}


@dataclass(frozen=True)
class StepTimes:
    """The time of one step and of its parts, in milliseconds.

    `sample` begins at the last layer's attention: the rest of that layer and the logits are in it. What is
    recorded takes time too, and is in the part where it was.
    """

    total_ms: float
    parts: dict[str, float]
    prefill_tokens: int
    decode_tokens: int

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens a second; None in a step without any."""
        return self._rate(self.prefill_tokens)

    @property
    def decode_rate(self) -> float | None:
        """Decoded tokens a second; None in a step without any."""
        return self._rate(self.decode_tokens)

    def _rate(self, tokens: int) -> float | None:
        return tokens / self.total_ms * 1000 if tokens and self.total_ms > 0 else None


def step_times(trace: Trace, step: Step) -> StepTimes:
    """The times of `step`, as far as it is recorded. What came before its begin (arrivals) is left out."""
    parts = dict.fromkeys(PARTS, 0.0)
    begin = trace.next_position({"step"}, step.start) or len(trace) + 1
    last = trace.event(begin - 1).t if begin <= step.end else 0
    for part, index in _ends_of_parts(trace, begin, step.end):
        now = trace.event(index).t
        parts[part] += max(0, now - last) / 1e6
        last = now
    prefill, decode = tokens_of(step.facts)
    return StepTimes(sum(parts.values()), parts, prefill, decode)


def _ends_of_parts(trace: Trace, first: int, end: int) -> Iterator[tuple[str, int]]:
    """The parts in the order of the step, each with its last event, among the events `first` .. `end - 1`."""
    part, after = "", "schedule"
    for index in range(first, end):
        stop = trace.stop_name(index)
        if stop == "generate":  # the loop's end, after the step's
            end = index
            break
        before, part = part, _PART_OF.get(stop, after)
        if before and part != before:
            yield before, index - 1
        after = "postprocess" if part == "sample" else after
    if part:
        yield part, end - 1


def tokens_of(facts: dict[str, Any]) -> tuple[int, int]:
    """The prompt tokens and the decodes of a step, from the facts of its end (num_tokens < 0: all decodes)."""
    num_tokens = whole(facts.get("num_tokens"))
    if num_tokens < 0:
        return 0, -num_tokens
    decodes = max(0, min(whole(facts.get("num_decodes")), num_tokens))
    return num_tokens - decodes, decodes


def whole(value: Any) -> int:
    """`value` if it is a whole number, else 0: a stranger's facts may hold anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
