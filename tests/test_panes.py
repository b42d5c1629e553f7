"""The panes: what is followed, what stands in them, in which colours and signs, and how quick."""

import json
import random
import time
from pathlib import Path

import pytest
from screen import lines, pane, press, text
from textual.color import Color
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.glossary import GLOSSARY
from tourvllm.tour.reader import read_trace
from tourvllm.tour.trace import Ask, Mark, Trace

from tourvllm.tui import past, theme
from tourvllm.tui.app import TourApp
from tourvllm.tui.ask import AskScreen
from tourvllm.tui.lines import wrap
from tourvllm.tui.pane import Pane
from tourvllm.tui.panes import TimelinePane
from tourvllm.tui.panes.timeline import LABEL
from tourvllm.tui.session import Session
from tourvllm.tui.view import Selection, look

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"
WIDE, NARROW = (120, 40), (80, 24)


@pytest.fixture(autouse=True)
def dark():
    """Each test begins, and leaves the others, with the dark theme; what it stores is its own."""
    theme.use("dark")
    yield
    theme.use("dark")


def replay(trace: Trace | None = None) -> TourApp:
    return TourApp(Session(trace or read_trace(RECORDED)))


def go(app: TourApp, step: int) -> None:
    """Go to the end of a step."""
    app.session.do(lambda: app.session.go_to_step(step))
    app.show()


def rows(app: TourApp, name: str) -> list[str]:
    return [line.plain for line in app.base.query_one(f"#{name}", Pane)._lines]


def of_pool(app: TourApp) -> list[tuple[str, bool]]:
    """Each block's sign, and whether it stands back."""
    pool = app.base.query_one("#pool")
    found = []
    for y in range(pool.size.height):
        strip = pool.render_line(y)
        if not strip.text[:2].strip().isdigit():
            break
        for segment in strip:
            if segment.text.strip() and not segment.text.strip().isdigit():
                dim = bool(segment.style and segment.style.dim)
                found += [(sign, dim) for sign in segment.text.split()]
    return found


async def click(pilot, name: str, needle: str, row: int | None = None) -> None:
    """Click on the first place where a pane shows `needle`."""
    widget = pilot.app.base.query_one(f"#{name}", Pane)
    for y, line in enumerate(widget._lines):
        if needle in line.plain and row in (None, y):
            at = (line.plain.index(needle), y + 1)  # the title is above
            assert await pilot.click(widget, offset=at)
            await pilot.pause(0.05)
            return
    raise AssertionError(f"{needle!r} is not in {name}")


# Following a request or a block


async def test_a_click_on_a_letter_is_followed_in_every_pane():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 17)
        await pilot.pause(0.1)
        await click(pilot, "queues", "C")
        assert app.selection == Selection(seq="C")
        signs = of_pool(app)
        assert {dim for sign, dim in signs if sign == "C"} == {False}
        assert {dim for sign, dim in signs if sign in "AB"} == {True}
        assert "C is running" in pane(app, "why")
        await click(pilot, "output", "C")  # pointing at it again lets it go
        assert app.selection == Selection()
        assert {dim for sign, dim in of_pool(app) if sign in "ABC"} == {False}


async def test_why_is_d_waiting_is_told_from_its_decisions_newest_first():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        app.selection = Selection(seq="D")
        go(app, 17)
        await pilot.pause(0.1)
        told = pane(app, "why")
        order = [
            "D waits: 0 of its 19 tokens computed. Newest first:",
            "steps 14–17 D waits (no_free_blocks): needs 5 blocks, free 3. (4 times)",
            "step 13 D is preempted: B needs more blocks than are free",
            "step 5 D moves from waiting to running",
            "step 4 D waits (token_budget)",
            "step 3 D waits (behind_chunk)",
            "step 3 D joins waiting",
        ]
        places = [told.index(sentence) for sentence in order]
        assert places == sorted(places)
        go(app, 4)
        told = pane(app, "why")
        assert "preempted" not in told
        assert "no_free_blocks" not in told
        go(app, 1)
        assert "D has not arrived yet" in pane(app, "why")
        app.session.do(app.session.go_to_end)
        app.show()
        assert "D has finished (" in pane(app, "why")


async def test_a_block_tells_its_owners_its_tokens_and_when_it_was_filled():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 4)
        await pilot.pause(0.1)
        await click(pilot, "tables", "5 ", row=1)
        assert app.selection == Selection(block=5)
        told = pane(app, "why")
        assert "block 5 held by B (ref_count 1)" in told
        assert "filled 1/4; entry 4 of B's table, positions 16–19" in told
        assert '","' in told
        app.selection = Selection(block=1)
        app.show()
        told = pane(app, "why")
        assert "block 1 held by A B (ref_count 2) hash 95fab879" in told
        assert "filled 4/4 since step 1 (hash_blocks)" in told
        assert '"," " there" " was" " a"' in told
        assert told.index("step 2 shared by B: a prefix hit") < told.index("step 1 taken by A")
        app.selection = Selection(block=23)
        app.show()
        assert "block 23 free and empty" in pane(app, "why")
        app.session.do(app.session.go_to_end)
        app.selection = Selection(block=0)
        app.show()
        assert "free, its content still cached" in pane(app, "why")


async def test_a_block_without_prefix_cache_tells_when_its_last_token_was_counted():
    trace = Trace()
    source = read_trace(RECORDED)
    header = json.loads(json.dumps(source.header))
    trace.feed(json.dumps(header).encode())
    position = 0
    for index in range(400):
        event = source.event(index)
        if event.stop in ("hash_blocks", "evict"):
            continue
        line = {"kind": "event", "i": position, "step": event.step, "stop": event.stop}
        trace.feed(json.dumps({**line, "facts": event.facts, "do": event.do}).encode())
        position += 1
    app = replay(trace)
    async with app.run_test(size=WIDE) as pilot:
        app.selection = Selection(block=1)
        go(app, 2)
        await pilot.pause(0.1)
        assert "filled 4/4 since step 1 (postprocess)" in pane(app, "why")


