"""Ruff and mypy, in the same command as all other tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("tour", "engine", "kernels", "scenarios")


def test_ruff_finds_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_nothing(tmp_path: Path):
    lay_out_package(tmp_path / "tourvllm")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "-p",
        "tourvllm",
        "--config-file",
        ROOT / "pyproject.toml",
    ]
    command += ["--cache-dir", ROOT / ".mypy_cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def lay_out_package(folder: Path) -> None:
    """Links that show the package as it is imported, which setuptools' package-dir hides from mypy."""
    folder.mkdir()
    for source in [
        *(ROOT / "tourvllm").glob("*.py"),
        ROOT / "tourvllm" / "tui",
        *(ROOT / part for part in PARTS),
    ]:
        (folder / source.name).symlink_to(source)
    (folder / "models").mkdir()  # without models/train, whose scripts stand for themselves
    (folder / "models" / "__init__.py").symlink_to(ROOT / "models" / "__init__.py")
