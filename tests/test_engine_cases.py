"""Small cases that broke other serving engines, each named by its known failure's id, under both policies.

Letters: L liveness, B block accounting, C prefix cache, K chunked prefill, P preemption, S sampling, T text,
V validation and clean-up, M loading. `bs` is the block size, `N` the number of blocks. Every run is recorded and
checked against the engine and the invariants at every stop.
"""

import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import (
    POLICIES,
    TINY,
    P,
    Watched,
    generate,
    greedy,
    make_engine,
    pieces_tokenizer,
    random_qwen3,
    say,
    seq_of,
    tokens,
    with_config,
)
from tourvllm.engine.block_manager import BlockManager
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.detokenizer import Detokenizer, TextStream
from tourvllm.engine.errors import ConfigError, EngineError, ModelError, RequestError
from tourvllm.engine.request import Request
from tourvllm.engine.sampler import sample
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.engine.sequence import Sequence


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


@pytest.fixture
def watch(mini, policy):
    """A factory of watched engines over the mini model: `watch(bs=4, N=8, ...)`."""

    def make(bs=4, N=64, folder=mini, **settings) -> Watched:
        settings = {"policy": policy, "dtype": "float64", **settings}
        return Watched(make_engine(folder, block_size=bs, num_blocks=N, **settings))

    return make


@pytest.fixture
def alone(mini):
    """The tokens of one request that has an ample engine to itself."""

    def run(prompt, params) -> list[int]:
        engine = make_engine(
            mini, block_size=16, num_blocks=32, prefix_caching=False, dtype="float64"
        )
        return tokens(generate(engine, [prompt], params))[0]

    return run


def scheduled_per_step(watched: Watched) -> list[int]:
    return [facts["num_tokens"] for facts in watched.facts("step") if facts["when"] == "end"]


def prefilled_per_step(watched: Watched) -> list[int]:
    """Prompt tokens that each step computed."""
    ends = [facts for facts in watched.facts("schedule") if facts["when"] == "end"]
    return [facts["num_tokens"] - facts["num_decodes"] for facts in ends]


def free(watched: Watched) -> int:
    return len(watched.engine.block_manager.free_block_ids)


def hits(watched: Watched) -> list[int]:
    """Cached tokens that each admission started with."""
    return [facts["num_cached_tokens"] for facts in watched.facts("allocate")]


# Liveness


@pytest.mark.parametrize(
    ("prompt", "gen", "bs", "N"),
    [(8, 4, 4, 2), (12, 20, 4, 4), (1, 8, 1, 7), (6, 6, 3, 3), (2, 16, 16, 1), (16, 2, 16, 1)],
    ids=["L1", "L3", "bs=1", "bs=3", "bs=16", "one block"],
)
def test_L1_L3_what_can_never_fit_is_rejected_when_added(watch, prompt, gen, bs, N):
    watched = watch(bs=bs, N=N)
    words = rf"{prompt} tokens .* {gen} needs \d+ blocks of {bs}, .* pool has {N}"
    with pytest.raises(RequestError, match=words):
        watched.engine.add_request(P(0, prompt), greedy(gen))
    assert watched.engine.is_finished()
    assert free(watched) == N
    assert watched.facts("reject")[0]["reason"]


@pytest.mark.parametrize(
    ("prompt", "gen", "bs", "N"),
    [(8, 1, 4, 2), (1, 8, 1, 8), (6, 4, 3, 3), (16, 1, 16, 1), (1, 16, 16, 1), (1, 5, 4, 2)],
)
def test_L1_a_request_that_just_fits_finishes_alone(watch, prompt, gen, bs, N):
    watched = watch(bs=bs, N=N)
    (output,) = watched.generate([P(0, prompt)], greedy(gen))
    assert (output.finish_reason, len(output.token_ids), free(watched)) == ("length", gen, N)
    assert watched.facts("preempt") == []


def test_L2_the_impossible_is_rejected_and_the_others_go_on(watch):
    watched = watch(N=8)
    first = watched.generate([P(0, 5), P(10, 15), P(20, 25)], greedy(4))
    assert [len(output.token_ids) for output in first] == [4] * 3
    a, b = watched.generate([P(0, 40), P(0, 4)], [greedy(1), greedy(2)])
    assert (a.finish_reason, a.token_ids) == ("rejected", [])
    assert "needs 10 blocks" in a.error
    assert "pool has 8" in a.error
    assert (b.finish_reason, len(b.token_ids)) == ("length", 2)


def test_L2_cannot_fit_now_is_not_can_never_fit(watch):
    watched = watch(N=4)
    outputs = watched.generate([P(0, 12), P(20, 32)], greedy(4))
    assert [output.finish_reason for output in outputs] == ["length", "length"]
    assert watched.facts("wait")[0] == {
        "seqs": ["1"],
        "cause": "no_free_blocks",
        "needs": 3,
        "free": 1,
    }


@pytest.mark.parametrize("N", [1, 2, 4, 5])
def test_L4_no_block_is_reserved_behind_the_users_back(watch, N):
    watched = watch(N=N)
    assert watched.generate([P(0, 4 * N - 1)], greedy(2))[0].finish_reason == "length"
    assert watched.generate([P(0, 4 * N + 2)], greedy(1))[0].finish_reason == "rejected"
    assert watched.generate([P(0, 4 * N + 1)], greedy(1))[0].finish_reason == "rejected"
    assert watched.generate([P(0, 4 * N)], greedy(1))[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "budget", "steps"),
    [(15, 8, [8, 7]), (16, 8, [8, 8]), (17, 8, [8, 8, 1]), (5, 1, [1] * 5), (15, 64, [15])],
)
def test_L5_a_prompt_over_the_budget_is_chunked(watch, alone, prompt, budget, steps):
    watched = watch(max_num_batched_tokens=budget, max_model_len=64)
    (output,) = watched.generate([P(0, prompt)], greedy(3))
    # The last token of a prompt that is in `running` is computed as a decode is.
    assert [abs(count) for count in scheduled_per_step(watched)] == [*steps, 1, 1]
    assert output.token_ids == alone(P(0, prompt), greedy(3))


def test_L6_steps_with_nothing_to_do_are_no_ops(watch):
    watched = watch()
    assert watched.engine.step() == ([], 0)
    only = watched.engine.add_request(P(0, 9), greedy(9))
    watched.step()
    watched.engine.abort(only)
    assert watched.engine.step() == ([], 0)
    assert free(watched) == 64


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_L6_an_abort_between_any_two_steps_of_a_chunked_prompt(watch, alone, steps):
    watched = watch(N=8, max_num_batched_tokens=4)
    watched.engine.add_request(P(0, 14), greedy(9), "A")
    watched.engine.add_request(P(50, 55), greedy(3), "B")
    for _ in range(steps):
        watched.step()
    watched.engine.abort("A")
    outputs = watched.run()
    assert list(outputs) == ["B"]
    assert outputs["B"].token_ids == alone(P(50, 55), greedy(3))
    assert free(watched) == 8


def test_L7_those_who_are_not_preempted_go_on_in_the_same_step(watch):
    watched = watch(N=6)
    watched.generate([P(0, 7), P(20, 27), P(40, 47)], greedy(6))
    first = watched.facts("preempt")[0]
    assert (first["seq"], first["needed_by"]) == ("2", "0")
    step = next(event.step for event in watched.events if event.stop == "preempt")
    got = [
        event.facts["seq"]
        for event in watched.events
        if event.stop == "append_token" and event.step == step
    ]
    assert got == ["0", "1"]


