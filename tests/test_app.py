"""The app by its keys: over a recorded run, and over a live engine in this process and in a child."""

import json
import os
import signal
import time
from importlib.resources import files

import pytest
from apps import NARROW, RECORDED, WIDE, NoLink, at, live, replay
from screen import lines, pane, press, settle, text
from tourvllm.tour.reader import read_trace
from tourvllm.tour.trace import Trace

from tourvllm.tui import values, whole_step
from tourvllm.tui.app import TourApp
from tourvllm.tui.breakpoints import BreakpointEntry
from tourvllm.tui.links import ChildLink, ThreadLink
from tourvllm.tui.session import Session
from tourvllm.tui.view import look


def source_rows(app: TourApp) -> list[str]:
    """The lines of the source pane."""
    return [line.plain for line in app.screen.query_one("#source")._lines]


async def test_n_and_p_move_by_whole_steps():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        assert "step 1" in lines(app)[0]
        await press(pilot, "nnnnn")
        assert at(app)[0] == 5
        assert "step 5" in lines(app)[0]
        await press(pilot, "pp")
        assert at(app)[0] == 3
        assert "step 3" in lines(app)[0]
        await press(pilot, ["right", "left", "right"])
        assert at(app)[0] == 4


async def test_s_and_S_move_by_stops_and_come_back_to_the_same_screen():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nn")
        before, position = text(app), at(app)[1]
        await press(pilot, "sssss")
        assert at(app)[1] == position + 5
        assert text(app) != before
        await press(pilot, "SSSSS")
        assert text(app) == before


async def test_home_end_and_messages_at_the_ends():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["home"])
        assert at(app) == (0, 0)
        await press(pilot, "p")
        assert "This is the start" in lines(app)[-1]
        await press(pilot, ["end"])
        assert at(app)[1] == len(app.session.trace)
        await press(pilot, "n")
        assert "This is the end" in lines(app)[-1]


@pytest.mark.parametrize(
    ("key", "stop"), [("2", "schedule"), ("4", "prepare_prefill"), ("6", "sample")]
)
async def test_a_digit_runs_to_the_next_stop_of_its_group(key, stop):
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, key)
        assert app.session.cursor.event.stop == stop
        assert f" {stop}" in lines(app)[0]


async def test_f_leaves_the_phase_and_brackets_find_marks():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for stop in ("schedule", "sample", "step", "schedule"):
            await press(pilot, "f")
            assert app.session.cursor.event.stop == stop
        app.session.asks.ahead = lambda position, target: None
        await press(pilot, ["home"])
        wanted = {mark.position for mark in app.session.trace.marks} | set(app.session.trace.notes)
        for position in sorted(wanted | set(app.session.trace.asks)):
            await press(pilot, ["]"])
            assert at(app)[1] == position
        await press(pilot, ["]"])
        assert "No note or mark after this" in lines(app)[-1]
        await press(pilot, ["["])
        assert at(app)[1] == sorted(wanted)[-2]
        await press(pilot, ["home", "["])
        assert "No note or mark before this" in lines(app)[-1]


async def test_go_to_step_types_a_number_and_escape_leaves():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, [":", "1", "2"])
        assert "go to step: 12" in lines(app)[-1]
        await press(pilot, ["enter"])
        assert at(app)[0] == 12
        await press(pilot, [":", "q", "n"])
        assert "go to step: qn" in lines(app)[-1]
        await press(pilot, ["escape"])
        assert at(app)[0] == 12
        await press(pilot, [":", "9", "9", "9", "enter"])
        assert "There is no step 999" in lines(app)[-1]


async def test_c_and_C_find_the_breakpoints_of_the_scenario():
    app = replay()
    app.session.breakpoints = [
        BreakpointEntry("preempt"),
        BreakpointEntry("len(free_block_ids) == 0"),
    ]
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "c")
        first = at(app)[1]
        assert (
            app.session.cursor.event.stop == "preempt"
            or not app.session.cursor.state["blocks"]["free"]
        )
        assert "Breakpoint: " in lines(app)[-1]
        await press(pilot, "cC")
        assert at(app)[1] == first


async def test_what_a_step_shows_side_by_side():
    """Queues, block tables, slot_mapping and cu_seqlens stand on one screen, at both sizes."""
    for size in (WIDE, NARROW):
        app = replay()
        async with app.run_test(size=size) as pilot:
            await press(pilot, "nnnnnn")
            state, screen = app.session.cursor.state, text(app)
            for word in (
                "waiting",
                "running",
                "block tables",
                "slot_mapping",
                "cu_seqlens_q",
            ):
                assert word in screen
            rows = {line.split("│")[0].strip(): line for line in lines(app) if "│" in line}
            shown = [int(cell.split()[0]) for cell in rows["slot_mapping"].split("│")[1:]]
            assert shown == state["batch"]["slot_mapping"]
            for seq_id in state["running"]:
                table = " ".join(map(str, state["seqs"][seq_id]["block_table"]))
                assert table[:12] in screen


async def test_the_line_that_ran_is_marked():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for _ in range(12):
            await press(pilot, "s")
            file, line = app.session.cursor.event.at
            code = app.session.trace.header["sources"][file].splitlines()[line - 1].strip()
            (marked,) = [row for row in source_rows(app) if row.startswith("▶")]
            # What the pane's edge would cut off stands on the lines below.
            assert code.startswith(marked.removeprefix(f"▶{line:>3} ").strip())
            assert marked[:40].strip() in text(app)
            assert f"{file}:{line}" in lines(app)[0]


async def test_tab_zoom_view_and_help():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", "tab", "tab", "z"])
        assert app.focused.id == "source"
        assert "queues" not in text(app)
        assert "step 1" in lines(app)[0]
        await press(pilot, ["escape"])
        assert "queues" in text(app)
        await press(pilot, ["question_mark"])
        assert "KEYS" in text(app)
        await press(pilot, ["tab", "n", "z", "pagedown", "pagedown"])  # help has its own keys
        assert "KEYS" not in text(app)
        await press(pilot, ["escape", "n"])
        assert at(app)[0] == 2
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        seen = set()
        for _ in range(4):
            seen |= {
                word
                for word in ("why", "engine/", "block pool", "output")
                if word in "\n".join(lines(app)[2:])
            }
            await press(pilot, "v")
        assert seen == {"why", "engine/", "block pool", "output"}


async def test_play_goes_on_by_itself_and_stops():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("space")
        await pilot.pause(1.3)
        await pilot.press("space")
        step = at(app)[0]
        assert step >= 2
        await pilot.pause(0.8)
        assert at(app)[0] == step


async def test_every_key_on_an_empty_session_does_nothing():
    """U2: keys before anything is recorded are kept or ignored, never an error."""
    app = TourApp(Session(Trace(), NoLink()))
    async with app.run_test(size=WIDE) as pilot:
        for key in [
            *"npsScC123456vz",
            "home",
            "end",
            "space",
            "left",
            "right",
            "tab",
            "question_mark",
            "escape",
            "enter",
            "ctrl+c",
        ]:
            await pilot.press(key)
        await pilot.pause(0.1)
        assert "starting" in lines(app)[0]


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (20, 5), (80, 24), (300, 80)])
async def test_sizes(size):
    """U8: any size is drawn, and back."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnn")
        await pilot.resize_terminal(*size)
        await press(pilot, "nvzz")
        await pilot.resize_terminal(*WIDE)
        await press(pilot, "n")
        assert "step 5" in lines(app)[0]


async def test_text_written_while_a_pane_is_hidden_is_there_when_it_is_shown():
    """U5."""
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "nnnnnnnnnn")
        await press(pilot, "vvv")
        said = "".join(app.session.cursor.state["seqs"]["A"]["text"]).strip()
        assert said
        assert said[-20:] in text(app)


async def test_a_list_that_was_scrolled_stays():
    """U4: what the user scrolled does not jump while the run goes on."""
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, ["home", "n", "tab", "pagedown"])
        source = app.screen.query_one("#loop")
        app.screen.set_focus(app.screen.query_one("#tables"))
        before = source.scroll_offset
        await press(pilot, "p")
        assert source.scroll_offset == before


async def test_the_batch_shows_whole_columns_and_moves_along():
    """Half a number would be another number."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnn")
        slots = app.session.cursor.state["batch"]["slot_mapping"]
        assert len(slots) == 20

        def shown() -> list[int]:
            row = next(
                line
                for line in app.screen.query_one("#batch")._lines
                if "slot_mapping" in line.plain
            )
            return [int(cell) for cell in row.plain.replace("│", " ").split()[1:]]

        first = shown()
        assert first == slots[: len(first)]
        assert f"… {20 - len(first)} more" in text(app)
        app.screen.set_focus(app.screen.query_one("#batch"))
        await press(pilot, ["shift+right"] * 2)
        assert shown() == slots[8 : 8 + len(shown())]
        await press(pilot, ["shift+right"] * 9 + ["shift+left"] * 20)
        assert shown() == first


HOSTILE = [
    "[bold",
    "[/]",
    "[@click=app.quit]x[/]",
    "a\x1b[2Jb",
    "bell\x07",
    "[0] x",
    "\u202eabc",
    "漢字🙂",
]


