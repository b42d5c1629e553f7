"""The kernels in C++ over PyTorch's tensors, float32 and bfloat16: decode attention, matrices, small operations.

Where they cannot be had (cpp_build.py), do not fit, or a model is so small that they gain nothing, the `can_`
functions say no, and their callers let PyTorch do it.
"""

from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from . import cpp_build
from .paged_batch import PagedBatch

WORTH_BUILDING = 512
"""Numbers of a token, in all heads together, from which on a model is large enough to gain by it."""

_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_ARGUMENTS: dict[str, list[Any]] = {
    "decode": [c_void_p] * 6 + [c_int64] * 6 + [c_float, c_int],
    "rms_norm": [c_void_p] * 3 + [c_int64] * 2 + [c_float],
    "silu_and_mul": [c_void_p] * 2 + [c_int64] * 2,
    "rotate": [c_void_p] * 4 + [c_int64] * 4,
    "linear": [c_void_p] * 4 + [c_int64] * 3 + [c_int],
}


@cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(cpp_build.load().library, f"{name}_{_SUFFIXES[dtype]}")
    function.argtypes = _ARGUMENTS[name]
    return function


def can_operate(x: Tensor, step: int = 16) -> bool:
    """Whether the small operations can and should work on x, [num_tokens, ...], `step` numbers at a time."""
    return (
        x.device.type == "cpu"
        and x.dtype in _SUFFIXES
        and x.shape[-1] % step == 0
        and x.shape[1:].numel() >= WORTH_BUILDING
        and cpp_build.load().library is not None
    )


def can_decode(query: Tensor, k_cache: Tensor) -> bool:
    """Whether `decode` can and should do this."""
    return query.dtype == k_cache.dtype and k_cache.is_contiguous() and can_operate(query)


def can_multiply() -> bool:
    """Whether `linear` is there: the processor multiplies bf16, and there was a compiler."""
    library = cpp_build.load().library
    return library is not None and bool(library.linear_works())


def decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Attention of one new token a sequence. Shapes as in torch_paged."""
    query = query.contiguous()
    output = torch.empty_like(query)
    tables, num_kv_heads = batch.block_tables, k_cache.shape[2]
    _function("decode", query.dtype)(
        query.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), output.data_ptr(), tables.data_ptr(),
        batch.context_lens.data_ptr(), query.shape[0], tables.stride(0), num_kv_heads,
        query.shape[1] // num_kv_heads, query.shape[2], k_cache.shape[1], scale, torch.get_num_threads(),
    )  # fmt: skip
    return output


def pack(weight: Tensor) -> Tensor:
    """A bf16 matrix [out, in], out a multiple of 16 and in of 2, as `linear` reads it."""
    num_out, num_in = weight.shape
    return weight.view(num_out // 16, 16, num_in // 2, 2).permute(0, 2, 1, 3).contiguous()


def linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, x and bias in bf16."""
    x = x.contiguous()
    num_in, num_out = x.shape[-1], packed.shape[0] * 16
    out = x.new_empty(*x.shape[:-1], num_out)
    _function("linear", x.dtype)(
        x.data_ptr(), packed.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
        x.numel() // num_in, num_in, num_out, torch.get_num_threads(),
    )  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square, times weight, along the last dimension."""
    x, dim = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    _function("rms_norm", x.dtype)(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // dim, dim, eps
    )
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [num_tokens, 2 * size], gate first."""
    rows, dim = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, dim)
    _function("silu_and_mul", gate_up.dtype)(gate_up.data_ptr(), out.data_ptr(), rows, dim)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x, [num_tokens, num_heads, head_dim], by angles [num_tokens, 1, head_dim // 2]."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        x = x.contiguous()
    out = x.new_empty(x.shape)
    _function("rotate", x.dtype)(
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1],
        x.shape[2] // 2, x.stride(0),
    )  # fmt: skip
    return out
