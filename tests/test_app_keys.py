"""What a reader keeps while debugging, by keys: breakpoints, watches, bookmarks, other runs, settings."""

import gzip
import json
from pathlib import Path

import pytest
from apps import NARROW, RECORDED, WIDE, at, live, own_folders, replay, with_lines
from screen import lines, pane, press, settle, text
from textual.events import Key
from tourvllm.tour.lessons import Progress
from tourvllm.tour.reader import open_trace, read_trace

from tourvllm.tui import theme
from tourvllm.tui.app import TourApp
from tourvllm.tui.ask import AskScreen
from tourvllm.tui.bars import Bar
from tourvllm.tui.breakpoints import BreakpointEntry
from tourvllm.tui.config import Config, config_path, read_config
from tourvllm.tui.keys import KEYS
from tourvllm.tui.links import ChildLink, ThreadLink
from tourvllm.tui.session import Session

__all__ = ["own_folders"]
ROOT = Path(__file__).parent.parent


async def write(pilot, words: str, end: str = "enter") -> None:
    """Type into a prompt."""
    await press(pilot, [*words, end])


# Breakpoints


async def test_b_sets_a_breakpoint_at_the_stop_on_the_screen():
    app = replay()
    app.session.breakpoints.clear()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nns")
        stop = app.session.cursor.event.stop
        await press(pilot, "b")
        assert f"breakpoint: {stop}" in lines(app)[-1]
        await press(pilot, ["enter"])
        assert f"Breakpoint set: {stop}" in lines(app)[-1]
        await press(pilot, "c")
        assert app.session.cursor.event.stop == stop
        assert f"Breakpoint: {stop}" in lines(app)[-1]
        await press(pilot, ["b", *"free < 2", "enter"])
        assert "Breakpoint set: free < 2" in lines(app)[-1]
        await press(pilot, ["b", "right", *" hits 2", "enter"])
        assert f"Breakpoint set: {stop} hits 2" in lines(app)[-1]


async def test_a_breakpoint_that_can_never_trigger_is_refused_and_the_prompt_stays():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        before = len(app.session.breakpoints)
        await press(pilot, ["b", "ctrl+u"])
        await write(pilot, "premept")
        assert "did you mean preempt?" in lines(app)[-2]
        assert "breakpoint: premept" in lines(app)[-1]
        await press(pilot, ["ctrl+u"])
        await write(pilot, "free ==")
        assert "is not an expression" in lines(app)[-2]
        await press(pilot, ["ctrl+u"])
        await write(pilot, "Q.num_tokens > 3")
        assert "there is no Q" in lines(app)[-3]
        assert "running, seqs, step, stop, total, waiting" in lines(app)[-2]  # told to its end
        await press(pilot, ["escape", "n"])
        assert len(app.session.breakpoints) == before
        assert at(app)[0] == 1


async def test_the_list_of_breakpoints_turns_off_edits_adds_and_deletes():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "B")
        await pilot.pause(0.5)
        assert "[x] preempt" in text(app)
        assert "1 in the run  scenario" in text(app)
        await press(pilot, ["space"])
        assert "[ ] preempt" in text(app)
        await press(pilot, ["a"])
        await write(pilot, "finish if seq == 'B'")
        await pilot.pause(0.3)
        assert "[x] finish if seq == 'B'" in text(app)
        assert "1 in the run  yours" in text(app)
        await press(pilot, ["enter", "ctrl+u"])
        await write(pilot, "finish hits 2")
        await press(pilot, ["home", "down", "d", "d"])
        assert [entry.line for entry in app.session.breakpoints] == ["preempt", "finish hits 2"]
        await press(pilot, ["escape", "c"])
        assert app.session.cursor.event.stop == "finish"
        assert "Breakpoint: finish hits 2" in lines(app)[-1]
        ends = [
            position
            for position in range(1, len(app.session.trace) + 1)
            if app.session.trace.event(position - 1).stop == "finish"
        ]
        assert at(app)[1] == ends[1]
        await press(pilot, "B")
        await press(pilot, ["d", "d", "d", "enter", "space"])
        assert "No breakpoints" in text(app)


async def test_a_condition_that_cannot_be_evaluated_halts_and_says_why():
    app = replay()
    app.session.breakpoints.clear()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["b", "ctrl+u"])
        await write(pilot, "free < 'a'")
        await press(pilot, ["home", "c"])
        assert "cannot be evaluated" in lines(app)[-1]
        assert not app.session.cursor.at_end


