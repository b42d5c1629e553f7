"""Greedy tokens and logits are those of Hugging Face transformers, however the engine is set up."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracle import (
    POLICIES,
    compare,
    generate,
    kept_logits,
    reference,
    reference_greedy,
    reference_logits,
)
from support import TINY, Watched, forget_models, greedy, make_engine, random_qwen3, tokens
from tourvllm.engine.tokenizer import encode

STORIES = [
    "Once upon a time, there was a little fox named Mia.",
    "Once upon a time, there was a little fox named Mia. One day,",
    "One day, a tiny mouse found a piece of cheese.",
    "A robot",
    "The sun",
]
LOGITS_TOLERANCE = 2e-4
"""Float32 sums in another order: the logits are of the order of 10, so about 1e-5 of them."""
TINY_TOLERANCE = {"float32": 2e-4, "float64": 1e-12, "bfloat16": 1.0, "float16": 0.1}
SMOLLM2_TOLERANCE = {"float32": 3e-4, "bfloat16": 1.5, "float16": 0.2}
"""SmolLM2's logits go up to 35, so a rounding to bfloat16 is up to 0.07, to float16 up to 0.01."""

TIGHT = {"block_size": 4, "num_blocks": 16, "max_num_batched_tokens": 8}
"""Prompts are cut, and running requests lose their places."""


@pytest.fixture(scope="module", autouse=True)
def _free_the_memory_at_the_end():
    yield
    forget_models()
    reference.cache_clear()


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
    outputs = generate(watched.engine, prompts, greedy(max_tokens))
    assert tokens(outputs) == [
        reference_greedy(folder, tuple(prompt), max_tokens) for prompt in prompts
    ]
    return watched


@pytest.mark.parametrize("story", range(len(STORIES)))
def test_one_request(prompts, story):
    check_tokens(TINY, [prompts[story]], 24)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7, 16])
def test_every_block_size(prompts, block_size, policy):
    check_tokens(TINY, prompts, 24, block_size=block_size, num_blocks=512, policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", [1, 3, 5, 8, 1000])
def test_every_chunk_size(prompts, budget, policy):
    watched = check_tokens(
        TINY, prompts, 12, block_size=4, max_num_batched_tokens=budget, policy=policy
    )
    assert bool(watched.facts("chunk")) == (budget < 1000)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 42), (3, 14), (4, 11), (16, 3)])
@pytest.mark.parametrize("budget", [7, 1000])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_small_pools_preempt(prompts, block_size, num_blocks, budget, prefix_caching, policy):
    watched = check_tokens(
        TINY,
        prompts,
        24,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        prefix_caching=prefix_caching,
        policy=policy,
    )
    assert watched.facts("preempt")
    assert any(facts["hits"] for facts in watched.facts("can_allocate")) == prefix_caching


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_prefix_hits(prompts, block_size):
    engine = make_engine(block_size=block_size)
    generate(engine, [prompts[0]], greedy(1))
    watched = Watched(engine)
    (output,) = generate(engine, [prompts[1]], greedy(24))
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
        {"block_size": 4, "num_blocks": 11, "max_num_batched_tokens": 9, "policy": "mixed"},
    ],
)
def test_untied_sharded_model(sharded, prompts, settings):
    check_tokens(sharded, prompts, 16, **settings)


def test_weights_are_those_of_the_shards(sharded):
    """A tied or a wrong head would still give some tokens: the head must be the stored one."""
    model = make_engine(sharded).model_runner.model
    assert torch.equal(model.lm_head.weight, reference(sharded).lm_head.weight)
    assert not torch.equal(model.lm_head.weight, model.embed_tokens)


