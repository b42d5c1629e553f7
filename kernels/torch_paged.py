"""The plain backend: a paged KV cache in a few lines of PyTorch. It runs on any device and is easy to read."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .paged_batch import PagedBatch


def store_kvcache(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch
) -> None:
    """Write each token's key and value to its slot of one layer's cache; slot -1 writes nothing.

    key, value: [num_tokens, num_kv_heads, head_dim]; k_cache, v_cache: [num_blocks, block_size, num_kv_heads,
    head_dim]; slot = block_id * block_size + offset.
    """
    slots = batch.slot_mapping
    if batch.has_padding:
        real = slots >= 0
        slots, key, value = slots[real], key[real], value[real]
    k_cache.flatten(0, 1).index_copy_(0, slots, key)
    v_cache.flatten(0, 1).index_copy_(0, slots, value)


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Causal attention of a flat batch over the paged cache. Returns the shape of `query`.

    query: [num_tokens, num_heads, head_dim], the rows of sequence i at cu_seqlens_q[i]:cu_seqlens_q[i + 1];
    they are the last positions of its context, whose keys are all in the cache already.
    """
    output = torch.empty_like(query)
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    num_groups = query.shape[1] // num_kv_heads
    starts = batch.host_cu_seqlens_q
    for i, context_len in enumerate(batch.host_context_lens):
        rows = slice(starts[i], starts[i + 1])
        # The block table, followed: logical order out of physical blocks.
        block_table = batch.block_tables[i, : -(-context_len // block_size)]
        keys = k_cache[block_table].flatten(0, 1)[:context_len]
        values = v_cache[block_table].flatten(0, 1)[:context_len]
        output[rows] = _causal_attention(query[rows], keys, values, num_groups, scale)
    return output


def _causal_attention(
    query: Tensor, keys: Tensor, values: Tensor, num_groups: int, scale: float
) -> Tensor:
    """Attention of the last len(query) positions over all keys. Each KV head serves `num_groups` query heads."""
    num_rows, context_len = query.shape[0], keys.shape[0]
    keys = keys.repeat_interleave(num_groups, dim=1).transpose(0, 1)
    values = values.repeat_interleave(num_groups, dim=1).transpose(0, 1)
    mask = None
    if num_rows > 1:
        mask = torch.ones(num_rows, context_len, dtype=torch.bool, device=query.device)
        mask = mask.tril(context_len - num_rows)
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=mask, scale=scale
    )
    return out.transpose(0, 1)
