"""Small cases that broke other serving engines, each named by its known failure's id.

Letters: L liveness, B block accounting, C prefix cache, K chunked prefill, P preemption, S
sampling, T text, V validation and clean-up, M loading. `bs` is the block size, `N` the number of blocks.
Every run is recorded and checked against the engine and the invariants at every stop.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import TINY, P, Watched, greedy, make_engine, random_qwen3, tokens, with_config
from tourvllm.engine.block_manager import BlockManager
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.detokenizer import Detokenizer
from tourvllm.engine.errors import ConfigError, ModelError, RequestError
from tourvllm.engine.sampler import sample
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.engine.sequence import Sequence


@pytest.fixture
def watch(mini):
    """A factory of watched engines over the mini model: `watch(bs=4, N=8, ...)`."""

    def make(bs=4, N=64, folder=mini, **settings) -> Watched:
        return Watched(make_engine(folder, block_size=bs, num_blocks=N, **settings))

    return make


@pytest.fixture
def alone(watch):
    """The tokens of one request that has an ample engine to itself."""
    return lambda prompt, params: tokens(
        watch(N=128, prefix_caching=False).engine.generate([prompt], params)
    )[0]


def scheduled_per_step(watched: Watched) -> list[int]:
    return [facts["num_tokens"] for facts in watched.facts("step") if facts["when"] == "end"]


def free(watched: Watched) -> int:
    return len(watched.engine.block_manager.free_block_ids)


def hits(watched: Watched) -> list[int]:
    """Cached tokens that each admission started with."""
    return [facts["num_cached_tokens"] for facts in watched.facts("allocate")]


# Liveness


@pytest.mark.parametrize(("prompt", "gen", "N"), [(8, 4, 2), (12, 20, 4)], ids=["L1", "L3"])
def test_L1_L3_what_can_never_fit_is_rejected_when_added(watch, prompt, gen, N):
    watched = watch(N=N)
    with pytest.raises(
        RequestError, match=rf"{prompt} tokens .* {gen} needs \d+ blocks of 4, .* pool has {N}"
    ):
        watched.engine.add_request(P(0, prompt), greedy(gen))
    assert watched.engine.is_finished()
    assert free(watched) == N
    assert watched.facts("reject")[0]["reason"]


def test_L1_a_request_that_just_fits_finishes_alone(watch):
    watched = watch(N=2)
    (output,) = watched.engine.generate([P(0, 8)], greedy(1))
    assert (output.finish_reason, len(output.token_ids), free(watched)) == ("length", 1, 2)


def test_L2_the_impossible_is_rejected_and_the_others_go_on(watch):
    watched = watch(N=8)
    assert [
        len(ids)
        for ids in tokens(watched.engine.generate([P(0, 5), P(10, 15), P(20, 25)], greedy(4)))
    ] == [4] * 3
    a, b = watched.engine.generate([P(0, 40), P(0, 4)], [greedy(1), greedy(2)])
    assert (a.finish_reason, a.token_ids) == ("rejected", [])
    assert "needs 10 blocks" in a.error
    assert "pool has 8" in a.error
    assert (b.finish_reason, len(b.token_ids)) == ("length", 2)


def test_L2_cannot_fit_now_is_not_can_never_fit(watch):
    watched = watch(N=4)
    outputs = watched.engine.generate([P(0, 12), P(20, 32)], greedy(4))
    assert [output.finish_reason for output in outputs] == ["length", "length"]
    assert watched.facts("wait")[0] == {
        "seqs": ["1"],
        "cause": "no_free_blocks",
        "needs": 3,
        "free": 1,
    }


def test_L4_no_block_is_reserved_behind_the_users_back(watch):
    watched = watch(N=4)
    assert watched.engine.generate([P(0, 15)], greedy(2))[0].finish_reason == "length"
    assert watched.engine.generate([P(0, 18)], greedy(1))[0].finish_reason == "rejected"


def test_L5_a_prompt_over_the_budget_is_chunked(watch, alone):
    watched = watch(max_num_batched_tokens=8, max_model_len=64)
    (output,) = watched.engine.generate([P(0, 15)], greedy(3))
    assert scheduled_per_step(watched) == [8, 7, -1, -1]
    assert output.token_ids == alone(P(0, 15), greedy(3))


def test_L6_steps_with_nothing_to_do_are_no_ops(watch):
    watched = watch()
    assert watched.engine.step() == ([], 0)
    only = watched.engine.add_request(P(0, 9), greedy(9))
    watched.step()
    watched.engine.abort(only)
    assert watched.engine.step() == ([], 0)
    assert free(watched) == 64


def test_L7_those_who_are_not_preempted_go_on_in_the_same_step(watch):
    watched = watch(N=6)
    watched.engine.generate([P(0, 7), P(20, 27), P(40, 47)], greedy(6))
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
    watched.engine.generate([P(0, 30), P(60, 72)], greedy(20))
    assert watched.facts("preempt") == []
    assert sum(count for count in scheduled_per_step(watched) if count > 0) == 42


def test_L9_a_step_never_exceeds_the_token_budget(watch):
    watched = watch(max_num_batched_tokens=16, prefix_caching=False)
    watched.engine.generate([P(i, i + 8) for i in range(10)], greedy(3))
    assert max(scheduled_per_step(watched)) == 16
    assert min(scheduled_per_step(watched)) >= -16


def test_L10_max_num_seqs_bounds_running(watch):
    watched = watch(max_num_seqs=2)
    watched.engine.generate([P(i, i + 8) for i in range(6)], greedy(3))
    assert max(facts["running"] for facts in watched.facts("step") if "running" in facts) == 2
    assert watched.facts("wait")[0] == {
        "seqs": ["2"],
        "cause": "max_num_seqs",
        "running": 2,
        "limit": 2,
    }


def test_running_never_outgrows_the_budget_that_its_decodes_need(watch):
    watched = watch(max_num_batched_tokens=3)
    watched.engine.generate([P(i, i + 2) for i in range(5)], greedy(4))
    assert min(scheduled_per_step(watched)) == -3
    full = [
        facts
        for facts in watched.facts("wait")
        if facts["cause"] == "token_budget" and facts["left"] == 0
    ]
    assert full, "running takes the whole budget, and the cause says that nothing of it is left"


# Block accounting


def test_B1_cached_blocks_on_the_free_list_are_charged_before_they_are_taken():
    manager, shared = BlockManager(num_blocks=10, block_size=16), P(0, 48)

    def add(name: str, prompt: list[int]) -> Sequence | None:
        seq = Sequence(name, prompt, greedy(1), 16)
        found = manager.can_allocate(seq)
        if found is None:
            return None
        manager.allocate(seq, found)
        seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
        manager.hash_blocks(seq)
        return seq

    r0 = add("R0", shared)
    r1 = add("R1", shared + P(50, 98))
    manager.deallocate(r1)
    add("R2", P(100, 132))
    assert add("R3", shared + P(50, 98) + P(0, 48)) is None
    assert [manager.blocks[block_id].ref_count for block_id in r0.block_table] == [1, 1, 1]
    assert [block.ref_count for block in manager.blocks].count(1) == 5
    assert len(manager.free_block_ids) == 5


def test_B2_a_refused_allocation_takes_nothing(watch):
    watched = watch(N=5)
    watched.engine.add_request(P(0, 12), greedy(4))
    watched.engine.add_request(P(20, 32), greedy(1))
    watched.step()
    assert not watched.facts("can_allocate")[1]["ok"]
    assert free(watched) == 2
    assert watched.state["seqs"]["1"]["block_table"] == []


def test_B3_giving_back_twice_is_a_no_op():
    manager = BlockManager(num_blocks=4, block_size=4)
    seq = Sequence("A", P(0, 8), greedy(1), 4)
    manager.allocate(seq, manager.can_allocate(seq))
    manager.deallocate(seq)
    manager.deallocate(seq)
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


def test_B5_nothing_leaks_when_a_shared_prefix_ends_inside_a_block(watch):
    watched = watch(N=24)
    for i in range(8):
        watched.engine.add_request([*P(0, 6), 20 + i, 40 + i], greedy(2 + i), str(i))
    outputs = watched.run()
    assert [len(outputs[str(i)].token_ids) for i in range(8)] == [2 + i for i in range(8)]
    assert free(watched) == 24


# Prefix cache


@pytest.mark.parametrize("length", [8, 4, 12, 7, 9])
def test_C1_at_least_one_token_is_computed_on_a_full_hit(watch, length):
    watched = watch(N=16)
    first, second = (tokens(watched.engine.generate([P(0, length)], greedy(1))) for _ in range(2))
    assert first == second
    assert hits(watched) == [0, (length - 1) // 4 * 4]
    assert scheduled_per_step(watched)[-1] == length - hits(watched)[1]


@pytest.mark.parametrize(("gen", "expected"), [(9, 16), (8, 12)])
def test_C2_output_blocks_are_found_only_if_their_last_token_was_computed(watch, gen, expected):
    watched = watch(N=32)
    for _ in range(2):
        (output,) = watched.engine.generate([P(0, 8)], greedy(gen))
    watched.engine.generate([P(0, 8) + output.token_ids[:8] + [99, 98, 97]], greedy(1))
    assert hits(watched)[-1] == expected


def test_C3_every_map_entry_is_a_block_that_carries_the_hash(watch):
    watched = watch(N=4)
    watched.engine.generate([P(0, 4)], greedy(1))
    watched.engine.generate([P(50, 66)], greedy(1))
    manager = watched.engine.block_manager
    assert len(watched.facts("evict")) == 1
    assert len(manager.hash_to_block_ids) == 4
    for value, block_ids in manager.hash_to_block_ids.items():
        assert [manager.blocks[block_id].hash for block_id in block_ids] == [value] * len(block_ids)


def test_C4_nobody_attends_to_slots_that_are_not_yet_written(watch, alone):
    watched = watch(N=32, max_num_batched_tokens=8)
    longer = P(0, 16) + P(50, 52)
    a, b = tokens(watched.engine.generate([P(0, 16), longer], greedy(6)))
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
    watched.engine.generate([P(0, 12)], greedy(1))
    assert watched.state["blocks"]["free"] == [3, 4, 5, 2, 1, 0]
    watched.engine.generate([P(50, 70)], greedy(1))
    assert [facts["block_id"] for facts in watched.facts("evict")] == [2, 1]
    watched.engine.generate([P(0, 12)], greedy(1))
    assert hits(watched)[-1] == 4


def test_C7_a_hash_stands_for_all_tokens_before_it_too(watch):
    watched = watch()
    watched.engine.generate([P(0, 12)], greedy(1))
    watched.engine.generate([P(4, 12)], greedy(1))
    assert hits(watched) == [0, 0]


def test_C8_recomputed_tokens_are_told_from_a_users_prefix_hits(watch):
    watched = watch(N=10)
    watched.engine.generate([P(0, 7), P(20, 27)], greedy(20))
    found = [facts for facts in watched.facts("can_allocate") if facts["hits"]]
    assert found
    assert all(facts["recompute"] for facts in found)
    assert not any(facts["recompute"] for facts in watched.facts("can_allocate")[:2])


# Chunked prefill


def test_K1_chunks_over_a_cache_full_of_nan(watch, alone):
    watched = watch(max_num_batched_tokens=4)
    watched.engine.model_runner.kv_cache.fill_(float("nan"))
    watched.engine.add_request(P(0, 10), greedy(4), "A")
    while not watched.engine.is_finished():
        outputs = watched.step()
        batch = watched.state["batch"]
        assert batch["context_lens"] == [batch["positions"][-1] + 1]
        assert len(batch["positions"]) <= 4
    assert outputs[0].token_ids == alone(P(0, 10), greedy(4))


def test_K2_a_preempted_request_that_hits_its_own_blocks(watch, alone):
    watched = watch(N=8)
    prompts = [P(0, 15), P(100, 115)]
    outputs = tokens(watched.engine.generate(prompts, greedy(12)))
    assert outputs == [alone(prompt, greedy(12)) for prompt in prompts]
    assert watched.facts("preempt")[0]["seq"] == "1"
    assert any(facts["recompute"] and facts["hits"] for facts in watched.facts("can_allocate"))


def test_K3_a_request_that_is_not_scheduled_holds_no_blocks(watch):
    watched = watch(max_num_batched_tokens=8)
    watched.engine.add_request(P(0, 6), greedy(2), "A")
    watched.engine.add_request(P(20, 30), greedy(2), "B")
    watched.step()
    assert watched.facts("wait")[0] == {
        "seqs": ["B"],
        "cause": "token_budget",
        "needs": 10,
        "left": 2,
    }
    assert watched.state["seqs"]["B"]["block_table"] == []


def test_K4_chunks_leave_the_prompt_alone(watch):
    (output,) = watch(max_num_batched_tokens=4).engine.generate([P(0, 10)], greedy(3))
    assert output.prompt_token_ids == P(0, 10)
    assert len(output.token_ids) == 3


def test_K5_a_partial_chunk_emits_nothing(watch):
    watched = watch(max_num_batched_tokens=4)
    watched.engine.add_request(P(0, 10), greedy(1), "A")
    emitted = []
    while not watched.engine.is_finished():
        watched.step()
        emitted.append(len(watched.facts("append_token")))
    assert emitted == [0, 0, 1]
    assert [facts["token_ids"] for facts in watched.facts("sample")][:2] == [[], []]


def test_K6_a_chunk_is_what_the_budget_has_left(watch):
    watched = watch(max_num_batched_tokens=8)
    watched.engine.add_request(P(0, 4), greedy(12), "A")
    watched.step()
    watched.engine.add_request(P(20, 40), greedy(2), "B")
    watched.run()
    assert [facts["num_scheduled_tokens"] for facts in watched.facts("chunk")] == [8, 8]
    assert max(map(abs, scheduled_per_step(watched))) == 8


# Preemption


def test_P1_the_preempted_computes_prompt_and_outputs_again(watch, alone):
    watched = watch(N=10)
    prompts = [P(0, 3), P(50, 53)]
    outputs = tokens(watched.engine.generate(prompts, greedy(30)))
    assert outputs == [alone(prompt, greedy(30)) for prompt in prompts]
    again = [facts for facts in watched.facts("admit") if facts["preemptions"]]
    before = [facts["num_tokens"] for facts in watched.facts("preempt")]
    assert [facts["num_scheduled_tokens"] + facts["num_cached_tokens"] for facts in again] == before
    assert [len(output) for output in outputs] == [30, 30]


def test_P2_the_phase_is_explicit_and_not_guessed_from_outputs(watch):
    watched = watch(N=10)
    watched.engine.generate([P(0, 3), P(50, 53)], greedy(30))
    back = next(
        i
        for i, event in enumerate(watched.events)
        if event.stop == "admit" and event.facts["preemptions"]
    )
    following = [
        event for event in watched.events[back:] if event.stop in ("schedule", "prepare_prefill")
    ][:2]
    assert following[0].facts["phase"] == "prefill"
    assert (following[1].stop, following[1].facts["seqs"]) == (
        "prepare_prefill",
        [watched.events[back].facts["seq"]],
    )


def test_P3_preemptions_are_bounded_and_everyone_finishes(watch, alone):
    watched = watch(N=8)
    prompts = [P(20 * i, 20 * i + 6) for i in range(5)]
    outputs = tokens(watched.engine.generate(prompts, greedy(20)))
    assert outputs == [alone(prompt, greedy(20)) for prompt in prompts]
    assert 0 < len(watched.facts("preempt")) <= 5 * 20


# Sampling

HOT = {"temperature": 1.0, "ignore_eos": True}


def draws(logits: torch.Tensor, **params) -> set[int]:
    """Every token that 300 seeds choose from one row of logits."""
    rows = logits.float().expand(300, -1)
    return set(
        sample(rows, [SamplingParams(seed=seed, **params) for seed in range(300)], [0] * 300)
    )


def test_S1_temperature_0_is_greedy_beside_rows_with_noise(watch, alone):
    prompts = [P(0, 6), P(10, 16), P(20, 26)]
    params = [greedy(8), SamplingParams(seed=1, max_tokens=8, **HOT), greedy(8)]
    outputs = tokens(watch().engine.generate(prompts, params))
    assert outputs[0] == alone(prompts[0], greedy(8))
    assert outputs[2] == alone(prompts[2], greedy(8))
    assert outputs[1] != alone(prompts[1], greedy(8))


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-300])
def test_S2_a_tiny_temperature_is_the_argmax(temperature):
    assert draws(torch.tensor([-5.0, 20, 10], dtype=torch.float16), temperature=temperature) == {1}


def test_S3_a_forbidden_token_in_a_mixed_batch():
    row = torch.tensor([-float("inf"), 1.0, 2.0])
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0),
    ]
    chosen = sample(row.expand(3, -1), params, [5, 5, 5])
    assert (chosen[0], chosen[2]) == (2, 2)
    assert draws(row, temperature=1.0) == {1, 2}


@pytest.mark.parametrize(("top_k", "kept"), [(0, 8), (-1, 8), (3, 3), (8, 8), (100, 8), (1, 1)])
def test_S4_no_filter_is_0_or_minus_1_or_the_vocabulary_and_more(top_k, kept):
    assert draws(torch.linspace(0, 0.7, 8), top_k=top_k) == set(range(8 - kept, 8))


def test_S5_one_candidate_always_survives():
    logits = torch.tensor([0.3, 0.3, 0.2, 0.2]).log()
    assert draws(logits, top_k=1, top_p=0.8) == {0}
    assert draws(logits, top_p=1e-9) == {0}
    assert draws(logits, top_p=0.7) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 5, 20])
@pytest.mark.parametrize("top_p", [0.3, 0.7, 1.0])
def test_S5_the_candidates_are_those_of_transformers(temperature, top_k, top_p):
    """The same order: temperature, top_k, then top_p of what top_k left."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(24, generator=torch.Generator().manual_seed(3))
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    scores = TopKLogitsWarper(top_k)(None, scores) if top_k else scores
    scores = TopPLogitsWarper(top_p)(None, scores)[0]
    probs = scores.softmax(-1)
    drawn = draws(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert drawn <= set(probs.nonzero().flatten().tolist())
    assert drawn >= set((probs > 0.05).nonzero().flatten().tolist())


def test_samples_follow_their_probabilities():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows, count = probs.log().expand(4000, -1), torch.zeros(4)
    for token_id in sample(rows, [SamplingParams(seed=seed) for seed in range(4000)], [7] * 4000):
        count[token_id] += 1
    torch.testing.assert_close(count / 4000, probs, atol=0.03, rtol=0)


def test_each_position_has_noise_of_its_own():
    row = torch.zeros(200, 50)
    chosen = sample(row, [SamplingParams(seed=3)] * 200, list(range(200)))
    assert len(set(chosen)) > 40


def test_S6_a_seeded_request_has_its_tokens_whoever_shares_the_batch(watch, alone):
    prompts = [P(0, 7), P(30, 37), P(60, 67)]
    params = [SamplingParams(seed=i, max_tokens=20, **HOT) for i in range(3)]
    watched = watch(N=10)
    outputs = tokens(watched.engine.generate(prompts, params))
    assert watched.facts("preempt")
    assert outputs == [alone(*each) for each in zip(prompts, params, strict=True)]


def test_S6_equal_prompts_differ_by_their_seeds_alone(alone):
    chosen = [
        tuple(alone(P(0, 6), SamplingParams(seed=seed, max_tokens=12, **HOT)))
        for seed in (1, 1, 2, -2)
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 3


def test_S7_the_first_token_follows_the_request_too(alone):
    first = alone(P(0, 6), greedy(1))
    hot = {"temperature": 5.0, "ignore_eos": True, "max_tokens": 1}
    assert alone(P(0, 6), SamplingParams(top_k=1, **hot)) == first
    assert len({tuple(alone(P(0, 6), SamplingParams(seed=seed, **hot))) for seed in range(8)}) > 3


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
    ],
    ids=["C4|8F", "F0.9F.98.80", "C4+space", "C4 last"],
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
    ],
)
def test_T1_after_a_prompt_that_ends_inside_a_character_only_new_text_is_sent(
    tokenizer, prompt, output, expected
):
    assert pieces(tokenizer, byte_ids(tokenizer, prompt), byte_ids(tokenizer, output)) == expected


