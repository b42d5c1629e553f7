"""The screens around a run: restart form, comparison, prediction question, home; by their keys."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from screen import lines, text
from terminal import Terminal
from textual.app import App
from textual.screen import Screen
from tourvllm.tour.reader import read_trace
from tourvllm.tour.trace import Ask, Trace

from tourvllm.plan import Plan
from tourvllm.recent import recent_runs
from tourvllm.tui import home as home_module
from tourvllm.tui import theme
from tourvllm.tui.ask import AskScreen
from tourvllm.tui.compare import CompareScreen
from tourvllm.tui.home import HomeApp
from tourvllm.tui.restart import RestartScreen
from tourvllm.tui.rows import Rows
from tourvllm.tui.shelf import read_lessons

DATA = Path(__file__).parent / "data"
RECORDED = DATA / "kv_pressure.tvllm.jsonl.gz"
WIDE, NARROW = (120, 40), (80, 24)
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x40", "80x24"])
ENGINE = {"block_size": 4, "num_blocks": 24, "max_num_seqs": 8, "max_num_batched_tokens": 20}
HOSTILE = "[bold red]no[/] \x1b[2J \u202e " + "long " * 30
NOTHING = object()


class Host(App[None]):
    """An app that opens one screen and keeps what it returns."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._opened = screen
        self.result: Any = NOTHING

    def on_mount(self) -> None:
        self.push_screen(self._opened, lambda result: setattr(self, "result", result))


async def wait_for(pilot: Any, words: str) -> None:
    """Wait until `words` stand on the screen."""
    for _ in range(500):
        await pilot.pause(0.02)
        if words in text(pilot.app):
            return
    raise AssertionError(f"{words!r} did not come:\n{text(pilot.app)}")


async def outcome(screen: Screen[Any], keys: list[str], size: tuple[int, int] = WIDE) -> Any:
    """What a screen returns after some keys."""
    app = Host(screen)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        return app.result


# Restart


@SIZES
async def test_restart_returns_what_differs_from_the_scenario(size):
    app = Host(RestartScreen(ENGINE, ENGINE))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press("1", "6", "down", "right", *["down"] * 3, "space")
        assert "24 → 16" in text(app)
        assert "4 → 5" in text(app)
        assert "prefill_first → mixed" in text(app)
        await pilot.press("enter")
        await pilot.pause()
    assert app.result == {
        "engine.num_blocks": 16,
        "engine.block_size": 5,
        "engine.policy": "mixed",
    }


async def test_restart_begins_with_the_run_and_undoes_to_the_scenario():
    run = {**ENGINE, "num_blocks": 9, "dtype": "auto"}
    assert await outcome(RestartScreen(run, ENGINE), ["enter"]) == {"engine.num_blocks": 9}
    assert await outcome(RestartScreen(run, ENGINE), ["delete", "enter"]) == {}
    assert await outcome(RestartScreen(run, ENGINE), ["escape"]) is None


async def test_restart_says_what_is_wrong_and_does_not_start():
    app = Host(RestartScreen(ENGINE, ENGINE))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        await pilot.press("0", "enter")
        assert "num_blocks: must be a whole number from 1" in text(app)
        assert app.result is NOTHING
        await pilot.press("backspace", "7", "up", "left", "enter")
        await pilot.pause()
    assert app.result == {"engine.num_blocks": 7, "engine.prefix_caching": False}


async def test_restart_of_a_stranger_s_settings():
    odd = {"num_blocks": HOSTILE, "policy": ["x"], "prefix_caching": None}
    app = Host(RestartScreen(odd, {}))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "[bold red]no[/]" in text(app)
        await pilot.press("right", *["down"] * 4, "right", "down", "down", "space", "enter")
        await pilot.pause()
    assert app.result == {"engine.num_blocks": 1}


