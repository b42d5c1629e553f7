"""What all tests share: one thread, models loaded once, bounded hypothesis, GPU tests skipped."""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
# The size of the terminal that pytest-xdist had: programs in a terminal of their own would believe it.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# The top-level folder `kernels` must not shadow Hugging Face's, which transformers looks up.
ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]

import oracle  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from smollm2 import CannotDownload, no_download, smollm2_folder  # noqa: E402
from support import load_models_once, random_qwen3  # noqa: E402

torch.set_num_threads(1)
_of_workers: list[str] = []

_shared = {"deadline": None, "max_examples": 60, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("local", **_shared)
settings.register_profile("ci", derandomize=True, print_blob=True, **_shared)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _models_once():
    with pytest.MonkeyPatch.context() as patch:
        load_models_once(patch)
        yield


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one-layer Qwen3 of 128 tokens, cheap enough for hundreds of runs."""
    return random_qwen3(
        tmp_path_factory.mktemp("mini"), vocab_size=128, hidden_size=32, num_hidden_layers=1
    )


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M: real weights. Without a network there may be none, but CI must have them."""
    try:
        return smollm2_folder()
    except CannotDownload as error:
        if os.environ.get("CI") and not no_download():
            pytest.fail(f"SmolLM2 cannot be had: {error}")
        pytest.skip(f"SmolLM2 cannot be had: {error}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its part of the oracle table over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["oracle"] = oracle.table()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what a worker of pytest-xdist hands over."""
    _of_workers.extend(getattr(node, "workeroutput", {}).get("oracle", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The oracle table: what was compared with transformers in this session."""
    head, *rows = _of_workers or oracle.table() or [""]
    for line in dict.fromkeys([head, *sorted(rows)]):
        terminalreporter.write_line(line)