@pytest.mark.parametrize("make_link", [ThreadLink, ChildLink])
async def test_breakpoints_halt_a_live_engine_and_count(tmp_path, make_link):
    app = live(tmp_path, make_link())
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        app.session.breakpoints.clear()
        await press(pilot, ["n", "b", "ctrl+u"])
        await write(pilot, "step hits 7")
        await press(pilot, "c")
        assert app.session.cursor.event.stop == "step"
        hits = [i for i in range(at(app)[1]) if app.session.trace.event(i).stop == "step"]
        assert len(hits) == 7
        assert "Breakpoint: step hits 7" in lines(app)[-1]
        assert app.session.breakpoints[0].count == 7
        recorded = len(app.session.trace)
        await press(pilot, "C")
        assert "No breakpoint before this" in lines(app)[-1]
        await press(pilot, "c")
        assert (at(app)[1], len(app.session.trace)) == (recorded, recorded)
        await press(pilot, ["B", "space", "escape"])
        await press(pilot, ["b", "ctrl+u"])
        await write(pilot, "len(waiting) < 'x'")
        await press(pilot, "c")  # it cannot be evaluated here: nothing moves
        assert "cannot be evaluated" in lines(app)[-1]
        assert len(app.session.trace) == recorded
        await press(pilot, ["b", "ctrl+u"])
        await write(pilot, "A.status == 'finished' and step < 'x'")
        await press(pilot, "c")  # nor there, where the engine comes to it
        assert "cannot be evaluated" in lines(app)[-1]
        assert app.session.cursor.state["seqs"]["A"]["status"] == "finished"
        await press(pilot, "c")
        assert app.session.ended
    assert app.session.error is None


async def test_keys_that_come_during_a_run_wait_and_space_halts_it(tmp_path):
    app = live(tmp_path, ChildLink())
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        app.session.breakpoints.clear()
        await pilot.press("c")
        await pilot.press("space")
        await settle(pilot)
        assert not app.session.busy
        position = at(app)[1]
        await press(pilot, ["p", "end", "ctrl+c"])
        assert at(app)[1] >= position - 60
        assert "Nothing is on its way" in lines(app)[-1]


# Watches


async def test_w_adds_edits_and_deletes_watches_and_completes_names():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", "n", "n", "W", "a"])
        await press(pilot, [*"A.block_t", "tab"])
        assert "watch: A.block_table" in lines(app)[-1]
        await write(pilot, "[1] * block_size + 2")
        table = app.session.cursor.state["seqs"]["A"]["block_table"]
        assert f"A.block_table[1] * block_size + 2 = {table[1] * 4 + 2}" in text(app)
        await press(pilot, ["enter", "ctrl+u"])
        await write(pilot, "nobody + 1")
        assert "there is no nobody" in text(app)
        await press(pilot, ["ctrl+u", *"A.num_", "tab"])
        assert "num_cached_tokens" in lines(app)[-2]
        await write(pilot, "tokens")
        await press(pilot, ["escape"])
        tokens = app.session.cursor.state["seqs"]["A"]["num_tokens"]
        assert f"A.num_tokens = {tokens}" in pane(app, "why")
        await press(pilot, ["W", "end", "up", "up", "enter", "escape"])
        assert app.session.watches[-1] == "A.num_scheduled_tokens"
        await press(pilot, ["W", "d", "d", "d", "d", "d", "d", "escape"])
        assert app.session.watches == []


# Finding, following, bookmarks, export


async def test_a_watch_is_asked_for_and_its_names_are_checked():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", "w"])
        await write(pilot, "B.num_computed")
        assert "a request has no num_computed: did you mean B.num_cached_tokens?" in text(app)
        await press(pilot, ["escape", "w"])
        await write(pilot, "B.num_cached_tokens")
        assert app.session.watches[-1] == "B.num_cached_tokens"
        await press(pilot, ["W"])
        assert "B.num_cached_tokens = 0" in text(app)
        await press(pilot, ["escape", "b"])
        await write(pilot, "step 12")
        assert "did you mean step == 12?" in text(app)


async def test_find_goes_from_one_place_to_the_next():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["home", "/"])
        await write(pilot, "No_Free_Blocks")
        first = at(app)[1]
        assert app.session.cursor.event.facts["cause"] == "no_free_blocks"
        await press(pilot, ["/", "enter"])
        assert at(app)[1] > first
        await press(pilot, ["/"])
        await write(pilot, "no such thing")
        assert "'no such thing' is nowhere in what is recorded." in lines(app)[-1]