async def test_ascii_signs_of_the_form_and_the_question_are_no_comparison():
    theme.use("dark", ascii=True)
    try:
        app = Host(RestartScreen(ENGINE, ENGINE))
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("2", "5")
            assert "24 -> 25_" in text(app)
        app = Host(AskScreen(QUESTION))
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("d")
            assert "your answer: d_" in text(app)
    finally:
        theme.use("dark")


# Prediction questions

QUESTION = Ask(kind="ask", i=3, ask="Who loses its place?", answer="D", say="D began to run last.")
CHOICE = Ask(
    kind="ask", i=3, ask="Which step is this?", answer="decode", choices=["prefill", "decode"]
)


@SIZES
async def test_a_typed_answer_is_graded_and_explained(size):
    app = Host(AskScreen(QUESTION))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press("enter")  # no answer is none
        assert "Who loses its place?" in text(app)
        await pilot.press("tab")  # clears the view of the state that the answer is in
        assert "Who loses its place?" not in text(app)
        await pilot.press("x")
        assert "Who loses its place?" in text(app)
        await pilot.press("c", "backspace", "d", "enter")
        assert " right " in text(app)
        assert "D began to run last." in text(app)
        await pilot.press("x")  # a stray key does not close what is to be read
        assert app.result is NOTHING
        await pilot.press("n")
        await pilot.pause()
    assert app.result == "d"


async def test_keys_that_walk_are_no_number():
    app = Host(AskScreen(Ask(kind="ask", i=3, ask="How many blocks?", answer="4", say="")))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        await pilot.press("s", "s", "enter")
        assert "a number, please" in text(app)
        await pilot.press("4")
        assert "a number, please" not in text(app)
        await pilot.press("backspace")
        await pilot.press(*"(13+3)/4", "enter")
        assert " right " in text(app)
        await pilot.press("space")
        await pilot.pause()
    assert app.result == "(13+3)/4"


async def test_a_wrong_answer_tells_the_right_one():
    app = Host(AskScreen(CHOICE))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        await pilot.press("z", "a", "enter")
        assert "not quite" in text(app)
        assert "you said: prefill" in text(app)
        assert "the answer: decode" in text(app)
        await pilot.press("space")
        await pilot.pause()
    assert app.result == "a"


async def test_choices_that_are_their_own_letters_stand_once():
    ask = Ask(kind="ask", i=3, ask="Who?", answer="B", choices=["A", "B", "two words"])
    app = Host(AskScreen(ask))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("b")
        rows = [line.strip(" │") for line in lines(app)]
        assert {"A", "▶ B", "c  two words"} <= set(rows)
        await pilot.press("enter")
        assert " right " in text(app)


async def test_choices_by_arrows_and_skipping():
    assert await outcome(AskScreen(CHOICE), ["down", "down", "enter", "enter"]) == "b"
    assert await outcome(AskScreen(CHOICE), ["d", "enter", "enter"]) == "b"  # as it begins
    assert await outcome(AskScreen(CHOICE), ["a", "escape"]) is None
    assert await outcome(AskScreen(QUESTION), ["escape"]) is None


async def test_a_stranger_s_question_is_harmless():
    ask = Ask(kind="ask", i=1, ask=HOSTILE * 20, answer=HOSTILE, choices=[HOSTILE] * 9, say=HOSTILE)
    app = Host(AskScreen(ask))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "[bold red]no[/] ␛[2J" in text(app)
        await pilot.press("down", "enter", "n")
        await pilot.pause()
    assert app.result == "a"


# Comparison


def altered() -> Trace:
    """The recorded run with a smaller pool in step 7, four steps shorter."""
    trace = Trace()
    with gzip.open(RECORDED) as file:
        for line in file.read().splitlines():
            data = json.loads(line)
            if data["kind"] == "header":
                data["engine"]["num_blocks"] = 18
            elif data["kind"] == "event" and data["step"] > 32:
                break
            elif data["kind"] == "event" and data["step"] == 7 and data["stop"] == "can_append":
                data["facts"]["ok"] = not data["facts"].get("ok")
            trace.feed(msgspec.json.encode(data))
    return trace


