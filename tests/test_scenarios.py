"""Every scenario that ships: it runs, each narration has its moment, and it shows what it is there to show."""

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tourvllm.engine.llm_engine import RequestOutput
from tourvllm.tour.compare import Tally
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.errors import UnknownNameError
from tourvllm.tour.expressions import evaluate, names
from tourvllm.tour.invariants import check_idle
from tourvllm.tour.lessons import grade
from tourvllm.tour.stops import FACTS, GROUPS, STOPS
from tourvllm.tour.trace import Event, Trace
from tourvllm.tour.triggers import Trigger

from tourvllm.plan import Plan, make_plan
from tourvllm.runs import Run
from tourvllm.scenarios_folder import bundled, bundled_names, find_scenario

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


@pytest.fixture
def tour() -> Recorded:
    return recorded("tour")


def test_the_tour_comes_first():
    assert bundled_names()[:2] == ["tour", "kv_pressure"]
    assert {"kv_pressure", "scheduler_watch"} <= set(bundled_names())


def test_the_tour_is_found_from_a_clone(monkeypatch, tmp_path):
    """Its root has a folder of the same name."""
    (tmp_path / "tour").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_scenario("tour").where == "tour.yaml"


def test_every_fact_is_in_the_table_of_facts(run: Recorded):
    """Names that conditions may use are checked against it when a scenario is loaded."""
    for event in run.events():
        assert set(event.facts) <= set(FACTS[event.stop].split()), event


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
    moments = {**run.trace.notes, **{i: [ask.say] for i, ask in run.trace.asks.items()}}
    said = [say for position in sorted(moments) for say in moments[position]]
    # In the order of the file, so that it reads as the run goes.
    assert said == [narration.say for narration in run.plan.scenario.tour]
    assert {ask.ask for ask in run.trace.asks.values()} == {
        narration.ask.question for narration in run.plan.scenario.tour if narration.ask
    }


def test_each_answer_is_right(run: Recorded):
    """Found again from the recorded state at its position."""
    questions = {item.ask.question: item.ask for item in run.plan.scenario.tour if item.ask}
    cursor = Cursor(run.trace)
    for position, ask in sorted(run.trace.asks.items()):
        cursor.seek(position)
        question = questions[ask.ask]
        value = evaluate(question.answer, names(cursor.state, cursor.event))
        assert ask.answer == str(value)
        assert ask.choices == question.choices
        assert not ask.choices or ask.answer in ask.choices
        assert grade(ask, ask.answer)


def test_narrations_are_short(run: Recorded):
    long = {item.say: len(item.say) for item in run.plan.scenario.tour if len(item.say) > LONGEST}
    assert long == {}


def test_no_moment_is_crowded(run: Recorded):
    assert max(len(notes) for notes in run.trace.notes.values()) == 1
    assert not set(run.trace.notes) & set(run.trace.asks)


def test_breakpoints_trigger_and_watches_have_values(run: Recorded):
    scenario = run.plan.scenario
    assert scenario.breakpoints
    assert scenario.watch
    triggers = [Trigger(text) for text in scenario.breakpoints]
    hits: dict[str, list[str]] = {line: [] for line in scenario.breakpoints}
    cursor = Cursor(run.trace)
    for event in run.events():
        cursor.seek(event.i + 1)
        for trigger in triggers:
            if said := trigger.hit(event, cursor.state):
                hits[trigger.text].append(said)
        for text in scenario.watch:
            with suppress(UnknownNameError):  # a request that has not arrived
                evaluate(text, names(cursor.state, event))
    for line, said in hits.items():
        assert set(said) == {line}


def test_between_two_steps_there_is_no_batch(run: Recorded):
    """A step's batch can be looked at to the step's end, and no longer."""
    cursor, batches = Cursor(run.trace), 0
    in_step = False
    for event in run.events():
        cursor.seek(event.i + 1)
        is_end = event.stop == "step" and event.facts["when"] == "end"
        in_step = event.stop == "step" or in_step
        assert in_step or (cursor.state["batch"], cursor.state["phase"]) == (None, "idle")
        batches += is_end and cursor.state["batch"] is not None
        in_step = in_step and not is_end
    assert batches == len(run.trace.steps)


