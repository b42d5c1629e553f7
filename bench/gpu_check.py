"""A machine with an NVIDIA GPU, tried out in under six minutes: is everything right there, and how fast?

    python -m bench.gpu_check                  all parts
    python -m bench.gpu_check --only kernels   one of them
    python -m bench.gpu_check --rehearse       all parts on the CPU with tiny sizes: is this script itself sound?

Ends with a table in Markdown. The exit code is 1 if something was wrong, 2 where there is no CUDA device.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from . import gpu_parts
from .gpu_parts import PARTS, Job, Row, Sizes

NO_GPU = (
    "gpu_check needs an NVIDIA GPU, and torch finds no CUDA device on this machine "
    "(--rehearse runs its parts on the CPU, with tiny sizes)."
)


def main() -> int:
    """Run the parts, print each result as it comes, then the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part (repeatable)")
    parser.add_argument("--seconds", type=float, default=330, help="for all parts together (330)")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        sizes = gpu_parts.TINY if options.rehearse else gpu_parts.FULL
        rows = run_parts(sizes, Path(folder), options.only or list(PARTS), options.seconds)
    print("\n" + table(rows))
    return 1 if any(row.good is False for row in rows) else 0


def run_parts(sizes: Sizes, folder: Path, names: list[str], seconds: float) -> list[Row]:
    """The rows of these parts. A part that raises is a row that says so, and the next one goes on."""
    end = time.perf_counter() + seconds
    rows = [Row("machine", gpu_parts.machine(sizes.device), "", None)]
    print(rows[0].what, flush=True)
    for name in names:
        part, own_seconds = PARTS[name]
        start = time.perf_counter()
        job = Job(sizes, folder, min(end, start + own_seconds))
        for row in run_part(name, part, job):
            rows.append(row)
            took = time.perf_counter() - start
            print(f"[{name} {took:5.1f} s] {row.what}: {row.result} {row.verdict}", flush=True)
    return rows


def run_part(name: str, part: gpu_parts.Part, job: Job) -> list[Row]:
    """One part's rows, with one that says so where its time was up or it failed."""
    rows: list[Row] = []
    if job.left() <= 0:
        return [Row(name, "all of it", "left out: no time was left", None)]
    try:
        for what, result, good in part(job):
            rows.append(Row(name, what, result, good))
            if job.left() <= 0:
                rows.append(Row(name, "the rest", "cut: the part's time was up", None))
                break
    except Exception as error:
        line = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
        rows.append(Row(name, "failed", line[:300], False))
    gpu_parts.tidy(job.sizes.device)
    return rows


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| part | what | result | |", "|---|---|---|---|"]
    for row in rows:
        cells = (row.part, row.what, row.result, row.verdict)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