@pytest.mark.parametrize("cached_blocks", [0, 1, 3])
@pytest.mark.parametrize("folder", ["tiny", "sharded"])
def test_logits_of_a_prefill_after_a_cached_prefix(prompts, sharded, folder, cached_blocks):
    folder = TINY if folder == "tiny" else sharded
    engine, prompt = make_engine(folder, block_size=4), prompts[1]
    if cached_blocks:
        generate(engine, [prompt[: cached_blocks * 4]], greedy(1))
    watched = Watched(engine)
    with kept_logits() as rows:
        (output,) = generate(engine, [prompt], greedy(1))
    assert watched.facts("admit")[0]["num_cached_tokens"] == cached_blocks * 4
    found = rows[output.request_id][len(prompt)]
    expected = reference_logits(folder, prompt, "float32")[-1]
    torch.testing.assert_close(found, expected, rtol=0, atol=LOGITS_TOLERANCE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", TINY_TOLERANCE)
def test_the_tiny_model_in_every_dtype(prompts, dtype, policy):
    compare("Qwen3 (tiny)", TINY, prompts, 24, dtype, TINY_TOLERANCE[dtype], policy=policy, **TIGHT)


def test_K1_memory_that_was_never_written_is_never_read(prompts):
    for budget in (4, 1000):
        engine = make_engine(block_size=4, max_num_batched_tokens=budget)
        engine.model_runner.kv_cache.fill_(float("nan"))
        assert tokens(generate(engine, prompts, greedy(12))) == [
            reference_greedy(TINY, tuple(prompt), 12) for prompt in prompts
        ]


def test_eos_ends_a_request_where_transformers_ends_it(prompts):
    """Without ignore_eos: the tokens up to the first end-of-sequence token."""
    engine = make_engine()
    long = {i: reference_greedy(TINY, tuple(prompt), 120) for i, prompt in enumerate(prompts)}
    outputs = generate(engine, prompts, greedy(120, ignore_eos=False))
    for i, output in enumerate(outputs):
        ends = [at for at, token_id in enumerate(long[i]) if token_id in (0, 2)]
        assert output.finish_reason == ("stop" if ends else "length")
        assert output.token_ids == long[i][: ends[0] if ends else None]
        assert output.text == engine.tokenizer.decode(output.token_ids)


# Real weights: SmolLM2-135M, 30 layers

QUESTIONS = [
    "The capital of France is",
    "The capital of France is Paris. The capital of Italy is",
    "Water boils at a temperature of",
    "The capital of France is Paris. The capital of Germany is",
    "Once upon a time, there was a",
]


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_smollm2_one_request(smollm2, question):
    tolerance = SMOLLM2_TOLERANCE["float32"]
    compare("SmolLM2", smollm2, [question], 10, "float32", tolerance, block_size=16)
    (output,) = generate(make_engine(smollm2), [question], greedy(10))
    prompt = reference_tokenizer(smollm2).encode(question)
    assert output.token_ids == reference_greedy(smollm2, tuple(prompt), 10)


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [
        ("float32", "prefill_first"),
        ("float32", "mixed"),
        ("bfloat16", "prefill_first"),
        ("bfloat16", "mixed"),
        ("float16", "mixed"),
    ],
)
def test_smollm2_batches(smollm2, dtype, policy):
    tolerance = SMOLLM2_TOLERANCE[dtype]
    watched = compare("SmolLM2", smollm2, QUESTIONS, 10, dtype, tolerance, policy=policy, **TIGHT)
    assert watched.facts("chunk")
    assert watched.facts("preempt")
    assert any(facts["hits"] for facts in watched.facts("can_allocate"))


def test_smollm2_answers_with_words(smollm2):
    (output,) = generate(make_engine(smollm2), [QUESTIONS[0]], greedy(2))
    assert output.text == " Paris."


def test_smollm2_chat(smollm2):
    """Messages go through the chat template once, and the end of the answer is found."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    engine, tokenizer = make_engine(smollm2), reference_tokenizer(smollm2)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    (output,) = generate(engine, [messages], greedy(24, ignore_eos=False))
    assert output.prompt_token_ids == prompt == encode(engine.tokenizer, output.prompt)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    num_tokens = len(output.token_ids)
    wanted = reference_greedy(smollm2, tuple(prompt), 24)
    assert output.token_ids == wanted[:num_tokens]
    assert output.finish_reason == "stop"
    assert output.stop_reason == end == wanted[num_tokens]
    assert output.text == "The capital of France is Paris."


def test_smollm2_runs_a_scenario_from_the_command(smollm2, tmp_path):
    command = ["tourvllm", "run", "kv_pressure", "--plain", "--steps", "3", "--model", str(smollm2)]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--record", str(tmp_path / "run.tvllm.jsonl")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "Stopped after 3 steps." in done.stdout
    assert (tmp_path / "run.tvllm.jsonl").stat().st_size > 10_000


def reference_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [{}, {"block_size": 3, "max_num_batched_tokens": 5}, {"block_size": 4, "num_blocks": 11}],
)
def test_on_a_gpu(prompts, settings):
    check_tokens(TINY, prompts, 24, device="cuda", dtype="float32", **settings)