async def test_find_looks_at_what_is_told_and_at_prompts():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["home", "/"])
        await write(pilot, "dragon")
        event = app.session.cursor.event
        assert (event.stop, event.facts["seq"]) == ("add_request", "C")
        await press(pilot, [":", "4", "enter", "/"])
        await write(pilot, "preempt")  # and not where the fact `preemptions` is 0
        assert app.session.cursor.event.stop == "preempt"


async def test_the_list_counts_what_triggered_on_the_way_to_the_end_of_a_live_run(tmp_path):
    app = live(tmp_path, ThreadLink(), name="counted", text=LESSON + "breakpoints: [finish]\n")
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        await press(pilot, [":", "9", "9"])
        assert "Step 99 has not been made yet: Enter lets the engine run on to it." in text(app)
        await press(pilot, ["enter"])
        await settle(pilot)
        await press(pilot, ["escape", "B"])
        await pilot.pause(0.3)
        assert "1 in the run" in " ".join(text(app).split())


async def test_find_goes_on_at_the_start_after_the_last_place():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["home", "/"])
        await write(pilot, "needed_by")
        only = at(app)
        assert "is only here" not in lines(app)[-1]
        await press(pilot, ["/", "enter"])
        assert "is only here." in lines(app)[-1]
        assert at(app) == only
        await press(pilot, ["end", "/", "enter"])
        assert "from the start again" in lines(app)[-1]
        assert at(app) == only


async def test_what_was_said_of_a_key_goes_with_the_next_one():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "n")
        for follows in (["x", "A", "enter"], ["z"], ["tab"], ["r", "escape"], ["escape"]):
            await press(pilot, ["/", *"zzz", "enter"])
            assert "'zzz' is nowhere in what is recorded." in lines(app)[-1]
            await press(pilot, follows)
            assert "zzz" not in text(app)
        await press(pilot, ["/", *"zzz", "enter"])
        await pilot.click("#tables", offset=(0, 1))
        await settle(pilot)
        assert "zzz" not in text(app)


async def test_x_follows_a_request_and_escape_lets_it_go():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnnnx")
        await write(pilot, "Z")
        assert "There is no request Z" in lines(app)[-2]
        await press(pilot, ["ctrl+u"])
        await write(pilot, "d")
        assert app.selection.seq == "D"
        await press(pilot, ["escape"])
        assert app.selection.seq is None


async def test_bookmarks_of_a_replay_are_there_again_and_are_exported(tmp_path):
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnm")
        await write(pilot, "look [here]")
        marked = at(app)[1]
        await press(pilot, ["home", "]"])
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["end", "["])
        while at(app)[1] != marked and at(app)[1]:
            await press(pilot, ["["])
        assert at(app)[1] == marked
        assert "look [here]" in pane(app, "why")
        await press(pilot, ["e", "ctrl+u"])
        await write(pilot, str(tmp_path / "nowhere" / "x.jsonl"))
        assert "There is no folder" in lines(app)[-2]
        await press(pilot, ["ctrl+u"])
        await write(pilot, str(tmp_path / "out.tvllm.jsonl"))
        await pilot.pause(0.5)
        assert "Written: " in lines(app)[-1]
        await press(pilot, ["e", "ctrl+u"])
        await write(pilot, str(tmp_path / "out.tvllm.jsonl"))
        assert "is there already" in text(app)
    again = read_trace(tmp_path / "out.tvllm.jsonl")
    assert again.problem is None
    assert "look [here]" in again.notes[marked]


async def test_damaged_bookmarks_are_a_sentence():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nm")
        await write(pilot, "one")
    (kept,) = (Path(config_path()).parent.parent.parent / "data").glob("tourvllm/bookmarks/*.json")
    kept.write_text("{")
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        assert "Your bookmarks in" in lines(app)[-1]
        await press(pilot, "nm")
        await write(pilot, "two")
        assert "The bookmark cannot be kept" in lines(app)[-1]


async def test_a_live_bookmark_is_in_the_trace_and_an_export_of_a_run_is_whole(tmp_path):
    app = live(tmp_path, ChildLink())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnp")
        await press(pilot, "m")
        await write(pilot, "the second step")
        marked = at(app)[1]
        await pilot.pause(0.3)
        assert "the second step" in pane(app, "why")
        await press(pilot, ["e", "ctrl+u"])
        await write(pilot, str(tmp_path / "out.tvllm.jsonl.gz"))
        await pilot.pause(0.5)
        assert "Written: " in lines(app)[-1]
    for name in ("out", "run"):
        trace = read_trace(tmp_path / f"{name}.tvllm.jsonl.gz")
        assert trace.problem is None
        assert "the second step" in trace.notes[marked]


