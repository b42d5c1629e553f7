"""What this machine has for the engine: versions, devices, and which kernels would run."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from . import __version__
from .engine.config import EngineConfig
from .plain_run import ENGINE_HELP, set_threads

PACKAGES = ("torch", "transformers", "safetensors", "textual", "triton", "flash-attn")
COMMON_BLOCK_SIZE = 256


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

    device = "cuda" if torch.cuda.is_available() else "cpu"
    card = torch.cuda.get_device_properties(0) if device == "cuda" else None
    dtype = "float32" if card is None else "bfloat16"
    lines = [_line("threads", f"{torch.get_num_threads()} (a core is left to the terminal app)")]
    if card is None:
        lines.append(_line("device", "cpu (torch finds no CUDA device)"))
        lines.append(_line("dtype", "float32 (choose another with --dtype)"))
    else:
        memory = card.total_memory / 2**30
        lines.append(
            _line("device", f"cuda: {card.name}, {memory:.0f} GiB, sm{card.major}{card.minor}")
        )
        lines.append(_line("dtype", "the checkpoint's own (choose another with --dtype)"))
    return lines + _kernel_lines(device, dtype)


def _kernel_lines(device: str, dtype: str) -> list[str]:
    """Which kernels `auto` takes and why, and for each backend what it takes, or why it cannot run here."""
    from .engine.cuda_graphs import why_not
    from .kernels import BACKENDS, BLOCK_SIZES, cpp_build, get_backend

    block_size = EngineConfig.block_size
    chosen = get_backend("auto", device, block_size, dtype)
    because = f"{chosen.name}, because {chosen.reason}"
    lines = [_line("attention", f"{because} (blocks of {block_size}, {dtype})")]
    for name in BACKENDS:
        text = BLOCK_SIZES[name]
        try:
            # A block size that every backend takes: what is asked is whether it runs here at all.
            backend = get_backend(name, device, COMMON_BLOCK_SIZE, dtype)
            if name == "flash":
                text += f" ({backend.reason.partition('; ')[2]})"
        except ValueError as error:
            text = str(error)
        lines.append(_line(f"  {name}", text))
    if device == "cpu":
        lines.append(_line("c++ kernels", cpp_build.load().reason))
    no_graphs = why_not(True, device, chosen)
    graphs = f"off, because {no_graphs}" if no_graphs else "decodes are captured and replayed"
    return [*lines, _line("cuda graphs", graphs)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _line(name: str, text: str) -> str:
    return f"{name:<13} {text}"
