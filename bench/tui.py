"""Measures the app as its reader feels it: in a real pty of 120x40, from a key to the first new bytes.

Replayed are a run of a million events in a pool of 10,000 blocks, made here, and a small recorded one; and the
tiny model runs live. One table in Markdown. CPU is that of the app's process alone: on a busy machine look there.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pexpect
from tourvllm.tour.reader import read_trace
from tourvllm.tour.timings import step_times

from . import long_run
from .turns import about_machine

SMALL = "tests/data/kv_pressure.tvllm.jsonl.gz"
LIVE = """
title: "A run of the tiny model"
model: tiny
engine: {block_size: 8, num_blocks: 64}
sampling: {temperature: 0, ignore_eos: true, max_tokens: 60}
requests:
  - {id: A, prompt: "Once upon a time, there was a little fox."}
  - {id: B, prompt: "One windy day, a dragon"}
  - {id: C, arrival: 5, prompt: "Ruby lived in a tall tower."}
"""
PRESSES = 30
START, END = "\x1b[H", "\x1b[F"
QUIET = 0.15
"""Seconds without new bytes after which the screen is still, and the next key is pressed."""

TYPED = 0.2
"""Seconds between the keys of somebody who types a number: 60 words a minute."""

HEAD = ("where", "what", "median", "p95", "least", "CPU a press", "")
Row = list[str]
Keys = Sequence[str]


class Terminal:
    """The app in a pty, with settings and data of its own in `home`."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._start = time.perf_counter()
        self._process = pexpect.spawn(
            sys.executable,
            ["-m", "tourvllm", *arguments],
            dimensions=(40, 120),
            timeout=120,
            env=environment(home),
        )
        self._process.delaybeforesend = None
        self._process.expect("queues")
        self.first_paint = (time.perf_counter() - self._start) * 1000

    def press(self, keys: Keys) -> float:
        """Send keys one by one; the milliseconds from the last of them to the first new bytes."""
        for key in keys[:-1]:
            until = time.perf_counter() + TYPED
            self._process.send(key)
            while (left := until - time.perf_counter()) > 0:
                self.settle(left)
        start = time.perf_counter()
        self._process.send(keys[-1])
        self._process.read_nonblocking(1 << 16, timeout=60)
        taken = (time.perf_counter() - start) * 1000
        self.settle()
        return taken

    def paste(self, keys: str, shown: str) -> float:
        """Send keys at once; the milliseconds until the screen shows a text."""
        start = time.perf_counter()
        self._process.send(keys)
        self._process.expect_exact(shown)
        taken = (time.perf_counter() - start) * 1000
        self.settle()
        return taken

    def settle(self, quiet: float = QUIET) -> None:
        """Read until nothing new has come for a while."""
        while True:
            try:
                self._process.read_nonblocking(1 << 16, timeout=quiet)
            except pexpect.TIMEOUT:
                return

    def times(self, where: str, name: str, presses: list[Keys], note: str = "") -> Row:
        """Press all these, and make a row of it."""
        return self.row(where, name, (self.press(keys) for keys in presses), note)

    def row(self, where: str, name: str, times: Iterator[float], note: str = "") -> Row:
        """What these times say, and the CPU that they took."""
        cpu = self.cpu
        ordered = sorted(times)
        cpu = (self.cpu - cpu) / len(ordered)
        p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
        numbers = [statistics.median(ordered), p95, ordered[0], cpu]
        return [where, name, *(f"{number:.0f} ms" for number in numbers), note]

    @property
    def cpu(self) -> float:
        """The milliseconds that the process has computed."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> str:
        """The most memory that the process has had."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        return f"{int(peak) / 1024:.0f} MB"

    def close(self) -> None:
        """Leave the app."""
        self._process.send("q")
        self._process.expect(pexpect.EOF)
        self._process.close()


def environment(home: Path) -> dict[str, str]:
    """A terminal's environment; nothing of the user's own settings."""
    folders = {f"XDG_{name}_HOME": str(home) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return {**os.environ, **folders, **terminal}


@contextmanager
def opened(home: Path, *arguments: str) -> Iterator[Terminal]:
    """The app, closed at the end."""
    terminal = Terminal(home, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def once(where: str, what: str, value: str, note: str = "") -> Row:
    """The row of a value that is measured once."""
    return [where, what, value, "", "", "", note]


def replay(home: Path, where: str, path: Path, presses: int) -> Iterator[Row]:
    """Open a trace, press the keys near its end and in its middle, jump far."""
    trace = read_trace(path)
    last = trace.steps[-1].number
    # At the trace's start p changes nothing, and nothing is painted.
    steps = min(presses, last // 2 - 1)
    walks = [[key] * steps for key in "pn"] + [[key] * presses for key in "Ss"]
    steps_far_off = [1 + last * (i * 7 % 10) // 10 for i in range(presses)]
    far = [[*f":{step}", "\r"] for step in steps_far_off]
    size = f"{len(trace):,} events, {last:,} steps"
    del trace
    with opened(home, "replay", str(path)) as app:
        yield once(where, "first paint", f"{app.first_paint:.0f} ms", size)
        app.press("n")
        yield app.times(where, "n while it is read", ["n"] * 10)
        start = time.perf_counter()
        app.settle(quiet=3)
        yield once(where, "read to its end after", f"{time.perf_counter() - start - 3:.1f} s more")
        yield app.times(where, "End, the first time", [[END]])
        for keys in walks:
            yield app.times(where, f"{keys[0]} at the end", keys)
        yield app.times(where, "Home, End", [[START], [END]] * (presses // 2))
        yield app.times(where, ": to a step far off", far)
        at_once = (app.paste(f":{step}\r", f"step {step} ") for step in steps_far_off)
        yield app.row(where, ": all typed at once", at_once)
        app.press([*f":{last // 2}", "\r"])
        for keys in walks:
            yield app.times(where, f"{keys[0]} in the middle", keys)
        yield once(where, "memory", app.memory)


def live(home: Path, presses: int) -> Iterator[Row]:
    """Let the tiny model run, a step or a stop a key."""
    scenario, path = home / "live.yaml", home / "live.tvllm.jsonl.gz"
    scenario.write_text(LIVE)
    with opened(home, "run", str(scenario), "--record", str(path)) as app:
        yield once("live, tiny", "first paint", f"{app.first_paint:.0f} ms")
        app.settle(quiet=8)  # torch and the model are loaded
        app.press("n")
        first = app.times("live, tiny", "n", ["n"] * presses)
        rest = [app.times("live, tiny", key, [key] * presses) for key in "spS"]
        memory = app.memory
    trace = read_trace(path)
    engine = statistics.median(step_times(trace, step).total_ms for step in trace.steps[1:-1])
    yield [*first[:-1], f"of which the engine {engine:.0f} ms"]
    yield from rest
    yield once("live, tiny", "memory", memory, "the viewer's process")


def help_time(home: Path) -> Row:
    """What `--help` takes."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        command = [sys.executable, "-m", "tourvllm", "--help"]
        subprocess.run(command, env=environment(home), stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - start) * 1000)
    median, least = f"{statistics.median(times):.0f} ms", f"{min(times):.0f} ms"
    return ["--help", "to its end", median, f"{max(times):.0f} ms", least, "", ""]


def main() -> None:
    """Measure all, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.tui", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--presses", type=int, default=PRESSES)
    parser.add_argument("--trace", type=Path, help="keep the long trace here for another time")
    given = parser.parse_args()
    print(about_machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        path = given.trace or home / "long.tvllm.jsonl.gz"
        if not path.exists():
            long_run.record(path, given.events, given.blocks)
        small, presses = Path(SMALL), given.presses
        for row in chain(
            [list(HEAD), ["---"] * len(HEAD), help_time(home)],
            live(home, presses),
            replay(home, "small trace", small, presses),
            replay(home, "long trace", path, presses),
        ):
            print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
