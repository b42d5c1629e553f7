"""Matrices in oneDNN's own layout, for bf16 models on a CPU: the same results, a third to half of the time.

The operators are private to PyTorch (its compiler uses them), so whether they are there, and right, is tried out
once; where they are not, the plain ones do the work.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

WORTH_PACKING = 2**18
"""Elements of a matrix that pay for a call's 14 us of overhead. A tiny model's matrices are smaller."""


def pack(weight: Tensor) -> Tensor | None:
    """`weight`, [out, in], in the layout for `packed_linear`; None where it cannot be had or pays nothing."""
    if (
        weight.device.type != "cpu"
        or weight.dtype != torch.bfloat16
        or weight.numel() < WORTH_PACKING
    ):
        return None
    return _reorder(weight) if _works() else None


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias with a packed weight."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


@cache
def _works() -> bool:
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64).bfloat16()
    x = torch.linspace(-2, 1, 3 * 64).view(3, 64).bfloat16()
    try:
        with torch.inference_mode():
            return torch.equal(packed_linear(x, _reorder(weight), None), F.linear(x, weight))
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
