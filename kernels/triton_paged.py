"""Triton kernels over the paged cache: they look the page up for each key, so any block size works.

- `store_kvcache`: one program a token.
- `paged_attention`, prompts: one program a tile of query rows and KV head, with the causal mask and any cached
  prefix. The query heads that share a KV head are rows of the same tile.
- `paged_attention`, decodes: split-KV (as Flash-Decoding, Dao et al. 2023): the keys of one sequence are shared
  out to several programs, and a second kernel combines their partial results. Without it a small batch would keep
  only a few of a GPU's processors busy.

All softmax arithmetic is in float32, online (Milakov and Gimelshein 2018). Without a GPU the kernels run in
Triton's interpreter, if TRITON_INTERPRET=1 was set before triton was imported.
"""

import os
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .paged_batch import PagedBatch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MIN_KEYS_A_SPLIT = 256
MAX_SPLITS = 32


@triton.jit
def _store_kernel(
    key, value, k_cache, v_cache, slots, key_stride, value_stride, size, SIZE: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        offsets = tl.arange(0, SIZE)
        inside = offsets < size
        k = tl.load(key + token * key_stride + offsets, mask=inside)
        v = tl.load(value + token * value_stride + offsets, mask=inside)
        tl.store(k_cache + slot * size + offsets, k, mask=inside)
        tl.store(v_cache + slot * size + offsets, v, mask=inside)


@triton.jit
def _attend(
    q, k_cache, v_cache, table, head, first_key, last_key, row_positions, block_size, num_heads, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, head_dim, UPCAST: tl.constexpr,
):  # fmt: skip
    """Online softmax of `q` [ROWS, DIM] over keys first_key..last_key - 1 of the sequence with this table."""
    dims = tl.arange(0, DIM)
    in_head = dims < head_dim
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(first_key, last_key, KEYS):
        positions = start + tl.arange(0, KEYS)
        there = positions < last_key
        pages = tl.load(table + positions // block_size, mask=there, other=0).to(tl.int64)
        slots = pages * block_size + positions % block_size
        where = (slots * num_heads + head)[:, None] * head_dim + dims[None, :]
        mask = there[:, None] & in_head[None, :]
        k = tl.load(k_cache + where, mask=mask, other=0.0)
        v = tl.load(v_cache + where, mask=mask, other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = there[None, :] & (positions[None, :] <= row_positions[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf: subtracting it from itself would be NaN.
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(best - safe)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = new_best
    return out, best, total


@triton.jit
def _prefill_kernel(
    query, k_cache, v_cache, output, starts, lens, tables, query_stride, table_stride, block_size, num_heads,
    num_kv_heads, head_dim, scale, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """One tile of ROWS // GROUP query tokens of one sequence, for the GROUP query heads of one KV head."""
    tile, kv_head, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, end, context = tl.load(starts + seq), tl.load(starts + seq + 1), tl.load(lens + seq)
    tokens: tl.constexpr = ROWS // GROUP
    if tile * tokens < end - start:
        rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
        token = tile * tokens + rows // GROUP
        valid = (token < end - start) & (rows < tokens * GROUP)
        heads = kv_head * GROUP + rows % GROUP
        token_row = (start + token).to(tl.int64)
        in_head = heads[:, None] * head_dim + dims[None, :]
        mask = valid[:, None] & (dims < head_dim)[None, :]
        q = tl.load(query + token_row[:, None] * query_stride + in_head, mask=mask, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        positions = context - (end - start) + token
        last_key = tl.minimum(context, context - (end - start) + (tile + 1) * tokens)
        out, _, total = _attend(
            q, k_cache, v_cache, tables + seq * table_stride, kv_head, 0, last_key, positions, block_size,
            num_kv_heads, scale, ROWS, KEYS, DIM, head_dim, UPCAST,
        )  # fmt: skip
        out = out / tl.where(total == 0.0, 1.0, total)[:, None]
        where = token_row[:, None] * num_heads * head_dim + in_head
        tl.store(output + where, out.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _decode_kernel(
    query, k_cache, v_cache, partial, stats, lens, tables, query_stride, table_stride, block_size, num_heads,
    num_kv_heads, head_dim, scale, num_splits, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One split of one sequence's keys, for the GROUP query heads of one KV head. No key: out and total are 0."""
    split, kv_head, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(lens + seq)
    share = tl.cdiv(tl.cdiv(context, num_splits), KEYS) * KEYS
    first_key = split * share
    last_key = tl.minimum(context, first_key + share)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    heads = kv_head * GROUP + rows
    mask = (rows < GROUP)[:, None] & (dims < head_dim)[None, :]
    in_head = heads[:, None] * head_dim + dims[None, :]
    q = tl.load(query + seq.to(tl.int64) * query_stride + in_head, mask=mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    positions = tl.zeros([ROWS], tl.int32) + context - 1
    out, best, total = _attend(
        q, k_cache, v_cache, tables + seq * table_stride, kv_head, first_key, last_key, positions, block_size,
        num_kv_heads, scale, ROWS, KEYS, DIM, head_dim, UPCAST,
    )  # fmt: skip
    row = (seq.to(tl.int64) * num_heads + heads) * num_splits + split
    tl.store(partial + row[:, None] * head_dim + dims[None, :], out, mask=mask)
    tl.store(stats + row * 2, best, mask=rows < GROUP)
    tl.store(stats + row * 2 + 1, total, mask=rows < GROUP)


@triton.jit
def _combine_kernel(
    partial, stats, output, num_splits, head_dim, SPLITS: tl.constexpr, DIM: tl.constexpr
):
    """The splits of one query head, weighed by how much of the softmax each of them holds; 0 if none has a key."""
    row = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    there = splits < num_splits
    best = tl.load(stats + (row * num_splits + splits) * 2, mask=there, other=float("-inf"))
    total = tl.load(stats + (row * num_splits + splits) * 2 + 1, mask=there, other=0.0)
    most = tl.max(best, 0)
    weight = tl.exp(best - tl.where(most == float("-inf"), 0.0, most))
    mask = there[:, None] & (dims < head_dim)[None, :]
    where = (row * num_splits + splits)[:, None] * head_dim + dims[None, :]
    out = tl.load(partial + where, mask=mask, other=0.0)
    total = tl.sum(total * weight, 0)
    out = tl.sum(out * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(output + row * head_dim + dims, out.to(output.dtype.element_ty), mask=dims < head_dim)


def store_kvcache(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch
) -> None:
    """Write each token's key and value to its slot of one layer's cache; slot -1 writes nothing.

    key, value: [num_tokens, num_kv_heads, head_dim]; k_cache, v_cache: [num_blocks, block_size, num_kv_heads,
    head_dim], contiguous.
    """
    size = key.shape[1] * key.shape[2]
    key, value = _rows_in_one_piece(key), _rows_in_one_piece(value)
    _store_kernel[(key.shape[0],)](
        key, value, k_cache, v_cache, batch.slot_mapping, key.stride(0), value.stride(0), size,
        SIZE=triton.next_power_of_2(size),
    )  # fmt: skip


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Causal attention of a flat batch over the paged cache. Shapes as in torch_paged; head_dim up to 256.

    A sequence without keys (context_lens 0, the padding of a captured graph) gets zeros. Nothing here waits for
    the device, and grids depend on the batch's host numbers alone, so a graph may capture it.
    """
    query = _rows_in_one_piece(query)
    if batch.max_seqlen_q == 1:
        return _decode(query, k_cache, v_cache, batch, scale)
    output = query.new_empty(query.shape)
    num_heads, num_kv_heads, head_dim = query.shape[1], k_cache.shape[2], query.shape[2]
    group, tile = num_heads // num_kv_heads, tile_of(head_dim, query.dtype)
    # A tile holds whole tokens: its rows are a multiple of the group's power of two.
    rows = max(tile, triton.next_power_of_2(group))
    grid = (
        triton.cdiv(batch.max_seqlen_q, rows // group),
        num_kv_heads,
        batch.context_lens.shape[0],
    )
    _prefill_kernel[grid](
        query, k_cache, v_cache, output, batch.cu_seqlens_q, batch.context_lens, batch.block_tables,
        query.stride(0), batch.block_tables.stride(0), k_cache.shape[1], num_heads, num_kv_heads, head_dim, scale,
        GROUP=group, ROWS=rows, KEYS=tile, DIM=max(16, triton.next_power_of_2(head_dim)), UPCAST=INTERPRETED,
    )  # fmt: skip
    return output


def _decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads, group = k_cache.shape[2], num_heads // k_cache.shape[2]
    num_splits = num_splits_for(batch.max_seqlen_k, num_seqs * num_kv_heads, query.device)
    partial = query.new_empty((num_seqs * num_heads, num_splits, head_dim), dtype=torch.float32)
    stats = query.new_empty((num_seqs * num_heads, num_splits, 2), dtype=torch.float32)
    dim = max(16, triton.next_power_of_2(head_dim))
    _decode_kernel[(num_splits, num_kv_heads, num_seqs)](
        query, k_cache, v_cache, partial, stats, batch.context_lens, batch.block_tables, query.stride(0),
        batch.block_tables.stride(0), k_cache.shape[1], num_heads, num_kv_heads, head_dim, scale, num_splits,
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), KEYS=tile_of(head_dim, query.dtype), DIM=dim,
        UPCAST=INTERPRETED,
    )  # fmt: skip
    output = query.new_empty(query.shape)
    _combine_kernel[(num_seqs * num_heads,)](
        partial,
        stats,
        output,
        num_splits,
        head_dim,
        SPLITS=triton.next_power_of_2(num_splits),
        DIM=dim,
    )
    return output


def tile_of(head_dim: int, dtype: torch.dtype) -> int:
    """Keys that a program reads at once: few enough to stay in the shared memory of any card since Turing."""
    row_bytes = triton.next_power_of_2(head_dim) * dtype.itemsize
    return 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16


def num_splits_for(max_context: int, num_programs: int, device: torch.device) -> int:
    """How many programs share the keys of a sequence: enough to fill the device, each with enough to do."""
    by_device = max(1, 2 * _num_processors(device) // max(1, num_programs))
    by_keys = max(1, max_context // MIN_KEYS_A_SPLIT)
    return min(by_device, by_keys, MAX_SPLITS)


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors


def _rows_in_one_piece(x: Tensor) -> Tensor:
    """x itself if each token's heads lie together (a slice of a fused qkv does), else a copy."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
