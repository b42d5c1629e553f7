"""Every scenario that ships: it runs, each narration has its moment, and it shows what it is there to show."""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tourvllm.engine.llm_engine import RequestOutput
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.expressions import evaluate, names
from tourvllm.tour.invariants import check_idle
from tourvllm.tour.trace import Event, Trace
from tourvllm.tour.triggers import Trigger

from tourvllm.plan import Plan, make_plan
from tourvllm.runs import Run
from tourvllm.scenarios_folder import bundled, bundled_names

LONGEST = 220
"""Characters of a narration: more is not read in ten seconds."""


@dataclass
class TraceSink:
    """Feeds a trace in memory."""

    trace: Trace = field(default_factory=Trace)

    def write(self, line: bytes) -> None:
        self.trace.feed(line)

    def flush(self) -> None:
        pass


@dataclass(frozen=True)
class Recorded:
    """A run, checked at every stop, and what was said."""

    plan: Plan
    trace: Trace
    outputs: list[RequestOutput]
    unsaid: list[str]

    def events(self, *stops: str) -> list[Event]:
        """The events of these stops (of all stops if none is named)."""
        found = [self.trace.event(i) for i in range(len(self.trace))]
        return [event for event in found if not stops or event.stop in stops]

    def facts(self, stop: str) -> list[dict[str, Any]]:
        """The facts of each event of a stop, with its step."""
        return [{**event.facts, "step": event.step} for event in self.events(stop)]


def record(name: str, **settings: Any) -> Recorded:
    """Run a bundled scenario in this process with --verify."""
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return record_plan(make_plan(name, bundled(name).text, {"engine.device": "cpu", **changes}))


def record_plan(plan: Plan) -> Recorded:
    """Run a plan in this process with --verify."""
    sink = TraceSink()
    run = Run(plan, [sink], verify=True)
    outputs = run.run()
    assert run.verifier is not None
    assert run.verifier.num_checked == len(sink.trace)
    return Recorded(plan, sink.trace, outputs, run.narrator.unsaid)


recorded = cache(record)


@pytest.fixture(params=bundled_names())
def run(request: pytest.FixtureRequest) -> Recorded:
    """Each bundled scenario."""
    return recorded(request.param)


@pytest.fixture
def kv_pressure() -> Recorded:
    return recorded("kv_pressure")


@pytest.fixture
def scheduler_watch() -> Recorded:
    return recorded("scheduler_watch")


def test_both_ship():
    assert {"kv_pressure", "scheduler_watch"} <= set(bundled_names())


def test_runs_to_its_end(run: Recorded):
    assert run.trace.closing is not None
    assert run.trace.closing["outcome"] == "complete"
    assert run.trace.digest_matches
    assert {output.finish_reason for output in run.outputs} <= {"stop", "length"}
    cursor = Cursor(run.trace)
    cursor.seek(len(run.trace))
    check_idle(cursor.state)


def test_every_narration_has_its_moment(run: Recorded):
    assert run.unsaid == []
    said = [note for position in sorted(run.trace.notes) for note in run.trace.notes[position]]
    # In the order of the file, so that it reads as the run goes.
    assert said == [narration.say for narration in run.plan.scenario.tour]


def test_narrations_are_short(run: Recorded):
    long = {item.say: len(item.say) for item in run.plan.scenario.tour if len(item.say) > LONGEST}
    assert long == {}


def test_no_moment_is_crowded(run: Recorded):
    assert max(len(notes) for notes in run.trace.notes.values()) == 1


def test_breakpoints_trigger_and_watches_have_values(run: Recorded):
    scenario = run.plan.scenario
    assert scenario.breakpoints
    assert scenario.watch
    triggers = [Trigger(text) for text in scenario.breakpoints]
    hits = dict.fromkeys(scenario.breakpoints, 0)
    cursor = Cursor(run.trace)
    for event in run.events():
        cursor.seek(event.i + 1)
        for trigger in triggers:
            hits[trigger.text] += trigger.hit(event, cursor.state)
        for text in scenario.watch:
            evaluate(text, names(cursor.state, event))
    assert all(hits.values()), hits


def test_same_events_twice(run: Recorded):
    again = record(run.plan.name)
    assert again.trace.digest() == run.trace.digest()
    assert again.trace.notes == run.trace.notes


def test_outputs_are_those_of_an_ample_engine(run: Recorded):
    """What the last narration of kv_pressure says: pressure costs time, not words."""
    ample = record(
        run.plan.name,
        engine__num_blocks=4096,
        engine__max_num_batched_tokens=4096,
        engine__prefix_caching=False,
    )
    assert [output.token_ids for output in ample.outputs] == [
        output.token_ids for output in run.outputs
    ]


def test_outputs_are_sentences(run: Recorded):
    for output in run.outputs:
        assert output.text.endswith((".", "!", "?", '"')), output.text
        assert len(output.text.split()) >= 3, output.text


