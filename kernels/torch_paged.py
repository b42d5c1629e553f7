"""The plain backend: a paged KV cache in a few lines of PyTorch. It runs on any device and is easy to read."""

import torch
import torch.nn.functional as F
from torch import Tensor


def store_kvcache(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write each token's key and value to its slot of one layer's cache.

    key, value: [num_tokens, num_kv_heads, head_dim]; k_cache, v_cache: [num_blocks, block_size, num_kv_heads,
    head_dim]; slot_mapping: [num_tokens], where slot = block_id * block_size + offset.
    """
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: list[Tensor],
    cu_seqlens_q: list[int],
    context_lens: list[int],
    scale: float,
) -> Tensor:
    """Causal attention of a flat batch over the paged cache.

    query: [num_tokens, num_heads, head_dim], the rows of sequence i at cu_seqlens_q[i]:cu_seqlens_q[i + 1];
    they are the last positions of its context. context_lens[i]: keys that sequence i attends to, all of them
    already in the cache at the blocks of block_tables[i]. Returns the shape of `query`.
    """
    output = torch.empty_like(query)
    num_groups = query.shape[1] // k_cache.shape[2]
    for i, context_len in enumerate(context_lens):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        # The block table, followed: logical order out of physical blocks.
        keys = k_cache[block_tables[i]].flatten(0, 1)[:context_len]
        values = v_cache[block_tables[i]].flatten(0, 1)[:context_len]
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
