"""The command in a real terminal: what a person types and sees, and what is left of the terminal afterwards."""

import os
import signal
import time
from pathlib import Path

import pytest
from terminal import ROOT, Terminal

RECORDED = ROOT / "tests" / "data" / "kv_pressure.tvllm.jsonl.gz"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "cache"


def test_run_step_back_and_quit(cache):
    """The main job: five steps on, two back, quit. The right step on screen, terminal whole, trace kept."""
    terminal = Terminal("run", "scenarios/kv_pressure.yaml")
    terminal.wait_for("step 1  SCHEDULE")
    terminal.process.send("nnnnn")
    terminal.wait_for("step 5  PREFILL")
    terminal.process.send("pp")
    terminal.wait_for("step 3  PREFILL")
    screen = "\n".join(terminal.screen.display)
    for word in ("waiting", "running", "block tables", "slot_mapping", "cu_seqlens_q"):
        assert word in screen
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored
    assert b"Replay it with: tourvllm replay" in terminal.seen
    assert list(cache.glob("tourvllm/runs/kv_pressure-*.tvllm.jsonl.gz"))


def test_replay(tmp_path):
    terminal = Terminal("replay", str(RECORDED), size=(80, 24), cwd=tmp_path)
    terminal.wait_for("REPLAY")
    terminal.process.send("nn")
    terminal.wait_for("step 2  PREFILL")
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored


def test_what_is_pasted_into_a_prompt_that_just_opens_is_not_lost(tmp_path):
    terminal = Terminal("replay", str(RECORDED), cwd=tmp_path)
    terminal.wait_for("REPLAY")
    for step in (12, 25, 9):
        terminal.process.send(f":\x1b[200~{step}\x1b[201~\r")
        terminal.wait_for(f" step {step}  ")
    terminal.process.send("q")
    assert terminal.finish() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_restores_the_terminal(cache, number):
    terminal = Terminal("run", "kv_pressure")
    terminal.wait_for("step 1  SCHEDULE")
    terminal.process.kill(number)
    assert terminal.finish() == 128 + number
    assert terminal.restored


def test_a_killed_engine_leaves_the_terminal_usable(cache):
    terminal = Terminal("run", "kv_pressure")
    terminal.wait_for("step 1  SCHEDULE")
    terminal.process.send("nnn")
    terminal.wait_for("step 3  PREFILL")
    for pid in children(terminal.process.pid):
        os.kill(pid, signal.SIGKILL)
    terminal.wait_for("ENGINE STOPPED")
    terminal.process.send("p")
    terminal.wait_for("step 2  PREFILL")
    terminal.process.send("q")
    assert terminal.finish() == 1
    assert terminal.restored


def children(pid: int) -> list[int]:
    """The process ids of the children of `pid`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


FAILS = """
from tourvllm.cli import main
from tourvllm.tui.app import TourApp

def fail(self):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    raise ValueError("nobody expected this")

TourApp.action_theme = fail
main()
"""


def test_a_defect_of_the_app_says_where_it_is_and_leaves_the_terminal_usable(cache, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    terminal = Terminal("replay", str(RECORDED), cwd=tmp_path, module="fails")
    terminal.wait_for("step 1  SCHEDULE")
    start = time.monotonic()
    terminal.process.send("T")
    assert terminal.finish() == 1
    assert time.monotonic() - start < 10
    assert terminal.restored
    shown = terminal.seen.decode()
    assert "in fail" in shown
    assert "ValueError: nobody expected this" in shown
    assert "This is a defect of tourvllm" in shown


def test_the_engine_ends_when_the_app_is_killed(cache):
    """kill -9 of the app: no engine stays behind, and the trace is whole."""
    terminal = Terminal("run", "kv_pressure")
    terminal.wait_for("step 1  SCHEDULE")
    (engine,) = children(terminal.process.pid)
    terminal.process.kill(signal.SIGKILL)
    for _ in range(200):
        if not Path(f"/proc/{engine}").exists() or "Z" in Path(f"/proc/{engine}/stat").read_text():
            break
        time.sleep(0.02)
    else:
        raise AssertionError("the engine still runs")
    terminal.process.close()


def test_a_broken_model_says_so_on_the_screen_and_in_the_exit_code(cache, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
    terminal = Terminal("run", "kv_pressure", "--model", str(model))
    terminal.wait_for("ENGINE STOPPED")
    terminal.process.send("q")
    assert terminal.finish() == 1
    assert terminal.restored


def test_the_layout_follows_the_size_of_the_terminal(tmp_path):
    terminal = Terminal("replay", str(RECORDED), size=(80, 24), cwd=tmp_path)
    terminal.wait_for("v: next view")
    terminal.process.setwinsize(40, 120)
    terminal.screen.resize(40, 120)
    terminal.wait_for("─loop")
    terminal.process.setwinsize(24, 80)
    terminal.screen.resize(24, 80)
    terminal.wait_for("v: next view")
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored


def test_what_the_engine_prints_never_reaches_the_screen(cache, tmp_path, monkeypatch):
    """Noise on file descriptors 1 and 2 of the child, from its first moment on."""
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    terminal = Terminal("run", "kv_pressure")
    terminal.wait_for("step 1  SCHEDULE")
    terminal.process.send("nnn")
    terminal.wait_for("step 3  PREFILL")
    assert b"NOISE" not in terminal.seen
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored


NOISE = """
import os, sys, threading, time

def make():
    while True:
        for number in (1, 2):
            os.write(number, b"NOISE\\n")
        time.sleep(0.001)

if "tourvllm.child" in " ".join(sys.orig_argv):
    os.write(1, b"NOISE at once\\n")
    threading.Thread(target=make, daemon=True).start()
"""


def test_a_disk_that_is_full_is_a_sentence_and_an_exit_code(cache):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    terminal = Terminal("run", "kv_pressure", "--record", "/dev/full")
    terminal.wait_for("No space left on device")
    terminal.process.send("q")
    assert terminal.finish() == 1
    assert terminal.restored


def test_a_restart_from_a_replay_is_recorded_and_told(cache, tmp_path):
    terminal = Terminal("replay", str(RECORDED), cwd=tmp_path)
    terminal.wait_for("REPLAY")
    terminal.process.send("r")
    terminal.wait_for("num_blocks")
    terminal.process.send("40\r")
    terminal.wait_for("free 40/40")
    terminal.process.send("n")
    terminal.wait_for("PREFILL")
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored
    assert b"Replay it with: tourvllm replay" in terminal.seen


def test_a_terminal_without_unicode_gets_ascii_signs(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    terminal = Terminal("replay", str(RECORDED), cwd=tmp_path)
    terminal.wait_for("REPLAY")
    terminal.process.send("nnnnnnnn")
    terminal.wait_for("step 8")
    terminal.read(0.5)
    assert "\n".join(terminal.screen.display).isascii()
    terminal.process.send("q")
    assert terminal.finish() == 0
