"""Decodes that are replayed. Their padding is tested on the CPU, with the pass itself in place of a graph."""

import random

import pytest
import torch
from support import P, Watched, generate, greedy, make_engine, tokens
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.cuda_graphs import (
    DecodeGraphs,
    batch_sizes,
    fill,
    padding,
    table_width,
    why_not,
)
from tourvllm.engine.errors import ConfigError
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.model import Batch
from tourvllm.kernels import get_backend

PROMPTS = [P(3, 20), P(5, 9), P(30, 31), P(7, 40), P(2, 6)]


def replayed(compute):
    """Stands in for a capture: the pass itself, done again, its logits in the same place."""
    logits = compute()
    return lambda: logits.copy_(compute()), logits


@torch.inference_mode()
def with_graphs(engine, sizes=(1, 2, 4), width=None):
    """Let the engine replay its decodes."""
    runner = engine.model_runner
    width = width or table_width(engine.max_model_len, runner.block_size, runner.kv_cache.shape[2])
    runner.graphs = DecodeGraphs(runner.model, runner.kv_cache, list(sizes), width, replayed)
    return engine


def decode_of(lens, block_size, num_blocks, seed=0):
    """A decode of sequences of these lengths, in shuffled blocks."""
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(-(-length // block_size))] for length in lens]
    last = [
        (table[-1], (length - 1) % block_size) for table, length in zip(tables, lens, strict=True)
    ]
    return Batch(
        input_ids=[5 + i for i in range(len(lens))],
        positions=[length - 1 for length in lens],
        slot_mapping=[block_id * block_size + offset for block_id, offset in last],
        cu_seqlens_q=list(range(len(lens) + 1)),
        cu_seqlens_k=[0, *torch.tensor(lens).cumsum(0).tolist()],
        context_lens=list(lens),
        block_tables=tables,
        logits_rows=list(range(len(lens))),
    )


def cache_in_use(engine, batch):
    """A cache that is NaN but for the keys of this batch, and the mask of the slots that the pass may write."""
    torch.manual_seed(1)
    cache = torch.full_like(engine.model_runner.kv_cache, torch.nan)
    block_size = cache.shape[3]
    for table, length in zip(batch.block_tables, batch.context_lens, strict=True):
        for position in range(length - 1):
            block_id, offset = table[position // block_size], position % block_size
            cache[:, :, block_id, offset] = torch.randn_like(cache[:, :, block_id, offset])
    written = torch.zeros(cache.shape[2] * block_size, dtype=torch.bool)
    written[batch.slot_mapping] = True
    return cache, written


@torch.inference_mode()
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("size", [3, 4, 8])
def test_padding_changes_nothing(mini, block_size, size):
    """Real rows get the same logits, and no slot but theirs is written, also after a wider and larger batch."""
    engine = make_engine(mini, block_size=block_size, num_blocks=64, attention="torch")
    model = engine.model_runner.model
    static = padding(size, 48, block_size, torch.device("cpu"))
    fill(static, decode_of([9, 30, 2], block_size, 64, seed=3).to(torch.device("cpu")))
    for lens in ([7, 1, 12], [20], [5, 3]):
        batch = decode_of(lens, block_size, 64, seed=len(lens))
        cache, written = cache_in_use(engine, batch)
        padded_cache = cache.clone()
        expected = model.forward(batch, cache)
        fill(static, batch.to(torch.device("cpu")))
        logits = model.compute(static, padded_cache)
        assert torch.isfinite(expected).all()
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(logits[: len(lens)], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(padded_cache, cache, rtol=1e-5, atol=1e-6, equal_nan=True)
        others = padded_cache.flatten(2, 3)[:, :, ~written]
        assert (others.isnan() | (others == cache.flatten(2, 3)[:, :, ~written])).all()


@torch.inference_mode()
def test_nothing_is_left_of_the_batch_before():
    static = padding(4, 6, 4, torch.device("cpu"))
    slots, tables = static.paged.slot_mapping, static.paged.block_tables
    fill(static, decode_of([20, 9, 11, 6], 4, 40).to(torch.device("cpu")))
    batch = decode_of([3], 4, 40)
    fill(static, batch.to(torch.device("cpu")))
    assert slots.tolist() == [*batch.slot_mapping, -1, -1, -1]
    assert tables.tolist() == [[*batch.block_tables[0], 0, 0, 0, 0, 0], *[[0] * 6] * 3]
    assert static.paged.context_lens.tolist() == static.paged.host_context_lens == [3, 0, 0, 0]
    assert static.paged.max_seqlen_k == 24
    assert static.paged.cu_seqlens_q.tolist() == [0, 1, 2, 3, 4]
    assert slots is static.paged.slot_mapping
    assert slots.dtype == static.input_ids.dtype == static.positions.dtype == torch.int64
    assert tables.dtype == static.paged.context_lens.dtype == torch.int32


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_an_engine_with_graphs_gives_the_same_tokens(mini, policy):
    """With preemptions, chunks, and batches larger than any graph."""
    settings = {"block_size": 4, "num_blocks": 14, "attention": "torch", "policy": policy}
    settings |= {"max_num_batched_tokens": 24}
    params = [greedy(n) for n in (12, 7, 20, 3, 9)]
    expected = generate(make_engine(mini, **settings), PROMPTS, params)
    engine = with_graphs(make_engine(mini, **settings))
    replays = count_replays(engine)
    outputs = generate(engine, PROMPTS, params)
    assert tokens(outputs) == tokens(expected)
    assert sum(output.num_preemptions for output in outputs) > 0
    assert len(replays) > 5


def count_replays(engine):
    replays = []
    replay = engine.model_runner.graphs.replay

    def counted(batch):
        replays.append(len(batch.input_ids))
        return replay(batch)

    engine.model_runner.graphs.replay = counted
    return replays


def test_the_stops_of_a_replayed_step_are_the_same(mini):
    """All are told, after the pass; every check of the recorder holds."""
    watched = []
    for graphs in (False, True):
        engine = make_engine(mini, block_size=4, attention="torch")
        if graphs:
            with_graphs(engine)
        watched.append(Watched(engine))
        watched[-1].generate(PROMPTS[:3], greedy(6))
    plain, replayed_one = ([(e.stop, e.facts) for e in w.events] for w in watched)
    assert plain == replayed_one


def test_which_batches_are_replayed(mini):
    engine = with_graphs(make_engine(mini, block_size=4, attention="torch"), width=5)
    graphs = engine.model_runner.graphs
    assert graphs.takes(decode_of([3, 20, 1], 4, 40))
    assert not graphs.takes(decode_of([3, 21], 4, 40)), "a table wider than the graph's"
    assert not graphs.takes(decode_of([1] * 5, 4, 40)), "more rows than the largest graph's"
    chunk = decode_of([3, 4], 4, 40)
    chunk.logits_rows = [0]
    assert not graphs.takes(chunk), "a prompt's chunk of one token has no logits"
    prompt = decode_of([3, 4], 4, 40)
    prompt.input_ids, prompt.logits_rows = [1, 2, 3], [0, 2]
    assert not graphs.takes(prompt)


def test_sizes():
    assert batch_sizes(1) == [1]
    assert batch_sizes(2) == [1, 2]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert batch_sizes(10_000) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert table_width(100, 16, 1000) == 7
    assert table_width(40_960, 16, 300) == 300


def test_why_not():
    torch_kernels = get_backend("torch", "cpu")
    assert why_not(True, "cpu", torch_kernels) == "the device is cpu, and they are CUDA's"
    assert why_not(False, "cuda", torch_kernels) == "cuda_graphs is false"
    assert "the kernels torch wait for the device" in str(why_not(True, "cuda:0", torch_kernels))
    if why_not(True, "cuda", get_backend("auto", "cuda")) is not None:
        pytest.skip("triton is not installed")


def test_the_switch_is_a_switch():
    with pytest.raises(ConfigError, match="true or false"):
        EngineConfig(cuda_graphs="yes")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_graphs_on_and_off_are_equal_on_a_gpu(mini, policy):
    params = [greedy(n) for n in (12, 7, 20, 3, 9)]
    found = []
    for graphs in (True, False):
        config = EngineConfig(
            device="cuda",
            dtype="float32",
            block_size=4,
            num_blocks=14,
            policy=policy,
            max_num_batched_tokens=24,
            attention="triton",
            cuda_graphs=graphs,
        )
        engine = LLMEngine(mini, config)
        assert (engine.model_runner.graphs is not None) == graphs
        found.append(tokens(generate(engine, PROMPTS, params)))
    assert found[0] == found[1]


@pytest.mark.gpu
def test_a_gpu_gives_the_cpus_tokens(mini):
    params = greedy(20)
    expected = tokens(generate(make_engine(mini), PROMPTS, params))
    for attention in ("torch", "triton"):
        engine = LLMEngine(
            mini, EngineConfig(device="cuda", dtype="float32", attention=attention, block_size=16)
        )
        assert tokens(generate(engine, PROMPTS, params)) == expected