# Questions

ASK = {
    "kind": "ask",
    "i": 60,
    "step": 3,
    "ask": "How many blocks are free?",
    "answer": "10",
    "choices": [],
    "say": "Because.",
}


@pytest.mark.parametrize("key", ["n", "s", "c", "f", "6"])
async def test_no_key_leads_over_an_open_question(tmp_path, key):
    path = with_lines(tmp_path / "asks.tvllm.jsonl", ASK)
    app = replay(path)
    app.session.breakpoints.clear()
    async with app.run_test(size=WIDE) as pilot:
        for _ in range(100):
            await press(pilot, [key])
            if not app.in_front:
                break
        assert at(app)[1] == 59
        assert "How many blocks are free?" in text(app)
        await write(pilot, "10")
        assert "right" in text(app)
        assert "Because." in text(app)
        await press(pilot, ["space"])
        assert at(app)[1] == 60
        assert "predictions 1/1" in lines(app)[0]
        await press(pilot, ["p", "n"])
        assert app.in_front  # it is asked once


async def test_jumps_do_not_ask_and_a_skipped_question_is_not_asked_again(tmp_path):
    path = with_lines(tmp_path / "asks.tvllm.jsonl", ASK, {**ASK, "i": 300, "ask": "And now?"})
    app = replay(path)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["end", "home", ":", "1", "2", "enter"])
        assert app.in_front
        await press(pilot, ["home", "n", "n", "n", "n"])
        await press(pilot, ["escape"])
        assert at(app)[1] == 60
        assert "predictions" not in lines(app)[0]
        await press(pilot, ["home", "n", "n", "n", "n", "n"])
        assert app.in_front
        assert at(app)[0] == 5


async def peeks(pilot, app, keys, step):
    """Type `keys` into the prompt of `:` and wait until `step` is on the screen behind it."""
    await press(pilot, keys)
    for _ in range(100):
        if at(app)[0] == step:
            break
        await pilot.pause(0.02)
    assert at(app)[0] == step
    assert f" step {step} " in lines(app)[0]


async def test_the_step_that_is_typed_shows_at_once_and_enter_stays_there():
    app, other = replay(), replay()
    async with app.run_test(size=WIDE) as pilot:
        await peeks(pilot, app, [":", "1"], 1)
        assert "go to step: 1" in lines(app)[-1]
        await peeks(pilot, app, ["7"], 17)
        await press(pilot, ["enter"])
        assert app.in_front
        assert at(app)[0] == 17
        shown = lines(app)
        await press(pilot, ["n", "p"])
        assert lines(app) == shown
    async with other.run_test(size=WIDE) as pilot:
        await press(pilot, [":"])
        other.post_message(Key("1", "1"))
        await press(pilot, ["7", "enter"])
        assert lines(other) == shown


async def test_escape_goes_back_to_the_stop_where_a_step_was_typed():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", "n", "s", "s"])
        place, shown = at(app), lines(app)
        await peeks(pilot, app, [":", "3"], 3)
        await peeks(pilot, app, ["0"], 30)
        await press(pilot, ["escape"])
        assert (at(app), lines(app)) == (place, shown)
        await peeks(pilot, app, [":", "9"], 9)
        await press(pilot, ["9"])
        assert at(app) == place
        assert "There is no step 99: steps 1 to 36 are recorded." in lines(app)[-2]
        await press(pilot, ["enter"])
        assert at(app) == place
        assert "There is no step 99" in lines(app)[-1]
        await peeks(pilot, app, [":", "9"], 9)
        await press(pilot, ["backspace"])
        assert at(app) == place


async def test_a_typed_step_that_is_broken_is_told_and_escape_goes_back(tmp_path):
    path = tmp_path / "misfit.tvllm.jsonl"
    rows = gzip.decompress(RECORDED.read_bytes()).splitlines()
    at_500 = next(n for n, row in enumerate(rows) if b'"i":500,' in row)
    event = json.loads(rows[at_500])
    event["do"] = [["set", ["seqs", "nobody", "waits_for"], 1]]
    rows[at_500] = json.dumps(event, separators=(",", ":")).encode()
    kept = [row for row in rows if b'"kind":"keyframe"' not in row]
    path.write_bytes(b"\n".join(kept) + b"\n")
    app = replay(path)
    async with app.run_test(size=WIDE) as pilot:
        place = at(app)
        await press(pilot, [":", "1", "9"])
        await pilot.pause(0.3)
        await press(pilot, ["escape"])
        assert at(app) == place
        await press(pilot, ["n"])
        assert at(app)[0] == 1