def test_L8_no_preemption_and_no_extra_work_while_blocks_are_ample(watch):
    watched = watch()
    watched.generate([P(0, 30), P(60, 72)], greedy(20))
    assert watched.facts("preempt") == []
    assert sum(prefilled_per_step(watched)) == 42
    assert len(scheduled_per_step(watched)) == 20


@pytest.mark.parametrize("budget", [1, 3, 8, 16, 17])
def test_L9_a_step_never_exceeds_the_token_budget(watch, budget):
    watched = watch(max_num_batched_tokens=budget, prefix_caching=False)
    watched.generate([P(i, i + 8) for i in range(10)], greedy(3))
    scheduled = [abs(count) for count in scheduled_per_step(watched)]
    assert max(scheduled) == (
        16 if watched.engine.config.policy != "mixed" and budget == 17 else budget
    )
    assert sum(prefilled_per_step(watched)) >= 80 - 10
    assert sum(scheduled) == 80 + 10 * 2


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_L10_max_num_seqs_bounds_running(watch, limit):
    watched = watch(max_num_seqs=limit)
    watched.generate([P(i, i + 8) for i in range(6)], greedy(3))
    assert max(facts["running"] for facts in watched.facts("step") if "running" in facts) == limit
    assert watched.facts("wait")[0] == {
        "seqs": [str(limit)],
        "cause": "max_num_seqs",
        "running": limit,
        "limit": limit,
    }


def test_running_never_outgrows_the_budget_that_its_decodes_need(watch):
    watched = watch(max_num_batched_tokens=3)
    watched.generate([P(i, i + 2) for i in range(5)], greedy(4))
    assert min(scheduled_per_step(watched)) == -3
    full = [
        facts
        for facts in watched.facts("wait")
        if facts["cause"] == "token_budget" and facts["left"] == 0
    ]
    assert full, "running takes the whole budget, and the cause says that nothing of it is left"


# Block accounting


def manage(manager: BlockManager, name: str, prompt: list[int], params=None) -> Sequence | None:
    """Let a prompt in and count all of it as computed; None if it does not fit."""
    seq = Sequence(name, prompt, params or greedy(1), manager.block_size)
    fit = manager.can_allocate(seq)
    if not fit.ok:
        return None
    manager.allocate(seq, fit)
    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
    manager.hash_blocks(seq)
    return seq


def test_B1_cached_blocks_on_the_free_list_are_charged_before_they_are_taken():
    manager, shared = BlockManager(num_blocks=10, block_size=16), P(0, 48)
    r0 = manage(manager, "R0", shared)
    r1 = manage(manager, "R1", shared + P(50, 98))
    r1_blocks = r1.block_table
    manager.deallocate(r1)
    manage(manager, "R2", P(100, 132))
    long = Sequence("R3", shared + P(50, 98) + P(0, 48), greedy(1), 16)
    fit = manager.can_allocate(long)
    assert (len(fit.hits), fit.num_new, fit.needs, fit.ok) == (6, 3, 6, False)
    assert [manager.blocks[block_id].ref_count for block_id in r0.block_table] == [1, 1, 1]
    assert [manager.blocks[block_id].ref_count for block_id in r1_blocks] == [1, 1, 1, 0, 0, 0]
    assert [block.ref_count for block in manager.blocks].count(1) == 5
    assert len(manager.free_block_ids) == 5


@pytest.mark.parametrize("budget", [None, 1, 16, 17, 33, 48, 1000])
def test_B1_a_piece_of_a_prompt_is_charged_for_its_hits_and_its_own_blocks(budget):
    manager = BlockManager(num_blocks=4, block_size=16)
    manager.deallocate(manage(manager, "R0", P(0, 33)))
    fit = manager.can_allocate(Sequence("R1", P(0, 80), greedy(1), 16), budget)
    computed = 48 if budget is None else min(budget, 48)
    assert (len(fit.hits), fit.num_new) == (2, math.ceil(computed / 16))
    assert (fit.needs, fit.ok) == (2 + fit.num_new, 2 + fit.num_new <= 4)
    assert len(manager.free_block_ids) == 4


def test_B2_a_refused_allocation_takes_nothing(watch):
    watched = watch(N=5)
    watched.engine.add_request(P(0, 12), greedy(4))
    watched.engine.add_request(P(20, 32), greedy(1))
    watched.step()
    assert not watched.facts("can_allocate")[1]["ok"]
    assert free(watched) == 2
    assert watched.state["seqs"]["1"]["block_table"] == []


def test_B2_a_running_prompt_that_cannot_take_all_its_blocks_takes_none():
    manager = BlockManager(num_blocks=5, block_size=4)
    manage(manager, "R0", P(0, 8))
    seq = Sequence("R1", P(20, 40), greedy(1), 4)
    manager.allocate(seq, manager.can_allocate(seq, 4))
    seq.num_cached_tokens = 4
    assert (manager.can_append(seq, 8), manager.can_append(seq, 9)) == (True, False)
    assert len(manager.free_block_ids) == 2
    assert len(seq.block_table) == 1


def test_B3_giving_back_twice_is_a_no_op():
    manager = BlockManager(num_blocks=4, block_size=4)
    a, b = (manage(manager, name, P(0, 9)) for name in "AB")
    for _ in range(2):
        manager.deallocate(a)
        assert sorted(manager.free_block_ids) == sorted({0, 1, 2, 3} - set(b.block_table))
        assert [manager.blocks[block_id].ref_count for block_id in b.block_table] == [1, 1, 1]
    for _ in range(2):
        manager.deallocate(b)
    assert sorted(manager.free_block_ids) == [0, 1, 2, 3]
    assert [block.ref_count for block in manager.blocks] == [0] * 4


def test_B4_reference_counts_follow_the_tables(watch):
    watched = watch()
    watched.engine.add_request(P(0, 9), greedy(4), "A")
    watched.step()
    counts = [dict(watched.state["blocks"]["ref_count"])]
    watched.engine.add_request(P(0, 9), greedy(8), "B")
    watched.step()
    counts.append(dict(watched.state["blocks"]["ref_count"]))
    while "A" not in watched.state["finished"]:
        watched.step()
    counts.append(dict(watched.state["blocks"]["ref_count"]))
    watched.run()
    counts.append(dict(watched.state["blocks"]["ref_count"]))
    assert [[count.get(key, 0) for key in ("0", "1")] for count in counts] == [
        [1, 1],
        [2, 2],
        [1, 1],
        [0, 0],
    ]


@pytest.mark.parametrize(("bs", "prefix"), [(4, 6), (4, 8), (1, 5), (3, 7), (16, 20)])
@pytest.mark.parametrize("budget", [1000, 9])
def test_B5_nothing_leaks_when_a_shared_prefix_ends_inside_a_block(watch, bs, prefix, budget):
    N = math.ceil(96 / bs)
    watched = watch(bs=bs, N=N, max_num_batched_tokens=budget)
    for i in range(8):
        watched.engine.add_request([*P(0, prefix), 40 + i, 60 + i], greedy(2 + i), str(i))
    outputs = watched.run()
    assert [len(outputs[str(i)].token_ids) for i in range(8)] == [2 + i for i in range(8)]
    assert free(watched) == N


# Prefix cache


