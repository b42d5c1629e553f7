"""What this machine has for the engine: versions, devices, and which kernels would run."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from . import __version__
from .plain_run import ENGINE_HELP, set_threads

PACKAGES = ("torch", "transformers", "safetensors", "textual", "triton", "flash-attn")


def examine() -> tuple[list[str], bool]:
    """The lines that `tourvllm doctor` prints, and whether the engine can run here."""
    lines = [
        _line("tourvllm", __version__),
        _line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *(_line(name, _version(name)) for name in PACKAGES),
        _line("cores", str(os.cpu_count())),
    ]
    if find_spec("torch") is None or find_spec("transformers") is None:
        return [*lines, _line("engine", ENGINE_HELP)], False
    return lines + _engine_lines(), True


def _engine_lines() -> list[str]:
    set_threads(os.environ)
    import torch

    from .kernels import get_backend

    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = get_backend("auto", device)
    lines = [_line("threads", f"{torch.get_num_threads()} (a core is left to the terminal app)")]
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        lines.append(_line("device", f"cuda: {card.name}, {card.total_memory / 2**30:.0f} GiB"))
        lines.append(_line("dtype", "the checkpoint's own"))
    else:
        lines.append(_line("device", "cpu (torch finds no CUDA device)"))
        lines.append(_line("dtype", "float32 (choose another with --dtype)"))
    lines.append(_line("attention", f"{backend.name}, because {backend.reason}"))
    lines.append(_line("blocks", "any block size from 1"))
    return lines


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _line(name: str, text: str) -> str:
    return f"{name:<13} {text}"