async def test_a_step_that_is_merely_seen_while_typing_does_not_end_a_lesson():
    app = replay()
    app.progress = Progress()
    async with app.run_test(size=WIDE) as pilot:
        last = app.session.trace.steps[-1].number
        await peeks(pilot, app, [":", *str(last)], last)
        await pilot.resize_terminal(100, 30)
        await pilot.pause(0.1)
        assert not Progress().of("kv_pressure").done
        await press(pilot, ["escape"])
        assert not Progress().of("kv_pressure").done
        await peeks(pilot, app, [":", *str(last)], last)
        await press(pilot, ["enter"])
    assert Progress().of("kv_pressure").done


async def test_playing_stops_at_a_question(tmp_path):
    app = replay(with_lines(tmp_path / "asks.tvllm.jsonl", ASK))
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["greater_than_sign"] * 9)
        assert "16 steps a second" in lines(app)[-1]
        await pilot.press("space")
        await pilot.pause(1)
        assert not app.in_front
        assert not app.playing
        assert at(app)[1] == 59


LESSON = """
title: "A question"
engine: {block_size: 4, num_blocks: 16}
sampling: {temperature: 0, max_tokens: 3}
requests: [{id: A, prompt: "Once upon a time"}]
tour:
  - at: allocate
    ask: {question: "How many blocks does A get?", answer: "len(A.block_table)"}
    say: "One for every four tokens."
"""


async def test_a_live_run_asks_before_it_shows_and_progress_is_kept(tmp_path):
    app = live(tmp_path, ThreadLink(), name="lesson", text=LESSON)
    app.progress = Progress()
    app.session.breakpoints.clear()
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        await press(pilot, ["n"])
        assert "How many blocks does A get?" in text(app)
        assert app.session.cursor.event.stop == "can_allocate"
        right = app.session.pending_ask.answer
        await write(pilot, right)
        assert "One for every four tokens." in text(app)
        await press(pilot, ["space"])
        assert app.session.cursor.event.stop == "allocate"
        await press(pilot, ["c", "c"])
        assert app.session.ended
        assert at(app)[1] == len(app.session.trace)
    assert Progress().of("lesson").done
    assert Progress().of("lesson").best == 1


async def test_the_bracket_drives_a_live_run_from_note_to_question_to_mark(tmp_path):
    said = '  - {at: postprocess, say: "Its first token."}\n'
    app = live(tmp_path, ThreadLink(), name="lesson", text=LESSON + said)
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        await press(pilot, ["]"])
        assert "How many blocks does A get?" in text(app)
        await press(pilot, ["escape", "]"])
        assert app.session.cursor.event.stop == "postprocess"
        assert "Its first token." in pane(app, "why")
        await press(pilot, ["]"])
        assert app.session.cursor.event.stop == "finish"
        await press(pilot, ["["])
        assert app.session.cursor.event.stop == "postprocess"


async def test_a_lesson_is_done_at_its_last_step_also_when_another_run_follows(tmp_path):
    app = live(tmp_path, ThreadLink(), name="lesson", text=LESSON)
    app.progress = Progress()
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        await press(pilot, "n")
        assert "How many blocks does A get?" in text(app)
        await press(pilot, ["escape", "n"])
        assert not Progress().of("lesson").done
        await press(pilot, [":", "3", "enter"])
        await settle(pilot)
        assert at(app)[0] == 3
        assert Progress().of("lesson").done
        await press(pilot, [":", "9", "enter"])
        await settle(pilot)
        assert (
            "There is no step 9: the run ended with step 3, and you are there now."
            in lines(app)[-1]
        )


async def test_playing_halts_at_a_breakpoint(tmp_path):
    for app in (replay(), live(tmp_path, ThreadLink())):
        async with app.run_test(size=WIDE) as pilot:
            await settle(pilot)
            app.session.breakpoints = [BreakpointEntry("preempt")]
            await press(pilot, ["greater_than_sign"] * 9)
            await pilot.press("space")
            for _ in range(200):
                await pilot.pause(0.05)
                if not app.playing:
                    break
                app.session.answer(None)
            assert "Breakpoint: preempt" in lines(app)[-1]
            assert app.session.cursor.event.stop == "preempt"


# Other runs