@pytest.mark.parametrize("length", [8, 4, 12, 7, 9, 1, 5])
@pytest.mark.parametrize("bs", [4, 1, 3])
def test_C1_at_least_one_token_is_computed_on_a_full_hit(watch, length, bs):
    watched = watch(bs=bs, N=16)
    first, second = (tokens(watched.generate([P(0, length)], greedy(1))) for _ in range(2))
    assert first == second
    assert hits(watched) == [0, (length - 1) // bs * bs]
    assert scheduled_per_step(watched)[-1] == length - hits(watched)[1]


@pytest.mark.parametrize(("gen", "expected"), [(9, 16), (8, 12), (10, 16), (4, 8), (5, 12)])
def test_C2_output_blocks_are_found_only_if_their_last_token_was_computed(watch, gen, expected):
    watched = watch(N=32)
    for _ in range(2):
        (output,) = watched.generate([P(0, 8)], greedy(gen))
    watched.generate([P(0, 8) + output.token_ids[:8] + [99, 98, 97]], greedy(1))
    assert hits(watched)[-1] == expected


def test_C3_every_map_entry_is_a_block_that_carries_the_hash(watch):
    watched = watch(N=4)
    watched.generate([P(0, 4)], greedy(1))
    watched.generate([P(50, 66)], greedy(1))
    manager = watched.engine.block_manager
    assert len(watched.facts("evict")) == 1
    assert len(manager.hash_to_block_ids) == 4
    for value, block_ids in manager.hash_to_block_ids.items():
        assert [manager.blocks[block_id].hash for block_id in block_ids] == [value] * len(block_ids)


@pytest.mark.parametrize("budget", [8, 4, 5, 20, 1000])
def test_C4_nobody_attends_to_slots_that_are_not_yet_written(watch, alone, budget):
    watched = watch(N=32, max_num_batched_tokens=budget)
    watched.engine.model_runner.kv_cache.fill_(float("nan"))
    longer = P(0, 16) + P(50, 52)
    a, b = tokens(watched.generate([P(0, 16), longer], greedy(6)))
    assert (a, b) == (alone(P(0, 16), greedy(6)), alone(longer, greedy(6)))


def test_C5_a_hash_with_two_blocks_survives_the_eviction_of_one(watch):
    watched = watch(N=16)
    watched.engine.add_request(P(0, 9), greedy(1), "A")
    watched.engine.add_request(P(0, 9), greedy(12), "B")
    watched.step()
    assert free(watched) == 13
    watched.engine.add_request(P(60, 112), greedy(1), "fills the rest")
    watched.step()
    assert len(watched.facts("evict")) == 2
    watched.engine.add_request(P(0, 9), greedy(1), "C")
    watched.step()
    assert hits(watched)[-1] == 8
    assert watched.facts("allocate")[-1]["hits"] == watched.state["seqs"]["B"]["block_table"][:2]
    watched.run()
    assert free(watched) == 16


def test_C6_blocks_without_a_hash_are_reused_first_and_prefixes_from_their_end(watch):
    watched = watch(N=6)
    watched.generate([P(0, 12)], greedy(1))
    assert watched.state["blocks"]["free"] == [3, 4, 5, 2, 1, 0]
    watched.generate([P(50, 70)], greedy(1))
    assert [facts["block_id"] for facts in watched.facts("evict")] == [2, 1]
    watched.generate([P(0, 12)], greedy(1))
    assert hits(watched)[-1] == 4


def test_C6_a_table_that_grows_takes_blocks_without_a_hash_first_too(watch):
    watched = watch(N=6)
    watched.generate([P(0, 12)], greedy(1))
    watched.generate([P(50, 52)], greedy(11))
    assert watched.facts("evict") == []
    watched.generate([P(0, 12)], greedy(1))
    assert hits(watched)[-1] == 8


@pytest.mark.parametrize("bs", [1, 2, 4])
def test_C7_a_hash_stands_for_all_tokens_before_it_too(watch, bs):
    watched = watch(bs=bs)
    watched.generate([P(0, 12)], greedy(1))
    watched.generate([P(4, 12)], greedy(1))
    assert hits(watched) == [0, 0]


def test_C7_the_same_tokens_cut_at_other_places_are_another_prefix():
    """ "12,3" and "1,23" must not read the same where a hash is made of text."""
    manager = BlockManager(num_blocks=8, block_size=2)
    manager.deallocate(manage(manager, "A", [12, 3, 0]))
    assert manager.can_allocate(Sequence("B", [1, 23, 0], greedy(1), 2)).hits == []
    assert len(manager.can_allocate(Sequence("C", [12, 3, 0], greedy(1), 2)).hits) == 1


def test_C8_recomputed_tokens_are_told_from_a_users_prefix_hits(watch):
    watched = watch(N=10)
    outputs = watched.generate([P(0, 7), P(20, 27)], greedy(20))
    found = [facts for facts in watched.facts("can_allocate") if facts["hits"]]
    assert found
    assert all(facts["recompute"] for facts in found)
    assert not any(facts["recompute"] for facts in watched.facts("can_allocate")[:2])
    assert [output.num_cached_tokens for output in outputs] == [0, 0]
    assert sum(output.num_preemptions for output in outputs) == len(watched.facts("preempt"))


def test_C8_a_users_prefix_hits_are_counted_once_and_outlive_a_preemption(watch):
    watched = watch(N=10)
    watched.generate([P(0, 9), P(20, 29)], greedy(1))
    outputs = watched.generate([P(0, 9), P(20, 29)], greedy(20))
    assert watched.facts("preempt")
    assert [output.num_cached_tokens for output in outputs] == [8, 8]


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_C9_a_cache_reset_while_requests_run_is_refused_and_changes_nothing(watch, alone, steps):
    watched = watch(N=16, max_num_batched_tokens=4)
    watched.engine.add_request(P(0, 10), greedy(5), "A")
    watched.engine.add_request(P(0, 10), greedy(5), "B")
    for _ in range(steps):
        watched.step()
    num_events, before = len(watched.events), repr(watched.state)
    with pytest.raises(EngineError, match=r"hold \d+ blocks: reset .* when they have finished"):
        watched.engine.reset_prefix_cache()
    assert (len(watched.events), repr(watched.state)) == (num_events, before)
    outputs = watched.run()
    assert outputs["A"].token_ids == outputs["B"].token_ids == alone(P(0, 10), greedy(5))


def test_C9_a_cache_reset_truly_clears(watch):
    watched = watch(N=16)
    first = tokens(watched.generate([P(0, 9), P(0, 9)], greedy(12)))
    watched.engine.reset_prefix_cache()
    manager = watched.engine.block_manager
    assert manager.hash_to_block_ids == {}
    assert [(block.hash, block.token_ids) for block in manager.blocks] == [(None, [])] * 16
    assert (free(watched), watched.state["blocks"]["hash"]) == (16, {})
    assert tokens(watched.generate([P(0, 9), P(0, 9)], greedy(12))) == first
    assert hits(watched)[2:4] == [0, 0]


def test_C9_a_request_that_waits_holds_nothing_and_does_not_hinder_a_reset(watch, alone):
    watched = watch(N=16)
    watched.generate([P(0, 9)], greedy(3))
    watched.engine.add_request(P(0, 9), greedy(3), "A")
    watched.engine.reset_prefix_cache()
    assert watched.run()["A"].token_ids == alone(P(0, 9), greedy(3))
    assert hits(watched)[-1] == 0


# Chunked prefill


@pytest.mark.parametrize("budget", [4, 1, 3, 7])
def test_K1_chunks_over_a_cache_full_of_nan(watch, alone, budget):
    watched = watch(max_num_batched_tokens=budget)
    watched.engine.model_runner.kv_cache.fill_(float("nan"))
    watched.engine.add_request(P(0, 10), greedy(4), "A")
    while not watched.engine.is_finished():
        outputs = watched.step()
        batch = watched.state["batch"]
        assert batch["context_lens"] == [batch["positions"][-1] + 1]
        assert batch["cu_seqlens_k"] == [0, *batch["context_lens"]]
        assert len(batch["positions"]) <= budget
    assert outputs[0].token_ids == alone(P(0, 10), greedy(4))


@pytest.mark.parametrize("budget", [2048, 6])
@pytest.mark.parametrize(("bs", "N"), [(4, 8), (2, 18), (3, 10), (16, 2)])
def test_K2_a_preempted_request_that_hits_its_own_blocks(watch, alone, bs, N, budget):
    watched = watch(bs=bs, N=N, max_num_batched_tokens=budget)
    prompts = [P(0, 15), P(100, 115)]
    outputs = tokens(watched.generate(prompts, greedy(12)))
    assert outputs == [alone(prompt, greedy(12)) for prompt in prompts]
    assert [len(output) for output in outputs] == [12, 12]
    if bs < 16:
        assert watched.facts("preempt")[0]["seq"] == "1"
        assert any(facts["recompute"] and facts["hits"] for facts in watched.facts("can_allocate"))


def test_K3_a_request_that_is_not_scheduled_holds_no_blocks(watch, policy):
    watched = watch(max_num_batched_tokens=8)
    watched.engine.add_request(P(0, 6), greedy(2), "A")
    watched.engine.add_request(P(20, 30), greedy(2), "B")
    watched.engine.add_request(P(40, 50), greedy(2), "C")
    watched.step()
    tables = {name: len(watched.state["seqs"][name]["block_table"]) for name in "ABC"}
    if policy == "mixed":  # B has a chunk of 2 in the same step, and just the block for it
        assert tables == {"A": 2, "B": 1, "C": 0}
        assert watched.facts("chunk")[0]["num_scheduled_tokens"] == 2
    else:
        waits = {"seqs": ["B"], "cause": "token_budget", "needs": 10, "left": 2}
        assert watched.facts("wait")[0] == waits
        assert tables == {"A": 2, "B": 0, "C": 0}
    while not watched.engine.is_finished():
        watched.step()
        for name in watched.state["waiting"]:
            seq = watched.state["seqs"][name]
            assert bool(seq["block_table"]) == bool(seq["num_cached_tokens"])


@pytest.mark.parametrize("budget", [4, 1, 9])
def test_K4_chunks_leave_the_prompt_alone(watch, budget):
    (output,) = watch(max_num_batched_tokens=budget).generate([P(0, 10)], greedy(3))
    assert output.prompt_token_ids == P(0, 10)
    assert len(output.token_ids) == 3


def test_K5_a_partial_chunk_emits_nothing(watch):
    watched = watch(max_num_batched_tokens=4)
    watched.engine.add_request(P(0, 10), greedy(1, logprobs=2), "A")
    emitted = []
    while not watched.engine.is_finished():
        outputs = watched.step()
        emitted.append(len(watched.facts("append_token")))
    assert emitted == [0, 0, 1]
    assert [facts["token_ids"] for facts in watched.facts("sample")][:2] == [[], []]
    assert len(outputs[0].logprobs) == 1


def test_K6_a_chunk_is_what_the_budget_has_left(watch, policy):
    watched = watch(max_num_batched_tokens=8)
    watched.engine.add_request(P(0, 4), greedy(12), "A")
    watched.step()
    watched.engine.add_request(P(20, 40), greedy(2), "B")
    watched.run()
    chunks = [(facts["num_scheduled_tokens"], facts["budget"]) for facts in watched.facts("chunk")]
    assert chunks == ([(7, 7), (7, 7), (6, 7)] if policy == "mixed" else [(8, 8), (8, 8)])
    assert max(map(abs, scheduled_per_step(watched))) == 8


def test_K6_the_chunk_beside_many_decodes(watch, policy, alone):
    watched = watch(max_num_batched_tokens=8, prefix_caching=False)
    prompts = [P(i, i + 2) for i in range(4)] + [P(60, 80)]
    params = [greedy(9 + i) for i in range(4)] + [greedy(2)]
    outputs = watched.generate(prompts, params, arrival=[1, 1, 1, 1, 3])
    assert tokens(outputs) == [alone(*each) for each in zip(prompts, params, strict=True)]
    if policy == "mixed":
        assert [facts["num_scheduled_tokens"] for facts in watched.facts("chunk")] == [4] * 5


# Preemption


@pytest.mark.parametrize(("bs", "N"), [(4, 10), (1, 40), (3, 12), (16, 3)])
def test_P1_the_preempted_computes_prompt_and_outputs_again(watch, alone, bs, N):
    watched = watch(bs=bs, N=N)
    prompts = [P(0, 3), P(50, 53)]
    outputs = tokens(watched.generate(prompts, greedy(30)))
    assert outputs == [alone(prompt, greedy(30)) for prompt in prompts]
    again = [facts for facts in watched.facts("admit") if facts["preemptions"]]
    before = [facts["num_tokens"] for facts in watched.facts("preempt")]
    assert before
    assert [facts["num_scheduled_tokens"] + facts["num_cached_tokens"] for facts in again] == before
    assert [len(output) for output in outputs] == [30, 30]


def test_P2_the_phase_is_explicit_and_not_guessed_from_outputs(watch, policy):
    watched = watch(N=10)
    watched.generate([P(0, 3), P(50, 53)], greedy(30))
    back = next(
        i
        for i, event in enumerate(watched.events)
        if event.stop == "admit" and event.facts["preemptions"]
    )
    stops = ("schedule", "prepare_prefill", "prepare_decode")
    schedule, prepare = [event for event in watched.events[back:] if event.stop in stops][:2]
    # Under both policies the first one had finished meanwhile, so the second is alone again.
    assert schedule.facts["phase"] == "prefill"
    assert prepare.stop == "prepare_prefill"
    assert prepare.facts["seqs"] == [watched.events[back].facts["seq"]]


def test_P2_one_who_comes_back_among_decodes_makes_the_step_mixed(watch, policy):
    watched = watch(N=8)
    watched.generate([P(0, 6), P(20, 26), P(40, 46)], [greedy(8), greedy(20), greedy(20)])
    back = next(
        i
        for i, event in enumerate(watched.events)
        if event.stop == "admit" and event.facts["preemptions"]
    )
    schedule = next(event for event in watched.events[back:] if event.stop == "schedule")
    assert schedule.facts["phase"] == ("mixed" if policy == "mixed" else "prefill")


@pytest.mark.parametrize("budget", [2048, 5])
def test_P3_preemptions_are_bounded_and_everyone_finishes(watch, alone, budget):
    watched = watch(N=8, max_num_batched_tokens=budget)
    prompts = [P(20 * i, 20 * i + 6) for i in range(5)]
    outputs = tokens(watched.generate(prompts, greedy(20)))
    assert outputs == [alone(prompt, greedy(20)) for prompt in prompts]
    assert 0 < len(watched.facts("preempt")) <= 5 * 20


# Sampling

HOT = {"temperature": 1.0, "ignore_eos": True}


def draws(logits: torch.Tensor, **params) -> set[int]:
    """Every token that 300 seeds choose from one row of logits."""
    rows = logits.float().expand(300, -1)
    return set(sample(rows, [seq_of(SamplingParams(seed=seed, **params)) for seed in range(300)]))


@pytest.mark.parametrize(
    "neighbour",
    [
        {"seed": 1},
        {"top_k": 3},
        {"top_p": 0.5, "repetition_penalty": 1.7},
        {"min_p": 0.2, "presence_penalty": 2.0},
        {"frequency_penalty": -2.0, "min_tokens": 8},
        {"logprobs": 5},
    ],
    ids=lambda params: ",".join(params),
)
def test_S1_temperature_0_is_greedy_beside_rows_with_noise(watch, alone, neighbour):
    prompts = [P(0, 6), P(10, 16), P(20, 26)]
    params = [greedy(8), SamplingParams(max_tokens=8, **HOT, **neighbour), greedy(8)]
    outputs = tokens(watch().generate(prompts, params))
    assert outputs[0] == alone(prompts[0], greedy(8))
    assert outputs[2] == alone(prompts[2], greedy(8))
    assert outputs[1] != alone(prompts[1], greedy(8))


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-300])
def test_S2_a_tiny_temperature_is_the_argmax(temperature, filters):
    row = torch.tensor([-5.0, 20, 10], dtype=torch.float16)
    assert draws(row, temperature=temperature, **filters) == {1}
    assert draws(row * 3000, temperature=temperature, **filters) == {1}


