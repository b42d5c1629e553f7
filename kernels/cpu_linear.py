"""Matrix products of bf16 models on a CPU, with the weights laid out for it: half of the time in a decode.

Three ways, the first that is there: our own kernel (cpu_linear.cpp), oneDNN's packed layout, PyTorch's `linear`.
oneDNN's operators are private to PyTorch (its compiler uses them), so whether they are there, and right, is tried
out once.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_native

WORTH_PACKING = 2**18
"""Elements of a matrix that pay for a call's 14 us of overhead. A tiny model's matrices are smaller."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def prepared(weight: Tensor) -> tuple[Tensor, Product]:
    """`weight`, [out, in], in the fastest layout, and x @ weight.T + bias as a function of x, that and a bias."""
    if (
        weight.device.type != "cpu"
        or weight.dtype != torch.bfloat16
        or weight.numel() < WORTH_PACKING
    ):
        return weight, F.linear
    if weight.shape[0] % 16 == 0 and weight.shape[1] % 2 == 0 and cpu_native.can_multiply():
        return cpu_native.pack(weight), cpu_native.linear
    if _onednn_works():
        return _reorder(weight), _onednn_linear
    return weight, F.linear


def _onednn_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


@cache
def _onednn_works() -> bool:
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64).bfloat16()
    x = torch.linspace(-2, 1, 3 * 64).view(3, 64).bfloat16()
    try:
        with torch.inference_mode():
            return torch.equal(_onednn_linear(x, _reorder(weight), None), F.linear(x, weight))
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
