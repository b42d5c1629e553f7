"""The small operations between the matrices: in C++ where that is to be had, else by PyTorch, same results."""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_native

WORTH_IT = 4 * cpu_native.WORTH_BUILDING
"""Numbers of gate and up together from which on a model is no tiny one: these layers are wider than the others."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019), in float32 or wider whatever the weights' dtype."""
    if cpu_native.can_operate(x):
        return cpu_native.rms_norm(x, weight, eps)
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, (x.shape[-1],), eps=eps).to(x.dtype) * weight


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (SwiGLU, Shazeer 2020) of [num_tokens, 2 * size], gate first."""
    if gate_up.shape[1] >= WORTH_IT and cpu_native.can_operate(gate_up, 32):
        return cpu_native.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x, [num_tokens, num_heads, head_dim], by each token's angles: one half of a head against the other.

    cos, sin: [num_tokens, 1, head_dim // 2].
    """
    if cpu_native.can_operate(x, 32):
        return cpu_native.rotate(x, cos, sin)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