@pytest.mark.parametrize("temperature", [1e-8, 1.0, 1e6])
def test_S2_large_logits_and_high_temperatures_are_no_nan(temperature):
    row = torch.tensor([65504.0, 65504.0, -65504.0])
    assert draws(row, temperature=temperature) >= {0, 1}


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 2},
        {"top_p": 0.99},
        {"min_p": 0.01},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 1.0, "frequency_penalty": -1.0},
    ],
    ids=str,
)
def test_S3_a_forbidden_token_in_a_mixed_batch(filters):
    row = torch.tensor([-float("inf"), 1.0, 2.0])
    params = [
        SamplingParams(temperature=0, **filters),
        SamplingParams(temperature=1.0, **filters),
        SamplingParams(temperature=0, **filters),
    ]
    chosen = sample(row.expand(3, -1), [seq_of(each) for each in params])
    assert (chosen[0], chosen[2]) == (2, 2)
    assert draws(row, temperature=1.0, **filters) == {1, 2}


@pytest.mark.parametrize(("top_k", "kept"), [(0, 8), (-1, 8), (3, 3), (8, 8), (100, 8), (1, 1)])
def test_S4_no_filter_is_0_or_minus_1_or_the_vocabulary_and_more(top_k, kept):
    assert draws(torch.linspace(0, 0.7, 8), top_k=top_k) == set(range(8 - kept, 8))