async def test_r_runs_again_with_other_settings_and_d_compares():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nd")
        assert "There is no earlier run" in lines(app)[-1]
        await press(pilot, "r")
        assert "num_blocks" in text(app)
        await press(pilot, [*"40", "enter"])
        await pilot.pause(0.2)
        await settle(pilot)
        assert "LIVE" in lines(app)[0]
        assert app.session.cursor.state["blocks"]["total"] == 40
        assert len(app.earlier) == 1
        app.session.breakpoints.clear()
        await press(pilot, "c")
        assert app.session.ended
        await press(pilot, "d")
        await pilot.pause(0.5)
        assert "num_blocks=40" in text(app)
        await press(pilot, ["escape", "p"])
        assert app.in_front
    assert [path.is_file() for path in app.traces] == [True]
    assert read_trace(app.traces[0]).problem is None


async def test_r_without_an_engine_or_a_scenario_is_a_sentence(monkeypatch):
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        with monkeypatch.context() as patch:
            patch.setattr("tourvllm.tui.rerun.find_spec", lambda name: None)
            await press(pilot, ["r", "enter"])
        assert "The engine is not installed" in lines(app)[-1]
        app.session.trace.header["scenario"]["text"] = ""
        await press(pilot, "r")
        assert "holds no scenario" in lines(app)[-1]
        app.session.trace.header["scenario"]["text"] = "title: [" * 9
        await press(pilot, "r")
        assert app.in_front
        assert app.is_running


# Settings


def test_without_a_file_all_is_as_it_ships():
    assert read_config() == Config(ascii=read_config().ascii)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("theme = 'pink'", "there is no theme 'pink'"),
        ("colour = 1", "there is no setting colour"),
        ("ascii = 'yes'", "must be true or false"),
        ("[keys]\nfly = 'n'", "there is no action fly"),
        ("[keys]\nnext_step = 'ctlr+n'", "names a key that is unknown"),
        ("[keys]\nnext_step = 's'", "s is the key of next_stop already"),
        ("[keys]\nnext_step = 5", "must be a text"),
        ("keys = 5", "must be a table"),
        ("theme = ", "cannot be read"),
        ("\udcff", "cannot be read"),
    ],
)
async def test_a_wrong_setting_is_one_sentence_and_the_app_opens(words, told):
    config_path().parent.mkdir(parents=True)
    config_path().write_bytes(words.encode("utf-8", "surrogateescape"))
    app = replay(config=read_config())
    async with app.run_test(size=(200, 40)) as pilot:
        assert told in lines(app)[-1]
        await press(pilot, "n")
        assert at(app)[0] == 1


async def test_keys_theme_and_signs_from_the_file():
    config_path().parent.mkdir(parents=True)
    config_path().write_text(
        'theme = "light"\nascii = true\n[keys]\nnext_step = "j,f5"\nnext_stop = "n"\nfind = "f,ctrl+f"\n'
        'finish_phase = "slash"\n'
    )
    config = read_config()
    assert config.problem == ""
    app = replay(config=config)
    try:
        async with app.run_test(size=WIDE) as pilot:
            assert lines(app)[-1].split()[:2] == ["j", "step"]
            await press(pilot, ["j", "f5"])
            assert at(app)[0] == 2
            position = at(app)[1]
            await press(pilot, "n")
            assert at(app)[1] == position + 1
            await press(pilot, ["f"])
            assert "find:" in lines(app)[-1]
            await press(pilot, ["escape", "/"])
            assert app.session.cursor.event.stop == "schedule"
            assert theme.name() == "light"
            assert app.theme == "tourvllm-light"
            await press(pilot, ["question_mark"])
            assert "j  f5" in text(app)
            await press(pilot, ["escape", "T"])
            assert theme.name() == "contrast"
    finally:
        theme.use("dark")