async def test_hostile_text_is_shown_literally(tmp_path):
    """U3: markup, escape sequences and control characters in texts do nothing."""
    path = tmp_path / "hostile.tvllm.jsonl"
    with path.open("wb") as file:
        trace = read_trace(RECORDED)
        header = dict(trace.header)
        header["scenario"] = {
            **header["scenario"],
            "name": "[bold]n\x1b[31m",
            "title": HOSTILE[3],
            "watch": HOSTILE,
        }
        file.write(json.dumps(header).encode() + b"\n")
        for i in range(400):
            event = json.loads(
                json.dumps(
                    {
                        "kind": "event",
                        **{
                            "i": i,
                            "step": trace.event(i).step,
                            "stop": trace.event(i).stop,
                            "at": trace.event(i).at,
                            "facts": trace.event(i).facts,
                            "do": trace.event(i).do,
                        },
                    }
                )
            )
            for patch in event["do"]:
                if patch[0] == "set" and isinstance(patch[2], dict) and "pieces" in patch[2]:
                    patch[2]["pieces"] = (HOSTILE * 20)[: len(patch[2]["pieces"])]
                    patch[2]["text"] = list(HOSTILE)
            file.write(json.dumps(event).encode() + b"\n")
            if i == 3:
                file.write(json.dumps({"kind": "note", "i": 4, "say": HOSTILE[2]}).encode() + b"\n")
    for size in (WIDE, NARROW):
        app = replay(path)
        async with app.run_test(size=size) as pilot:
            await press(pilot, "nnvvvv")
            screen = text(app)
            assert "[bold]n␛[31m" in lines(app)[0]
            assert "\x1b" not in screen
            assert app.is_running
            await press(pilot, "p")
            assert HOSTILE[2] in pane(app, "why")
            await press(pilot, "nv")
            assert "[bold" in pane(app, "batch") + pane(app, "output")


async def test_a_trace_whose_state_makes_no_sense_does_not_end_the_app(tmp_path):
    """A pane that cannot be drawn says so; the others and the keys go on."""
    header = dict(read_trace(RECORDED).header)
    path = tmp_path / "odd.tvllm.jsonl"
    events = [
        {
            "kind": "event",
            "i": 0,
            "step": 1,
            "stop": "step",
            "at": ["x", 99],
            "facts": {"when": 3},
            "do": [],
        },
        {
            "kind": "event",
            "i": 1,
            "step": -4,
            "stop": "nonsense",
            "facts": {},
            "do": [
                ["set", ["batch"], 3],
                ["set", ["waiting"], 5],
                ["set", ["blocks"], {"free": "x", "total": None}],
            ],
        },
        {
            "kind": "event",
            "i": 2,
            "step": 1,
            "stop": "step",
            "facts": {},
            "do": [["take", ["nowhere"], 1]],
        },
    ]
    path.write_bytes(b"\n".join(json.dumps(line).encode() for line in [header, *events]) + b"\n")
    for size in (WIDE, NARROW):
        app = replay(path)
        async with app.run_test(size=size) as pilot:
            await press(pilot, ["s", "s", "s", "n", "p", "c", "C", "end", "home", "n", "n", "n"])
            assert "damaged" in text(app)
            assert app.is_running


# A live engine


@pytest.mark.parametrize("make_link", [ThreadLink, ChildLink])
async def test_a_live_run_is_driven_by_the_same_keys(tmp_path, make_link):
    app = live(tmp_path, make_link())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnnnpp")  # typed while torch is still loading: nothing is lost
        assert at(app)[0] == 3
        assert "LIVE" in lines(app)[0]
        recorded = len(app.session.trace)
        await press(pilot, "nn")
        assert (at(app)[0], len(app.session.trace)) == (
            5,
            recorded,
        )  # back and forth does not drive the engine
        await press(pilot, "s")
        assert len(app.session.trace) == recorded + 1
        await press(pilot, "4")
        assert app.session.cursor.event.stop.startswith("prepare_")
    kept = read_trace(tmp_path / "run.tvllm.jsonl.gz")
    assert len(kept) == len(app.session.trace)
    assert kept.closing["outcome"] == "stopped by the user"


async def test_a_live_run_to_its_end_is_the_recorded_one(tmp_path):
    app = live(tmp_path, ThreadLink())
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        for _ in range(60):
            await press(pilot, "c")
            if app.session.ended:
                break
        await press(pilot, "n")
        assert app.session.error is None
        assert app.session.ended
        assert "This is the end" in lines(app)[-1]
        assert "ENDED" in lines(app)[0]
    assert read_trace(tmp_path / "run.tvllm.jsonl.gz").problem is None


