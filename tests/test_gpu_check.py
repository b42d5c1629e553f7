"""The check for machines with a GPU, run without one: its parts on the CPU, with tiny sizes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
WRONG = """
import sys
from bench import gpu_check, gpu_parts
gpu_parts.TOLERANCES["float32"] = 0.0
sys.argv = ["gpu_check", "--rehearse", "--only", "kernels"]
sys.exit(gpu_check.main())
"""
BROKEN = """
import sys
from bench import gpu_check, gpu_parts
gpu_parts.copy_speed = lambda sizes: 1 / 0
sys.argv = ["gpu_check", "--rehearse", "--only", "bandwidth"]
sys.exit(gpu_check.main())
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_a_rehearsal_goes_through():
    done = run("-m", "bench.gpu_check", "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("| part | what | result | |\n")[2]
    parts = {line.split("|")[1].strip() for line in table.splitlines()[1:]}
    assert parts == {
        "machine", "kernels", "tokens", "graphs", "bandwidth", "throughput", "tracing",
    }  # fmt: skip
    assert table.count("| ok |") == 16
    assert "WRONG" not in table


def test_what_there_is_no_time_for_is_said():
    done = run("-m", "bench.gpu_check", "--rehearse", "--seconds", "0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| kernels | the rest | cut: the part's time was up |" in done.stdout
    assert "| tracing | all of it | left out: no time was left |" in done.stdout


def test_a_wrong_result_is_a_failure():
    done = run("-c", WRONG)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "**WRONG**" in done.stdout


def test_a_part_that_breaks_is_a_failure():
    done = run("-c", BROKEN)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "| bandwidth | failed | ZeroDivisionError: division by zero | **WRONG** |" in done.stdout


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("-m", "bench.gpu_check")
    assert done.returncode == 2
    assert "torch finds no CUDA device on this machine" in done.stderr
