"""The command, as a user runs it: a process, its output and its exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tourvllm.tour.reader import read_trace

SCENARIO = """\
title: "Two [bold]small[/] requests"
engine: {block_size: 2, num_blocks: 12, device: cpu}
sampling: {temperature: 0, ignore_eos: true, max_tokens: 5}
requests:
  - {id: A, prompt: "Once upon a time"}
  - {id: B, prompt: "One day", arrival: 3}
tour:
  - {at: finish, say: "The first one is done."}
watch: [free, A.block_table, nobody]
"""


@pytest.fixture
def command(tmp_path):
    """Run `tourvllm ARGUMENTS` in an empty folder."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: object, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "tourvllm", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment | changes,
            stdin=subprocess.DEVNULL,
            timeout=100,
            errors="replace",
        )

    run.environment = environment
    return run


@pytest.fixture
def scenario(tmp_path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    return path


def walk(text: str) -> list[str]:
    """The lines of the walk itself: from the first event to the end of the loop."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if "requests to run" in line)
    last = next(i for i, line in enumerate(lines) if line.startswith("Every request has finished"))
    return lines[first : last + 1]


def test_run_info_and_replay_tell_the_same(command, scenario, tmp_path):
    trace = tmp_path / "two.tvllm.jsonl.gz"
    run = command("run", scenario, "--plain", "--verify", "--record", trace)
    assert (run.returncode, run.stdout.count("── step")) == (0, 7)
    assert "Two [bold]small[/] requests" in run.stdout
    assert "» The first one is done." in run.stdout
    assert "A.block_table = [" in run.stdout
    assert "nobody = (" in run.stdout
    assert f"tourvllm replay {trace}" in run.stderr
    assert "Traceback" not in run.stderr

    info = command("info", trace)
    assert info.returncode == 0
    assert "scenario  two: Two [bold]small[/] requests" in info.stdout
    assert "finish 2" in info.stdout
    assert "complete" in info.stdout
    assert "as recorded" in info.stdout

    replay = command("replay", trace)  # there is no terminal, so it is plain by itself
    assert (replay.returncode, replay.stderr) == (0, "")
    assert walk(replay.stdout) == walk(run.stdout)

    trace.write_bytes(trace.read_bytes()[:-200])
    cut = command("replay", trace, "--plain")
    assert cut.returncode == 1
    assert "not recorded to its end" in cut.stderr or "stops after event" in cut.stderr
    assert "problem" in command("info", trace).stdout


def test_without_a_terminal_a_run_is_plain_and_kept_in_the_cache(command, scenario, tmp_path):
    run = command(
        "run",
        scenario,
        "--set",
        "sampling.max_tokens=2",
        "--set",
        "engine.num_blocks=9",
        PYTHONIOENCODING="ascii",
    )
    assert run.returncode == 0
    assert "/9 blocks" in run.stdout
    (kept,) = (tmp_path / "cache").rglob("two-*.tvllm.jsonl.gz")
    assert read_trace(kept).problem is None


def test_steps_ends_a_run_early_with_a_whole_trace(command, scenario, tmp_path):
    run = command("run", scenario, "--steps", "2", "--record", tmp_path / "t.jsonl")
    assert run.returncode == 0
    assert run.stdout.count("── step") == 2
    assert run.stdout.endswith("\nStopped after 2 steps.\n")
    trace = read_trace(tmp_path / "t.jsonl")
    assert (trace.problem, trace.closing["outcome"], len(trace.steps)) == (
        None,
        "stopped after 2 steps",
        2,
    )


def test_only_impossible_requests_are_told_and_the_run_ends_well(command, scenario):
    run = command(
        "run", scenario, "--set", "engine.num_blocks=1", "--set", "sampling.max_tokens=50"
    )
    assert run.returncode == 0
    for name in "AB":
        assert any(
            line.startswith(f"{name}    rejected") and "blocks" in line
            for line in run.stdout.splitlines()
        )
    assert "Traceback" not in run.stderr


def test_list_and_version(command):
    listed = command("list")
    assert listed.returncode == 0
    assert any(
        line.startswith("kv_pressure ") and "KV pressure" in line
        for line in listed.stdout.splitlines()
    )
    assert command("--version").stdout.startswith("tourvllm, version ")
    assert "run" in command("-h").stdout


def test_alone_and_without_a_terminal_it_says_what_there_is(command):
    alone = command()
    assert (alone.returncode, alone.stdout) == (0, command("--help").stdout)
    for name in ("run", "replay", "diff", "query", "stops", "check", "doctor", "list", "info"):
        assert f"\n  {name} " in alone.stdout
    assert "Kernels for the KV cache: auto, torch, cpu, triton, flash." in " ".join(
        command("run", "--help").stdout.split()
    )


def test_help_loads_neither_torch_nor_textual_nor_rich(command):
    line = "import sys; from tourvllm.cli import main; main(['--help'], standalone_mode=False); "
    line += "print([name for name in ('torch', 'textual', 'rich') if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, env=command.environment
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["run", "kv_pressure"], ["list"]])
def test_in_a_folder_that_is_gone_there_is_one_sentence(command, tmp_path, arguments):
    line = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    result = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-m", "tourvllm", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=command.environment,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "the folder that you are in is gone" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere"], "there is no scenario nowhere"),
        (["run", "bad.yaml"], "bad.yaml, line 1: the YAML cannot be read"),
        (["run", "two.yaml", "--set", "engine.num_blocks"], "write it as key=value"),
        (
            ["run", "two.yaml", "--set", "engine.num_blocks=zero"],
            "engine.num_blocks: must be a whole number",
        ),
        (["run", "two.yaml", "--set", "title=2001-99-99"], "cannot be read"),
        (["run", "two.yaml", "--set", "=3"], "write it as key=value"),
        (["run", "two.yaml", "--set", "num_blocks=16"], "did you mean engine.num_blocks?"),
        (["run", "two.yaml", "--set", "top_k=1"], "did you mean sampling.top_k?"),
        (["run", "two.yaml", "--model", "nowhere"], "there is no model at nowhere"),
        (["run", "two.yaml", "--record", "no/such/folder/t.jsonl"], "there is no folder"),
        (["run", "two.yaml", "--record", "two.yaml/t.jsonl"], "there is no folder"),
        (["run", "two.yaml", "--record", "."], "is a folder"),
        (["run", "two.yaml", "--steps", "0"], "--steps"),
        (["replay", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["replay", "."], "cannot be read"),
        (["replay", "two.yaml"], "two.yaml is not a tourvllm trace"),
        (["info", "two.yaml"], "two.yaml is not a tourvllm trace"),
        (["fly"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(command, scenario, arguments, words):
    (scenario.parent / "bad.yaml").write_text("title: [")
    result = command(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_run_that_cannot_start_leaves_an_older_trace_alone(command, scenario, tmp_path):
    old = tmp_path / "t.jsonl"
    old.write_text("precious")
    result = command("run", scenario, "--record", old, "--set", "engine.device=cuda:99")
    assert result.returncode == 2
    assert "device" in result.stderr
    assert "Trace:" not in result.stderr
    assert old.read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence_and_exit_code_1(command, scenario):
    result = command("run", scenario, "--record", "/dev/full")
    assert result.returncode == 1
    assert "the trace cannot be written to /dev/full: No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of a file's size")
@pytest.mark.parametrize(("size", "offered"), [(2_000, False), (60_000, True)])
def test_a_file_is_offered_for_replay_only_with_a_whole_header(command, tmp_path, size, offered):
    run = (
        "import resource, runpy, sys; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); "
        "sys.argv = ['tourvllm', 'run', 'kv_pressure', '--plain', '--record', 't.tvllm.jsonl.gz']; "
        "runpy.run_module('tourvllm', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", run],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=command.environment | {"TOURVLLM_NATIVE": "0"},
    )
    assert result.returncode == 1
    assert "the trace cannot be written to t.tvllm.jsonl.gz: File too large" in result.stderr
    assert ("Replay it with" in result.stderr) == offered


@pytest.mark.parametrize("arguments", [["run", "kv_pressure"], ["replay"]])
def test_a_reader_that_leaves_ends_it_quietly(command, arguments, tmp_path):
    if arguments == ["replay"]:
        arguments = ["replay", str(Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz")]
    line = " ".join(
        [sys.executable, "-m", "tourvllm", *arguments, "| head -1; exit ${PIPESTATUS[0]}"]
    )
    result = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=command.environment,
        stdin=subprocess.DEVNULL,
        timeout=100,
    )
    assert len(result.stdout.splitlines()) == 1
    assert (result.returncode, result.stderr) == (141, "")
    for trace in (tmp_path / "cache").rglob("*.tvllm.jsonl.gz"):
        outcome = read_trace(trace).closing["outcome"]
        assert outcome == "stopped: nobody reads the output any more"


def hear_ctrl_c() -> None:
    """In a child, before it runs: what is started in the background may inherit that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


DROPS = """
import os, signal
from tourvllm import runs
from tourvllm.cli import main

class Dies:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))

original = runs.Run.run

def run(self):
    self.listeners.append(lambda event: Dies() if event.i == 5 else None)
    return original(self)

runs.Run.run = run
main()
"""


def test_ctrl_c_is_heard_also_where_python_drops_it(command, scenario, tmp_path):
    (tmp_path / "drops.py").write_text(DROPS)
    result = subprocess.run(
        [sys.executable, "drops.py", "run", scenario, "--plain", "--record", "t.jsonl"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=command.environment,
        timeout=60,
        check=False,
        preexec_fn=hear_ctrl_c,
    )
    assert result.returncode == 130
    assert "Interrupted" in result.stderr


def test_ctrl_c_exits_130_with_a_whole_trace(command, scenario, tmp_path):
    trace = tmp_path / "t.jsonl"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tourvllm",
            "run",
            scenario,
            "--plain",
            "--record",
            trace,
            "--set",
            "sampling.max_tokens=900",
            "--set",
            "engine.num_blocks=1000",
            "--set",
            "engine.max_num_batched_tokens=1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=command.environment,
        preexec_fn=hear_ctrl_c,
    )
    for line in process.stdout:
        if "step 3 " in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in errors
    assert "Traceback" not in errors
    recorded = read_trace(trace)
    assert (recorded.problem, recorded.closing["outcome"]) == (None, "interrupted")
    assert len(recorded.steps) >= 3


INTERRUPTED_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from tourvllm.cli import main
main(["run", sys.argv[1], "--plain"])
"""


def test_ctrl_c_while_loading_exits_130_too(command, scenario, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, scenario],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=command.environment,
        timeout=60,
    )
    assert (result.returncode, result.stderr.strip()) == (130, "Interrupted.")
