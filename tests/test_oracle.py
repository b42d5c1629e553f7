"""Greedy tokens and logits are those of Hugging Face transformers, however the engine is set up."""

import functools
from pathlib import Path

import pytest
import torch
from support import TINY, Watched, greedy, make_engine, random_qwen3, tokens

STORIES = [
    "Once upon a time, there was a little fox named Mia.",
    "Once upon a time, there was a little fox named Mia. One day,",
    "One day, a tiny mouse found a piece of cheese.",
    "A robot",
    "The sun",
]
LOGITS_TOLERANCE = 2e-4
"""Float32 sums in another order: the logits are of the order of 10, so about 1e-5 of them."""


@functools.cache
def reference(folder: Path):
    """The transformers model of a folder, in float32 on the CPU."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(
        do_sample=False, pad_token_id=0
    )  # greedy, and no end-of-sequence
    return model


@functools.cache
def reference_greedy(folder: Path, prompt: tuple[int, ...], count: int) -> list[int]:
    """`count` greedy tokens after `prompt`, one request alone."""
    ids = torch.tensor([prompt])
    out = reference(folder).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count)
    assert out.shape[1] == len(prompt) + count
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = make_engine().tokenizer
    return [tokenizer.encode(story) for story in STORIES]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """A random Qwen3: 4 layers, grouped heads, an untied head, several safetensors files."""
    folder = tmp_path_factory.mktemp("sharded")
    random_qwen3(
        folder,
        tokenizer=TINY,
        max_shard_size="500KB",
        vocab_size=2048,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        initializer_range=0.08,
    )
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def check_tokens(folder: Path, prompts: list[list[int]], max_tokens: int, **settings) -> Watched:
    """Run all prompts at once, with every stop checked, and compare each with transformers."""
    watched = Watched(make_engine(folder, **settings))
    outputs = watched.engine.generate(prompts, greedy(max_tokens))
    assert tokens(outputs) == [
        reference_greedy(folder, tuple(prompt), max_tokens) for prompt in prompts
    ]
    return watched


@pytest.mark.parametrize("story", range(len(STORIES)))
def test_one_request(prompts, story):
    check_tokens(TINY, [prompts[story]], 24)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7, 16])
def test_every_block_size(prompts, block_size):
    check_tokens(TINY, prompts, 24, block_size=block_size, num_blocks=512)


@pytest.mark.parametrize("budget", [1, 3, 5, 8, 1000])
def test_every_chunk_size(prompts, budget):
    watched = check_tokens(TINY, prompts, 12, block_size=4, max_num_batched_tokens=budget)
    assert bool(watched.facts("chunk")) == (budget < 1000)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 42), (3, 14), (4, 11), (16, 3)])
@pytest.mark.parametrize("budget", [7, 1000])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_small_pools_preempt(prompts, block_size, num_blocks, budget, prefix_caching):
    watched = check_tokens(
        TINY,
        prompts,
        24,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        prefix_caching=prefix_caching,
    )
    assert watched.facts("preempt")
    assert any(facts["hits"] for facts in watched.facts("can_allocate")) == prefix_caching


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_prefix_hits(prompts, block_size):
    engine = make_engine(block_size=block_size)
    engine.generate([prompts[0]], greedy(1))
    watched = Watched(engine)
    (output,) = engine.generate([prompts[1]], greedy(24))
    assert output.token_ids == reference_greedy(TINY, tuple(prompts[1]), 24)
    assert (
        watched.facts("admit")[0]["num_cached_tokens"] == len(prompts[0]) // block_size * block_size
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_size": 1},
        {"block_size": 3, "max_num_batched_tokens": 5},
        {"block_size": 4, "num_blocks": 11},
    ],
)
def test_untied_sharded_model(sharded, prompts, settings):
    check_tokens(sharded, prompts, 16, **settings)


def test_weights_are_those_of_the_shards(sharded):
    """A tied or a wrong head would still give some tokens: the head must be the stored one."""
    model = make_engine(sharded).model_runner.model
    assert torch.equal(model.lm_head, reference(sharded).lm_head.weight)
    assert not torch.equal(model.lm_head, model.embed_tokens)


@pytest.mark.parametrize("cached_blocks", [0, 1, 3])
@pytest.mark.parametrize("folder", ["tiny", "sharded"])
def test_logits_of_a_prefill_after_a_cached_prefix(
    prompts, sharded, folder, cached_blocks, monkeypatch
):
    folder = TINY if folder == "tiny" else sharded
    engine, prompt, seen = make_engine(folder, block_size=4), prompts[1], []
    if cached_blocks:
        engine.generate([prompt[: cached_blocks * 4]], greedy(1))
    forward = engine.model_runner.model.forward
    monkeypatch.setattr(
        engine.model_runner.model, "forward", lambda *a: seen.append(forward(*a)) or seen[-1]
    )
    watched = Watched(engine)
    engine.generate([prompt], greedy(1))
    assert watched.facts("admit")[0]["num_cached_tokens"] == cached_blocks * 4
    with torch.inference_mode():
        expected = reference(folder)(torch.tensor([prompt])).logits[:, -1]
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=LOGITS_TOLERANCE)


def test_K1_memory_that_was_never_written_is_never_read(prompts):
    for budget in (4, 1000):
        engine = make_engine(block_size=4, max_num_batched_tokens=budget)
        engine.model_runner.kv_cache.fill_(float("nan"))
        assert tokens(engine.generate(prompts, greedy(12))) == [
            reference_greedy(TINY, tuple(prompt), 12) for prompt in prompts
        ]


def test_eos_ends_a_request_where_transformers_ends_it(prompts):
    """Without ignore_eos: the tokens up to the first end-of-sequence token."""
    engine = make_engine()
    long = {i: reference_greedy(TINY, tuple(prompt), 120) for i, prompt in enumerate(prompts)}
    outputs = engine.generate(prompts, greedy(120, ignore_eos=False))
    for i, output in enumerate(outputs):
        ends = [at for at, token_id in enumerate(long[i]) if token_id in (0, 2)]
        assert output.finish_reason == ("stop" if ends else "length")
        assert output.token_ids == long[i][: ends[0] if ends else None]
        assert output.text == engine.tokenizer.decode(output.token_ids)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [{}, {"block_size": 3, "max_num_batched_tokens": 5}, {"block_size": 4, "num_blocks": 11}],
)
def test_on_a_gpu(prompts, settings):
    check_tokens(TINY, prompts, 24, device="cuda", dtype="float32", **settings)