async def test_enter_and_arrows_select_in_the_focused_pane():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 17)
        for name, first, second in (
            ("queues", "D", "E"),
            ("tables", "A", "B"),
            ("output", "A", "B"),
            ("batch", "A", "B"),
        ):
            app.base.set_focus(app.base.query_one(f"#{name}"))
            step = app.session.cursor.step.number
            await press(pilot, ["enter"])
            assert app.selection == Selection(seq=first), name
            await press(pilot, ["down"])
            assert app.selection == Selection(seq=second), name
            await press(pilot, ["up", "up"])
            assert app.selection.seq not in (None, first, second)
            await press(pilot, ["escape"])
            assert app.selection == Selection()
            assert app.session.cursor.step.number == step


async def test_the_arrows_move_among_blocks_and_are_steps_without_one():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 4)
        app.base.set_focus(app.base.query_one("#pool"))
        await press(pilot, ["right"])  # no block is selected: a step
        assert app.session.cursor.step.number == 5
        await press(pilot, ["left", "enter", "right", "right", "left"])
        assert app.selection == Selection(block=1)
        assert app.session.cursor.step.number == 4
        await press(pilot, ["down"])
        assert app.selection == Selection(block=21)
        await press(pilot, ["down", "up", "up"])  # there is no row below: it stays
        assert app.selection == Selection(block=1)
        await press(pilot, ["enter"])
        assert app.selection == Selection(seq="A")
        await press(pilot, ["enter", "z"])
        assert app.selection == Selection(block=0)
        assert "block 0 held by A B" in pane(app, "pool")


async def test_a_click_on_a_cell_of_the_pool_selects_that_block():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 4)
        await pilot.pause(0.1)
        pool = app.base.query_one("#pool")
        assert await pilot.click(pool, offset=(3 + 2 * 5, 1))
        await pilot.pause(0.05)
        assert app.selection == Selection(block=5)
        assert await pilot.click(pool, offset=(1, 1))  # the number of the row is no block
        assert await pilot.click(pool, offset=(3, 4))  # nor is the legend
        await pilot.pause(0.05)
        assert app.selection == Selection(block=5)


# The look back


def _plainly(trace: Trace, position: int, seq_id: str) -> list[int]:
    found = []
    for index in range(position):
        event = trace.event(index)
        ids = [event.facts.get("seq"), event.facts.get("needed_by"), *event.facts.get("seqs", [])]
        if event.stop in past.DECISIONS and seq_id in ids:
            found.append(index)
    return found[::-1]


def test_the_past_does_not_depend_on_how_one_came_to_a_place(monkeypatch):
    monkeypatch.setattr(past, "SECONDS", 10)  # a busy machine is no reason to look less far
    trace = read_trace(RECORDED)
    draw = random.Random(3)
    for _ in range(120):
        position, seq_id = draw.randrange(len(trace) + 1), draw.choice("ABCDE")
        found = past.of_request(trace, position, seq_id)
        assert found.before is None
        assert [event.i for event in found.events] == _plainly(trace, position, seq_id)


def test_a_look_back_through_a_long_run_is_bounded_and_goes_on():
    trace = Trace()
    trace.feed(json.dumps(read_trace(RECORDED).header).encode())
    for i in range(100_000):
        facts = {
            "seqs": ["Z" if i == 0 else "A"],
            "cause": "max_num_seqs",
            "running": 1,
            "limit": 1,
        }
        event = {"kind": "event", "i": i, "step": i + 1, "stop": "wait", "facts": facts, "do": []}
        trace.feed(json.dumps(event).encode())
    start = time.monotonic()
    found = past.of_request(trace, len(trace), "Z")
    assert time.monotonic() - start < 1  # SECONDS, and slack for a busy machine
    assert found.before
    for _ in range(2000):
        found = past.of_request(trace, len(trace), "Z")
        if found.before is None:
            break
    assert [event.i for event in found.events] == [0]
    assert len(past.of_request(trace, len(trace), "A").events) == past.ENOUGH


# The batch


async def test_the_ruler_shows_where_each_request_begins_and_ends():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 6)
        await pilot.pause(0.1)
        batch = app.session.cursor.state["batch"]
        ruler = next(row for row in rows(app, "batch") if row.startswith("cu_seqlens_q"))
        marks = [part.strip(" ─") for part in ruler.split("│")[1:]]
        assert marks[-1] == str(batch["cu_seqlens_q"][-1])
        starts = zip(batch["cu_seqlens_q"], batch["seqs"], strict=False)
        assert marks[:-1] == [f"{start} {seq_id}" for start, seq_id in starts]


