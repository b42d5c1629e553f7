"""Times of a step: known clocks in, parts and rates out."""

from pathlib import Path

import pytest
from small_traces import trace_of
from tourvllm.tour.reader import read_trace
from tourvllm.tour.timings import PARTS, step_times
from tourvllm.tour.trace import Trace

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"
MS = 1_000_000


def one_step(**facts: object) -> Trace:
    """A step with 1 ms of scheduling, 2 of preparing, 4 of the layers, 8 of sampling and 16 of the closing."""
    return trace_of(
        {"stop": "add_request", "t": 0},
        {"stop": "step", "t": 100 * MS, "facts": {"when": "begin"}},
        {"stop": "schedule", "t": 101 * MS, "facts": {"when": "end"}},
        {"stop": "prepare_prefill", "t": 103 * MS},
        {"stop": "store_kvcache", "t": 104 * MS},
        {"stop": "attention", "t": 107 * MS},
        {"stop": "sample", "t": 115 * MS},
        {"stop": "hash_blocks", "t": 120 * MS},
        {"stop": "step", "t": 131 * MS, "facts": {"when": "end", **facts}},
        {"stop": "generate", "t": 500 * MS, "facts": {"when": "end"}},
    )


def test_each_part_has_its_time_and_what_is_outside_the_step_has_none():
    trace = one_step(num_tokens=62, num_decodes=0)
    times = step_times(trace, trace.steps[0])
    assert times.parts == pytest.approx(
        {"schedule": 1, "prepare": 2, "forward": 4, "sample": 8, "postprocess": 16}
    )
    assert times.total_ms == pytest.approx(31)
    assert times.prefill_rate == pytest.approx(2000)
    assert times.decode_rate is None


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({"num_tokens": 20, "num_decodes": 0}, (20, 0)),
        ({"num_tokens": -4, "num_decodes": 4}, (0, 4)),
        ({"num_tokens": 20, "num_decodes": 3}, (17, 3)),
        ({"num_tokens": 0}, (0, 0)),
        ({}, (0, 0)),
        ({"num_tokens": "many", "num_decodes": [1]}, (0, 0)),
        ({"num_tokens": True, "num_decodes": None}, (0, 0)),
        ({"num_tokens": 3, "num_decodes": 9}, (0, 3)),
        ({"num_tokens": 3, "num_decodes": -9}, (3, 0)),
    ],
)
def test_prompt_tokens_and_decodes_of_a_step(facts, tokens):
    trace = one_step(**facts)
    times = step_times(trace, trace.steps[0])
    assert (times.prefill_tokens, times.decode_tokens) == tokens


def test_a_clock_that_stands_or_runs_backwards_gives_no_rate_and_no_negative_time():
    trace = trace_of(
        {"stop": "step", "t": 9, "facts": {"when": "begin"}},
        {"stop": "sample", "t": 3},
        {"stop": "step", "t": 3, "facts": {"when": "end", "num_tokens": -2}},
    )
    times = step_times(trace, trace.steps[0])
    assert (times.total_ms, times.decode_tokens, times.decode_rate) == (0, 2, None)
    assert tuple(times.parts) == PARTS


def test_a_step_that_never_began_has_no_time():
    trace = trace_of({"stop": "add_request", "t": 5}, {"stop": "reject", "t": 9})
    assert step_times(trace, trace.steps[0]).total_ms == 0


def test_the_parts_of_a_recorded_run_fill_its_steps():
    trace = read_trace(RECORDED)
    for step in trace.steps:
        times = step_times(trace, step)
        assert min(times.parts.values()) > 0
        clock = [
            trace.event(i).t for i in range(step.start, step.end) if trace.event(i).stop == "step"
        ]
        assert times.total_ms == pytest.approx((clock[1] - clock[0]) / MS)
    planned = [
        event.facts["num_tokens"]
        for event in map(trace.event, range(len(trace)))
        if event.stop == "schedule" and event.facts.get("phase") == "prefill"
    ]
    assert sum(step_times(trace, step).prefill_tokens for step in trace.steps) == sum(planned)
