"""Paged KV write and paged attention: one file a backend, one pair of functions each.

Every backend has the same two functions, `store_kvcache` and `paged_attention`, over a `PagedBatch`, and
answers the same tests (tests/test_kernels.py).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

BACKENDS = {
    "torch": ".torch_paged",
    "cpu": ".cpu_paged",
    "triton": ".triton_paged",
    "flash": ".flash_paged",
}
"""Backend name -> its module, imported only when it is chosen."""

BLOCK_SIZES = {name: "any block size from 1" for name in BACKENDS} | {
    "flash": "block sizes that are multiples of 256"
}
"""Backend name -> the block sizes that it takes. What an installed flash-attn takes is tried out."""

NO_TRITON = "triton is not installed (pip install 'tourvllm[cuda]' brings it)"


@dataclass(frozen=True)
class Backend:
    """A named pair of kernels, and why it is this one.

    capturable: whether a CUDA graph can hold a decode with them: they never wait for the device.
    """

    name: str
    reason: str
    store_kvcache: Callable[..., None]
    paged_attention: Callable[..., Any]
    capturable: bool = False


def get_backend(
    name: str, device: str, block_size: int = 16, dtype: str = "float32", head_dim: int = 64
) -> Backend:
    """The backend called `name` for a device, KV blocks of `block_size` tokens and a dtype.

    `auto` takes the fastest that can run there. Raises ValueError, with the way out, for an unknown name or one
    that cannot run there.
    """
    reason = "it was asked for"
    if name == "auto":
        name, reason = _fastest(device, block_size, dtype, head_dim)
    if name not in BACKENDS:
        raise ValueError(
            f"there is no attention backend {name!r}; there are auto, {', '.join(BACKENDS)}"
        )
    if name == "flash":
        return _flash(reason, device, block_size, dtype, head_dim)
    if name == "cpu" and device != "cpu":
        raise ValueError(
            f"the backend cpu runs on the cpu, not on {device}: take auto, torch or triton"
        )
    if name == "triton":
        _check_triton(device, dtype)
    module = import_module(BACKENDS[name], __package__)
    return Backend(
        name, reason, module.store_kvcache, module.paged_attention, capturable=name == "triton"
    )


def _fastest(device: str, block_size: int, dtype: str, head_dim: int) -> tuple[str, str]:
    if device == "cpu":
        return "cpu", "the device is a CPU"
    if not device.startswith("cuda"):
        return "torch", f"it is the one that runs on {device}"
    if find_spec("flash_attn") is None:
        no_flash = ""
    else:
        problem = _problem_of_flash_attn(device, block_size, dtype, head_dim)
        if problem is None:
            return "flash", "flash-attn is installed"
        no_flash = f"; flash is not taken: {problem}"
    if dtype == "float64":
        return "torch", "triton's kernels compute in float32, and float64 was asked for"
    if find_spec("triton") is None:
        return "torch", NO_TRITON + no_flash
    return "triton", "the device is a GPU and triton is installed" + no_flash


def _problem_of_flash_attn(device: str, block_size: int, dtype: str, head_dim: int) -> str | None:
    from .flash_paged import problem_of

    return problem_of("flash-attn", device, block_size, dtype, head_dim)


def _flash(reason: str, device: str, block_size: int, dtype: str, head_dim: int) -> Backend:
    from .flash_paged import choose, store

    attention, what = choose(device, block_size, dtype, head_dim)
    store_kvcache, capturable = store()
    return Backend("flash", f"{reason}; {what}", store_kvcache, attention, capturable)


def _check_triton(device: str, dtype: str) -> None:
    if find_spec("triton") is None:
        raise ValueError("triton is not installed: pip install 'tourvllm[cuda]', or take auto")
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "triton needs a GPU, or its interpreter: set TRITON_INTERPRET=1, or take auto"
        )
    if dtype == "float64":
        raise ValueError("triton's kernels compute in float32, not in float64: take auto or torch")