def test_kv_pressure_shows_each_cause_of_waiting(kv_pressure: Recorded):
    causes = {facts["cause"] for facts in kv_pressure.facts("wait")}
    assert causes == {"token_budget", "behind_head", "behind_chunk", "no_free_blocks"}


def test_kv_pressure_shows_a_chunk_a_hit_and_evictions(kv_pressure: Recorded):
    chunk = kv_pressure.facts("chunk")[0]
    assert chunk["num_scheduled_tokens"] < chunk["uncomputed"]
    first_hit = next(facts for facts in kv_pressure.facts("can_allocate") if facts["hits"])
    assert first_hit["seq"] == "B"
    assert not first_hit["recompute"]
    evictions = kv_pressure.facts("evict")
    assert kv_pressure.facts("preempt")[0]["step"] < evictions[0]["step"]


def test_kv_pressure_shows_a_preemption_and_what_it_costs(kv_pressure: Recorded):
    (preempt,) = kv_pressure.facts("preempt")
    assert preempt["seq"] != preempt["needed_by"]
    assert preempt["why_this_one"] == "last in running"
    (again,) = [facts for facts in kv_pressure.facts("admit") if facts["preemptions"]]
    assert again["seq"] == preempt["seq"]
    assert again["num_cached_tokens"] > 0
    # The cost that the narration names.
    assert (again["num_scheduled_tokens"], preempt["num_tokens"]) == (15, 19)


def test_kv_pressure_evicts_what_the_preempted_request_left(kv_pressure: Recorded):
    """The narration says whose block goes: the last full one of the request that was preempted."""
    (left,) = [
        event
        for event in kv_pressure.events("deallocate")
        if event.facts["seq"] == "D" and event.step == kv_pressure.facts("preempt")[0]["step"]
    ]
    assert kv_pressure.facts("evict")[0]["block_id"] == left.facts["block_ids"][-2]


def test_kv_pressure_is_a_walk_of_a_lesson(kv_pressure: Recorded):
    assert 25 <= len(kv_pressure.trace.steps) <= 45
    assert 10 <= len(kv_pressure.plan.scenario.tour) <= 16


def test_scheduler_watch_enters_at_once_and_only_shrinks(scheduler_watch: Recorded):
    steps = [facts for facts in scheduler_watch.facts("step") if facts["when"] == "end"]
    assert [facts["phase"] for facts in steps] == ["prefill"] + ["decode"] * (len(steps) - 1)
    sizes = [facts["num_seqs"] for facts in steps]
    assert sizes[0] == 10
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 8
    assert sizes[-1] == 1
    assert not scheduler_watch.facts("wait")


def test_the_scenario_in_the_readme_does_what_it_says():
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.+?)```", readme, re.S)
    example = record_plan(make_plan("example", text, {"engine.device": "cpu"}))
    assert example.unsaid == []
    assert [facts["seq"] for facts in example.facts("can_allocate") if facts["hits"]] == ["B"]


WITH_ALL = """\
title: Messages, priorities and stops
engine: {policy: mixed, order: priority, block_size: 4, num_blocks: 24, max_num_batched_tokens: 9, seed: 3}
sampling: {temperature: 0.8, max_tokens: 24, stop: ["."], min_tokens: 2}
requests:
  - {id: A, priority: 2, messages: [{role: user, content: "Tell me a story."}]}
  - {id: B, priority: 1, prompt: "Once upon a time", sampling: {stop: null, logprobs: 2, min_p: 0.05}}
  - {id: C, arrival: 3, prompt: "The sun", sampling: {temperature: 0, repetition_penalty: 1.2}}
tour:
  - {at: chunk, say: "A piece of a prompt"}
  - {at: finish, if: "C.finish_reason == 'stop'", say: "C has written its stop text"}
"""


def test_a_scenario_may_have_messages_priorities_and_stops():
    run = record_plan(make_plan("all", WITH_ALL, {"engine.device": "cpu"}))
    assert run.unsaid == []
    by_id = {output.request_id: output for output in run.outputs}
    assert by_id["A"].prompt == (
        "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [len(output.logprobs) > 0 for output in run.outputs] == [False, True, False]
    assert by_id["C"].finish_reason == "stop"
    assert "." not in by_id["C"].text
    assert {facts.get("phase") for facts in run.facts("step")} >= {"mixed", "decode"}
    again = record_plan(make_plan("all", WITH_ALL, {"engine.device": "cpu"}))
    assert [output.text for output in again.outputs] == [output.text for output in run.outputs]


def test_a_request_that_is_refused_is_seen_in_the_trace():
    text = WITH_ALL.replace('prompt: "The sun"', 'prompt: ""')
    run = record_plan(make_plan("all", text, {"engine.device": "cpu", "sampling.max_tokens": 30}))
    (rejected,) = run.facts("reject")
    assert rejected["seq"] == "C"
    assert [output.finish_reason for output in run.outputs][2] == "rejected"