def test_S4_each_row_of_a_batch_has_its_own_filter():
    rows, kept = torch.linspace(0, 0.7, 8).expand(5, -1), [set() for _ in range(5)]
    for seed in range(300):
        seqs = [seq_of(SamplingParams(top_k=k, seed=seed)) for k in (0, -1, 3, 8, 100)]
        for found, token_id in zip(kept, sample(rows, seqs), strict=True):
            found.add(token_id)
    assert [len(found) for found in kept] == [8, 8, 3, 8, 8]


def test_S5_one_candidate_always_survives():
    logits = torch.tensor([0.3, 0.3, 0.2, 0.2]).log()
    assert draws(logits, top_k=1, top_p=0.8) == {0}
    assert draws(logits, top_p=1e-9) == {0}
    assert draws(logits, top_p=0.7) == {0, 1, 2}
    assert draws(logits, min_p=1.0) == {0, 1}
    assert draws(logits, min_p=1.0, top_k=1, top_p=1e-9) == {0}
    assert draws(logits, min_p=0.9, top_p=0.5) == {0}


ALL = {
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "min_tokens": 5,
    "stop_token_ids": [3],
    "logprobs": 2,
}


@pytest.mark.parametrize("more", [{}, ALL], ids=["plain", "all parameters"])
@pytest.mark.parametrize("budget", [2048, 5])
def test_S6_a_seeded_request_has_its_tokens_whoever_shares_the_batch(watch, alone, more, budget):
    prompts = [P(0, 7), P(30, 37), P(60, 67)]
    params = [SamplingParams(seed=i, max_tokens=20, **HOT, **more) for i in range(3)]
    watched = watch(N=10, max_num_batched_tokens=budget)
    outputs = tokens(watched.generate(prompts, params))
    assert watched.facts("preempt")
    assert outputs == [alone(*each) for each in zip(prompts, params, strict=True)]


