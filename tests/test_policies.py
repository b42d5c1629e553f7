"""What each scheduling policy and each order guarantees, measured on the traces of real runs."""

import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from support import POLICIES, P, Watched, generate, greedy, make_engine, tokens
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.trace import Event

ORDERS = ("fcfs", "priority")


@pytest.fixture
def watch(mini):
    """A factory of watched engines over the mini model: `watch("mixed", bs=4, N=8, ...)`."""

    def make(policy: str, bs: int = 4, N: int = 64, **settings: Any) -> Watched:
        settings = {"dtype": "float64", **settings}
        return Watched(make_engine(mini, block_size=bs, num_blocks=N, policy=policy, **settings))

    return make


def steps_of(watched: Watched, stop: str) -> dict[str, list[int]]:
    """Request -> the steps in which this happened to it."""
    found = defaultdict(list)
    for event in watched.events:
        if event.stop == stop:
            found[event.facts["seq"]].append(event.step)
    return found


def gaps(watched: Watched, name: str) -> list[int]:
    """Steps from one token of a request to its next."""
    return [b - a for a, b in pairwise(steps_of(watched, "append_token")[name])]


@dataclass(frozen=True)
class Crowd:
    """A finished run of many requests in a pool that is too small for them, and their priorities."""

    watched: Watched
    priority: dict[str, int]

    def rank(self, name: str) -> tuple[int, int]:
        """Priority, then arrival."""
        added = [facts["seq"] for facts in self.watched.facts("add_request")]
        return self.priority[name], added.index(name)

    def walk(self, *stops: str) -> Iterator[tuple[Event, dict[str, Any], dict[str, Any]]]:
        """Each event of these stops (all if none is named), with the state before and after it."""
        cursor = Cursor(self.watched.trace())
        for index, event in enumerate(self.watched.events):
            if not stops or event.stop in stops:
                cursor.seek(index)
                before = {name: list(cursor.state[name]) for name in ("waiting", "running")}
                cursor.seek(index + 1)
                yield event, before, cursor.state