async def test_each_request_says_what_is_computed_before_now_and_later():
    """C's prompt of 31 tokens in two chunks, 20 and 11: at the step's end one more token is there."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 3)
        await pilot.pause(0.1)
        assert any("0+20/31" in row for row in rows(app, "batch"))
        go(app, 4)
        assert any("20+11/32" in row for row in rows(app, "batch"))
        app.base.set_focus(app.base.query_one("#batch"))
        await press(pilot, "z")
        assert any("computed 20 | now 11 | later 1" in row for row in rows(app, "batch"))
        go(app, 3)  # twenty tokens: more than one band
        slots = [row for row in rows(app, "batch") if row.startswith("slot_mapping")]
        shown = [int(cell) for row in slots for cell in row[15:].replace("│", " ").split()]
        assert shown == app.session.cursor.state["batch"]["slot_mapping"]


async def test_before_there_is_a_batch_those_chosen_so_far_are_shown():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["n", "n", "2", "2"])
        while app.session.cursor.event.stop != "schedule" or app.session.cursor.state["batch"]:
            await press(pilot, "s")
        while not any(
            seq["num_scheduled_tokens"] for seq in app.session.cursor.state["seqs"].values()
        ):
            await press(pilot, "s")
        assert "Chosen so far" in pane(app, "batch")


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_a_batch_that_is_too_long_fills_its_pane_and_says_how_many_are_left(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        for step in (1, 3, 4):
            go(app, step)
            await pilot.pause(0.1)
            found = rows(app, "batch")
            width = app.base.query_one("#batch", Pane).scrollable_content_region.width
            slots = next(row for row in found if row.startswith("slot_mapping"))
            shown = [int(cell) for cell in slots[15:].replace("│", " ").split()]
            batch = app.session.cursor.state["batch"]["slot_mapping"]
            assert shown == batch[: len(shown)]
            positions = next(row for row in found if row.startswith("position"))
            assert positions.endswith(f" … {len(batch) - len(shown)} more")
            assert max(map(len, found[:5])) <= width
            assert len(slots) > width - 12  # a column is never wider here


async def test_a_key_leads_to_where_the_batch_is_laid_out():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "s")
        assert "schedule chooses first. Press 4 to go" in pane(app, "batch")
        await press(pilot, "4")
        assert rows(app, "batch")[0].startswith("cu_seqlens_q   │0 A")


async def test_a_token_that_is_a_quote_does_not_look_empty():
    """Step 15 of the recorded run: C's block 21 holds one."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        told = """ "." ' "' "Who" " is" """.strip()
        app.selection = Selection(block=21)
        go(app, 15)
        await pilot.pause(0.1)
        assert told in pane(app, "why")
        await press(pilot, ["escape"])
        app.base.set_focus(app.base.query_one("#tables"))
        await press(pilot, "z")
        assert told in pane(app, "tables")


@pytest.mark.parametrize("cells", [3, 5, 30])
def test_a_bar_has_its_length_and_hides_nothing(cells):
    from tourvllm.tui.panes.batch import _bar

    for parts in [(0, 1, 0), (1000, 1, 1), (1, 1000, 1), (1, 1, 1000), (5, 0, 0), (0, 0, 0)]:
        bar = _bar(parts, cells)
        assert len(bar) == cells
        for part, sign in zip(parts, "█▒·", strict=True):
            assert (sign in bar) == (part > 0) or not any(parts)


async def test_when_all_have_finished_no_batch_is_promised():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        assert pane(app, "batch").startswith("No batch yet")
        await press(pilot, ["end"])
        assert pane(app, "batch") == "No batch: every request has finished."


# The queues and the answers


def at_stop(app: TourApp, stop: str) -> None:
    """Go to the first place with this stop."""
    trace = app.session.trace
    at = next(i for i in range(len(trace)) if trace.stop_name(i) == stop)
    app.session.do(lambda: app.session.place().seek(at + 1))
    app.show()


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_who_was_preempted_says_so_at_once_and_before_what_it_needs(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        at_stop(app, "preempt")
        await pilot.pause(0.1)
        assert "D 19t preempted, 18 computed" in pane(app, "queues")
        go(app, 14)
        assert "D 19t preempted, needs 5" in pane(app, "queues")
        at_stop(app, "preempt")
        app.base.set_focus(app.base.query_one("#queues"))
        await press(pilot, "z")
        found = rows(app, "queues")
        d = next(row for row in found if row.startswith("D"))
        assert " ".join(d.split()) == "D 11 8 18 0 5 1 preempted, 18 computed"


async def test_who_has_finished_is_told_by_reason():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["end"])
        assert "finished 5 stop: D  E  length limit: B  A  C" in rows(app, "queues")
        app.base.set_focus(app.base.query_one("#queues"))
        await press(pilot, "z")
        assert [row.split()[-1] for row in rows(app, "queues")[-5:]] == ["stop"] * 2 + ["limit"] * 3


async def test_a_table_says_how_full_its_last_block_is():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 1)
        await pilot.pause(0.1)
        assert rows(app, "tables") == ["A 0 1 2 3   13/14 computed, last block 1/4"]


def crowd(finished: int, waiting: int, running: int) -> Trace:
    """A run with many requests in each queue."""
    trace = big(900, 880, running)
    state = json.loads(json.dumps(trace.header))["state"]
    seq = dict(state["seqs"]["R0"], block_table=[], num_cached_tokens=0, num_scheduled_tokens=0)
    for number in range(finished):
        state["seqs"][f"F{number}"] = seq | {"status": "finished", "finish_reason": "length"}
    for number in range(waiting):
        cause = {"cause": "max_num_seqs", "limit": running, "running": running}
        state["seqs"][f"W{number}"] = seq | {"status": "waiting", "waits_for": cause}
    ids = list(state["seqs"])
    # In the order of arrival: who has finished came first.
    state["seqs"] = {key: state["seqs"][key] for key in sorted(ids)}
    state["waiting"] = [key for key in ids if key[0] == "W"]
    state["finished"] = [key for key in ids if key[0] == "F"]
    other = Trace()
    other.feed(json.dumps({"kind": "header", "format": 1, "state": state}).encode())
    event = {"kind": "event", "i": 0, "step": 1, "stop": "sample", "facts": {"seqs": []}, "do": []}
    other.feed(json.dumps(event).encode())
    return other


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_with_many_requests_each_queue_is_seen_and_counted(size):
    app = replay(crowd(finished=800, waiting=480, running=40))
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.1)
        queues = app.base.query_one("#queues", Pane)
        for zoomed in (False, True):
            if zoomed:
                app.base.set_focus(queues)
                await press(pilot, "z")
            found = rows(app, "queues")
            assert len(found) <= queues.scrollable_content_region.height
            for told in ("waiting 480", "running 40", "finished 800"):
                assert any(row.startswith(told) for row in found), told
            assert sum("more" in row for row in found) >= 2
            assert all(len(row) <= queues.size.width for row in found)
            for shown in ("W0", "R0", "F799"):
                assert any(shown in row for row in found), shown


async def test_with_many_requests_the_answers_are_of_those_that_run():
    app = replay(crowd(finished=800, waiting=480, running=40))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        assert rows(app, "output")[0].startswith("R0 hi")
        assert not any(row.startswith("F") for row in rows(app, "output"))


