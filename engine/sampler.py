"""Choosing the next token of each request."""

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from .sequence import Sequence

Logprobs = dict[int, float]

ROWS_AT_ONCE = 64
"""Rows of probabilities that are made and copied together: a vocabulary in float64 is a megabyte."""


def sample(logits: Tensor, seqs: list[Sequence]) -> list[int]:
    """The next token of each sequence from its row of `logits`, [len(seqs), vocab_size].

    A row depends on its own sequence alone: its noise comes from the sequence's seed and the position of the new
    token, so neither neighbours nor a preemption change a request's tokens.
    """
    scores = _adjusted_rows(logits, seqs)
    token_ids: list[int] = scores.argmax(dim=-1).tolist()
    drawn = [row for row, seq in enumerate(seqs) if seq.sampling_params.temperature > 0]
    for row, probs in zip(drawn, _probabilities(scores, seqs, drawn), strict=True):
        token_ids[row] = _draw(probs, seqs[row])
    return token_ids


def top_logprobs(
    logits: Tensor, seqs: list[Sequence], token_ids: list[int]
) -> list[Logprobs | None]:
    """For each sequence that asked for them: the likeliest tokens and the chosen one, with log probabilities.

    They are the model's own: before penalties, temperature and filters.
    """
    found: list[Logprobs | None] = []
    for row, (seq, token_id) in enumerate(zip(seqs, token_ids, strict=True)):
        count = seq.sampling_params.logprobs
        if count is None:
            found.append(None)
            continue
        logprobs = torch.log_softmax(logits[row].double(), dim=-1)
        top = logprobs.topk(min(count, len(logprobs)))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        found.append({token_id: float(logprobs[token_id])} | dict(pairs))
    return found


def _adjusted_rows(logits: Tensor, seqs: list[Sequence]) -> Tensor:
    """The logits, those of some requests adjusted to what they asked for."""
    changed = False
    for row, seq in enumerate(seqs):
        params = seq.sampling_params
        if params.has_penalties or seq.num_completion_tokens < params.min_tokens:
            if not changed:
                logits, changed = logits.clone(), True
            logits[row] = _adjusted(logits[row], seq)
    return logits


def _adjusted(scores: Tensor, seq: Sequence) -> Tensor:
    """The logits with the penalties for tokens that were there, and no way to stop before min_tokens."""
    params = seq.sampling_params
    scores = scores.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(seq.token_ids)), device=scores.device)
        old = scores[seen]
        scores[seen] = torch.where(
            old > 0, old / params.repetition_penalty, old * params.repetition_penalty
        )
    output = seq.token_ids[seq.num_prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        ids, counts = torch.tensor(list(Counter(output).items()), device=scores.device).T
        scores[ids] -= params.presence_penalty + params.frequency_penalty * counts.to(scores)
    if seq.num_completion_tokens < params.min_tokens and len(seq.stop_token_ids) < len(scores):
        scores[sorted(seq.stop_token_ids)] = -torch.inf
    return scores


def _probabilities(scores: Tensor, seqs: list[Sequence], rows: list[int]) -> Iterator[Tensor]:
    """The probabilities of each of these rows at its request's temperature, on the CPU."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[start : start + ROWS_AT_ONCE]
        chosen = scores[torch.tensor(some, device=scores.device)]
        temperatures = [[seqs[row].sampling_params.temperature] for row in some]
        divisors = torch.tensor(temperatures, dtype=torch.float64, device=scores.device)
        # Shifted before it is divided, so that a tiny temperature cannot overflow: the greatest stays 0.
        shifted = (chosen - chosen.amax(dim=-1, keepdim=True)).double()
        yield from torch.softmax(shifted / divisors, dim=-1).cpu()


def _draw(probs: Tensor, seq: Sequence) -> int:
    """Draw a token after min_p, top_k and top_p, in this order."""
    params = seq.sampling_params
    probs, order = probs.sort(descending=True, stable=True)
    if params.min_p > 0:
        probs[probs < params.min_p * probs[0]] = 0
    if 0 < params.top_k < len(probs):
        probs[params.top_k :] = 0
    if params.top_p < 1:
        # A token stays if those before it do not yet reach top_p of what is left; the likeliest always stays.
        share = probs / probs.sum()
        probs[1:][(share.cumsum(0) - share)[1:] >= params.top_p] = 0
    # The exponential race: the smallest noise / probability wins with the right odds.
    noise = torch.empty_like(probs).exponential_(generator=_generator(seq.seed, len(seq)))
    return int(order[(probs / noise).argmax()])


def _generator(seed: int, position: int) -> torch.Generator:
    """Random numbers for one position of one request: torch reads 32 bits of a seed, so all bits are hashed."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