def test_T4_max_tokens_counts_and_an_end_token_is_not_visible(mini, watch, tmp_path):
    third = watch().engine.generate([P(3, 9)], greedy(3))[0].token_ids
    assert len(third) == 3
    assert third[0] != third[1]
    ending = with_config(mini, tmp_path / "ending", eos_token_id=[third[1]])
    with_config(mini, ending, "generation_config.json", eos_token_id=[third[1]])
    (output,) = watch(folder=ending).engine.generate([P(3, 9)], greedy(8, ignore_eos=False))
    assert (output.token_ids, output.finish_reason) == (third[:1], "stop")
    assert output.text.strip() == f"w{third[0]}"


@pytest.mark.parametrize(
    "where", ["config.json", "generation_config.json", "tokenizer_config.json"]
)
def test_T5_end_tokens_of_model_generation_and_tokenizer_all_count(mini, watch, tmp_path, where):
    second = watch().engine.generate([P(3, 9)], greedy(3))[0].token_ids[1]
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
    assert (
        watched.engine.generate([P(3, 9)], greedy(8, ignore_eos=False))[0].finish_reason == "stop"
    )


# Validation and clean-up


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, float("nan")])
def test_V1_max_tokens_must_be_a_count(value):
    with pytest.raises(RequestError, match="max_tokens"):
        SamplingParams(max_tokens=value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", None),
        ("top_k", -2),
        ("top_k", 1.5),
        ("seed", 0.5),
        ("seed", 2**70),
        ("ignore_eos", "yes"),
    ],
)
def test_V1_a_wrong_sampling_field_is_named(field, value):
    with pytest.raises(RequestError, match=f"^{field} "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("prompt", "gen", "words"),
    [
        ([], 1, "prompt is empty"),
        ("", 1, "prompt is empty"),
        (P(0, 20), 13, "max_model_len 32"),
        (None, 1, "neither text nor"),
        ("\ud800", 1, "neither text nor"),
        ([1, "x"], 1, "token id 'x'"),
    ],
)
def test_V1_a_wrong_prompt_is_refused_when_added(watch, prompt, gen, words):
    watched = watch(max_model_len=32)
    with pytest.raises(RequestError, match=words):
        watched.engine.add_request(prompt, greedy(gen))
    assert watched.engine.is_finished()