async def test_answers_take_the_rows_that_are_free():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, ["end"])
        output = app.base.query_one("#output", Pane)
        found = rows(app, "output")
        assert len(found) == output.scrollable_content_region.height
        app.base.set_focus(output)
        await press(pilot, "z")
        assert "A Once upon a time, there was a little fox named Mia." in rows(app, "output")


async def test_an_answer_is_cut_between_words_where_it_is_not_being_read():
    """While it grows its end is shown, afterwards its beginning."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        cut, before = set(), ""
        for step in range(8, 37):
            go(app, step)
            seq = app.session.cursor.state["seqs"]["A"]
            whole = "".join(seq["text"]).strip()
            found = "\n".join(rows(app, "output"))
            own = " ".join(found[len("A ") : found.index("\nB ")].split())
            shown = own.strip("… ")
            assert f" {shown} " in f" {whole} "
            if shown != whole:
                goes_on = seq["status"] == "running" or whole != before
                assert own == (f"… {shown}" if goes_on else f"{shown} …")
                assert (whole.endswith if goes_on else whole.startswith)(shown)
                cut.add(goes_on)
            before = whole
        assert cut == {True, False}


async def test_with_many_requests_an_answer_of_wide_characters_keeps_its_end():
    app = replay(crowd(finished=8, waiting=4, running=9))
    for seq in app.session.cursor.state["seqs"].values():
        seq["text"] = ["", "", "漢"] * 40 + ["字"]
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        output = app.base.query_one("#output", Pane)
        width = output.scrollable_content_region.width
        for line in output._lines[:9]:
            assert line.plain.partition(" ")[2].startswith("…漢")
            assert line.plain.endswith("漢字")
            assert width - 1 <= line.cell_len <= width


# What comes next


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_what_comes_next_is_always_told(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        go(app, 3)
        await pilot.pause(0.1)
        assert "next: step 4 begins" in text(app)
        await press(pilot, "ss")
        following = app.session.trace.event(app.session.cursor.position).stop
        assert f"next: {following}" in text(app)


async def test_at_a_stop_with_much_to_tell_the_words_get_more_room():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        why = app.base.query_one("#why", Pane)
        heights = []
        for stop in ("schedule", "preempt"):
            at_stop(app, stop)
            await pilot.pause(0.1)
            heights.append(why.size.height)
            assert why.virtual_size.height <= why.size.height
        assert heights[0] < heights[1]
        assert "more line" not in text(app)


# The pool


def big(blocks: int, used: int, requests: int) -> Trace:
    """A state with a pool of `blocks`, `used` of them held by `requests`."""
    trace = Trace()
    each = used // requests
    names = [f"R{number}" for number in range(requests)]
    tables = {seq_id: list(range(i * each, (i + 1) * each)) for i, seq_id in enumerate(names)}
    owners = {str(block): [seq_id] for seq_id, table in tables.items() for block in table}
    seq = {
        **{"status": "running", "num_tokens": each * 16, "num_prompt_tokens": each * 16},
        **{"num_cached_tokens": each * 16 - 1, "num_scheduled_tokens": 1, "token_ids": [1]},
        **{"pieces": ["a"], "text": ["hi"], "max_tokens": 9, "arrived": 1, "preemptions": 0},
        **{"finish_reason": None, "waits_for": None},
    }
    state = {
        **{"step": 1, "phase": "decode", "waiting": [], "running": names, "finished": []},
        "seqs": {seq_id: {**seq, "block_table": tables[seq_id]} for seq_id in names},
        "blocks": {
            **{"size": 16, "total": blocks, "free": list(range(each * requests, blocks))},
            **{"ref_count": dict.fromkeys(owners, 1), "hash": {}, "owners": owners},
        },
        "batch": None,
    }
    trace.feed(json.dumps({"kind": "header", "format": 1, "state": state}).encode())
    event = {"kind": "event", "i": 0, "step": 1, "stop": "sample", "facts": {"seqs": []}, "do": []}
    trace.feed(json.dumps(event).encode())
    return trace


async def test_a_large_pool_is_shown_as_shares_and_exactly_when_zoomed():
    app = replay(big(900, 594, 9))
    async with app.run_test(size=WIDE) as pilot:
        app.selection = Selection(seq="R8")
        app.show()
        await pilot.pause(0.1)
        pool = app.base.query_one("#pool")
        assert "1 cell = 6 blocks" in str(pool.border_title)
        assert len(rows(app, "pool")) <= pool.size.height
        cells = "".join(row[4:] for row in rows(app, "pool")[:-2])
        assert cells == "█" * 99 + "·" * 51
        app.base.set_focus(pool)
        await press(pilot, "z")
        assert "1 cell = 1 block" in str(pool.border_title)
        found = rows(app, "pool")
        foot = next(y for y, row in enumerate(found) if row.startswith("306 of 900 free"))
        cells = "".join(row[4:].replace(" ", "") for row in found[:foot])
        assert cells[594:] == "·" * 306
        assert [len(set(cells[i : i + 66])) for i in range(0, 594, 66)] == [1] * 9
        assert len(set(cells[:594])) == 9  # nine requests, whose ids all begin with R
        assert "a block  1=R1  2=R2  3=R3" in found[foot]


def renamed(names: dict[str, str], **of_events) -> Trace:
    """The beginning of the recorded run with other names for its requests, and other fields in each event."""
    source, trace = read_trace(RECORDED), Trace()

    def other(value):
        if isinstance(value, dict):
            return {names.get(key, key): other(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [other(inner) for inner in value]
        return names.get(value, value) if isinstance(value, str) else value

    trace.feed(json.dumps(source.header).encode())
    for index in range(500):
        event = source.event(index)
        line = {"kind": "event", "i": index, "step": event.step, "stop": event.stop, "t": event.t}
        line |= {"facts": other(event.facts), "do": other(event.do), **of_events}
        trace.feed(json.dumps(line).encode())
    return trace


def cells_of_pool(app: TourApp) -> str:
    """The signs of all blocks."""
    found = rows(app, "pool")
    foot = next(y for y, row in enumerate(found) if " free, " in row)
    return "".join(row.strip().partition(" ")[2].replace(" ", "") for row in found[:foot])


async def test_each_owner_has_a_sign_of_its_own_whatever_it_is_called():
    app = replay(renamed({"A": "漢字", "B": "🙂", "C": "long", "D": "last", "E": " "}))
    async with app.run_test(size=WIDE) as pilot:
        known = {}
        for step in (4, 6, 12, 4):
            go(app, step)
            await pilot.pause(0.05)
            cells = cells_of_pool(app)
            assert len(cells) == 24
            for block, owners in app.session.cursor.state["blocks"]["owners"].items():
                sign = cells[int(block)]
                assert known.setdefault(sign, owners[0]) == owners[0]
        assert known == {"漢": "漢字", "🙂": "🙂", "l": "long", "t": "last"}
        go(app, 6)
        assert pane(app, "pool").endswith(
            "a block t=last · free : free, cached × freed A new A shared"
        )


async def test_an_owner_too_wide_for_a_cell_is_not_blank():
    trace = big(100, 90, 3)
    header = json.dumps(trace.header, ensure_ascii=False).replace('"R1"', '"漢字"')
    wide = Trace()
    wide.feed(header.encode())
    wide.feed(b'{"kind": "event", "i": 0, "step": 1, "stop": "sample", "facts": {}, "do": []}')
    app = replay(wide)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        assert cells_of_pool(app) == "R" * 30 + "a" * 30 + "2" * 30 + "·" * 10
        assert "a=漢字" in pane(app, "pool")


@pytest.mark.parametrize("used", [5_000, 50_000, 99_000])
async def test_a_huge_pool_stays_quick(used):
    app = replay(big(100_000, used, 500))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        view = look(app.session.cursor, Selection(seq="R400"))
        panes = list(app.base.query(Pane))
        start = time.thread_time()
        for one in panes:
            one.show(view)
        assert time.thread_time() - start < 0.2  # some 6 ms, and slack
        assert all(len(one._lines) < 200 for one in panes)
        assert any(row.startswith("R400") for row in rows(app, "tables"))


async def test_shares_count_what_is_in_use():
    from tourvllm.tui.panes.pool import _in_use

    draw = random.Random(1)
    for share in (0.05, 0.5, 0.95):
        used = set(draw.sample(range(1000), int(1000 * share)))
        blocks = {
            "total": 1000,
            "free": [block for block in range(1000) if block not in used],
            "owners": {str(block): ["A"] for block in used},
        }
        for size in (1, 7, 64, 2000):
            counted = _in_use(blocks, size)
            for cell in range(-(-1000 // size)):
                inside = range(cell * size, min(1000, (cell + 1) * size))
                assert counted[cell] == len(used.intersection(inside))


# The timeline and the watches


async def test_the_timeline_shows_composition_and_times_and_a_click_goes_there():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 4)
        await pilot.pause(0.1)
        timeline = app.base.query_one("#timeline", TimelinePane)
        title = str(timeline.border_title)
        for part in ("steps 1–36", "step 4: ", " ms = schedule ", "forward ", "postprocess "):
            assert part in title
        shown = {row.split()[0]: row[LABEL:] for row in rows(app, "timeline")}
        phases = [step.facts["phase"] for step in app.session.trace.steps]
        assert [cell != " " for cell in shown["prefill"]] == [p == "prefill" for p in phases]
        assert [cell != " " for cell in shown["decode"]] == [p == "decode" for p in phases]
        assert " ms  prefill " in lines(app)[0]
        assert await pilot.click(timeline, offset=(LABEL + 19, 2))
        await pilot.pause(0.1)
        assert app.session.cursor.step.number == 20


@pytest.mark.parametrize("size", [WIDE, NARROW, (200, 60)])
async def test_the_zoomed_timeline_has_a_scale_and_this_steps_values(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        go(app, 4)
        timeline = app.base.query_one("#timeline", TimelinePane)
        timeline.display = True
        app.base.set_focus(timeline)
        await press(pilot, "z")
        found = rows(app, "timeline")
        shown = pane(app, "timeline")
        for told in (
            "KV use 100%",
            "prefill 20",
            "here 11",
            "P preempt",
            "step 4 took",
            "postprocess",
        ):
            assert told in shown
        assert len(found) <= timeline.scrollable_content_region.height
        step = timeline._cells * 19 + LABEL
        assert await pilot.click(timeline, offset=(step, 2))
        await pilot.pause(0.1)
        assert app.session.cursor.step.number == 20


async def test_zoomed_panes_show_more():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        at_stop(app, "preempt")
        for name, told in {
            "loop": "preempt 1x A running request lost its place",
            "tables": "2 → 2 positions 8–11 filled 4/4 ref_count 2 hash",
            "pool": "free list, handed out from its front: nothing",
            "source": "def _preempt",
        }.items():
            app.base.set_focus(app.base.query_one(f"#{name}"))
            await press(pilot, "z")
            assert told in pane(app, name), name
            await press(pilot, "z")
        app.base.set_focus(app.base.query_one("#tables"))
        await press(pilot, "z")
        await click(pilot, "tables", "22  positions")
        assert app.selection == Selection(block=22)
        await press(pilot, ["escape", "escape"])
        go(app, 15)
        app.base.set_focus(app.base.query_one("#pool"))
        await press(pilot, "z")
        free = " ".join(f":{block}" for block in app.session.cursor.state["blocks"]["free"])
        assert f"from its front: {free}" in pane(app, "pool")


async def test_a_bookmark_hides_no_mark():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        trace = app.session.trace
        at = next(mark for mark in trace.marks if mark.letter == "P")
        trace.marks += [Mark(at.position, at.step, "B"), Mark(trace.steps[1].end, 2, "B")]
        trace.marks.sort(key=lambda mark: mark.position)
        go(app, 4)
        await pilot.pause(0.1)
        line = app.base.query_one("#timeline", TimelinePane)._lines[4]
        assert line.plain[LABEL + at.step - 1] == "P"
        assert line.plain[LABEL + 1] == "B"
        assert [s.start for s in line.spans if getattr(s.style, "underline", False)] == [
            LABEL + at.step - 1
        ]
        assert line.plain.endswith(" │ P preempt  F finish  E evict  R reject  B bookmark")
        timeline = app.base.query_one("#timeline", Pane)
        assert line.cell_len == timeline.scrollable_content_region.width


def places(app: TourApp, *beginnings: str) -> list[int]:
    """In which rows of the words these begin, each of them once."""
    found = rows(app, "why")
    return [found.index(next(row for row in found if row.startswith(b))) for b in beginnings]


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_at_a_stop_its_own_note_comes_first_and_the_ones_before_it_last(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        app.session.trace.notes.update({i: [f"note {i} {'word ' * 36}"] for i in (3, 4, 5)})
        app.session.do(lambda: app.session.place().seek(6))
        app.show()
        await pilot.pause(0.1)
        told = places(
            app,
            "» note 5",
            "len(free",
            "earlier in this step, newest first:",
            "» note 4",
            "» note 3",
        )
        assert told == sorted(told)


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_a_steps_end_tells_its_notes_in_order_then_the_values_then_what_was_decided(size):
    """Step 2 of the recorded run: B's prefix hit, then why C waits."""
    app = replay()
    async with app.run_test(size=size) as pilot:
        go(app, 2)
        await pilot.pause(0.1)
        told = places(
            app,
            "step ",
            "» A prefix hit",
            "» 15 tokens",
            "watch, since",
            "in this step:",
            "· admit",
        )
        assert told == sorted(told)
        app.selection = Selection(seq="C")  # who follows a request wants to see its past
        app.show()
        told = places(app, "» 15 tokens", "C waits", "watch, since", "» A prefix hit")
        assert told == sorted(told)


