"""Key to paint: how long after a key the terminal receives new bytes, in a real pty of 120x40."""

import argparse
import os
import statistics
import sys
import time

import pexpect


def main() -> None:
    """Replay a trace, press each key several times, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", default="tests/data/kv_pressure.tvllm.jsonl.gz")
    parser.add_argument("--times", type=int, default=15)
    options = parser.parse_args()
    start = time.perf_counter()
    app = pexpect.spawn(
        sys.executable, ["-m", "tourvllm", "replay", options.trace], dimensions=(40, 120), timeout=60,
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    app.delaybeforesend = None
    app.expect("queues")
    print(f"first paint {time.perf_counter() - start:.2f} s")
    drain(app, 1.0)
    for key in "npsS":
        times = []
        for _ in range(options.times):
            start = time.perf_counter()
            app.send(key)
            app.read_nonblocking(1 << 16, timeout=5)
            times.append((time.perf_counter() - start) * 1000)
            drain(app, 0.1)
        worst = sorted(times)[max(0, round(0.95 * len(times)) - 1)]
        print(f"{key}  median {statistics.median(times):5.1f} ms  p95 {worst:5.1f} ms")
    app.send("q")
    app.expect(pexpect.EOF)


def drain(app: pexpect.spawn, quiet: float) -> None:
    """Read until nothing has come for `quiet` seconds."""
    while True:
        try:
            app.read_nonblocking(1 << 16, timeout=quiet)
        except pexpect.TIMEOUT:
            return


if __name__ == "__main__":
    main()