def test_an_ending_names_the_next_scenario_as_it_is_listed(tour: Recorded, kv_pressure: Recorded):
    for run in (tour, kv_pressure):
        (name, title) = re.search(
            r'Next: (\w+), "(.*)"\.$', run.plan.scenario.tour[-1].say
        ).groups()
        assert make_plan(name, bundled(name).text).scenario.title == title


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
    assert 10 <= len(kv_pressure.plan.scenario.tour) <= 17


def test_the_tour_visits_the_six_stations_in_order(tour: Recorded):
    first: dict[int, int] = {}
    for position in sorted([*tour.trace.notes, *tour.trace.asks]):
        first.setdefault(STOPS[tour.trace.event(position - 1).stop].group.key, position)
    assert list(first) == [group.key for group in GROUPS]
    assert {tour.trace.step_at(position).number for position in first.values()} == {1}


def test_the_tour_has_every_stop_with_both_signs(tour: Recorded):
    assert {event.stop for event in tour.events()} == set(STOPS) - {"reject"}
    counts = {f["phase"]: f["num_tokens"] for f in tour.facts("step") if f["when"] == "end"}
    assert counts["prefill"] > 0 > counts["decode"]
    assert {facts["reason"] for facts in tour.facts("finish")} == {"length", "stop"}
    (preempt,) = tour.facts("preempt")
    assert (preempt["seq"], preempt["needed_by"]) == ("D", "B")


def test_the_tour_shares_scatters_and_frees_blocks(tour: Recorded):
    tables = [facts["hits"] + facts["block_ids"] for facts in tour.facts("allocate")]
    assert any(table != list(range(table[0], table[0] + len(table))) for table in tables)
    grown = [facts for facts in tour.facts("may_append") if facts["block_ids"]]
    sizes = {(f["seq"], f["step"]): f["num_tokens"] for f in tour.facts("can_append") if f["ok"]}
    assert {sizes[f["seq"], f["step"]] % 4 for f in grown} == {1}
    left = {facts["seq"]: facts for facts in tour.facts("deallocate")}
    assert len(left["C"]["freed"]) == len(left["C"]["block_ids"]) - 3
    assert set(left["A"]["freed"]) >= {0, 1, 2}


def test_the_tour_is_a_lesson(tour: Recorded):
    assert 25 <= len(tour.trace.steps) <= 40
    assert 25 <= len(tour.plan.scenario.tour) <= 40
    assert 6 <= len(tour.trace.asks) <= 9


def test_what_the_tour_says_in_numbers(tour: Recorded):
    """The numbers of its narrations, as the engine reported them."""

    def of(stop: str, **wanted: Any) -> dict[str, Any]:
        """The facts of the first such stop that has these facts."""
        return next(f for f in tour.facts(stop) if f.items() >= wanted.items())

    assert of("allocate", seq="A")["block_ids"] == [0, 1, 2, 3]
    assert of("wait", cause="token_budget").items() >= {"needs": 31, "left": 7}.items()
    assert of("hash_blocks", seq="A")["block_ids"] == [0, 1, 2]
    assert of("append_token", seq="A")["num_tokens"] == 14
    assert (of("allocate", seq="C")["hits"], of("allocate", seq="C")["block_ids"]) == (
        [0, 1, 2],
        [12, 13],
    )
    assert of("attention", step=4).items() >= {"num_tokens": 3, "num_keys": 64}.items()
    assert of("step", step=4, when="end")["num_tokens"] == -3
    assert of("can_append", seq="B", step=6)["num_tokens"] == 33
    assert of("may_append", seq="B", step=6)["block_ids"] == [17]
    assert of("may_append", seq="C", step=12)["block_ids"] == [24]
    assert of("can_append", ok=False).items() >= {"seq": "B", "num_tokens": 41, "free": 0}.items()
    assert of("preempt").items() >= {"num_tokens": 21, "blocks": 5}.items()
    assert of("deallocate", seq="D")["freed"] == [22, 18, 16, 15, 14]
    assert of("evict").items() >= {"block_id": 22, "step": 14}.items()
    assert of("wait", cause="no_free_blocks").items() >= {"needs": 6, "free": 4}.items()
    assert len(of("deallocate", seq="B")["freed"]) == 11
    assert of("admit", seq="D", preemptions=1)["num_cached_tokens"] == 2 * 4
    assert of("deallocate", seq="A")["step"] == len(tour.trace.steps)