async def test_all_that_a_lesson_says_of_a_step_is_seen_without_scrolling():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        for step in range(1, 36):
            go(app, step)
            await pilot.pause(0.02)
            why = app.base.query_one("#why", Pane)
            (values,) = places(app, "len(free_block_ids)")  # they stand below all notes
            assert values < why.size.height
            told = [row for row in rows(app, "why")[:values] if row.startswith("» ")]
            assert len(told) == len(why.view.notes)


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_first_screen_says_what_the_scenario_is_about(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.1)
        why = app.base.query_one("#why", Pane)
        told = places(
            app, "KV pressure: a pool", "Five requests, two", "step ", "» Three", "len(free"
        )
        assert told == sorted(told)
        assert told[0] == 0
        assert len(rows(app, "why")) <= why.size.height
        await press(pilot, "s")
        assert "Five requests, two" not in pane(app, "why")
        await press(pilot, ["home"])
        assert "Five requests, two" in pane(app, "why")
        go(app, 1)  # what the first screen has told is not told again
        assert "» Three requests" not in pane(app, "why")
        assert "» C waits because B does" in "\n".join(rows(app, "why"))


async def test_what_a_scenario_is_about_is_not_claimed_of_a_run_with_other_settings():
    app = replay()
    app.session.trace.header["scenario"]["settings"] = {"engine.num_blocks": 40}
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        assert "Before its settings were changed: Five requests" in " ".join(rows(app, "why"))


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_last_screen_says_what_can_be_done_now(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        await press(pilot, ["end"])
        await pilot.pause(0.1)
        assert "What now? r runs it again" in pane(app, "why")
        assert "· finish: D is finished" in pane(app, "why")
        await press(pilot, "p")
        assert "What now?" not in pane(app, "why")


async def test_a_small_terminals_view_of_the_code_has_room_for_words_too():
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "nnnv")
        await pilot.pause(0.1)
        assert "watch, since the step began:" in pane(app, "why")
        assert "outputs = [self._output(" in pane(app, "source")