def test_S6_equal_prompts_differ_by_their_seeds_alone(alone):
    chosen = [
        tuple(alone(P(0, 6), SamplingParams(seed=seed, max_tokens=12, **HOT)))
        for seed in (1, 1, 2, -2)
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 3


def test_S7_the_first_token_follows_the_request_too(watch, alone):
    hot = {"temperature": 5.0, "ignore_eos": True, "max_tokens": 1}

    def first(**params) -> list[int]:
        return tokens(watch().generate([P(0, 6)], SamplingParams(**hot, **params)))[0]

    (best,) = alone(P(0, 6), greedy(1))
    for params in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert first(**params) == [best]
    assert len({tuple(first(seed=seed)) for seed in range(8)}) > 3
    (after,) = alone([*P(0, 6), best], greedy(1, repetition_penalty=1e6))
    assert after not in [*P(0, 6), best]
    assert alone(P(0, 6), greedy(1, stop_token_ids=[best], min_tokens=1)) != [best]


# Text and stopping


@pytest.fixture(scope="module")
def tokenizer():
    return make_engine().tokenizer


def pieces(tokenizer, prompt: list[int], token_ids: list[int]) -> list[str]:
    """What a user sees: one piece for each token and the rest at the end."""
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """The tokens of single bytes: byte-level BPE writes those without a letter from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letter = {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }
    return tokenizer.convert_tokens_to_ids([letter[byte] for byte in data])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xc4\x8f", ["", "ď", ""]),
        (b"\xf0\x9f\x98\x80", ["", "", "", "😀", ""]),
        (b"\xc4 x", ["", "\ufffd ", "x", ""]),
        (b"a\xc4", ["a", "", "\ufffd"]),
        (b"\xe4\xbd\xa0\xe5\xa5\xbd", ["", "", "你", "", "", "好", ""]),
        (b"\xc4\xc4\x8f", ["", "", "\ufffdď", ""]),
        (b"\xe4\xbd\xa0\xe5!", ["", "", "你", "", "\ufffd!", ""]),
        (b"\xf0\x9f\x98", ["", "", "", "\ufffd"]),
        (b"\x80\x80", ["", "", "\ufffd\ufffd"]),
    ],
    ids=lambda value: repr(value) if isinstance(value, bytes) else "",
)
def test_T2_a_partial_character_is_held_and_sent_once_whole(tokenizer, data, expected):
    assert pieces(tokenizer, tokenizer.encode("Once"), byte_ids(tokenizer, data)) == expected


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        (b"caf\xc3", b"\xa9 x", ["é", " ", "x", ""]),
        (b"caf\xc3", b"a b", ["a", " ", "b", ""]),
        (b"a\xf0\x9f", b"\x98\x80!", ["", "😀", "!", ""]),
        (b"a\xf0\x9f", b"\x98", ["", ""]),
        (b"\xc3\xc3", b"\xa9", ["é", ""]),
        (b"\xe4\xbd\xa0\xe5", b"\xa5\xbd", ["", "好", ""]),
        (b"\xe4", b"\xbd\xa0\xe5\xa5\xbd", ["", "你", "", "", "好", ""]),
    ],
)
def test_T1_after_a_prompt_that_ends_inside_a_character_only_new_text_is_sent(
    tokenizer, prompt, output, expected
):
    assert pieces(tokenizer, byte_ids(tokenizer, prompt), byte_ids(tokenizer, output)) == expected


LETTERS = ["AB", "C", "DEF", "G", "HI", "J", "K"]


def stream_of(token_texts: list[str], stop: list[str]) -> tuple[list[str], TextStream]:
    """The pieces that a user sees of these tokens, and the stream they came from."""
    tokenizer = pieces_tokenizer(token_texts)
    stream, seen = TextStream(Detokenizer(tokenizer, []), stop), []
    for token_id in range(len(token_texts)):
        if stream.stopped_by is None:
            seen.append(stream.push(token_id))
    return [*seen, stream.finish()], stream


@pytest.mark.parametrize(
    ("stop", "text", "stopped_by"),
    [
        (["DEFGHIJ"], "ABC", "DEFGHIJ"),
        (["J"], "ABCDEFGHI", "J"),
        (["CDE"], "AB", "CDE"),
        (["AB"], "", "AB"),
        (["DEFGHIX"], "ABCDEFGHIJK", None),
        (["EFGHIX", "FG"], "ABCDE", "FG"),
        (["GH", "BC"], "A", "BC"),
        (["IJ", "H"], "ABCDEFG", "H"),
        (["JKL"], "ABCDEFGHIJK", None),
        ([], "ABCDEFGHIJK", None),
    ],
)
def test_T3_a_stop_string_over_several_tokens_is_cut_and_never_begun(stop, text, stopped_by):
    seen, stream = stream_of(LETTERS, stop)
    assert "".join(seen) == stream.text == text
    assert stream.stopped_by == stopped_by


@pytest.mark.parametrize("stop", [["DEFGHIJ"], ["DEFGHIJ", "HIJ"], "DEFGHIJ"])
def test_T3_the_whole_engine_streams_what_it_returns(watch, stop):
    watched = watch()
    watched.engine.tokenizer = pieces_tokenizer(LETTERS)
    say(watched.engine, 4, P(0, 7))
    (output,) = watched.generate([P(0, 4)], greedy(20, stop=stop))
    assert output.text == "".join(watched.state["seqs"]["0"]["text"]) == "ABC"
    assert (output.finish_reason, output.stop_reason) == ("stop", "DEFGHIJ")
    assert output.token_ids == P(0, 6)


def test_T4_max_tokens_counts_and_an_end_token_is_not_visible(mini, watch, tmp_path):
    (third,) = tokens(watch().generate([P(3, 9)], greedy(3)))
    assert len(third) == 3
    assert third[0] != third[1]
    ending = with_config(mini, tmp_path / "ending", eos_token_id=[third[1]])
    with_config(mini, ending, "generation_config.json", eos_token_id=[third[1]])
    (output,) = watch(folder=ending).generate([P(3, 9)], greedy(8, ignore_eos=False))
    assert (output.token_ids, output.finish_reason) == (third[:1], "stop")
    assert output.stop_reason == third[1]
    assert output.text.strip() == f"w{third[0]}"


@pytest.mark.parametrize("ends", [{"stop_token_ids": [9]}, {"stop": "w9"}], ids=str)
@pytest.mark.parametrize("gen", [2, 3])
def test_T4_an_end_at_the_very_last_token_is_still_a_stop(watch, ends, gen):
    watched = watch()
    say(watched.engine, 4, [5, 9, 6])
    (output,) = watched.generate([P(0, 4)], greedy(gen, logprobs=0, **ends))
    assert (output.finish_reason, output.text.strip()) == ("stop", "w5")
    assert len(output.logprobs) == len(output.token_ids) == (2 if "stop" in ends else 1)


@pytest.mark.parametrize(
    "where", ["config.json", "generation_config.json", "tokenizer_config.json"]
)
def test_T5_end_tokens_of_model_generation_and_tokenizer_all_count(mini, watch, tmp_path, where):
    second = tokens(watch().generate([P(3, 9)], greedy(3)))[0][1]
    ending = with_config(mini, tmp_path / "ending", eos_token_id=127)
    changes = (
        {"eos_token": f"w{second}"}
        if where.startswith("tokenizer")
        else {"eos_token_id": [127, second]}
    )
    with_config(ending, ending, where, **changes)
    if where != "generation_config.json":
        with_config(ending, ending, "generation_config.json", eos_token_id=126)
    watched = watch(folder=ending)
    assert second in watched.engine.stop_token_ids
    assert watched.generate([P(3, 9)], greedy(8, ignore_eos=False))[0].finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("min_tokens", [0, 1, 3, 8])
def test_T5_no_end_token_before_min_tokens(watch, min_tokens, temperature):
    """The model wants to end at once, always with another of three tokens; then it says 20."""
    watched = watch()
    watched.engine.stop_token_ids = {7, 8}
    say(watched.engine, 4, [7, 8, 9] * 3, otherwise=20)
    params = SamplingParams(
        temperature=temperature,
        seed=0,
        max_tokens=8,
        min_tokens=min_tokens,
        stop_token_ids=[9],
    )
    (output,) = watched.generate([P(0, 4)], params)
    assert output.token_ids == [20] * min_tokens
    assert output.finish_reason == ("length" if min_tokens == 8 else "stop")
    assert output.stop_reason == (None if min_tokens == 8 else [7, 8, 9][min_tokens % 3])


@pytest.mark.parametrize(("min_tokens", "count"), [(0, 2), (2, 2), (3, 5), (5, 5), (6, 8)])
def test_T5_no_stop_string_before_min_tokens(watch, min_tokens, count):
    """One that began before and is completed in time counts."""
    watched = watch()
    watched.engine.tokenizer = pieces_tokenizer(["E", "ND", "."])
    say(watched.engine, 2, [0, 1, 2, 0, 1, 2, 0, 1])
    params = greedy(8, min_tokens=min_tokens, stop=["END"])
    (output,) = watched.generate([[2, 2]], params)
    assert len(output.token_ids) == count
    assert (output.finish_reason, output.stop_reason) == ("stop", "END")
    assert output.text == "".join(watched.state["seqs"]["0"]["text"]) == "END." * (count // 3)


def test_T5_ignore_eos_ignores_the_models_ends_and_not_the_requests_own(watch):
    watched = watch()
    watched.engine.stop_token_ids = {7}
    say(watched.engine, 4, [7, 7, 9, 7])
    (output,) = watched.generate([P(0, 4)], greedy(4, stop_token_ids=[9]))
    assert (output.token_ids, output.stop_reason) == ([7, 7], 9)


# Validation and clean-up


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, float("nan")])
def test_V1_max_tokens_must_be_a_count(value):
    with pytest.raises(RequestError, match=r"^max_tokens "):
        SamplingParams(max_tokens=value)


@pytest.mark.parametrize(
    ("prompt", "gen", "words"),
    [
        ([], 1, "prompt is empty"),
        ("", 1, "prompt is empty"),
        (P(0, 20), 13, "max_model_len 32"),
        (None, 1, "neither text nor"),
        (7, 1, "neither text nor"),
        ("\ud800", 1, "neither text nor"),
        ([1, "x"], 1, "token id 'x'"),
        ([1, None], 1, "token id None"),
        ([[1, 2]], 1, r"token id \[1, 2\]"),
        ([{"role": "user", "content": "x"}], 1, "no chat template"),
    ],
)
def test_V1_a_wrong_prompt_is_refused_when_added(watch, prompt, gen, words):
    watched = watch(max_model_len=32)
    with pytest.raises(RequestError, match=words):
        watched.engine.add_request(prompt, greedy(gen))
    assert watched.engine.is_finished()
    assert [words_of["seq"] for words_of in watched.facts("reject")] == ["0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"request_id": 7}, "request_id must be a text, not 7"),
        ({"priority": "high"}, "priority must be a whole number, not 'high'"),
        ({"priority": 0.5}, "priority must be a whole number"),
        ({"priority": None}, "priority must be a whole number"),
        ({"sampling_params": {"max_tokens": 3}}, "sampling_params must be SamplingParams"),
    ],
)
def test_V1_an_argument_of_a_wrong_kind_is_named(watch, arguments, words):
    watched = watch(order="priority")
    watched.engine.add_request(P(0, 4), greedy(2))
    with pytest.raises(RequestError, match=words):
        watched.engine.add_request(P(0, 4), **arguments)
    assert len(watched.run()) == 1


def test_V2_an_empty_prompt_hurts_nobody_else(watch, alone):
    watched = watch()
    a, empty, b = watched.generate([P(0, 6), [], P(9, 15)], greedy(4))
    assert (empty.finish_reason, empty.token_ids) == ("rejected", [])
    assert [a.token_ids, b.token_ids] == [alone(P(0, 6), greedy(4)), alone(P(9, 15), greedy(4))]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_V2_a_bad_request_beside_running_ones_at_any_time(watch, alone, step):
    bad = [[], [999], None, P(0, 100) * 9, [1.5]]
    prompts = [P(0, 9), *bad, P(20, 29)]
    arrival = [1] + [step] * len(bad) + [1]
    outputs = watch(max_num_batched_tokens=4).generate(prompts, greedy(4), arrival=arrival)
    assert [output.finish_reason for output in outputs[1:-1]] == ["rejected"] * len(bad)
    assert all(output.error for output in outputs[1:-1])
    assert tokens([outputs[0], outputs[-1]]) == [
        alone(prompts[0], greedy(4)),
        alone(prompts[-1], greedy(4)),
    ]


def test_V3_a_live_id_is_taken_and_an_ended_one_is_free(watch):
    watched = watch()
    watched.engine.add_request(P(0, 6), greedy(4), "A")
    with pytest.raises(RequestError, match="live request with the id A"):
        watched.engine.add_request(P(0, 6), greedy(4), "A")
    watched.run()
    watched.engine.add_request(P(9, 15), greedy(2), "A")
    assert len(watched.run()["A"].token_ids) == 2
    assert watched.state["finished"] == ["A"]


def test_V3_of_two_equal_ids_in_one_call_the_second_is_rejected(watch, alone):
    outputs = watch().generate([P(0, 6), P(9, 15)], greedy(4), request_id=["A", "A"])
    assert [output.finish_reason for output in outputs] == ["length", "rejected"]
    assert outputs[0].token_ids == alone(P(0, 6), greedy(4))


def test_V3_an_id_that_an_aborted_request_had_is_free_at_once(watch, alone):
    watched = watch()
    watched.engine.add_request(P(0, 6), greedy(4), "A")
    watched.step()
    watched.engine.abort("A")
    watched.engine.add_request(P(9, 15), greedy(2), "A")
    assert watched.run()["A"].token_ids == alone(P(9, 15), greedy(2))


def test_V3_an_id_of_the_engines_choice_is_never_taken(watch):
    watched = watch()
    for request_id in ("1", None, None, "5", None, None, None):
        watched.engine.add_request(P(0, 6), greedy(2), request_id)
    assert len(watched.run()) == 7
    watched.engine.add_request(P(0, 6), greedy(2), "8")
    assert [output.finish_reason for output in watched.generate([P(0, 3)] * 3, greedy(2))] == [
        "length"
    ] * 3


@pytest.mark.parametrize("token_id", [128, 9999, -1, 1.0, True])
def test_V4_ids_outside_the_vocabulary_never_reach_the_model(watch, token_id):
    with pytest.raises(RequestError, match=r"not in the vocabulary \(0 to 127\)"):
        watch().engine.add_request([1, token_id], greedy(1))


@pytest.mark.parametrize("token_id", [128, 9999, -1])
def test_V4_stop_token_ids_outside_the_vocabulary_are_refused(watch, token_id):
    words = rf"^stop_token_ids: {token_id} is not in the vocabulary \(0 to 127\)"
    with pytest.raises(RequestError, match=words):
        watch().engine.add_request([1], greedy(1, stop_token_ids=[5, token_id]))


def test_V4_the_last_id_of_a_vocabulary_of_8_is_fine_and_the_next_is_not(watch, tmp_path):
    folder = random_qwen3(tmp_path, vocab_size=8, hidden_size=32, num_hidden_layers=1)
    watched = watch(folder=folder)
    params = greedy(2, stop_token_ids=[7], min_tokens=2, logprobs=100)
    (output,) = watched.generate([[7, 0]], params)
    assert [len(logprobs) for logprobs in output.logprobs] == [8, 8]
    for prompt, stop in (([8], []), ([1], [8])):
        assert (
            watched.generate([prompt], greedy(2, stop_token_ids=stop))[0].finish_reason
            == "rejected"
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("num_blocks", -1),
        ("block_size", 0),
        ("block_size", 1.5),
        ("block_size", True),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", "8"),
        ("max_num_batched_tokens", 0),
        ("max_model_len", 0),
        ("num_blocks", 2**40),
        ("policy", "magic"),
        ("policy", None),
        ("order", "lifo"),
        ("dtype", "int8"),
        ("prefix_caching", 1),
        ("device", 0),
        ("seed", 2**31),
        ("seed", True),
        ("seed", None),
        ("num_bocks", 8),
    ],
)
def test_V5_a_wrong_setting_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_dict({field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_V5_also_where_assertions_are_off(tmp_path):
    code = (
        "from tourvllm.engine.config import EngineConfig\n"
        "for field in ('num_blocks', 'block_size', 'max_num_seqs', 'max_num_batched_tokens'):\n"
        "    for value in (0, -1, 1.5):\n"
        "        try:\n            EngineConfig(**{field: value})\n"
        "        except ValueError as error:\n            print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    ).stdout
    assert len(told.splitlines()) == 12
    assert "block_size: must be a whole number" in told


@pytest.mark.parametrize(
    ("field", "value"), [("max_model_len", 513), ("device", "cuda:77"), ("device", "nonsense")]
)
def test_V5_a_setting_that_the_model_or_machine_cannot_have_is_named(mini, field, value):
    with pytest.raises(ConfigError) as caught:
        make_engine(mini, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("bs", [4, 1, 3, 16])
@pytest.mark.parametrize("budget", [2048, 5])
def test_V6_a_request_may_be_as_long_as_the_limit(watch, alone, bs, budget):
    settings = {"bs": bs, "N": math.ceil(17 / bs), "max_num_batched_tokens": budget}
    watched = watch(max_model_len=18, **settings)
    (output,) = watched.generate([P(0, 16)], greedy(2))
    assert output.token_ids == alone(P(0, 16), greedy(2))
    shorter = watch(max_model_len=17, **settings)
    assert shorter.generate([P(0, 16)], greedy(2))[0].finish_reason == "rejected"
    assert shorter.generate([P(0, 16)], greedy(1))[0].finish_reason == "length"


def test_V6_the_models_own_limit_to_its_last_position(watch):
    watched = watch(N=128)
    (output,) = watched.generate([[1] * 508], greedy(4))
    assert len(output.token_ids) == 4
    assert watched.generate([[1] * 508], greedy(5))[0].finish_reason == "rejected"


def test_V7_aborts_leak_nothing_and_raise_nothing(watch):
    watched = watch(max_num_seqs=1, max_num_batched_tokens=4)
    for name in ("runs", "waits", "goes on"):
        watched.engine.add_request(P(0, 10), greedy(4), name)
    watched.step()
    for name in ("waits", "waits", "runs", "never was"):
        watched.engine.abort(name)
    assert list(watched.run()) == ["goes on"]
    watched.engine.abort("goes on")
    assert free(watched) == 64
    assert sorted(watched.state["finished"]) == ["goes on", "runs", "waits"]


def test_V7_an_abort_of_one_who_was_preempted(watch, alone):
    watched = watch(N=8)
    prompts = [P(0, 15), P(100, 115)]
    for i, prompt in enumerate(prompts):
        watched.engine.add_request(prompt, greedy(12), str(i))
    while not watched.facts("preempt"):
        watched.step()
    watched.engine.abort("1")
    outputs = watched.run()
    assert list(outputs) == ["0"]
    assert outputs["0"].token_ids == alone(prompts[0], greedy(12))
    assert free(watched) == 8


def test_V7_who_is_aborted_while_all_run_has_an_output_that_says_so(watch, alone):
    watched = watch()
    engine = watched.engine
    requests = [
        Request(P(i, i + 6), greedy(gen), name)
        for i, (gen, name) in enumerate([(2, "A"), (9, "B"), (9, "C")])
    ]
    seen = []

    def stop_the_others(output) -> None:
        seen.append(output.request_id)
        engine.abort("B")
        engine.abort("C")

    outputs = engine.generate(requests, stop_the_others)
    assert [output.finish_reason for output in outputs] == ["length", "abort", "abort"]
    assert outputs[1].token_ids == alone(P(1, 7), greedy(2))
    assert seen == ["A", "B", "C"]
    assert free(watched) == 64


def test_V7_an_aborted_answer_keeps_the_text_that_was_held(watch):
    watched = watch()
    engine = watched.engine
    engine.tokenizer = pieces_tokenizer(LETTERS)
    say(engine, 4, P(0, 7))
    texts = []

    def abort(output) -> None:
        texts.append("".join(watched.state["seqs"]["A"]["text"]))
        engine.abort("A")

    params = [greedy(7, stop=["DEFGHIJ"]), greedy(4)]
    requests = [Request(P(0, 4), each, name) for each, name in zip(params, "AB", strict=True)]
    output = engine.generate(requests, abort)[0]
    assert texts[0] == "ABC"
    assert output.text == "".join(watched.state["seqs"]["A"]["text"]) == "ABCDEFG"


def test_V8_engines_come_and_go_and_live_side_by_side(mini, alone, policy):
    expected = alone(P(0, 6), greedy(6))
    first = make_engine(mini, block_size=4, policy=policy)
    assert tokens(generate(first, [P(0, 6)], greedy(6))) == [expected]
    second = make_engine(mini, block_size=3)
    for engine in (first, second):
        engine.add_request(P(0, 6), greedy(6))
    found = []
    while not (first.is_finished() and second.is_finished()):
        for engine in (first, second):
            found += [output.token_ids for output in engine.step()[0]]
    assert found == [expected, expected]


# Loading (what each family computes is in test_families.py)


def rewrite(folder, target, change):
    """A copy of a model folder whose tensors went through `change`."""
    copy = with_config(folder, target)
    weights = change(load_file(folder / "model.safetensors"))
    (copy / "model.safetensors").unlink()
    save_file(weights, copy / "model.safetensors")
    return copy


def test_M1_a_tied_head_may_be_missing_or_present(tmp_path):
    assert "lm_head.weight" not in load_file(TINY / "model.safetensors")
    stored = rewrite(
        TINY,
        tmp_path / "tied",
        lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"].clone()},
    )
    for folder in (TINY, stored):
        model = make_engine(folder).model_runner.model
        assert model.lm_head.weight is model.embed_tokens


def test_M1_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path):
    stored = rewrite(
        TINY,
        tmp_path / "tied",
        lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"] * 2},
    )
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        make_engine(stored)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.k_norm.weight"]
)
def test_M1_a_missing_tensor_is_named(mini, tmp_path, name):
    broken = rewrite(
        mini, tmp_path / "m", lambda w: {key: value for key, value in w.items() if key != name}
    )
    with pytest.raises(ModelError, match=f"{name} is missing"):
        make_engine(broken)


def test_M1_a_tensor_that_nothing_uses_is_named(mini, tmp_path):
    broken = rewrite(
        mini, tmp_path / "m", lambda w: w | {"model.layers.7.surprise": torch.zeros(1)}
    )
    with pytest.raises(ModelError, match=r"unexpected tensors: model\.layers\.7\.surprise"):
        make_engine(broken)


def test_M1_a_tensor_of_another_shape_is_named(mini, tmp_path):
    broken = rewrite(mini, tmp_path / "m", lambda w: w | {"model.norm.weight": torch.ones(5)})
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(5,\), not \(32,\)"):
        make_engine(broken)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope' is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "yarn needs a number as factor"),
        ({"attention_bias": True}, r"q_proj\.bias is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_M2_what_is_not_supported_is_refused_by_name(mini, tmp_path, changes, words):
    with pytest.raises(ModelError, match=words):
        make_engine(with_config(mini, tmp_path / "m", **changes))


@pytest.mark.parametrize("rope_type", ["default", "linear", "yarn"])
def test_M2_the_rope_type_may_stand_under_either_key(mini, tmp_path, rope_type):
    def rope_of(key: str) -> tuple:
        folder = with_config(
            mini, tmp_path / key, rope_scaling={key: rope_type, "factor": 2.0}, rope_parameters=None
        )
        engine = make_engine(folder)
        assert len(generate(engine, [P(0, 4)], greedy(2))[0].token_ids) == 2
        model = engine.model_runner.model
        return engine.model_config.rope_scaling["rope_type"], model._cos.tolist()

    assert rope_of("rope_type") == rope_of("type")
    assert rope_of("type")[0] == rope_type


def test_M2_head_dim_may_be_derived(tmp_path):
    folder = random_qwen3(
        tmp_path / "m", vocab_size=32, hidden_size=32, num_hidden_layers=1, head_dim=16
    )
    derived = with_config(folder, tmp_path / "derived", head_dim=None)
    assert make_engine(derived).model_config.head_dim == 16


@pytest.mark.parametrize(
    "damage",
    ["no folder", "no config", "torn config", "torn weights", "no weights", "no tokenizer"],
)
def test_M2_a_damaged_folder_is_a_sentence(mini, tmp_path, damage):
    folder = tmp_path / "m"
    if damage != "no folder":
        with_config(mini, folder)
    if damage.endswith("config"):
        (folder / "config.json").unlink()
    if damage.endswith("weights"):
        (folder / "model.safetensors").unlink()
    if damage == "torn config":
        (folder / "config.json").write_text('{"architectures": [')
    if damage == "torn weights":
        (folder / "model.safetensors").write_bytes((mini / "model.safetensors").read_bytes()[:5000])
    if damage == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=str(folder)):
        make_engine(folder)