async def test_steps_is_where_a_live_run_ends(tmp_path):
    app = live(tmp_path, ThreadLink(), steps=3)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnnnn")
        assert at(app)[0] == 3
        assert "--steps 3 is reached" in lines(app)[-1]


async def test_a_killed_engine_leaves_its_trace_and_a_sentence(tmp_path):
    link = ChildLink()
    app = live(tmp_path, link)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nnnss")
        position = at(app)[1]
        os.kill(link.pid, signal.SIGKILL)
        for _ in range(200):
            await pilot.pause(0.02)
            if app.session.error:
                break
        await pilot.pause(0.1)
        assert "killed by SIGKILL" in pane(app, "why")
        await press(pilot, "ppn")
        assert at(app)[0] == 3
        assert "FAILED" in lines(app)[0]
    kept = read_trace(tmp_path / "run.tvllm.jsonl.gz")
    assert len(kept) == position  # nothing that was on screen is lost
    assert kept.problem is not None


async def test_quitting_while_the_engine_is_held_at_a_stop_is_quick(tmp_path):
    """U1: the process is gone within two seconds."""
    link = ChildLink()
    app = live(tmp_path, link)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "nss")
        pid = link.pid
        start = time.monotonic()
        await pilot.press("q")
    assert time.monotonic() - start < 5  # two seconds, and slack for a busy machine
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_engine_that_cannot_start_says_why(tmp_path):
    broken = tmp_path / "model"
    broken.mkdir()
    for entry in files("tourvllm.models").joinpath("tiny").iterdir():
        (broken / entry.name).write_bytes(entry.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps({**config, "architectures": ["OtherForCausalLM"]})
    )
    app = live(tmp_path, ThreadLink(), model=str(broken))
    async with app.run_test(size=WIDE) as pilot:
        await settle(pilot)
        await press(pilot, "nnp")
        assert "OtherForCausalLM is not supported" in pane(app, "why")
        assert "FAILED" in lines(app)[0]


async def test_a_long_search_can_be_stopped():
    """The keys are heard while `c` looks through a long trace, and those typed meanwhile wait their turn."""
    trace = Trace()
    header = {
        **read_trace(RECORDED).header,
        "scenario": {"name": "long", "breakpoints": ["step > 10**9"]},
    }
    trace.feed(json.dumps(header).encode())
    for i in range(160_000):
        event = {
            "kind": "event",
            "i": i,
            "step": i // 10 + 1,
            "stop": "sample",
            "do": [["set", ["step"], i]],
        }
        trace.feed(json.dumps(event).encode())
    app = TourApp(Session(trace))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("c")
        assert app.session.searching
        assert "searching" in lines(app)[0]
        await pilot.press("space")
        await pilot.pause(0.1)
        assert "The search was stopped here" in lines(app)[-1]
        assert 0 < at(app)[1] < len(trace)
        await press(pilot, ["home", "c", "p"])
        assert at(app)[0] == 16000 - 1


# What is prepared


def told(session):
    view = look(session.cursor, watches=session.watches)
    return view.new_blocks, view.changed, view.watched, view.times, view.whole_step.decisions


@pytest.mark.parametrize("key", ["n", "p"])
def test_what_a_step_tells_is_found_before_the_key_that_leads_there(monkeypatch, key):
    session = Session(read_trace(RECORDED))
    session.go_to_step(13)
    told(session)
    while session.ahead.prepare(0.01):
        pass
    fresh = Session(read_trace(RECORDED))
    fresh.go_to_step(14 if key == "n" else 12)
    expected = told(fresh)

    def too_late(*arguments):
        raise AssertionError("this was not prepared")

    monkeypatch.setattr(whole_step, "changes", too_late)
    monkeypatch.setattr(whole_step, "step_times", too_late)
    monkeypatch.setattr(whole_step, "decision", too_late)
    if key == "n":
        session.next_step()
    else:
        session.previous_step()
        monkeypatch.setattr(values, "watched", too_late)
    assert told(session) == expected


def test_what_cannot_be_prepared_is_left_and_not_tried_again(monkeypatch):
    session, tried = Session(read_trace(RECORDED)), []

    def broken(cursor, position, texts):
        tried.append(position)
        yield
        raise AttributeError("'int' object has no attribute 'get'")

    monkeypatch.setattr(values, "prepare", broken)
    session.go_to_step(13)
    for _ in range(20):
        session.ahead.prepare(0.01)
    assert len(tried) == 1
    session.next_step()
    assert (session.place().step.number, session.message) == (14, "")
