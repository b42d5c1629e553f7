"""Decode attention in C++ (cpu_native.cpp), built once for this machine with the compiler that is here.

Nothing depends on it: without a compiler, or if the build fails, `library` is None, `reason` says why,
and PyTorch does the work.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs
import torch
from torch import Tensor

from .paged_batch import PagedBatch

SOURCE = Path(__file__).with_suffix(".cpp")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC")
# The best first: clang without OpenMP's library, and compilers that do not know this processor, go without.
OPTIONS = (("-march=native", "-fopenmp"), ("-march=native",), ())
BUILD_SECONDS = 60
WORTH_BUILDING = 512
"""Width of all query heads together from which on a model is large enough to gain by it."""


@dataclass(frozen=True)
class Native:
    """The library, or None, and the reason in words."""

    library: ctypes.CDLL | None
    reason: str


def supports(query: Tensor, k_cache: Tensor) -> bool:
    """Whether these kernels can and should do this: the dtype, the head's size, and the model's."""
    return (
        query.dtype in _SYMBOLS
        and query.dtype == k_cache.dtype
        and query.shape[2] % 16 == 0
        and query.shape[1] * query.shape[2] >= WORTH_BUILDING
        and k_cache.is_contiguous()
    )


def decode(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PagedBatch, scale: float
) -> Tensor:
    """Attention of one new token a sequence. Shapes as in torch_paged; only where `load` has a library."""
    query = query.contiguous()
    output = torch.empty_like(query)
    tables, num_kv_heads = batch.block_tables, k_cache.shape[2]
    function = getattr(load().library, _SYMBOLS[query.dtype])
    function(
        query.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), output.data_ptr(), tables.data_ptr(),
        batch.context_lens.data_ptr(), query.shape[0], tables.stride(0), num_kv_heads,
        query.shape[1] // num_kv_heads, query.shape[2], k_cache.shape[1], scale, torch.get_num_threads(),
    )  # fmt: skip
    return output


@cache
def load() -> Native:
    """The library, built first if it has not been: some two seconds, once for each version and machine."""
    if os.environ.get("TOURVLLM_NATIVE") == "0":
        return Native(None, "TOURVLLM_NATIVE=0 turns the C++ kernel off")
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return Native(None, f"no C++ compiler was found ({', '.join(COMPILERS)})")
    try:
        library = ctypes.CDLL(str(_built(compiler)))
        for name in _SYMBOLS.values():
            getattr(library, name).argtypes = _ARGUMENTS
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        return Native(None, f"the C++ kernel could not be built: {error}")
    return Native(library, f"decode attention in C++, built with {Path(compiler).name}")


_SYMBOLS = {torch.float32: "decode_float32", torch.bfloat16: "decode_bfloat16"}
_ARGUMENTS = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 6 + [ctypes.c_float, ctypes.c_int]


def _built(compiler: str) -> Path:
    """The library's file in the user's cache folder. Its name holds all that it depends on."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source)
    for part in (compiler, _processor(), FLAGS, OPTIONS):
        key.update(repr(part).encode())
    folder = platformdirs.user_cache_path("tourvllm") / "kernels"
    path = folder / f"cpu_native-{key.hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _build(compiler, path)
    return path


def _build(compiler: str, path: Path) -> None:
    """Compile into a file beside `path` and move it there: two processes may build at once."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for options in OPTIONS:
            command = [compiler, *FLAGS, *options, str(SOURCE), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
            if done.returncode == 0:
                made.replace(path)
                return
    lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
    raise OSError(f"{Path(compiler).name}: {lines[0]}")


def _processor() -> str:
    """What code for this processor depends on: its instruction sets, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.machine()
