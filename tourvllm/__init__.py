"""tourvllm: step through a real paged-attention engine, forwards and backwards, in the terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.sampling_params import SamplingParams
    from .llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """`LLM` and `SamplingParams` on demand: importing the package must not import torch."""
    if name == "LLM":
        try:
            from .llm import LLM
        except ImportError as error:
            raise ImportError(
                f"LLM needs the engine ({error}). Install it with: pip install 'tourvllm[engine]'"
            ) from error
        return LLM
    if name == "SamplingParams":
        from .engine.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _leave_checkout_root() -> None:
    """Take the root of a checkout off the import path.

    `python -m` and `python -c`, started there, put it first; then `import kernels`, which transformers tries for
    Hugging Face's package of that name, would find this project's folder. An installed wheel has no such root.
    """
    root = Path(__file__).resolve().parent.parent
    if (root / "kernels" / "torch_paged.py").is_file():
        sys.path[:] = [entry for entry in sys.path if not _is_folder(entry, root)]


def _is_folder(entry: str, folder: Path) -> bool:
    """Whether an entry of the import path is `folder`."""
    try:
        return Path(entry or ".").resolve() == folder
    except OSError:  # the current folder was deleted
        return False


_leave_checkout_root()
