"""`run --pdb`: a real terminal, a real pdb, in the engine's own function."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from tourvllm.tour.reader import read_trace

PROMPT = r"\(Pdb\) "


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    own = {
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }
    return {key: value for key, value in os.environ.items() if key != "PYTHONBREAKPOINT"} | own


@pytest.fixture
def debug(tmp_path, environment):
    """Start a run of kv_pressure that halts at a breakpoint, in a terminal."""

    def start(at: str, **changes: str) -> pexpect.spawn:
        arguments = ["-m", "tourvllm", "run", "kv_pressure", "--pdb", at, "--record", "t.jsonl"]
        return pexpect.spawn(
            sys.executable,
            arguments,
            cwd=str(tmp_path),
            env=environment | changes,
            encoding="utf-8",
            timeout=60,
            echo=False,
            dimensions=(50, 200),
        )

    return start


def ask(process: pexpect.spawn, command: str) -> str:
    """What pdb says to a command."""
    process.sendline(command)
    process.expect(PROMPT)
    return process.before.strip()


def ended(process: pexpect.spawn) -> tuple[str, int | None]:
    """What comes until the end, and the exit code."""
    process.expect(pexpect.EOF)
    process.close()
    return process.before, process.exitstatus


def test_pdb_halts_in_the_function_of_the_engine_and_q_leaves_a_whole_trace(debug, tmp_path):
    process = debug("preempt if seq == 'D'")
    process.expect("step 13, preempt: B needs a block and none is free. D came last")
    process.expect(
        r"> \S*engine/scheduler.py\(\d+\)_preempt\(\)\s+-> self.block_manager.deallocate"
    )
    process.expect(PROMPT)
    assert ask(process, "p seq.seq_id, needed_by.seq_id, self.__class__.__name__") == (
        "('D', 'B', 'Scheduler')"
    )
    assert ask(process, "p [s.seq_id for s in self.waiting]") == "['D', 'E']"
    process.sendline("n")
    process.expect("--Return--")
    process.expect(PROMPT)
    process.sendline("n")
    process.expect(r"_make_room\(\)")
    process.expect(PROMPT)
    process.sendline("q")
    text, code = ended(process)
    assert "Stopped in the debugger." in text
    assert ("Traceback" in text, code) == (False, 0)
    trace = read_trace(tmp_path / "t.jsonl")
    assert (trace.problem, trace.closing["outcome"]) == (None, "stopped in the debugger")


def test_c_goes_on_to_the_next_halt_and_to_the_end(debug, tmp_path):
    process = debug("deallocate")
    for seq in "DCABED":
        process.expect(r"block_manager.py\(\d+\)deallocate\(\)")
        process.expect(PROMPT)
        assert ask(process, "p seq.seq_id") == f"'{seq}'"
        process.sendline("c")
    text, code = ended(process)
    assert "Every request has finished" in text
    assert code == 0
    assert read_trace(tmp_path / "t.jsonl").closing["outcome"] == "complete"


def test_a_helper_that_only_reports_is_left_for_the_function_that_decided(debug):
    process = debug("wait if cause == 'token_budget'")
    process.expect(r"scheduler.py\(\d+\)_schedule_prefill\(\)\s+-> break")
    process.expect(PROMPT)
    assert ask(process, "p seq.seq_id, num_tokens, budget") == "('B', 17, 7)"
    process.sendeof()
    assert "Stopped in the debugger." in ended(process)[0]


def test_the_clock_of_the_trace_stands_still_in_pdb(debug, tmp_path):
    process = debug("sample")
    process.expect(PROMPT)
    ask(process, "import time; time.sleep(6)")
    assert ask(process, "c").startswith("──")
    process.sendline("q")
    ended(process)
    trace = read_trace(tmp_path / "t.jsonl")
    events = [trace.event(i) for i in range(len(trace))]
    first = next(i for i, event in enumerate(events) if event.stop == "sample")
    assert events[first + 1].t - events[first].t < 4e9


MY_DEBUGGER = """
import pdb, sys
def set_trace():
    print("MINE")
    pdb.Pdb().set_trace(sys._getframe().f_back)
"""


def test_another_debugger_is_taken_from_pythonbreakpoint(debug, tmp_path):
    (tmp_path / "mine.py").write_text(MY_DEBUGGER)
    process = debug("deallocate", PYTHONBREAKPOINT="mine.set_trace", PYTHONPATH=str(tmp_path))
    process.expect("MINE")
    process.expect(r"block_manager.py\(\d+\)deallocate\(\)")
    process.expect(PROMPT)
    assert ask(process, "p seq.seq_id, len(freed)") == "('D', 5)"
    process.sendline("q")
    assert ended(process)[1] == 0


def command(environment: dict[str, str], *arguments: str, **changes: str):
    return subprocess.run(
        [sys.executable, "-m", "tourvllm", *arguments],
        capture_output=True,
        text=True,
        env=environment | changes,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("at", "changes", "words"),
    [
        ("premt", {}, "--pdb premt: premt is neither a stop nor a request: did you mean preempt?"),
        ("preempt if", {}, "--pdb preempt if: "),
        ("preempt if sek == 'D'", {}, "there is no sek"),
        ("preempt", {"PYTHONBREAKPOINT": "0"}, "PYTHONBREAKPOINT=0 switches all breakpoints off"),
    ],
)
def test_what_could_never_halt_is_refused(environment, at, changes, words):
    result = command(environment, "run", "kv_pressure", "--pdb", at, **changes)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_stops_names_lines_at_which_a_debugger_can_halt(environment):
    """Each line that is told is the hook of that stop, in a file that is there."""
    found = json.loads(command(environment, "stops", "--json").stdout)
    assert len(found) == 25
    for stop in found:
        assert stop["told_at"], stop["stop"]
        for place in stop["told_at"]:
            assert place["path"].endswith(place["file"])
            lines = Path(place["path"]).read_text().splitlines()[place["line"] - 1 :]
            assert re.match(rf'\s+self\.probe\(\s*"{stop["stop"]}"', "\n".join(lines))
    table = command(environment, "stops")
    preempt = next(stop for stop in found if stop["stop"] == "preempt")["told_at"][0]
    (line,) = [line for line in table.stdout.splitlines() if line.startswith("preempt ")]
    assert f"{preempt['file']}:{preempt['line']}" in line
    headings = [line.strip() for line in table.stdout.splitlines() if line[:1].isdigit()]
    assert headings == ["1 loop", "2 schedule", "3 blocks", "4 tensors", "5 kv", "6 close"]


NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(name)
sys.meta_path.insert(0, NoTorch())
from tourvllm.cli import main
main()
"""


@pytest.mark.parametrize("arguments", [["stops"], ["diff", "T", "T"], ["query", "T", "free"]])
def test_without_the_engine_these_commands_work(environment, arguments):
    recorded = str(Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz")
    result = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *(recorded if a == "T" else a for a in arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=environment["HOME"],
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout
