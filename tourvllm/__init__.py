"""tourvllm: step through a real paged-attention engine, forwards and backwards, in the terminal."""

import sys
from pathlib import Path

__version__ = "0.1.0"


def _leave_checkout_root() -> None:
    """Take the root of a checkout off the import path.

    `python -m` and `python -c`, started there, put it first; then `import kernels`, which transformers tries for
    Hugging Face's package of that name, would find this project's folder. An installed wheel has no such root.
    """
    root = Path(__file__).resolve().parent.parent
    if (root / "kernels" / "torch_paged.py").is_file():
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]


_leave_checkout_root()
