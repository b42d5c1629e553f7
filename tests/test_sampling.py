"""Each sampling parameter against a plain reference: transformers' processors where they exist, else numpy."""

from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import POLICIES, P, Watched, generate, greedy, make_engine, seq_of, tokens
from tourvllm.engine.errors import RequestError
from tourvllm.engine.sampler import sample, top_logprobs
from tourvllm.engine.sampling_params import SamplingParams

VOCAB = 24
PROMPT, OUTPUT = [1, 2, 2, 5], [2, 7, 7, 7, 9]


def some_logits(seed: int = 3, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def penalized(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> torch.Tensor:
    """The logits after penalties and min_tokens."""
    from transformers import RepetitionPenaltyLogitsProcessor

    scores = logits.double()[None]
    if params.repetition_penalty != 1.0:
        processor = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
        scores = processor(torch.tensor([prompt + output]), scores)
    plain = scores[0].numpy().copy()
    for token_id, count in Counter(output).items():
        plain[token_id] -= params.presence_penalty + count * params.frequency_penalty
    if len(output) < params.min_tokens:
        plain[params.stop_token_ids] = -np.inf
    return torch.from_numpy(plain)


def reference_probs(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> torch.Tensor:
    """What each token's chance is: penalties, temperature, min_p, top_k and top_p, in this order."""
    from transformers import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    scores = penalized(logits, params, prompt, output)[None]
    scores = TemperatureLogitsWarper(float(params.temperature))(None, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    return scores[0].softmax(-1)


def frequencies(
    logits: torch.Tensor, count: int, prompt: list[int], output: list[int], **params: Any
) -> torch.Tensor:
    """How often each token is chosen, over `count` seeds."""
    seqs = [seq_of(SamplingParams(seed=seed, **params), prompt, output) for seed in range(count)]
    chosen = sample(logits.expand(count, -1), seqs)
    return torch.bincount(torch.tensor(chosen), minlength=len(logits)) / count


MIXES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.3},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 0.7},
    {"frequency_penalty": -0.7},
    {"min_tokens": 9, "stop_token_ids": [0, 3, 7, 9]},
    {"temperature": 0.7, "top_k": 12, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.7, "min_p": 0.1},
    {
        "temperature": 1.3,
        "top_k": 10,
        "top_p": 0.85,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "min_tokens": 6,
        "stop_token_ids": [0, 4],
    },
]


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_tokens_have_the_references_chances(mix):
    params, count = SamplingParams(**mix), 3000
    logits = some_logits(scale=1.5)
    expected = reference_probs(logits, params, PROMPT, OUTPUT)
    found = frequencies(logits, count, PROMPT, OUTPUT, **mix)
    assert set(found.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    # Five standard deviations of a share of `count` draws.
    error = 5 * (expected * (1 - expected) / count).sqrt() + 1e-9
    assert ((found - expected).abs() <= error).all(), (found - expected).abs() / error


numbers = st.floats(-8, 8, width=32)
token_ids = st.integers(0, VOCAB - 1)


@settings(max_examples=150)
@given(
    logits=st.lists(numbers, min_size=VOCAB, max_size=VOCAB),
    prompt=st.lists(token_ids, min_size=1, max_size=6),
    output=st.lists(token_ids, max_size=6),
    repetition=st.sampled_from([0.3, 1.0, 1.1, 2.0]),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    min_tokens=st.integers(0, 8),
    stop=st.lists(token_ids, max_size=4),
)
def test_penalties_are_the_references(
    logits, prompt, output, repetition, presence, frequency, min_tokens, stop
):
    params = SamplingParams(
        temperature=0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        min_tokens=min_tokens,
        stop_token_ids=stop,
    )
    row = torch.tensor(logits, dtype=torch.float64)
    expected = penalized(row, params, prompt, output)
    (chosen,) = sample(row[None], [seq_of(params, prompt, output)])
    assert expected[chosen] >= expected.max() - 1e-9


@settings(max_examples=150)
@given(
    logits=st.lists(numbers, min_size=VOCAB, max_size=VOCAB, unique=True),
    temperature=st.sampled_from([0.2, 1.0, 5.0]),
    top_k=st.integers(-1, VOCAB + 3),
    top_p=st.floats(0.01, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**60),
)
def test_only_the_references_candidates_are_drawn(logits, temperature, top_k, top_p, min_p, seed):
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    row = torch.tensor(logits, dtype=torch.float64)
    expected = reference_probs(row, params, PROMPT, [])
    for length in range(1, 9):
        (chosen,) = sample(row[None], [seq_of(params, [0] * length)])
        # Where a sum ends at the edge of top_p, the last bits decide.
        assert expected[chosen] > 0 or params.top_p < 1
        if params.top_p < 1:
            probs = reference_probs(
                row, SamplingParams(temperature=temperature, top_k=top_k, min_p=min_p), PROMPT, []
            )
            assert float(probs[probs > probs[chosen]].sum()) <= top_p + 1e-9


def test_every_candidate_is_drawn_in_its_turn():
    found = frequencies(torch.zeros(VOCAB), 3000, [0], [], temperature=1.0)
    assert (found > 0).all()


def test_each_position_has_noise_of_its_own():
    params = SamplingParams(seed=3)
    chosen = sample(torch.zeros(200, 50), [seq_of(params, [0] * i) for i in range(1, 201)])
    assert len(set(chosen)) > 40


def test_each_seed_has_noise_of_its_own():
    """Also neighbours, negative ones, and those that differ only in high bits."""
    seeds = [*range(-50, 50), *(2**k for k in range(8, 62)), *(-(2**k) for k in range(8, 62))]
    row = torch.zeros(len(seeds), 2**12)
    chosen = sample(row, [seq_of(SamplingParams(seed=seed)) for seed in seeds])
    assert len(set(chosen)) > len(seeds) * 0.95


def test_rows_do_not_touch_each_other_or_the_logits():
    rows = torch.stack([some_logits(seed) for seed in range(len(MIXES))])
    before, seqs = rows.clone(), []
    for mix in MIXES:
        seqs.append(seq_of(SamplingParams(seed=1, **mix), PROMPT, OUTPUT))
    together = sample(rows, seqs)
    assert torch.equal(rows, before)
    assert together == [sample(rows[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]
    order = [*reversed(range(len(seqs)))]
    assert sample(rows[order], [seqs[i] for i in order]) == together[::-1]


# Log probabilities


@pytest.mark.parametrize("count", [0, 1, 5, VOCAB, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logprobs_are_the_log_softmax(count, dtype):
    rows = torch.stack([some_logits(1), some_logits(2, 9.0)]).to(dtype)
    params = SamplingParams(logprobs=count, temperature=0.3, repetition_penalty=2.0)
    chosen = [4, 11]
    seqs = [seq_of(params, PROMPT, OUTPUT) for _ in chosen]
    for row, token_id, found in zip(rows, chosen, top_logprobs(rows, seqs, chosen), strict=True):
        expected = torch.log_softmax(row.double(), -1).numpy()
        best = np.argsort(-expected, kind="stable")[:count].tolist()
        assert next(iter(found)) == token_id
        assert set(found) == {token_id, *best}
        for key, value in found.items():
            assert value == pytest.approx(expected[key], abs=1e-6)


@pytest.fixture
def setup_of(mini):
    """A function from settings to a watched engine over the mini model."""

    def make(**changes: Any) -> Watched:
        return Watched(make_engine(mini, **{"block_size": 4, "dtype": "float64", **changes}))

    return make


SETUPS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 5},
    {"num_blocks": 12},
    {"num_blocks": 12, "block_size": 3, "max_num_batched_tokens": 7, "prefix_caching": False},
    {"block_size": 1, "num_blocks": 46, "max_num_seqs": 2},
    {"num_blocks": 12, "order": "priority"},
]
"""Ways to run the same requests: chunks, preemptions, few at a time."""

PROMPTS = [P(0, 7), P(0, 9), P(40, 44), P(60, 69)]
MORE = [
    {"seed": 5, "logprobs": 2},
    {"seed": 6, "top_k": 30, "logprobs": 0, "frequency_penalty": 0.5},
    {"seed": -7, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3},
    {"temperature": 0, "logprobs": 3, "presence_penalty": 1.0, "min_tokens": 4},
]


def answers(watched: Watched, params: list[SamplingParams]) -> list[tuple[list[int], list[Any]]]:
    prompts = PROMPTS[: len(params)]
    outputs = watched.generate(prompts, params, priority=[*range(len(params))])
    return [
        (output.token_ids, [{k: round(v, 6) for k, v in row.items()} for row in output.logprobs])
        for output in outputs
    ]


@pytest.fixture
def lone(setup_of):
    params = [SamplingParams(max_tokens=20, ignore_eos=True, **more) for more in MORE]
    found = []
    for prompt, own in zip(PROMPTS, params, strict=True):
        (output,) = setup_of(prefix_caching=False).generate([prompt], own)
        rows = [{k: round(v, 6) for k, v in row.items()} for row in output.logprobs]
        found.append((output.token_ids, rows))
    return params, found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_tokens_and_logprobs_depend_on_the_request_alone(setup_of, lone, setup, policy):
    params, expected = lone
    watched = setup_of(policy=policy, **setup)
    assert answers(watched, params) == expected
    assert bool(watched.facts("preempt")) == ("num_blocks" in setup)


def test_logprobs_are_those_of_the_models_own_logits(setup_of):
    watched = setup_of(max_num_batched_tokens=4)
    model, seen = watched.engine.model_runner.model, []
    forward = model.forward
    model.forward = lambda *given: seen.append(forward(*given)) or seen[-1]
    params = SamplingParams(
        temperature=2.0, seed=1, max_tokens=6, logprobs=3, repetition_penalty=1.5, ignore_eos=True
    )
    (output,) = watched.generate([P(0, 9)], params)
    rows = [row for logits in seen for row in logits]
    assert len(output.logprobs) == len(output.token_ids) == len(rows) == 6
    for token_id, row, found in zip(output.token_ids, rows, output.logprobs, strict=True):
        expected = torch.log_softmax(row, -1)
        assert set(found) == {token_id, *expected.topk(3).indices.tolist()}
        for key, value in found.items():
            assert value == pytest.approx(float(expected[key]))


def test_logprobs_are_there_for_whoever_asked(setup_of):
    watched = setup_of()
    outputs = watched.generate([P(0, 4)] * 2, [greedy(3), greedy(3, logprobs=0)])
    assert [len(output.logprobs) for output in outputs] == [0, 3]
    assert [list(row) for row in outputs[1].logprobs] == [[i] for i in outputs[1].token_ids]


# Seeds


HOT = {"temperature": 2.0, "max_tokens": 10, "ignore_eos": True}


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_seed_the_engines_seed_decides(mini, policy):
    def run(seed: int, **settings: Any) -> list[list[int]]:
        engine = make_engine(mini, seed=seed, policy=policy, **settings)
        return tokens(generate(engine, [P(0, 5)] * 3, SamplingParams(**HOT)))

    first = run(0)
    assert len({tuple(ids) for ids in first}) == 3
    assert run(0) == first
    assert run(0, max_num_batched_tokens=3, max_num_seqs=1) == first
    assert not set(map(tuple, run(1))) & set(map(tuple, first))


def test_without_a_seed_the_same_prompt_later_has_other_tokens(mini):
    engine = make_engine(mini)
    a, b = (tokens(generate(engine, [P(0, 5)], SamplingParams(**HOT))) for _ in range(2))
    assert a != b


def test_a_seed_of_0_is_a_seed(mini):
    found = []
    for seed in (1, 2):
        engine = make_engine(mini, seed=seed)
        found.append(tokens(generate(engine, [P(0, 5)] * 2, SamplingParams(seed=0, **HOT))))
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


# Validation

WRONG: dict[str, list[Any]] = {
    "temperature": [-0.1, float("nan"), float("inf"), "hot", None, True],
    "top_p": [0, -0.1, 1.1, None, float("nan"), "1"],
    "top_k": [-2, 1.5, None, "3", True],
    "min_p": [-0.1, 1.1, None, float("nan")],
    "seed": [0.5, 2**70, "x", True],
    "repetition_penalty": [0, -1, None, float("inf")],
    "presence_penalty": [-2.1, 2.1, None, "x"],
    "frequency_penalty": [-2.1, 2.1, None, float("nan")],
    "max_tokens": [0, -1, 1.5, None, True],
    "min_tokens": [-1, 1.5, None, 65],
    "stop": [7, [""], "", ["a", 3], [None], ("a",), {"a": 1}],
    "stop_token_ids": [7, ["a"], [1.0], [True], "12"],
    "ignore_eos": ["yes", None, 1],
    "logprobs": [-1, 1.5, 101, "3", True],
}


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, vs in WRONG.items() for v in vs], ids=str
)
def test_a_wrong_value_is_refused_and_its_field_named(field, value):
    with pytest.raises(RequestError, match=rf"^{field} "):
        SamplingParams(**{field: value})


def test_every_field_has_wrong_values():
    assert list(WRONG) == [field.name for field in fields(SamplingParams)]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"top_p": 1},
        {"top_p": 1e-12},
        {"top_k": -1},
        {"top_k": 10**9},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": -(2**40)},
        {"seed": None},
        {"repetition_penalty": 1e-6},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"max_tokens": 1, "min_tokens": 1},
        {"stop": "a"},
        {"stop": ["a", "b"]},
        {"stop": None, "stop_token_ids": None},
        {"stop_token_ids": [0]},
        {"logprobs": 0},
        {"logprobs": 100},
    ],
    ids=str,
)
def test_the_edges_are_fine(mini, params):
    (output,) = generate(
        make_engine(mini), [P(0, 3)], SamplingParams(**{"max_tokens": 2, **params})
    )
    assert output.finish_reason in ("length", "stop")


def test_min_tokens_over_max_tokens_names_both():
    with pytest.raises(RequestError, match=r"^min_tokens 5 is over max_tokens 4"):
        SamplingParams(max_tokens=4, min_tokens=5)


def test_where_every_token_would_end_it_a_token_is_still_chosen(mini):
    every = [*range(128)]
    params = greedy(4, stop_token_ids=every, min_tokens=2)
    (output,) = generate(make_engine(mini), [P(0, 3)], params)
    assert len(output.token_ids) >= 2
