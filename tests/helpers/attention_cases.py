"""Batches over a paged cache full of NaN, and what attention must give for them, in float64."""

import random

import torch
from tourvllm.kernels.paged_batch import PagedBatch


def make_case(block_size, num_heads, num_kv_heads, head_dim, sequences, dtype, device, seed=0):
    """A cache full of NaN but for the keys in use, in shuffled blocks; the batch; and the answer in float64."""
    torch.manual_seed(seed)
    lens = [new + cached for new, cached in sequences]
    needs = [-(-length // block_size) for length in lens]
    free = list(range(sum(needs) + 3))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needs]
    shape = (sum(needs) + 3, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    queries, keys, values, slots, expected = [], [], [], [], []
    starts = [0]
    for (new, cached), table, length in zip(sequences, tables, lens, strict=True):
        q = torch.randn(new, num_heads, head_dim).to(dtype)
        k, v = torch.randn(2, length, num_kv_heads, head_dim).to(dtype)
        where = [table[p // block_size] * block_size + p % block_size for p in range(length)]
        k_cache.flatten(0, 1)[where[:cached]] = k[:cached].float()
        v_cache.flatten(0, 1)[where[:cached]] = v[:cached].float()
        queries.append(q)
        keys.append(k[cached:])
        values.append(v[cached:])
        slots += where[cached:]
        starts.append(starts[-1] + new)
        expected.append(attention_in_float64(q, k, v))
    batch = PagedBatch.from_lists(slots, starts, lens, tables, device)
    caches = k_cache.to(device, dtype), v_cache.to(device, dtype)
    rows = [torch.cat(parts).to(device) for parts in (queries, keys, values)]
    return rows, caches, batch, torch.cat(expected)


def attention_in_float64(q, k, v):
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    positions = torch.arange(len(k))
    scores = scores.masked_fill(positions[None] > positions[-len(q) :, None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
