"""Paged KV write and paged attention: one file a backend, one pair of functions each.

Every backend has the same two functions, `store_kvcache` and `paged_attention`, and answers the same tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

BACKENDS = {"torch": ".torch_paged"}
"""Backend name -> its module, imported only when it is chosen."""


@dataclass(frozen=True)
class Backend:
    """A named pair of kernels."""

    name: str
    store_kvcache: Callable[..., None]
    paged_attention: Callable[..., Any]


def get_backend(name: str = "torch") -> Backend:
    """The backend called `name`. Raises ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"there is no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    module = import_module(BACKENDS[name], __package__)
    return Backend(name, module.store_kvcache, module.paged_attention)