async def test_a_small_terminal_shows_the_score_and_who_is_followed():
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        app.session.score.count(True)
        app.selection = Selection(seq="C")
        stops = app.session.trace
        at = next(i for i in range(300, len(stops)) if stops.stop_name(i) == "prepare_decode")
        app.session.do(lambda: app.session.place().seek(at + 1))
        app.show()
        await pilot.pause(0.1)
        assert "prepare_decode" in lines(app)[0]
        assert "right 1/1  following C" in lines(app)[0]
        app.session.cursor = None
        app.show()
        await pilot.pause(0.1)
        for name in ("why", "batch"):
            assert str(app.base.query_one(f"#{name}").border_title) == (
                app.base.query_one(f"#{name}", Pane).TITLE
            )


async def test_a_watch_shows_its_value_before_and_now():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 3)
        await pilot.pause(0.1)
        assert "len(free_block_ids) = 18 → 10 " in pane(app, "why")
        assert "watch, since the step began:" in pane(app, "why")
        await press(pilot, ["n", "p"])
        assert "len(free_block_ids) = 18 → 10 " in pane(app, "why")
        await press(pilot, "s")  # the next step begins: nothing has changed
        assert "len(free_block_ids) = 10 " in pane(app, "why")
        assert "since" not in pane(app, "why")
        at_stop(app, "allocate")
        assert "watch, since the stop before:" in pane(app, "why")
        app.config.ascii = True
        app.use_theme("dark")
        go(app, 3)
        assert "len(free_block_ids) = 18 -> 10 " in pane(app, "why")


