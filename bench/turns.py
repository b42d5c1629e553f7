"""Candidates take turns, and what comes of it: medians, ratios, a table.

One absolute time of a shared machine means little. So each turn runs every candidate once, each time
another one first, and a ratio is the median over turns of one candidate's time by another's of the same turn.
"""

import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable

import torch
import transformers

Candidate = Callable[[], float]
"""Runs once and returns the seconds that it took."""

Times = dict[str, list[float]]
"""The seconds of each candidate, turn by turn."""


class Unavailable(Exception):
    """A candidate cannot run here; the message says why."""


def now() -> float:
    """Seconds of CPU time with one thread, where a wait for a busy machine does not count; else the clock's."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(work: Callable[[], object]) -> Candidate:
    """A candidate whose time is that of the whole call."""

    def run() -> float:
        start = now()
        work()
        return now() - start

    return run


def take_turns(candidates: dict[str, Candidate], turns: int, warm_up: int = 1) -> Times:
    """Let all run `warm_up` times unmeasured, then in turns."""
    names = list(candidates)
    times: Times = {name: [] for name in names}
    for turn in range(-warm_up, turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = candidates[name]()
            if turn >= 0:
                times[name].append(seconds)
    return times


def drop_unavailable(candidates: dict[str, Candidate]) -> dict[str, str]:
    """Run each once; take out those that cannot run here and return why."""
    reasons = {}
    for name in list(candidates):
        try:
            candidates[name]()
        except Unavailable as error:
            reasons[name] = str(error)
            del candidates[name]
    return reasons


def ratio(times: list[float], to: list[float]) -> float:
    """How many times as long as `to`: the median over turns."""
    return statistics.median(a / b for a, b in zip(times, to, strict=True))


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table in Markdown."""
    head = list(head)
    for cells in (head, ["---"] * len(head), *rows):
        print("|", " | ".join(cells), "|")
    print(flush=True)


def prepare() -> None:
    """As many threads as OMP_NUM_THREADS says, or one, and no chatter between the tables."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def about_machine() -> str:
    """What has been measured on, in one line without names or paths."""
    clock = "CPU time" if torch.get_num_threads() == 1 else "wall clock"
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} thread(s); Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}; {clock}"
    )