def test_V2_an_empty_prompt_hurts_nobody_else(watch, alone):
    watched = watch()
    a, empty, b = watched.engine.generate([P(0, 6), [], P(9, 15)], greedy(4))
    assert (empty.finish_reason, empty.token_ids) == ("rejected", [])
    assert [a.token_ids, b.token_ids] == [alone(P(0, 6), greedy(4)), alone(P(9, 15), greedy(4))]


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
    outputs = watch().engine.generate([P(0, 6), P(9, 15)], greedy(4), request_ids=["A", "A"])
    assert [output.finish_reason for output in outputs] == ["length", "rejected"]
    assert outputs[0].token_ids == alone(P(0, 6), greedy(4))


@pytest.mark.parametrize("token_id", [128, 9999, -1, 1.0, True])
def test_V4_ids_outside_the_vocabulary_never_reach_the_model(watch, token_id):
    with pytest.raises(RequestError, match=r"not in the vocabulary \(0 to 127\)"):
        watch().engine.add_request([1, token_id], greedy(1))


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
        ("max_model_len", 0),
        ("num_blocks", 2**40),
        ("policy", "magic"),
        ("dtype", "int8"),
        ("prefix_caching", 1),
        ("device", 0),
        ("num_bocks", 8),
    ],
)
def test_V5_a_wrong_setting_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_dict({field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"), [("max_model_len", 513), ("device", "cuda:77"), ("device", "nonsense")]
)
def test_V5_a_setting_that_the_model_or_machine_cannot_have_is_named(mini, field, value):
    with pytest.raises(ConfigError) as caught:
        make_engine(mini, **{field: value})
    assert caught.value.field == field


def test_V6_a_request_may_be_as_long_as_the_limit(watch):
    watched = watch(max_model_len=18)
    (output,) = watched.engine.generate([P(0, 16)], greedy(2))
    assert len(output.token_ids) == 2
    assert (
        watch(max_model_len=17).engine.generate([P(0, 16)], greedy(2))[0].finish_reason
        == "rejected"
    )


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


def test_V8_engines_come_and_go_and_live_side_by_side(mini, alone):
    expected = alone(P(0, 6), greedy(6))
    first = make_engine(mini, block_size=4)
    assert tokens(first.generate([P(0, 6)], greedy(6))) == [expected]
    second = make_engine(mini, block_size=3)
    for engine in (first, second):
        engine.add_request(P(0, 6), greedy(6))
    found = []
    while not (first.is_finished() and second.is_finished()):
        for engine in (first, second):
            found += [output.token_ids for output in engine.step()[0]]
    assert found == [expected, expected]


# Loading


def rewrite(folder, target, change):
    """A copy of a model folder whose tensors went through `change`."""
    copy = with_config(folder, target)
    weights = change(load_file(folder / "model.safetensors"))
    (copy / "model.safetensors").unlink()
    save_file(weights, copy / "model.safetensors")
    return copy


def test_M1_a_tied_head_may_be_missing_or_present(tmp_path, mini):
    assert "lm_head.weight" not in load_file(TINY / "model.safetensors")
    stored = rewrite(
        TINY,
        tmp_path / "tied",
        lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"] * 2},
    )
    model = make_engine(stored).model_runner.model
    assert model.lm_head is model.embed_tokens


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
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "rope_scaling",
        ),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_M2_what_is_not_supported_is_refused_by_name(mini, tmp_path, changes, words):
    with pytest.raises(ModelError, match=words):
        make_engine(with_config(mini, tmp_path / "m", **changes))


def test_M2_an_explicit_default_rope_is_fine(mini, tmp_path):
    folder = with_config(mini, tmp_path / "m", rope_scaling={"rope_type": "default"})
    assert len(make_engine(folder).generate([P(0, 4)], greedy(2))[0].token_ids) == 2


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
