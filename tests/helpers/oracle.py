"""Transformers as the judge: the same tokens, and how far apart the logits are, whatever the engine does.

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

TOLERANCE = {"float64": 1e-12, "float32": 5e-5, "bfloat16": 0.4, "float16": 0.05}
"""Greatest difference of two logits, by dtype."""

SHORT = ("bfloat16", "float16")
FACTOR = 1.5
"""In 16 bits, logits may be this much farther from float32 than transformers' (root mean square of a run)."""

Rows = dict[str, dict[int, torch.Tensor]]
"""Request -> number of tokens it had -> the logits that its next token was chosen from."""


@dataclass
class Row:
    """A row of the table: what was compared so far, and the greatest difference."""

    tokens: int = 0
    error: float = 0.0
    near_ties: int = 0
    least_gap: float = float("inf")
    tolerance: float = 0.0


TABLE: defaultdict[tuple[str, str], Row] = defaultdict(Row)
"""(family, dtype) -> what the tests of this session compared."""


@functools.cache
def reference(folder: Path, dtype: str = "float32") -> Any:
    """The transformers model of a folder, on the CPU."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    if dtype == "float64":
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = functools.partial(_norm, module)
    # Greedy, and no end-of-sequence.
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


def _norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Transformers' norm rounds to float32, also in a float64 model. This one does not."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


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

    A token is transformers' greedy one. In 16 bits it may be another where transformers' own two best logits are
    no farther apart than the tolerance; and there the engine must also be as near to float32 as transformers is.
    """
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    watched = Watched(make_engine(folder, dtype=dtype, **settings))
    with kept_logits() as rows:
        outputs = generate(watched.engine, prompts, greedy(max_tokens), arrivals)
    row = TABLE[family, dtype]
    row.tolerance = max(row.tolerance, tolerance)
    mine = theirs = 0.0
    for output in outputs:
        num_prompt, token_ids = len(output.prompt_token_ids), output.token_ids
        assert len(token_ids) == max_tokens
        text = output.prompt_token_ids + token_ids[:-1]
        assert list(rows[output.request_id]) == list(range(num_prompt, len(text) + 1))
        logits = torch.stack(list(rows[output.request_id].values()))
        expected = reference_logits(folder, text, dtype)[num_prompt - 1 :]
        row.tokens += max_tokens
        error = float((logits - expected).abs().max())
        row.error = max(row.error, error)
        assert error <= tolerance
        check_tokens(row, token_ids, expected, dtype, tolerance)
        if dtype in SHORT:
            exact = reference_logits(folder, text, "float32")[num_prompt - 1 :]
            mine, theirs = mine + squares(logits - exact), theirs + squares(expected - exact)
    assert mine <= (FACTOR**2) * theirs
    return watched


def check_tokens(
    row: Row, token_ids: list[int], expected: torch.Tensor, dtype: str, tolerance: float
) -> None:
    """Each token is the best of its row of logits, or, in 16 bits, near enough to it."""
    for token_id, logits in zip(token_ids, expected, strict=True):
        (best, second), indices = logits.topk(2)
        row.least_gap = min(row.least_gap, float(best - second))
        if dtype not in SHORT:
            # Equal tokens mean something: no two logits are so near that a rounding decides.
            assert token_id == indices[0]
            assert best - second > 2 * tolerance
        elif token_id != indices[0]:
            assert best - second <= best - logits[token_id] <= tolerance
            row.near_ties += 1


def squares(errors: torch.Tensor) -> float:
    """The sum of the squares."""
    return float(errors.square().sum())


def table() -> list[str]:
    """What was compared, as lines of text."""
    heads = ("tokens", "near ties", "least gap", "error", "tolerance")
    lines = [f"{'family':<13}{'dtype':<9}" + "".join(f"{head:>11}" for head in heads)]
    for (family, dtype), row in sorted(TABLE.items()):
        numbers = f"{row.tokens:>11}{row.near_ties:>11}{row.least_gap:>11.1e}"
        lines.append(f"{family:<13}{dtype:<9}{numbers}{row.error:>11.1e}{row.tolerance:>11.1e}")
    return lines if TABLE else []
