"""Stand-ins for the functions of FlashAttention, on the CPU: the real signatures and checks, plain arithmetic."""

import inspect
import sys
from importlib import util
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from tourvllm.kernels import flash_paged


def stand_in(patch: pytest.MonkeyPatch, flash: bool = True, torch_varlen: bool = True) -> None:
    """Let flash-attn be installed (or not) and torch's varlen_attn run on the CPU (or be without paging)."""
    flash_paged._tried.cache_clear()
    module = ModuleType("flash_attn")
    module.__spec__ = ModuleSpec("flash_attn", None)
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    find_spec = util.find_spec
    if flash:
        patch.setitem(sys.modules, "flash_attn", module)
    else:
        patch.delitem(sys.modules, "flash_attn", raising=False)

        def without(name: str, package: str | None = None) -> ModuleSpec | None:
            return None if name == "flash_attn" else find_spec(name, package)

        patch.setattr("tourvllm.kernels.find_spec", without)
        patch.setattr("tourvllm.kernels.flash_paged.find_spec", without)
    patch.setattr(varlen, "varlen_attn", varlen_attn if torch_varlen else varlen_attn_without_pages)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """flash-attn 2.7 and later."""
    assert causal
    assert softmax_scale is not None
    assert cu_seqlens_k.dtype == torch.int32
    lens = cu_seqlens_k.diff()
    assert int(lens.max()) == max_seqlen_k
    return _attend(q, k, v, cu_seqlens_q, lens, max_seqlen_q, block_table, softmax_scale)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """flash-attn 2.7 and later."""
    assert k is None
    assert v is None
    assert softmax_scale is not None
    assert cache_seqlens is not None
    assert q.dim() == 4
    starts = torch.arange(len(q) + 1, dtype=torch.int32)
    out = _attend(q[:, 0], k_cache, v_cache, starts, cache_seqlens, 1, block_table, softmax_scale)
    return out.unsqueeze(1)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """torch 2.12 and later."""
    assert window_size == (-1, 0)
    assert num_splits == 1
    assert enable_gqa
    assert scale is not None
    assert seqused_k is not None
    assert cu_seq_k is not None
    assert torch.equal(cu_seq_k.diff(), seqused_k)
    return _attend(query, key, value, cu_seq_q, seqused_k, max_q, block_table, scale)


def varlen_attn_without_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> Tensor:
    """torch 2.10: no pages."""
    raise AssertionError("it was called")


def same_arguments(real: Any, stand_in: Any) -> bool:
    """Whether a function has the stand-in's arguments, in kind and order."""
    return [(p.name, p.kind) for p in inspect.signature(real).parameters.values()] == [
        (p.name, p.kind) for p in inspect.signature(stand_in).parameters.values()
    ]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lens: Tensor,
    max_q: int,
    table: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of each sequence, causal and aligned to its last key, after the checks of the real kernels."""
    assert table is not None
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert starts.dtype == lens.dtype == table.dtype == torch.int32
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == table.stride(-1) == 1
    assert len(starts) == len(lens) + 1 == len(table) + 1
    assert int(starts.diff().max()) == max_q
    if k.shape[1] % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")
    if q.shape[2] % 8:
        raise RuntimeError("head_size should be a multiple of 8")
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[2]
    for i, length in enumerate(lens.tolist()):
        own = slice(int(starts[i]), int(starts[i + 1]))
        pages = table[i].long()
        keys = k[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double()
        values = v[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double()
        scores = torch.einsum("qhd,khd->hqk", q[own].double(), keys) * scale
        last = torch.arange(own.stop - own.start) + length - (own.stop - own.start)
        scores = scores.masked_fill(torch.arange(length)[None] > last[:, None], -torch.inf)
        out[own] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
    return out