def test_scheduler_watch_enters_at_once_and_only_shrinks(scheduler_watch: Recorded):
    steps = [facts for facts in scheduler_watch.facts("step") if facts["when"] == "end"]
    assert [facts["phase"] for facts in steps] == ["prefill"] + ["decode"] * (len(steps) - 1)
    sizes = [facts["num_seqs"] for facts in steps]
    assert sizes[0] == 10
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 8
    assert sizes[-1] == 1
    assert not scheduler_watch.facts("wait")


def ends(run: Recorded) -> dict[str, int]:
    """The step in which each request finished."""
    return {facts["seq"]: facts["step"] for facts in run.facts("finish")}


def step_tokens(run: Recorded) -> list[int]:
    """The `num_tokens` of each step."""
    return [facts["num_tokens"] for facts in run.facts("step") if facts["when"] == "end"]


def num_keys(run: Recorded, step: int) -> int:
    """The keys that the attention of a step reads."""
    return next(facts["num_keys"] for facts in run.facts("attention") if facts["step"] == step)


def test_input_length_has_a_step_for_each_prompt_and_longer_reads_for_each_decode():
    run = recorded("input_length")
    assert [tokens for tokens in step_tokens(run) if tokens > 0] == [4, 20, 79, 209]
    assert [step for step, tokens in enumerate(step_tokens(run), 1) if tokens > 0] == [
        1,
        10,
        19,
        28,
    ]
    assert (num_keys(run, 2), num_keys(run, 29)) == (5, 210)
    assert len(run.trace.steps) == 33
    assert not run.facts("wait")


def test_generation_length_has_a_step_for_each_token_and_reads_more_and_more():
    run = recorded("generation_length")
    assert ends(run) == {"A": 6, "B": 23, "C": 60}
    assert (num_keys(run, 2), num_keys(run, 59)) == (3 * 7, 64)
    left = {facts["seq"]: len(facts["block_ids"]) for facts in run.facts("deallocate")}
    assert (left["A"], left["C"]) == (2, 9)


def test_batch_scaling_makes_sixteen_times_the_tokens_in_as_many_steps():
    run = recorded("batch_scaling")
    steps = step_tokens(run)
    assert [-tokens for tokens in steps if tokens < 0] == [1] * 8 + [4] * 8 + [16] * 8
    assert [step for step, tokens in enumerate(steps, 1) if tokens > 0] == [1, 10, 19]
    assert sorted(set(ends(run).values())) == [9, 18, 27]
    assert not run.facts("wait")
    assert not any(facts["hits"] for facts in run.facts("can_allocate"))


def test_mixed_lengths_fills_each_place_as_soon_as_it_is_free():
    run = recorded("mixed_lengths")
    entered = {facts["seq"]: facts["step"] for facts in run.facts("admit")}
    done = ends(run)
    assert (entered["A"], entered["B"], entered["C"]) == (1, 1, 1)
    assert (entered["D"], entered["E"]) == (done["B"] + 1, done["C"] + 1)
    assert entered["F"] == done["E"] + 1
    assert max(done.values()) == done["A"] == len(run.trace.steps) == 35
    written = {output.request_id: len(output.token_ids) for output in run.outputs}
    static = max(written[seq] for seq in "ABC") + max(written[seq] for seq in "DEF")
    assert (max(written[seq] for seq in "ABC"), static) == (32, 54)