def test_the_page_of_keys_names_every_action():
    page = (ROOT / "docs" / "keys.md").read_text("utf-8")
    named = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    assert named == list(KEYS)
    keys = [line.split("|")[2].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    assert keys == [key.keys for key in KEYS.values()]


# Zoom, theme


async def test_a_zoomed_pane_tells_the_way_back():
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        for back in ("z", "escape", "v"):
            await press(pilot, "nz")
            assert "one pane alone   z or Esc: back" in lines(app)[1]
            assert "z unzoom" in lines(app)[-1]
            assert "v view" not in lines(app)[-1]
            await press(pilot, [back])
            assert " state   code   blocks   output " in lines(app)[1]
            assert "z zoom" in lines(app)[-1]
        await press(pilot, "v")
        assert app.base.has_class("view-code")


async def test_the_bar_of_views_takes_a_new_theme_s_colours():
    app = replay()
    try:
        async with app.run_test(size=NARROW) as pilot:
            await press(pilot, "T")
            assert theme.name() == "light"
            tabs = app.base.query_one("#tabs", Bar).line
            assert theme.style("dim") in [span.style for span in tabs.spans]
    finally:
        theme.use("dark")


# Help and the first run


async def test_help_begins_with_the_focused_pane():
    for size in (WIDE, NARROW):
        app = replay()
        async with app.run_test(size=size) as pilot:
            app.base.set_focus(app.base.query_one("#tables"))
            await press(pilot, ["question_mark"])
            assert "THIS PANE: BLOCK TABLES" in text(app)
            assert "13+1/14" in text(app)  # its signs
            assert "block table" in text(app)
            assert "Esc closes" in text(app)


async def test_the_first_run_shows_a_hint_until_a_key():
    app = replay(hint=True)
    async with app.run_test(size=WIDE) as pilot:
        assert "Press n for one engine step" in text(app)
        await press(pilot, "n")
        assert "Press n for one engine step" not in text(app)
        assert at(app)[0] == 1
    from tourvllm.tui.welcome import is_first_run

    assert not is_first_run()


async def test_the_hint_of_a_small_terminal_speaks_of_its_views():
    app = replay(hint=True)
    async with app.run_test(size=NARROW) as pilot:
        assert "v turns to the next view" in text(app)
        assert "Causes stand left" not in text(app)
        await pilot.resize_terminal(*WIDE)
        await settle(pilot)
        assert "Causes stand left" in text(app)


async def test_every_dialog_is_drawn_in_ascii_alone():
    app = replay(config=Config(ascii=True))
    try:
        async with app.run_test(size=WIDE) as pilot:
            for keys in ("nnnnnnnn", "?", "B", "W", "w", "b", ":", "/", "m", "x", "e", "r"):
                await press(pilot, keys)
                await pilot.pause(0.1)
                assert text(app).isascii(), (keys, {c for c in text(app) if not c.isascii()})
                await press(pilot, ["escape"])
    finally:
        theme.use("dark")


# What may go wrong


async def test_a_disk_that_fills_while_recording_is_a_sentence(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    for link in (ThreadLink(), ChildLink()):
        app = live(tmp_path, link)
        app.order["record"] = "/dev/full"
        async with app.run_test(size=WIDE) as pilot:
            await settle(pilot)
            assert "cannot be written to /dev/full: No space left on device" in pane(app, "why")
            await press(pilot, "nspbBwemxrc")
            assert app.is_running


async def test_every_key_after_the_engine_failed(tmp_path):
    app = live(tmp_path, ChildLink())
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        app.session.link._process.kill()
        for _ in range(100):
            await pilot.pause(0.02)
            if app.session.error:
                break
        for key in [*"npsScC123456vzfbBwmxedPTTTP:/[]<>", "home", "end", "space", "tab", "ctrl+c"]:
            await pilot.press(key)
            await pilot.press("escape")
        await pilot.pause(0.1)
        assert app.in_front
        assert "FAILED" in lines(app)[0]


async def test_a_trace_that_is_still_written_opens_to_what_is_there(tmp_path):
    whole = gzip.decompress(RECORDED.read_bytes()).splitlines(keepends=True)
    path = tmp_path / "half.tvllm.jsonl"
    path.write_bytes(b"".join(whole[:200]) + whole[200][:30])
    app = TourApp(Session(read_trace(path), path=path))
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["end", "n", "e", "ctrl+u"])
        await write(pilot, str(tmp_path / "out.jsonl"))
        await pilot.pause(0.3)
    assert read_trace(tmp_path / "out.jsonl").problem is None


async def test_settings_do_not_leak_into_a_trace(tmp_path):
    """What is restarted from a replay is recorded with the changed settings in its header."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["r", *"30", "enter"])
        await pilot.pause(0.2)
        await settle(pilot)
    header = json.dumps(read_trace(app.traces[0]).table("scenario")["settings"])
    assert json.loads(header) == {"engine.num_blocks": 30}


async def test_a_line_typed_faster_than_the_prompt_opens_is_taken_whole():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for key in ("n", "colon", "3", "0", "enter"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        await pilot.pause(0.2)
        assert app.in_front
        assert at(app)[0] == 30


def test_n_ends_at_a_step_s_end_also_while_the_trace_is_still_read(monkeypatch):
    monkeypatch.setattr("tourvllm.tour.reader.FIRST_LOOK", 0)
    monkeypatch.setattr("tourvllm.tour.storage._PACKED_PIECE", 1 << 9)
    session = Session(open_trace(RECORDED))
    steps = []
    for _ in range(37):
        session.do(session.next_step)
        steps.append(session.cursor.step.number)
        assert session.cursor.at_step_end or session.cursor.at_end
    assert steps == [*range(1, 37), 36]
    assert not session.reading


async def test_keys_that_come_faster_than_the_screen_is_drawn_are_drawn_together(monkeypatch):
    app, shown = replay(), []
    show = app.show
    monkeypatch.setattr(app, "show", lambda: shown.append(at(app)) or show())
    async with app.run_test(size=WIDE) as pilot:
        start = at(app)[1]
        shown.clear()
        for _ in range(400):
            app.post_message(Key("s", "s"))
        await settle(pilot)
        await pilot.pause(0.2)
        assert at(app)[1] == start + 400
        assert shown[-1] == at(app)
        assert len(shown) < 200
        drawn = lines(app)
        await press(pilot, ["S", "s"])
        assert lines(app) == drawn


async def test_keys_that_come_fast_open_one_prompt_over_a_list():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for key in ("B", "a", "a", "d", "m", "i", "t", "enter"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        await pilot.pause(0.3)
        assert len(app.screen_stack) == 2
        assert app.session.breakpoints[-1].line == "admit"


async def test_what_is_said_of_a_fast_line_stays():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for key in ("colon", "9", "9", "enter"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        await pilot.pause(0.2)
        assert "There is no step 99" in lines(app)[-1]


async def test_a_question_is_put_however_fast_the_keys_come(tmp_path):
    app = replay(with_lines(tmp_path / "asks.tvllm.jsonl", ASK))
    async with app.run_test(size=WIDE) as pilot:
        for _ in range(30):
            app.post_message(Key("n", "n"))
        await settle(pilot)
        assert isinstance(app.screen, AskScreen)
        assert at(app)[1] == ASK["i"] - 1


async def test_a_key_right_after_a_prompt_s_enter_or_escape_is_not_lost_in_its_line():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        fast = ["colon", "3", "0", "enter", "colon", "1", "2", "enter", "b", "escape", "n", "s"]
        for key in fast:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        await pilot.pause(0.2)
        assert app.in_front
        assert at(app)[0] == 14
        step = app.session.trace.step_at(at(app)[1])
        assert at(app)[1] == step.start + 1


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        ("b", ["enter", "enter"]),
        ("m", ["enter", "enter"]),
        ("B", ["q", "escape"]),
        ("W", ["escape", "escape", "escape"]),
        ("r", ["escape", "escape"]),
        ("question_mark", ["q", "escape"]),
        ("x", ["escape", "escape"]),
    ],
)
async def test_two_fast_keys_close_a_dialog_once(opens, closes):
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", opens])
        assert not app.in_front
        for key in closes:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        await pilot.pause(0.2)
        assert app.in_front
        await press(pilot, "n")
        assert at(app)[0] == 2


async def test_a_pane_that_presenter_mode_hides_loses_the_focus_to_the_next():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["shift+tab", "P", "shift+tab", "tab", "tab"])
        assert app.focused is not None
        assert app.focused.id not in ("loop", "output", "timeline")


@pytest.mark.parametrize("path", ["a" * 300, "~nobody_is_called_so/x"])
async def test_an_export_to_an_impossible_file_is_refused_in_the_prompt(path):
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["e", "ctrl+u", *path, "enter"])
        assert "No file can have this name" in text(app)


@pytest.mark.parametrize("damage", ["facts", "seqs"])
async def test_a_damaged_place_is_told_by_every_key_that_asks(tmp_path, damage):
    lines_of_it = gzip.decompress(Path(RECORDED).read_bytes()).splitlines()
    records = [json.loads(line) for line in lines_of_it]
    event = next(line for line in records if line.get("i") == 450 and line["kind"] == "event")
    event.update({"facts": 3} if damage == "facts" else {"do": [["set", ["seqs"], 7]]})
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in records))
    app = TourApp(Session(read_trace(path)))
    async with app.run_test(size=WIDE) as pilot:
        app.session.cursor.seek(451)
        app.show()
        for key in ("w", "W", "b", "B", "x", "m", "slash", "colon", "r", "d", "z", "z", "v"):
            await press(pilot, [key, "escape"])
        assert "The trace is damaged here" in text(app)
