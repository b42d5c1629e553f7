"""`tourvllm check`: the same run again, event by event."""

import json
import subprocess
import sys
from pathlib import Path

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tourvllm", "check", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def lines() -> list[dict]:
    import gzip

    return [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]


def write(path: Path, changed: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    return path


def test_the_recorded_run_repeats():
    """A trace that is months old must still repeat: this one is kept with the tests."""
    done = check(RECORDED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "events are the same" in done.stdout


def test_the_first_difference_is_told(tmp_path):
    changed = lines()
    event = next(e for e in changed if e.get("stop") == "admit")
    event["facts"]["num_scheduled_tokens"] += 1
    done = check(write(tmp_path / "changed.tvllm.jsonl", changed))
    assert done.returncode == 1
    assert f"Event {event['i']}, in step 1, differs" in done.stdout
    assert "admit" in done.stdout


def test_a_trace_that_was_cut_short_is_compared_as_far_as_it_goes(tmp_path):
    done = check(write(tmp_path / "short.tvllm.jsonl", lines()[:100]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_trace_without_a_scenario_is_refused(tmp_path):
    changed = lines()
    del changed[0]["scenario"]
    done = check(write(tmp_path / "none.tvllm.jsonl", changed))
    assert done.returncode == 2
    assert "holds no scenario" in done.stderr
