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

BACKENDS = {"torch": ".torch_paged", "cpu": ".cpu_paged", "triton": ".triton_paged"}
"""Backend name -> its module, imported only when it is chosen."""


@dataclass(frozen=True)
class Backend:
    """A named pair of kernels, and why it is this one."""

    name: str
    reason: str
    store_kvcache: Callable[..., None]
    paged_attention: Callable[..., Any]


def get_backend(name: str, device: str) -> Backend:
    """The backend called `name` for a device; `auto` takes the fastest that can run there.

    Raises ValueError, with the way out, for an unknown name or one that cannot run on the device.
    """
    reason = "asked for"
    if name == "auto":
        name, reason = _fastest(device)
    if name not in BACKENDS:
        raise ValueError(
            f"there is no attention backend {name!r}; there are auto, {', '.join(BACKENDS)}"
        )
    if name == "cpu" and device != "cpu":
        raise ValueError(
            f"the backend cpu runs on the cpu, not on {device}: take auto, torch or triton"
        )
    if name == "triton":
        _check_triton(device)
    module = import_module(BACKENDS[name], __package__)
    return Backend(name, reason, module.store_kvcache, module.paged_attention)


def _fastest(device: str) -> tuple[str, str]:
    if device == "cpu":
        return "cpu", "the device is a CPU"
    if device.startswith("cuda"):
        if find_spec("triton") is None:
            return "torch", "triton is not installed (pip install 'tourvllm[cuda]' brings it)"
        return "triton", "the device is a GPU and triton is installed"
    return "torch", f"it is the one that runs on {device}"


def _check_triton(device: str) -> None:
    if find_spec("triton") is None:
        raise ValueError("triton is not installed: pip install 'tourvllm[cuda]', or take auto")
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "triton needs a GPU, or its interpreter: set TRITON_INTERPRET=1, or take auto"
        )