def uncached() -> Trace:
    """The recorded run with B's prefix hits undone, as if it had computed those tokens in step 2."""
    trace = Trace()
    with gzip.open(RECORDED) as file:
        for line in file.read().splitlines():
            data = json.loads(line)
            if data["kind"] == "event" and data["stop"] == "allocate":
                data["facts"]["num_cached_tokens"] = 0
            elif data["kind"] == "event" and (data["step"], data["stop"]) == (2, "step"):
                data["facts"]["num_tokens"] = 17
            trace.feed(msgspec.json.encode(data))
    return trace


@SIZES
async def test_two_runs_beside_each_other(size):
    app = Host(CompareScreen(read_trace(RECORDED), altered(), "the first", "the second"))
    async with app.run_test(size=size) as pilot:
        await wait_for(pilot, "first difference")
        screen = text(app)
        assert "engine.num_blocks 24 → 18" in screen
        assert "step 7:" in screen
        totals = [line.split() for line in lines(app) if " the " in line]
        assert totals[0][:3] == ["COMPARE", "1", "the"]
        assert [row[3] for row in totals[-2:]] == ["36", "32"]
        at = screen.index(" ms: varies by itself from run to run")
        assert screen.index("finished in step") < at < screen.index("in use")  # after all results
        (marked,) = [line for line in lines(app) if line.strip().startswith("▶")]
        assert marked.split()[:2] == ["▶≠", "7"]
        await pilot.press("down", "down", "enter")
        await pilot.pause()
    assert app.result == 9


@SIZES
async def test_a_step_tells_prefill_decode_and_blocks_in_use_as_counts(size):
    """The second run has no prefix cache: its prompt steps have more tokens, and none from the cache."""
    app = Host(CompareScreen(read_trace(RECORDED), uncached(), "a", "b"))
    async with app.run_test(size=size) as pilot:
        await wait_for(pilot, "from cache")
        rows = [line.replace("▶≠", "").split() for line in lines(app)]
        heads = [" ".join(row) for row in rows]
        assert "step prefill decode waiting running in use preempted" in heads
        totals = heads.index("steps computed from cache recomputed preemptions evictions") + 1
        assert [row[4] for row in rows[totals : totals + 2]] == ["20", "0"]
        numbers = {row[0]: [cell for cell in row[1:] if cell[0] not in "█▌"] for row in rows if row}
        assert numbers["2"][:4] == ["5", "17", "·", "·"]
        assert numbers["6"][:4] == ["·", "·", "4", "4"]
        assert numbers["6"][8:10] == ["17", "17"]
        # A bar needs room; a block or two would tell less than the number does.
        assert ("█" in text(app)) == (size == WIDE)


@SIZES
async def test_a_run_that_goes_on_is_no_difference(size):
    growing = Trace()
    with gzip.open(RECORDED) as file:
        for line in file.read().splitlines()[:200]:
            growing.feed(line)
    app = Host(CompareScreen(read_trace(RECORDED), growing, "a", "b"))
    async with app.run_test(size=size) as pilot:
        await wait_for(pilot, "None so far: the second run has come to step 8.")
        assert "2 against 1" not in text(app)
        assert "≠" not in text(app).replace("first difference (≠)", "")
        assert "→" not in text(app)


async def test_the_same_run_twice_and_leaving():
    app = Host(CompareScreen(read_trace(RECORDED), read_trace(RECORDED), "a", HOSTILE))
    async with app.run_test(size=NARROW) as pilot:
        await wait_for(pilot, "the same, event for event")
        assert not any(line.strip().startswith("▶≠") for line in lines(app))
        await pilot.press("end", "f", "escape")
        await pilot.pause()
    assert app.result is None