@pytest.mark.parametrize("jump", [1, 23, 60, 400, 911])
def test_a_watch_before_is_what_the_state_before_says(jump):
    trace = read_trace(RECORDED)
    texts = ["len(free_block_ids)", "A.num_tokens", "step", "nonsense +", "stop"]
    here = Cursor(trace)
    here.seek(jump)
    watched = look(here, watches=texts).watched
    assert here.position == jump
    before = Cursor(read_trace(RECORDED))
    before.seek(here.step.start if here.at_step_end else jump - 1)
    earlier = look(before, watches=texts).watched
    assert [row[0] for row in watched] == texts
    assert [row[1] for row in watched] == [row[2] for row in earlier]
    assert [row[3] for row in watched] == [row[1] != row[2] for row in watched]


# The code


async def test_in_a_narrow_pane_code_takes_less_room_and_the_next_line_is_whole():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        at_stop(app, "admit")
        await pilot.pause(0.1)
        source, cursor = app.base.query_one("#source", Pane), app.session.cursor
        while True:
            following = app.session.trace.event(cursor.position).at
            code = app.session.trace.table("sources")[cursor.event.at[0]].splitlines()
            ran = cursor.event.at
            is_other = following[0] == ran[0] and following[1] != ran[1]
            if is_other and len(code[following[1] - 1]) > 60:
                break
            await press(pilot, "s")
        found = rows(app, "source")
        ran = next(y for y, row in enumerate(found) if row.startswith("▶"))
        assert found[ran][1:4].strip() == str(cursor.event.at[1])
        assert source.scroll_offset.y <= ran < source.scroll_offset.y + source.size.height
        first = next(y for y, row in enumerate(found) if row.startswith("→"))
        last = next(y for y in range(first + 1, len(found)) if found[y][:5].strip())
        assert last > first + 1
        pieces = [row[5:] for row in found[first:last]]
        assert "".join("".join(pieces).split()) == "".join(code[following[1] - 1].split())
        numbered = [row for row in found if row[:5].strip("▶→ ")]
        assert [int(row[1:4]) for row in numbered] == [*range(1, len(numbered) + 1)]
        app.base.set_focus(source)
        await press(pilot, "z")
        wide = [row for row in rows(app, "source") if row[:5].strip("▶→ ")]
        for line, narrow, zoomed in zip(code, numbered, wide, strict=False):
            indent = len(line) - len(line.lstrip())
            assert zoomed[5:].rstrip() == line.rstrip()
            assert narrow[5:].startswith(line[indent - indent // 2 :][:20])


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_timeline_says_what_its_highest_bars_stand_for(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        app.action_view()
        app.action_view()
        go(app, 4)
        await pilot.pause(0.1)
        labels = [row[:LABEL].split() for row in rows(app, "timeline")]
        assert labels[:3] == [["KV", "use", "0–100%"], ["prefill", "0–20"], ["decode", "0–4"]]
        assert "· steps 1–36 ·" in str(app.base.query_one("#timeline").border_title)


# Themes, signs, layout


@pytest.mark.parametrize("name", theme.NAMES)
def test_coloured_text_is_readable_on_its_ground(name):
    theme.use(name)
    ground = Color.parse(theme.textual_theme(name).background or "#121212")
    texts = [theme.tint(index) for index in range(6)]
    texts += [theme.style(what) for what in ("note", "prefill", "decode")]
    texts += [theme.style(what) for what in ("dim", "faded") if not theme.style(what).dim]
    for style in texts:
        if style.color and style.color.name.startswith("#"):
            assert _contrast(Color.parse(style.color.name), ground) >= 4.5, (name, style)
    for colour in theme._CODE_ON_LIGHT.values() if name == "light" else ():
        assert _contrast(Color.parse(colour), ground) >= 4.5, colour
    for index in range(6):
        hue = theme.hue(index).bgcolor
        assert hue
        assert _contrast(Color.parse(hue.name), Color.parse("#000000")) >= 4.5


def _contrast(a: Color, b: Color) -> float:
    """The contrast of the Web Content Accessibility Guidelines."""

    def light(color: Color) -> float:
        parts = [part / 255 for part in color.rgb]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_each_theme_has_every_style_and_an_unknown_one_is_a_sentence():
    for name in theme.NAMES:
        theme.use(name)
        assert all(theme.style(what) is not None for what in theme.STYLES)
        assert theme.textual_theme(name).name == f"tourvllm-{name}"
    with pytest.raises(KeyError, match="choose one of dark, light, contrast"):
        theme.use("pink")


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_ascii_signs_only(size):
    app = replay()
    async with app.run_test(size=size) as pilot:
        app.config.ascii = True
        app.use_theme("dark")
        go(app, 17)
        app.selection = Selection(seq="C")
        app.fit()
        for _ in range(4):
            await press(pilot, "v")
            assert [c for c in text(app) if not c.isascii()] == []
        assert all(theme.glyph(sign).isascii() for sign in theme.GLYPHS)


async def test_a_pane_on_its_own_fits_any_theme_and_size():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 17)
        app.selection = Selection(seq="C")
        for name in theme.NAMES:
            app.use_theme(name)
            for one in app.base.query(Pane):
                app.base.set_focus(one)
                app.action_zoom()
                await pilot.pause(0.02)
                assert "cannot be drawn" not in pane(app, one.id)
                assert one._lines
                app.action_zoom()


async def test_presenter_mode_leaves_what_is_decided():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 17)
        app.action_presenter()
        await pilot.pause(0.1)
        screen = text(app)
        for gone in ("─loop", "─output", "─timeline", "KV use"):
            assert gone not in screen
        for there in ("why", "queues", "block pool", "block tables", "batch tensors"):
            assert there in screen


async def test_presenter_mode_hides_nothing_of_a_small_terminal():
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        go(app, 17)
        app.action_presenter()
        await pilot.pause(0.1)
        assert rows(app, "why")[0].strip()
        for _ in range(3):
            app.action_view()
        await pilot.pause(0.1)
        assert rows(app, "output")[0].strip()
        assert "timeline" in text(app)


async def test_a_line_that_the_pane_would_cut_off_goes_on_below_at_a_space_or_bracket():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 4)
        await pilot.pause(0.1)
        file, number = app.session.cursor.event.at
        code = app.session.trace.header["sources"][file].splitlines()[number - 1]
        found = rows(app, "source")
        first = next(y for y, row in enumerate(found) if row.startswith("▶"))
        last = next(y for y in range(first, len(found)) if found[y][:5].strip() == str(number + 1))
        pieces = [row[5:].rstrip() for row in found[first:last]]
        assert len(pieces) > 1
        assert "".join(pieces).replace(" ", "") == code.replace(" ", "")
        assert all(piece.endswith(("(", "[", ",")) or f"{piece} " in code for piece in pieces[:1])
        assert "seq.f" not in [piece.split()[-1] for piece in pieces]