def test_config_sweep_runs_into_each_of_its_limits_and_a_sweep_tells_what_they_are_worth():
    run = recorded("config_sweep")
    waits = [(facts["step"], facts["seqs"][0], facts["cause"]) for facts in run.facts("wait")]
    assert waits[0] == (1, "C", "token_budget")
    assert (2, "E", "max_num_seqs") in waits
    second = [facts["num_scheduled_tokens"] for facts in run.facts("admit")[2:4]]
    assert 32 - sum(second) == 12
    first = next(wait for wait in waits if wait[2] == "no_free_blocks")
    assert first[1] == "D"
    assert run.facts("prepare_prefill")[0]["num_tokens"] == 24
    free = [facts["free"] for facts in run.facts("step") if facts["when"] == "end"]
    assert free[1] == 7
    assert [facts["seq"] for facts in run.facts("preempt")] == ["D", "D", "H"]
    assert run.facts("preempt")[2]["needed_by"] == "E"
    back = next(f for f in run.facts("admit") if f["preemptions"] == 1)
    assert (back["num_scheduled_tokens"], back["num_recomputed_tokens"]) == (19, 18)
    file = bundled("config_sweep")
    told = {}
    for blocks, seqs in ((20, 4), (64, 4), (20, 8), (64, 8)):
        settings = {"engine.num_blocks": blocks, "engine.max_num_seqs": seqs}
        other, tally = Run(make_plan(file.name, file.text, settings), []), Tally()
        other.listeners.append(tally.add)
        other.run()
        told[blocks, seqs] = (tally.summary.steps, tally.summary.preemptions)
        if (blocks, seqs) == (20, 4):
            assert (tally.summary.tokens, tally.summary.recomputed_tokens) == (257, 55)
    assert told == {(20, 4): (47, 3), (64, 4): (37, 0), (20, 8): (44, 6), (64, 8): (20, 0)}


def test_prefix_sharing_shares_full_equal_beginnings_only():
    run = recorded("prefix_sharing")
    hits = {facts["seq"]: len(facts["hits"]) for facts in run.facts("can_allocate")}
    assert hits == {"A": 0, "B": 3, "C": 2, "D": 0, "E": 3}
    assert run.facts("allocate")[1]["hits"] == [0, 1, 2]
    first, *_, last = [facts["freed"] for facts in run.facts("deallocate") if facts["seq"] in "AB"]
    assert (len(first), last[-3:]) == (2, [2, 1, 0])
    ends = [f["step"] for f in run.facts("finish") if f["seq"] in "ABCD"]
    assert max(ends) < run.facts("admit")[-1]["step"]
    assert not run.facts("evict")


def tokens_after(run: Recorded, seq: str, step: int) -> int:
    """How many tokens a request has written when a step ends."""
    return sum(f["seq"] == seq and f["step"] <= step for f in run.facts("append_token"))


def test_policies_runs_the_requests_of_chunked_prefill():
    classic, mixed = recorded("chunked_prefill"), recorded("policies")
    assert classic.plan.requests == mixed.plan.requests
    assert (classic.plan.engine.policy, mixed.plan.engine.policy) == ("prefill_first", "mixed")
    assert replace(classic.plan.engine, policy="mixed") == mixed.plan.engine
    assert [f["num_scheduled_tokens"] for f in classic.facts("chunk")] == [18, 18]
    assert [f["num_scheduled_tokens"] for f in mixed.facts("chunk")] == [16, 16, 16]
    assert (tokens_after(classic, "A", 6), tokens_after(mixed, "A", 6)) == (3, 6)
    ends = [{f["seq"]: f["step"] for f in run.facts("finish")} for run in (classic, mixed)]
    assert ends[0]["C"] == ends[1]["C"] == 12
    assert (len(classic.trace.steps), len(mixed.trace.steps)) == (24, 21)
    assert [output.text for output in classic.outputs] == [output.text for output in mixed.outputs]


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
