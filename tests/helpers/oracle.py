"""Transformers as the judge: the same tokens, and how far apart the logits are, whatever the engine does meanwhile.

Every logits row that the engine samples from is kept, in whatever step, chunk or batch it came; transformers then
computes one prompt with its answer at once, and each row is laid beside its own.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from support import Watched, greedy, make_engine
from tourvllm.engine import model_runner
from tourvllm.engine.llm_engine import LLMEngine, RequestOutput
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams

POLICIES = ("prefill_first", "mixed")

TOLERANCE = {"float64": 2e-5, "float32": 2e-5, "bfloat16": 0.5, "float16": 0.05}
"""Greatest difference of two logits, by dtype."""

Rows = dict[str, dict[int, torch.Tensor]]
"""Request -> number of tokens it had -> the logits that its next token was chosen from."""


@dataclass
class Row:
    """A row of the table: what was compared so far, and the greatest difference."""

    tokens: int = 0
    error: float = 0.0
    near_ties: int = 0
    tolerance: float = 0.0


TABLE: defaultdict[tuple[str, str], Row] = defaultdict(Row)
"""(family, dtype) -> what the tests of this session compared."""


@functools.cache
def reference(folder: Path, dtype: str = "float32") -> Any:
    """The transformers model of a folder, on the CPU."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    # Greedy, and no end-of-sequence.
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


@functools.cache
def reference_greedy(folder: Path, prompt: tuple[int, ...], count: int) -> list[int]:
    """`count` greedy tokens after `prompt`, one request alone, as transformers' `generate` makes them."""
    ids = torch.tensor([prompt])
    out = reference(folder).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count)
    assert out.shape[1] == len(prompt) + count
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def reference_logits(folder: Path, token_ids: list[int], dtype: str) -> torch.Tensor:
    """The logits after each token of a text, [len(token_ids), vocab_size]."""
    return reference(folder, dtype)(torch.tensor([token_ids]), use_cache=False).logits[0].double()


@contextmanager
def kept_logits() -> Iterator[Rows]:
    """Keep the logits of every token that engines choose in the body."""
    rows: Rows = defaultdict(dict)
    sample = model_runner.sample

    def keep(logits: torch.Tensor, seqs: list[Any]) -> list[int]:
        for row, seq in zip(logits, seqs, strict=True):
            assert len(seq) not in rows[seq.seq_id]
            rows[seq.seq_id][len(seq)] = row.double()
        return sample(logits, seqs)

    with mock.patch.object(model_runner, "sample", keep):
        yield rows


def generate(
    engine: LLMEngine, prompts: list[Any], params: SamplingParams, arrivals: list[int] | None = None
) -> list[RequestOutput]:
    """The outputs of all prompts, run together."""
    arrivals = arrivals or [1] * len(prompts)
    pairs = zip(prompts, arrivals, strict=True)
    return engine.generate([Request(prompt, params, arrival=arrival) for prompt, arrival in pairs])


def compare(
    family: str,
    folder: Path,
    prompts: list[Any],
    max_tokens: int,
    dtype: str = "float32",
    tolerance: float | None = None,
    arrivals: list[int] | None = None,
    **settings: Any,
) -> Watched:
    """Run all prompts together, every stop checked, and lay tokens and logits beside transformers'.

    A token is transformers' greedy one; in 16 bits it may be another where transformers' own two best logits are
    no farther apart than the tolerance.
    """
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    watched = Watched(make_engine(folder, dtype=dtype, **settings))
    with kept_logits() as rows:
        outputs = generate(watched.engine, prompts, greedy(max_tokens), arrivals)
    row = TABLE[family, dtype]
    row.tolerance = tolerance
    for output in outputs:
        num_prompt, token_ids = len(output.prompt_token_ids), output.token_ids
        assert len(token_ids) == len(rows[output.request_id]) == max_tokens
        wanted = reference_logits(folder, output.prompt_token_ids + token_ids[:-1], dtype)
        for i, token_id in enumerate(token_ids):
            expected = wanted[num_prompt + i - 1]
            logits = rows[output.request_id][num_prompt + i]
            row.error = max(row.error, float((logits - expected).abs().max()))
            row.tokens += 1
            best = expected.topk(2)
            if token_id != int(best.indices[0]):
                row.near_ties += 1
                gap = float(best.values[0] - best.values[1])
                assert dtype in ("bfloat16", "float16"), (output.request_id, i, gap)
                assert gap <= float(best.values[0] - expected[token_id]) <= tolerance
    assert row.error <= tolerance
    return watched


def table() -> list[str]:
    """What was compared, as lines of text."""
    lines = [
        f"{family:<28} {dtype:<9} {row.tokens:>7} {row.near_ties:>10} {row.error:>10.1e} {row.tolerance:>10.1e}"
        for (family, dtype), row in sorted(TABLE.items())
    ]
    head = f"{'family':<28} {'dtype':<9} {'tokens':>7} {'near ties':>10} {'error':>10} {'tolerance':>10}"
    return [head, *lines] if lines else []
