"""FlashAttention over the paged cache: the flash-attn package, or the copy of it that PyTorch carries.

Both are FlashAttention 2 (Dao 2023): float16 and bfloat16 on a CUDA device, block sizes that are multiples of 256,
and a causal mask that is aligned to the last key, as a prompt behind a cached prefix needs. What an installed one
really takes is tried out with a tiny call before it is chosen.

- `with_flash_attn`: prompts go through `flash_attn_varlen_func`, decodes through `flash_attn_with_kvcache`.
- `with_torch_varlen`: everything goes through `torch.nn.attention.varlen.varlen_attn`, with num_splits=1: where it
  splits the keys of a paged cache, it leaves rows unwritten (pytorch issue 194167).
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .paged_batch import PagedBatch

DTYPES = ("float16", "bfloat16")
PAGED_ARGUMENTS = {"seqused_k", "block_table", "num_splits", "enable_gqa"}

Attention = Callable[..., Tensor]


def with_flash_attn(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Causal attention of a flat batch with the flash-attn package. Arguments and result as in torch_paged."""
    flash = import_module("flash_attn")
    settings: dict[str, Any] = {
        "softmax_scale": scale,
        "causal": True,
        "block_table": batch.block_tables,
    }
    if batch.max_seqlen_q == 1:
        lens = batch.context_lens
        out: Tensor = flash.flash_attn_with_kvcache(
            query.unsqueeze(1), k_cache, v_cache, cache_seqlens=lens, **settings
        )
        return out.squeeze(1)
    out = flash.flash_attn_varlen_func(
        query,
        k_cache,
        v_cache,
        cu_seqlens_q=batch.cu_seqlens_q,
        cu_seqlens_k=_starts_of_keys(batch),
        max_seqlen_q=batch.max_seqlen_q,
        max_seqlen_k=batch.max_seqlen_k,
        **settings,
    )
    return out


def with_torch_varlen(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """The same with the kernel that PyTorch carries (2.12 and later)."""
    out: Tensor = _torch_varlen().varlen_attn(
        query,
        k_cache,
        v_cache,
        batch.cu_seqlens_q,
        _starts_of_keys(batch),
        batch.max_seqlen_q,
        batch.max_seqlen_k,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=True,
        seqused_k=batch.context_lens,
        block_table=batch.block_tables,
        num_splits=1,
    )
    return out


def _starts_of_keys(batch: PagedBatch) -> Tensor:
    """[num_seqs + 1], int32: where each sequence's keys would begin in one flat row."""
    ends = batch.context_lens.cumsum(0, dtype=torch.int32)
    return torch.cat((ends.new_zeros(1), ends))


LIBRARIES: dict[str, Attention] = {
    "flash-attn": with_flash_attn,
    "torch's varlen_attn": with_torch_varlen,
}
"""In the order in which they are preferred."""


def store() -> tuple[Callable[..., None], bool]:
    """The kernel that writes keys and values, and whether a CUDA graph may hold it: Triton's if it is there."""
    name = ".triton_paged" if find_spec("triton") else ".torch_paged"
    write: Callable[..., None] = import_module(name, __package__).store_kvcache
    return write, name == ".triton_paged"


def choose(device: str, block_size: int, dtype: str, head_dim: int) -> tuple[Attention, str]:
    """The first library that works here, and what to say about it. Raises ValueError if none does."""
    problems: list[str] = []
    for library, attention in LIBRARIES.items():
        problem = problem_of(library, device, block_size, dtype, head_dim)
        if problem is None:
            return attention, "; ".join(
                [f"{named(library)} takes blocks of {block_size}", *problems]
            )
        problems.append(problem)
    told = "; ".join(dict.fromkeys(problems))
    raise ValueError(f"flash cannot run here: {told}. {_way_out(device, block_size, dtype)}")


def _way_out(device: str, block_size: int, dtype: str) -> str:
    if not device.startswith("cuda"):
        return "Take auto"
    ways = [f"dtype {DTYPES[1]}"] if dtype not in DTYPES else []
    ways += ["block_size 256"] if block_size % 256 else []
    return f"Set {' and '.join(ways)}, or take auto or triton" if ways else "Take auto or triton"


def problem_of(library: str, device: str, block_size: int, dtype: str, head_dim: int) -> str | None:
    """Why `library` cannot attend over blocks of this size, or None if it can."""
    if not device.startswith("cuda"):
        return f"it runs on a CUDA device, not on {device}"
    if dtype not in DTYPES:
        return f"it computes in {' or '.join(DTYPES)}, not in {dtype}"
    return missing(library) or _tried(library, device, block_size, dtype, head_dim)


def missing(library: str) -> str | None:
    """Why `library` cannot be imported, or None if it can."""
    try:
        if library == "flash-attn":
            return _missing_flash_attn()
        found = inspect.signature(_torch_varlen().varlen_attn).parameters
    except (ImportError, AttributeError, OSError) as error:
        return f"{library} cannot be imported ({_first_line(error)})"
    if PAGED_ARGUMENTS - set(found):
        return f"torch {torch.__version__} has no paged varlen_attn, torch 2.12 has"
    return None


def _missing_flash_attn() -> str | None:
    if find_spec("flash_attn") is None:
        return "flash-attn is not installed (pip install 'tourvllm[flash]' brings it)"
    flash = import_module("flash_attn")
    return _lacks(flash, "flash_attn_varlen_func") or _lacks(flash, "flash_attn_with_kvcache")


def _lacks(module: Any, function: str) -> str | None:
    return None if hasattr(module, function) else f"the installed flash-attn has no {function}"


def named(library: str) -> str:
    """`library` with its version."""
    if library != "flash-attn":
        return f"{library} (torch {torch.__version__})"
    try:
        return f"{library} {version('flash-attn')}"
    except PackageNotFoundError:
        return library


@cache
def _tried(library: str, device: str, block_size: int, dtype: str, head_dim: int) -> str | None:
    """What is wrong with a tiny decode and a tiny prompt: over values of 1, attention gives 1."""
    kind: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": device}
    cache_of_ones = torch.ones(3, block_size, 1, head_dim, **kind)
    tables, lens = [[2, 0], [1, 0]], [block_size + 1, 1]
    try:
        for starts in ([0, 1, 2], [0, 2, 3]):
            batch = PagedBatch.from_lists([-1] * starts[-1], starts, lens, tables, device)
            query = torch.ones(starts[-1], 2, head_dim, **kind)
            out = LIBRARIES[library](query, cache_of_ones, cache_of_ones, batch, 1.0)
            if not torch.allclose(out, torch.ones_like(out), atol=1e-2):
                return f"{named(library)} gives wrong results with blocks of {block_size}"
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        return (
            f"{named(library)} does not take blocks of {block_size} in {dtype} with a head_dim of "
            f"{head_dim} ({_first_line(error)})"
        )
    return None


def _torch_varlen() -> Any:
    return import_module("torch.nn.attention.varlen")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
