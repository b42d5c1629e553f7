"""Builds the kernels in C++, once for each version and machine, with the compiler that is there.

Nothing depends on them: without a compiler, or if the build fails, there is a reason in words and PyTorch does the
work.
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

FOLDER = Path(__file__).parent
SOURCES = ("cpu_attention.cpp", "cpu_linear.cpp", "cpu_ops.cpp")
HEADERS = ("cpu_vector.h",)
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC")
# The best first: clang without OpenMP's library, and compilers that do not know this processor, go without.
OPTIONS = (("-march=native", "-fopenmp"), ("-march=native",), ())
BUILD_SECONDS = 60


@dataclass(frozen=True)
class Built:
    """The library, or None, and the reason in words."""

    library: ctypes.CDLL | None
    reason: str


@cache
def load() -> Built:
    """The library, built first if it has not been: some three seconds. With TOURVLLM_NATIVE=0 there is none."""
    if os.environ.get("TOURVLLM_NATIVE") == "0":
        return Built(None, "TOURVLLM_NATIVE=0 turns the C++ kernels off")
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return Built(None, f"no C++ compiler was found ({', '.join(COMPILERS)})")
    try:
        library = ctypes.CDLL(str(_built(compiler)))
        what = "decodes and bf16 matrices" if library.linear_works() else "decodes"
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        return Built(None, f"the C++ kernels could not be built: {error}")
    return Built(library, f"{what} in C++, built with {Path(compiler).name}")


def _built(compiler: str) -> Path:
    """The library's file in the user's cache folder. Its name holds all that it depends on."""
    texts = b"".join((FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS))
    key = hashlib.sha256(texts)
    for part in (compiler, _processor(), FLAGS, OPTIONS):
        key.update(repr(part).encode())
    folder = platformdirs.user_cache_path("tourvllm") / "kernels"
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if not _is_whole(path):
        folder.mkdir(parents=True, exist_ok=True)
        _build(compiler, path)
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file is the one that was built: loading a damaged one would end the process."""
    try:
        return path.with_suffix(".sha256").read_text() == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(compiler: str, path: Path) -> None:
    """Compile into a file beside `path` and move it there: two processes may build at once."""
    sources = [str(FOLDER / name) for name in SOURCES]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for options in OPTIONS:
            command = [compiler, *FLAGS, *options, *sources, "-o", str(made)]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=BUILD_SECONDS
            )
            if done.returncode == 0:
                made.with_suffix(".sha256").write_text(_digest(made))
                ctypes.CDLL(str(made))  # what cannot be loaded is not kept
                made.replace(path)
                made.with_suffix(".sha256").replace(path.with_suffix(".sha256"))
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