def test_each_pane_names_its_words_and_keys():
    import tourvllm.tui.panes as panes

    for name in panes.__all__:
        one = getattr(panes, name)
        if isinstance(one, type):
            assert one.TERMS
            assert set(one.TERMS) <= set(GLOSSARY)
            assert all(len(entry) == 2 for entry in one.KEYS)
            assert one.EMPTY


async def test_empty_panes_say_what_will_be_there():
    app = TourApp(Session(Trace()))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause(0.1)
        for one in app.base.query(Pane):
            assert pane(app, one.id) == one.EMPTY


# Strangers


HOSTILE = ["[bold]", "\x1b[2J", "\u202eabc", "漢字🙂", "e\u0301\u0301", "‏שלום", "a\nb", ""]


async def test_hostile_names_files_and_texts_are_inert():
    """Names of requests, files and stops come from a stranger too."""
    names = dict(zip("ABCDE", HOSTILE, strict=False))
    app = replay(renamed(names, at=["[@click=app.quit]x[/]\x1b[2J", 1]))
    async with app.run_test(size=WIDE) as pilot:
        for step in (3, 4, 12, 17):
            go(app, step)
            for chosen in HOSTILE[:5]:
                app.selection = Selection(seq=chosen)
                app.show()
                await pilot.pause(0.02)
                screen = text(app)
                assert "\x1b" not in screen
                assert "\u202e" not in screen
                assert "cannot be drawn" not in screen
                assert "[@click=app.quit]x[/]" in screen
        for one in app.base.query(Pane):
            for y in range(one.size.height):
                assert one.render_line(y).text.replace("\u0301", "").isprintable()
                assert one.render_line(y).cell_length == one.size.width


@pytest.mark.parametrize("width", [1, 2, 5, 20])
def test_words_are_broken_by_the_cells_that_they_take(width):
    words = "one 漢字漢字漢字 e\u0301e\u0301 🙂🙂🙂🙂🙂🙂 averyveryverylongwordindeed x"
    broken = wrap(words, width)
    assert all(row.cell_len <= width or len(row) == 1 for row in broken)
    assert wrap("ab c", width)[0].plain == ("ab c" if width > 3 else "ab"[:width])
    assert "".join(row.plain for row in broken).replace(" ", "") == words.replace(" ", "")


async def test_a_line_that_is_cut_says_so_and_no_number_is_cut():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 2)
        await pilot.pause(0.1)
        assert any(row.endswith("needed 31, budget left 15") for row in rows(app, "queues"))
        source = app.base.query_one("#source", Pane)
        seen = source.scrollable_content_region.width
        top = int(source.scroll_offset.y)
        for y in range(source.size.height):
            line, text = source._lines[top + y].plain, source.render_line(y).text[:seen]
            assert text == (line[: seen - 1] + "…" if len(line) > seen else line.ljust(seen))


async def test_a_page_down_scrolls_the_words_while_no_pane_has_the_focus():
    app = replay()
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "n")
        await pilot.pause(0.1)
        why = app.base.query_one("#why", Pane)
        below = why.virtual_size.height - why.size.height
        assert f"PgDn: {below} more lines ·" in text(app)
        await press(pilot, ["pagedown"])
        await pilot.pause(0.1)
        assert why.scroll_offset.y > 0
        assert f"PgDn: {below - why.scroll_offset.y} more lines ·" in text(app)
        await press(pilot, ["pageup"])
        await pilot.pause(0.1)
        assert why.scroll_offset.y == 0
        await press(pilot, ["tab", "pagedown"])
        await pilot.pause(0.1)
        assert why.scroll_offset.y == 0


async def test_a_block_that_is_only_shared_is_not_drawn_as_new():
    """Step 2 of the recorded run: B shares A's blocks 0 to 2 and takes 4 and 5."""
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 2)
        await pilot.pause(0.1)
        row = app.base.query_one("#pool", Pane)._lines[0]
        signs = [row.get_style_at_offset(app.console, 3 + 2 * block) for block in range(6)]
        assert [bool(style.underline) for style in signs] == [True] * 3 + [False] * 3
        assert [bool(style.reverse) for style in signs] == [False] * 4 + [True] * 2


async def test_the_words_at_a_steps_end_tell_what_the_prefix_cache_gave():
    app = replay()
    async with app.run_test(size=WIDE) as pilot:
        go(app, 2)
        await pilot.pause(0.1)
        told = pane(app, "why")
        assert "can_allocate: B needs 5 blocks: 3 found in the prefix cache (0 1 2), 2 new." in told
        assert told.index("can_allocate") < told.index("admit: B")


# A question stands under the panes: its answer is found in them


async def test_a_question_says_which_keys_are_answers_when_another_one_is_typed():
    app = replay()
    ask = Ask(
        kind="ask", i=3, ask="Who?", answer="the last", choices=["the first", "all", "the last"]
    )
    async with app.run_test(size=NARROW) as pilot:
        answers: list[str | None] = []
        app.push_screen(AskScreen(ask), answers.append)
        await pilot.pause(0.1)
        for wrong in ("enter", "n"):
            await press(pilot, [wrong])
            assert " a, b or c, please " in text(app)
            assert answers == []
        await press(pilot, "B")
        assert "please" not in text(app)
        await press(pilot, ["down", "enter", "enter"])
        await pilot.pause(0.1)
        assert answers == ["c"]