async def test_a_run_that_cannot_be_compared_says_so(monkeypatch):
    def fail(a: Trace, b: Trace) -> None:
        raise KeyError("facts")

    monkeypatch.setattr("tourvllm.tui.compare.compare", fail)
    app = Host(CompareScreen(Trace(), Trace(), "a", "b"))
    async with app.run_test(size=NARROW) as pilot:
        await wait_for(pilot, "These runs cannot be compared")


async def test_a_long_comparison_does_not_hold_the_screen(monkeypatch):
    monkeypatch.setattr("tourvllm.tui.compare.compare", lambda a, b: time.sleep(60))
    start = time.monotonic()
    app = Host(CompareScreen(Trace(), Trace(), "a", "b"))
    async with app.run_test(size=NARROW) as pilot:
        await wait_for(pilot, "comparing …")
        await pilot.press("escape")
        await pilot.pause()
    assert app.result is None
    assert time.monotonic() - start < 30


# Home


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user's folders: two runs, one of them torn, and some progress; and time to read them whole."""
    monkeypatch.setattr("tourvllm.recent.SECONDS_A_RUN", 60)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    runs = tmp_path / "CACHE" / "tourvllm" / "runs"
    runs.mkdir(parents=True)
    whole = RECORDED.read_bytes()
    (runs / "kv_pressure-1.tvllm.jsonl.gz").write_bytes(whole)
    (runs / "kv_pressure-2.tvllm.jsonl.gz").write_bytes(whole[: len(whole) * 3 // 4])
    (runs / "nothing-3.tvllm.jsonl.gz").write_bytes(b"no trace")
    data = tmp_path / "DATA" / "tourvllm"
    data.mkdir(parents=True)
    progress = {"kv_pressure": {"done": True, "best": 3, "asked": 4, "opened": "2026-01-01"}}
    (data / "progress.json").write_text(json.dumps(progress))
    return tmp_path


def test_recent_runs_are_read_from_their_ends(user):
    torn, whole = recent_runs()
    assert (whole.name, whole.steps, whole.outcome, whole.more) == (
        "kv_pressure",
        36,
        "complete",
        False,
    )
    assert 10 < torn.steps < 36
    assert torn.outcome == ""


@SIZES
async def test_home_shows_lessons_with_progress_and_recent_runs(user, size):
    app = HomeApp()
    async with app.run_test(size=size) as pilot:
        await pilot.press("slash", *"pressure")
        for words in ("LESSONS", "a pool that is too small", "done 3/4", "RECENT RUNS"):
            await wait_for(pilot, words)
        for words in ("36 steps", "not recorded to its end"):
            await wait_for(pilot, words)
        await pilot.press("enter")
        await pilot.pause()
    assert isinstance(app.return_value, Plan)
    assert app.return_value.name == "kv_pressure"


async def test_home_replays_a_recent_run(user):
    app = HomeApp()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("slash", *"kv_pr")
        await wait_for(pilot, "36 steps")
        await pilot.press("end")
        await wait_for(pilot, "kv_pressure-1.tvllm")
        await pilot.press("enter")
        for _ in range(200):
            await pilot.pause(0.02)
            if app.return_value:
                break
    trace, path = app.return_value
    assert len(trace.steps) == 36
    assert path.name == "kv_pressure-1.tvllm.jsonl.gz"


async def test_home_keeps_what_was_chosen_while_the_rest_is_read(user):
    app = HomeApp()
    async with app.run_test(size=WIDE) as pilot:
        await wait_for(pilot, "36 steps")
        app.query_one(Rows).action_go_to_last()
        app._lessons_are_read(read_lessons())  # before the list has told of the other row
        await pilot.press("enter")
        await wait_for(pilot, "open which file?")


async def test_home_opens_a_file_or_says_why_not(user):
    (user / "x.txt").write_text("no trace")
    app = HomeApp()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("end", "enter")
        await wait_for(pilot, "open which file?")
        for typed, said in (
            (user / "x.txt", "is not a tourvllm trace"),
            (user / "none", "there is no file"),
            (user, "is a folder"),
            ("none.yaml", "there is no scenario"),
        ):
            app.screen.query_one("Input").value = str(typed)
            await pilot.press("enter")
            await wait_for(pilot, said)
        app.screen.query_one("Input").value = str(RECORDED)
        await pilot.press("enter")
        for _ in range(200):
            await pilot.pause(0.02)
            if app.return_value:
                break
    assert app.return_value[1] == RECORDED


async def test_home_tells_all_of_a_lesson_also_on_a_small_terminal(user):
    app = HomeApp()
    async with app.run_test(size=NARROW) as pilot:
        for chosen in ("4 requests, 25 blocks of 4 tokens", "At best you had 3 of 4"):
            await wait_for(pilot, chosen)
            assert "Enter runs it" in lines(app)[-1]
            await pilot.press("down")
        await pilot.press("end")
        await wait_for(pilot, "Enter opens one")


async def test_home_tells_what_went_wrong_and_comes_back_to_the_same_item(user):
    app = HomeApp(f"tourvllm: the engine failed: {HOSTILE}", "lesson scheduler_watch")
    async with app.run_test(size=NARROW) as pilot:
        await wait_for(pilot, "RECENT RUNS")
        assert "the engine failed: [bold red]no[/] ␛[2J" in text(app)
        assert app.chosen == "lesson scheduler_watch"
        await pilot.press("question_mark")
        await wait_for(pilot, "only what holds some words")
        await pilot.press("escape", "q")
        await pilot.pause()
    assert app.return_value is None


def test_a_failed_run_is_told_at_home_and_at_the_end(user, monkeypatch, capsys):
    """The loop: a run that fails, home again with its sentence, and the exit."""
    told = []

    def at_home(app: HomeApp) -> int:
        told.append(app._said)
        app._return_value = (Trace(), RECORDED) if len(told) == 1 else None
        return 0

    def fail(trace: Trace, path: Path) -> int:
        import sys

        print("tourvllm: no engine", file=sys.stderr)
        return 1

    monkeypatch.setattr(home_module, "run_app", at_home)
    monkeypatch.setattr("tourvllm.tui.start.run_replay", fail)
    assert home_module.home() == 0
    assert told == ["", "tourvllm: no engine"]
    assert capsys.readouterr().err == "tourvllm: no engine\n"


async def test_a_million_rows_cost_what_is_seen():
    from rich.text import Text

    class Long(App[None]):
        def compose(self):
            yield Rows(lambda number, width: Text(f"row {number}"))

    app = Long()
    async with app.run_test(size=NARROW) as pilot:
        app.query_one(Rows).focus()
        app.query_one(Rows).fill(1_000_000, 500_000)
        await pilot.pause()
        start = time.monotonic()
        await pilot.press("end", "up", "pageup", "home", "down")
        assert time.monotonic() - start < 5
        assert "row 1" in text(app)


def test_home_in_a_terminal(user):
    """Home, a lesson by Enter, back by q with that run on top, and out."""
    terminal = Terminal()
    terminal.wait_for("not recorded to its end")
    terminal.process.send("/pressure\r")
    terminal.wait_for("step 1  SCHEDULE")
    terminal.process.send("nnq")
    terminal.wait_for("just now")
    assert len(list(user.glob("CACHE/tourvllm/runs/kv_pressure-2*.tvllm.jsonl.gz"))) == 2
    terminal.process.send("q")
    assert terminal.finish() == 0
    assert terminal.restored
    assert b"Replay it with: tourvllm replay" in terminal.seen


async def test_home_with_a_filter_that_nothing_has(user):
    app = HomeApp()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("slash", *"zzzz")
        await pilot.resize_terminal(80, 24)
        await pilot.press("enter", "down", "end", "pageup", "escape")
        await wait_for(pilot, "kv_pressure")
        assert app.return_value is None
