"""The fast CPU backend: fewer and larger operations than the plain one, same results.

One new token a sequence: in C++, straight from the paged cache, where that is to be had (cpu_native.py). Else
sequences of similar length go through one padded batch; the query heads that share a KV head are rows of one
matrix, so keys are read once and never repeated. Prompts, and batches whose lengths differ much, go sequence by
sequence.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_native
from .paged_batch import PagedBatch
from .torch_paged import store_kvcache

__all__ = ["paged_attention", "store_kvcache"]

WORTH_PADDING = 0.6
"""Least share of a padded batch that must be real keys."""


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Causal attention of a flat batch over the paged cache. Arguments and result as in torch_paged."""
    if batch.max_seqlen_q == 1:
        if cpu_native.can_decode(query, k_cache):
            return cpu_native.decode(query, k_cache, v_cache, batch, scale)
        lens = batch.host_context_lens
        if sum(lens) >= WORTH_PADDING * len(lens) * batch.max_seqlen_k:
            return _padded_decode(query, k_cache, v_cache, batch, scale)
    return _by_sequence(query, k_cache, v_cache, batch, scale)


def _by_sequence(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    output = torch.empty_like(query)
    starts, lens = batch.host_cu_seqlens_q, batch.host_context_lens
    several: Sequence[int] = range(len(lens))
    if cpu_native.can_decode(query, k_cache):
        # In a mixed batch, too, those with one new token go through C++, all at once.
        single, decodes = _decodes(batch)
        several = [i for i in several if starts[i + 1] - starts[i] > 1]
        if len(single):
            output[single] = cpu_native.decode(query[single], k_cache, v_cache, decodes, scale)
    for i in several:
        rows, context_len = slice(starts[i], starts[i + 1]), lens[i]
        table = batch.block_tables[i, : -(-context_len // k_cache.shape[1])]
        keys = k_cache.index_select(0, table).flatten(0, 1)[:context_len]
        values = v_cache.index_select(0, table).flatten(0, 1)[:context_len]
        output[rows] = _one_sequence(query[rows], keys, values, scale)
    return output


def _decodes(batch: PagedBatch) -> tuple[Tensor, PagedBatch]:
    """The rows of the sequences with one new token, and their batch. The same for all layers."""
    if batch.decodes is None:
        starts = batch.host_cu_seqlens_q
        single = [i for i, (a, b) in enumerate(pairwise(starts)) if b - a == 1]
        rows = torch.tensor([starts[i] for i in single], dtype=torch.int64)
        lens, tables = batch.context_lens[single], batch.block_tables[single]
        batch.decodes = rows, replace(batch, context_lens=lens, block_tables=tables)
    return batch.decodes


def _padded_decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """One query row a sequence, all sequences at once."""
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    table = batch.block_tables.flatten()
    length = batch.block_tables.shape[1] * block_size
    shape = (num_seqs, length, num_kv_heads, head_dim)
    keys = _gather(k_cache, table, "keys").view(shape)
    values = _gather(v_cache, table, "values").view(shape)
    used, unused_rows = _padding(batch, length)
    # Slots that were never written hold anything, and 0 * NaN is NaN.
    keys.flatten(0, 1).index_fill_(0, unused_rows, 0)
    values.flatten(0, 1).index_fill_(0, unused_rows, 0)
    rows = query.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(
        rows,
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=used,
        scale=scale,
    )
    return out.reshape(num_seqs, num_heads, head_dim)


def _padding(batch: PagedBatch, length: int) -> tuple[Tensor, Tensor]:
    """Which of `length` gathered slots each sequence uses, and the rows of the others. The same for all layers."""
    if batch.padding is None:
        used = torch.arange(length)[None, :] < batch.context_lens[:, None]
        batch.padding = used[:, None, None, :], (~used).flatten().nonzero().flatten()
    return batch.padding


_scratch = threading.local()
"""Memory for gathered blocks, kept between calls: fresh pages of this size cost more than the gathering."""


def _gather(cache: Tensor, table: Tensor, use: str) -> Tensor:
    """The blocks of `table`, [len(table), ...], in memory that the next call for the same use takes again."""
    size = len(table) * cache[0].numel()
    memory: Tensor | None = getattr(_scratch, use, None)
    if memory is None or memory.dtype != cache.dtype or memory.numel() < size:
        memory = torch.empty(size + size // 4, dtype=cache.dtype)
        setattr(_scratch, use, memory)
    out = memory[:size].view(len(table), *cache.shape[1:])
    return torch.index_select(cache, 0, table, out=out)


def _one_sequence(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The last len(query) positions of one sequence over all its keys."""
    num_rows, num_heads, head_dim = query.shape
    context_len, num_kv_heads = keys.shape[0], keys.shape[1]
    if num_rows == 1:
        rows = query.view(num_kv_heads, -1, head_dim)
        out = F.scaled_dot_product_attention(
            rows, keys.transpose(0, 1), values.transpose(0, 1), scale=scale
        )
        return out.reshape(1, num_heads, head_dim)
    mask = None
    if num_rows < context_len:
        mask = torch.ones(num_rows, context_len, dtype=torch.bool).tril(context_len - num_rows)
    # With a batch dimension PyTorch takes its flash kernel, without one the slow one.
    rows, keys, values = (x.transpose(0, 1)[None] for x in (query, keys, values))
    out = F.scaled_dot_product_attention(
        rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)