@pytest.fixture(scope="module")
def crowd(mini):
    """A function of a seed, a policy and an order; the requests depend on the seed alone."""

    @functools.cache
    def run(seed: int, policy: str, order: str) -> Crowd:
        pick = Random(seed)
        block_size = pick.choice([1, 2, 3, 4])
        settings = {
            "dtype": "float64",
            "block_size": block_size,
            "num_blocks": -(-pick.choice([20, 26, 40]) // block_size),
            "max_num_batched_tokens": pick.choice([1, 3, 6, 9, 40]),
            "max_num_seqs": pick.choice([2, 4, 8]),
        }
        watched = Watched(make_engine(mini, policy=policy, order=order, **settings))
        names = [f"R{i}" for i in range(8)]
        priorities = [pick.randint(0, 2) for _ in names]
        watched.generate(
            [P(9 * i, 9 * i + pick.randint(1, 9)) for i in range(8)],
            [greedy(pick.randint(1, 12)) for _ in names],
            request_id=names,
            arrival=[pick.randint(1, 9) for _ in names],
            priority=priorities,
        )
        return Crowd(watched, dict(zip(names, priorities, strict=True)))

    return run


SEEDS = range(8)
each_seed = pytest.mark.parametrize("seed", SEEDS)
each_policy = pytest.mark.parametrize("policy", POLICIES)
each_order = pytest.mark.parametrize("order", ORDERS)


# The gap between two tokens


@pytest.mark.parametrize("budget", [2, 3, 8, 40])
def test_mixed_gives_a_token_in_every_step_whatever_prompts_arrive(watch, budget):
    watched = watch("mixed", N=128, max_num_batched_tokens=budget)
    prompts = [P(0, 3), *(P(i, i + 30) for i in range(10, 20))]
    watched.generate(
        prompts,
        [greedy(40)] + [greedy(2)] * 10,
        arrival=[1, *range(3, 13)],
        request_id=[*"ABCDEFGHIJK"],
    )
    assert set(gaps(watched, "A")) == {1}
    assert not watched.facts("preempt")
    assert any(facts.get("phase") == "mixed" for facts in watched.facts("schedule"))


@each_seed
def test_mixed_leaves_a_gap_only_where_it_preempted(crowd, seed):
    watched = crowd(seed, "mixed", "fcfs").watched
    preempted = steps_of(watched, "preempt")
    for name, steps in steps_of(watched, "append_token").items():
        for before, after in pairwise(steps):
            assert after == before + 1 or any(before < step <= after for step in preempted[name])


@each_policy
@each_order
def test_the_crowds_do_preempt_and_chunk(crowd, policy, order):
    runs = [crowd(seed, policy, order).watched for seed in SEEDS]
    assert sum(bool(watched.facts("preempt")) for watched in runs) >= 3
    assert sum(bool(watched.facts("chunk")) for watched in runs) >= 3


def test_prefill_first_bounds_no_gap(watch):
    """As long as prompts keep coming, whoever has begun to answer waits; mixed does not let it."""
    found = {}
    for policy in POLICIES:
        watched = watch(policy, N=128, max_num_batched_tokens=8)
        prompts = [P(0, 3), *(P(i, i + 8) for i in range(10, 30))]
        watched.generate(prompts, [greedy(8)] + [greedy(1)] * 20, arrival=[1, *range(2, 22)])
        found[policy] = max(gaps(watched, "0"))
    assert found == {"prefill_first": 21, "mixed": 1}


# What a step holds


def test_mixed_lays_decodes_and_a_chunk_out_in_one_flat_batch(watch):
    watched = watch("mixed", max_num_batched_tokens=8, prefix_caching=False)
    watched.engine.add_request(P(0, 3), greedy(9), "A")
    watched.engine.add_request(P(10, 15), greedy(9), "B")
    watched.step()
    watched.engine.add_request(P(20, 40), greedy(2), "C")
    watched.step()
    watched.step()
    batch, seqs = watched.state["batch"], watched.state["seqs"]
    assert batch["seqs"] == ["A", "B", "C"]
    assert batch["cu_seqlens_q"] == [0, 1, 2, 8]
    assert batch["context_lens"] == [5, 7, 12]
    assert batch["cu_seqlens_k"] == [0, 5, 12, 24]
    assert (batch["max_seqlen_q"], batch["max_seqlen_k"]) == (6, 12)
    assert batch["positions"] == [4, 6, *range(6, 12)]
    assert batch["input_ids"] == [seqs["A"]["token_ids"][4], seqs["B"]["token_ids"][6], *P(26, 32)]
    tables = [seqs[name]["block_table"] for name in "ABC"]
    assert batch["block_tables"] == tables
    rows = [(0, 4), (1, 6), *((2, position) for position in range(6, 12))]
    slots = [tables[i][position // 4] * 4 + position % 4 for i, position in rows]
    assert batch["slot_mapping"] == slots
    assert watched.facts("sample")[-1]["seqs"] == ["A", "B"]


@each_seed
@each_policy
@each_order
def test_a_step_keeps_to_its_limits(crowd, seed, policy, order):
    run = crowd(seed, policy, order)
    config = run.watched.engine.config
    for _, _, state in run.walk("prepare_prefill", "prepare_decode"):
        batch = state["batch"]
        assert len(batch["input_ids"]) <= config.max_num_batched_tokens
        starts = batch["cu_seqlens_q"]
        scheduled = [state["seqs"][name]["num_scheduled_tokens"] for name in batch["seqs"]]
        assert [b - a for a, b in pairwise(starts)] == scheduled
        assert starts[0] == 0
        assert starts[-1] == len(batch["input_ids"])
        assert [b - a for a, b in pairwise(batch["cu_seqlens_k"])] == batch["context_lens"]
        assert set(batch["seqs"]) == {
            name for name, seq in state["seqs"].items() if seq["num_scheduled_tokens"]
        }
    for facts in run.watched.facts("step"):
        assert facts.get("running", 0) <= config.max_num_seqs


@each_seed
def test_prefill_first_is_all_prefill_or_all_decode_and_chunks_only_the_first(crowd, seed):
    watched = crowd(seed, "prefill_first", "fcfs").watched
    phases = {facts.get("phase") for facts in watched.facts("schedule")}
    assert phases <= {None, "prefill", "decode", "idle"}
    by_step = defaultdict(list)
    for event in watched.events:
        if event.stop in ("admit", "chunk", "decode"):
            by_step[event.step].append(event.stop)
    for stops in by_step.values():
        assert set(stops) <= {"admit", "chunk"} or set(stops) == {"decode"}
        assert "chunk" not in stops or stops == ["chunk"]


@each_seed
def test_mixed_computes_at_most_one_prompt_in_pieces_at_a_time_and_it_is_the_last(crowd, seed):
    """So its chunks take only what the decodes leave (first come, first served)."""
    for event, _, state in crowd(seed, "mixed", "fcfs").walk("chunk"):
        facts = event.facts
        if facts["num_scheduled_tokens"] < facts["uncomputed"]:
            assert state["running"][-1] == facts["seq"]
            assert facts["num_scheduled_tokens"] == facts["budget"]


# Prefix hits


@each_policy
def test_hits_come_in_whole_blocks(watch, policy):
    watched = watch(policy, max_num_batched_tokens=6)
    watched.generate([P(0, 11)], greedy(1))
    watched.generate([P(0, 10) + P(50, 60)], greedy(2))
    admitted = watched.facts("allocate")[-1]
    assert (admitted["num_cached_tokens"], len(admitted["hits"])) == (8, 2)


def test_mixed_hits_the_blocks_of_a_prompt_that_is_half_computed(watch):
    """And only those that are full of computed tokens."""
    watched = watch("mixed", max_num_batched_tokens=10)
    watched.engine.add_request(P(0, 20), greedy(3), "A")
    watched.engine.add_request(P(0, 18) + P(60, 63), greedy(3), "B")
    watched.step()
    watched.step()
    assert [facts["num_cached_tokens"] for facts in watched.facts("allocate")] == [0]
    watched.step()
    assert [facts["num_cached_tokens"] for facts in watched.facts("allocate")] == [0, 16]
    outputs = watched.run()
    lone = watch("prefill_first", prefix_caching=False).generate([P(0, 18) + P(60, 63)], greedy(3))
    assert outputs["B"].token_ids == lone[0].token_ids
    assert outputs["B"].num_cached_tokens == 16


# Preemption


@each_seed
@each_policy
@each_order
def test_the_victim_is_the_last_one_running(crowd, seed, policy, order):
    run = crowd(seed, policy, order)
    for event, before, _ in run.walk("preempt"):
        running = before["running"]
        assert event.facts["seq"] == running[-1]
        assert event.facts["needed_by"] in running
        if order == "priority":
            assert event.facts["seq"] == max(running, key=run.rank)


@each_seed
@each_order
def test_mixed_lets_nobody_in_where_it_preempted(crowd, seed, order):
    watched = crowd(seed, "mixed", order).watched
    steps = {stop: set() for stop in ("preempt", "admit", "wait")}
    for event in watched.events:
        if event.stop in ("preempt", "admit"):
            steps[event.stop].add(event.step)
        if event.stop == "wait" and event.facts["cause"] == "after_preemption":
            steps["wait"].add(event.step)
    assert not steps["preempt"] & steps["admit"]
    assert steps["preempt"] == steps["wait"]


@each_policy
def test_a_preempted_request_is_first_again(watch, policy):
    watched = watch(policy, N=6)
    for i, name in enumerate("ABCD"):
        watched.engine.add_request(P(20 * i, 20 * i + 7), greedy(6), name)
    while not watched.facts("preempt"):
        watched.step()
    assert watched.state["waiting"] == ["C", "D"]
    watched.run()
    assert [facts["seq"] for facts in watched.facts("admit")][2:] == ["C", "C", "D"]


# max_num_seqs


@each_policy
@each_order
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_num_seqs_bounds_running(watch, policy, order, limit):
    watched = watch(policy, max_num_seqs=limit, order=order, max_num_batched_tokens=7)
    watched.generate([P(i, i + 5) for i in range(7)], greedy(4))
    running = [facts["running"] for facts in watched.facts("step") if "running" in facts]
    assert max(running) == limit
    assert any(facts["cause"] == "max_num_seqs" for facts in watched.facts("wait"))


# Who is first


def add_all(watched: Watched, priorities: dict[str, int], gen: int = 4) -> None:
    for i, (name, priority) in enumerate(priorities.items()):
        watched.engine.add_request(P(9 * i, 9 * i + 6), greedy(gen), name, priority)


@each_policy
def test_by_priority_waiting_and_running_are_by_priority_then_arrival(watch, policy):
    watched = watch(policy, order="priority", max_num_seqs=4)
    add_all(watched, {"A": 2, "B": 0, "C": 1, "D": 0, "E": 1, "F": -3})
    assert watched.state["waiting"] == ["F", "B", "D", "C", "E", "A"]
    watched.step()
    assert watched.state["running"] == ["F", "B", "D", "C"]
    assert watched.state["waiting"] == ["E", "A"]


@each_policy
def test_first_come_first_served_does_not_look_at_priorities(watch, policy):
    watched = watch(policy, max_num_seqs=2)
    add_all(watched, {"A": 2, "B": 0, "C": -1})
    assert watched.state["waiting"] == ["A", "B", "C"]
    watched.step()
    assert watched.state["running"] == ["A", "B"]


@each_policy
def test_who_comes_later_with_a_higher_priority_runs_in_front(watch, policy):
    watched = watch(policy, order="priority")
    add_all(watched, {"A": 1, "B": 1})
    watched.step()
    watched.engine.add_request(P(60, 66), greedy(4), "C", priority=0)
    watched.step()
    assert watched.state["running"] == ["C", "A", "B"]


@each_policy
def test_a_half_computed_prompt_is_not_overtaken(watch, policy):
    watched = watch(policy, order="priority", max_num_batched_tokens=4)
    watched.engine.add_request(P(0, 10), greedy(2), "A", priority=5)
    watched.step()
    watched.engine.add_request(P(50, 54), greedy(2), "B", priority=0)
    watched.engine.add_request(P(60, 64), greedy(2), "C", priority=-1)
    assert watched.state["waiting"] == (["C", "B"] if policy == "mixed" else ["A", "C", "B"])
    watched.run()
    first = {name: steps[0] for name, steps in steps_of(watched, "append_token").items()}
    assert first["A"] == 3
    assert first["A"] < first["C"] < first["B"]


@each_policy
def test_the_victim_has_the_lowest_priority_wherever_it_came(watch, policy):
    watched = watch(policy, order="priority", N=6)
    add_all(watched, {"A": 7, "B": 0, "C": 1}, gen=6)
    outputs = watched.run()
    assert {facts["seq"] for facts in watched.facts("preempt")} == {"A"}
    assert watched.facts("preempt")[0]["why_this_one"] == "lowest priority"
    assert outputs["A"].num_preemptions > 0
    assert watched.state["finished"] == ["B", "C", "A"]


@each_seed
@each_policy
def test_by_priority_both_queues_are_always_in_order(crowd, seed, policy):
    run = crowd(seed, policy, "priority")
    for _, _, state in run.walk("add_request", "admit", "preempt", "finish", "step"):
        waiting, running = state["waiting"], state["running"]
        if waiting and state["seqs"][waiting[0]]["block_table"]:
            waiting = waiting[1:]  # a half-computed prompt keeps its place
        assert waiting == sorted(waiting, key=run.rank)
        assert running == sorted(running, key=run.rank)


@each_order
@each_seed
def test_policies_and_orders_change_when_and_never_what(crowd, seed, order):
    found = []
    for policy in POLICIES:
        seqs = crowd(seed, policy, order).watched.state["seqs"]
        found.append({name: seq["token_ids"] for name, seq in seqs.items()})
    assert found[0] == found[1]


def test_a_lone_request_runs_the_same_steps_under_both_policies(mini):
    found = []
    for policy in POLICIES:
        engine = make_engine(mini, block_size=4, max_num_batched_tokens=4, policy=policy)
        watched = Watched(engine)
        output = tokens(generate(engine, [P(0, 10)], greedy(5)))
        counts = [
            abs(facts["num_tokens"]) for facts in watched.facts("step") if "num_seqs" in facts
        ]
        found.append((output, counts))
    assert found[0] == found[1]


def test_whom_a_higher_priority_leaves_nothing_is_told_why(watch):
    """In mixed, a prompt of higher priority may take the whole budget of a step."""
    watched = watch("mixed", order="priority", max_num_batched_tokens=4)
    add_all(watched, {"A": 1, "B": 2}, gen=6)
    watched.step()
    watched.step()
    watched.step()
    watched.engine.add_request(P(40, 60), greedy(1), "C", priority=0)
    waiting: list[Any] = []
    for _ in range(3):
        watched.step()
        waiting.append([watched.state["seqs"][name]["waits_for"] for name in "AB"])
    budget = {"cause": "token_budget", "needs": 1, "left": 0}
    assert waiting == [[None, None], [budget, budget], [budget, budget]]
    watched.run()
    assert [watched.state["seqs"][name]["waits_for"] for name in "AB"] == [None, None]
    assert max(gaps(watched, "A")) > 4
