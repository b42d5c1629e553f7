"""Choosing the next token of each request."""

import torch
from torch import Tensor

from .sampling_params import SamplingParams


def sample(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    """One token for each row of `logits`, [num_rows, vocab_size] in float32.

    positions[i] is the position that row i's new token will have. The noise of a row depends on its seed and
    that position alone, so neither neighbours nor a preemption change a request's tokens.
    """
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    for row, (param, position) in enumerate(zip(params, positions, strict=True)):
        if param.temperature > 0:
            token_ids[row] = _sample_row(logits[row], param, position)
    return token_ids


def _sample_row(logits: Tensor, param: SamplingParams, position: int) -> int:
    # Shifted before it is divided, so that a tiny temperature cannot overflow: the greatest logit stays 0.
    scaled = (logits - logits.max()).double() / param.temperature
    probs = torch.softmax(scaled, dim=-1).cpu()
    probs, order = probs.sort(descending=True, stable=True)
    if 0 < param.top_k < len(probs):
        probs[param.top_k :] = 0
    if param.top_p < 1:
        # A token stays if those before it do not yet reach top_p of what top_k left; the likeliest always stays.
        share = probs / probs.sum()
        probs[1:][(share.cumsum(0) - share)[1:] >= param.top_p] = 0
    # The exponential race: the smallest noise / probability wins with the right odds.
    generator = torch.Generator().manual_seed((param.seed * 1_000_003 + position) % 2**63)
    noise = torch.empty_like(probs).exponential_(generator=generator)
    return int(order[(probs / noise).argmax()])
