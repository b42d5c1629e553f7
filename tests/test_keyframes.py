"""Stored states: whole ones, and those of long runs that leave out what has finished."""

import json
from collections import Counter

import pytest
from support import P, Watched, greedy, make_engine, record_scenario, states_of
from tourvllm.tour import recorder
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.reader import read_trace
from tourvllm.tour.trace import Trace


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(recorder, "KEYFRAME_EVERY", 20)
    monkeypatch.setattr(recorder, "LARGE_KEYFRAME", 1)


@pytest.fixture
def recorded(tmp_path):
    return record_scenario(tmp_path / "run.jsonl")


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_every_keyframe(trace: Trace) -> None:
    states = states_of(trace)
    stored = {trace.keyframe_at_or_before(position) for position in range(len(trace) + 1)}
    assert len(stored) > 3
    for position in stored:
        assert trace.keyframe(position) == states[position]
        assert list(trace.keyframe(position)["seqs"]) == list(states[position]["seqs"])
    assert trace.problem is None


def test_a_finished_request_is_stored_once_and_is_null_from_then_on(recorded):
    lines = lines_of(recorded)
    kinds = Counter(line["kind"] for line in lines)
    assert kinds["keyframe"] == 1
    assert kinds["partial"] > 20
    stored = [name for line in lines if line["kind"] == "finished" for name in line["seqs"]]
    last = next(line for line in reversed(lines) if line["kind"] == "partial")
    assert stored == last["state"]["finished"] != []
    for line in lines:
        if line["kind"] == "partial":
            state = line["state"]
            absent = [name for name, seq in state["seqs"].items() if seq is None]
            assert absent == [name for name in state["seqs"] if name in state["finished"]]


def test_partial_keyframes_are_the_states_that_the_events_make(recorded):
    check_every_keyframe(read_trace(recorded))


def test_a_reader_that_skips_them_sees_the_same(recorded, tmp_path):
    lines = recorded.read_text().splitlines(keepends=True)
    plain = tmp_path / "plain.jsonl"
    kept = [line for line in lines if json.loads(line)["kind"] not in ("partial", "finished")]
    plain.write_text("".join(kept))
    assert states_of(read_trace(plain)) == states_of(read_trace(recorded))


def test_an_id_that_is_used_again_is_stored_again(mini):
    watched = Watched(make_engine(mini, block_size=4, num_blocks=16))
    for start in (0, 3, 8):
        watched.engine.add_request(P(start, start + 6), greedy(3), request_id="A")
        watched.run()
        watched.engine.add_request(P(0, 6), greedy(20))  # some keyframes are written meanwhile
        watched.run()
    trace = Trace()
    for line in watched.sink.lines:
        trace.feed(line)
    lines = [json.loads(line) for line in watched.sink.lines]
    assert sum(line["kind"] == "finished" and "A" in line["seqs"] for line in lines) > 1
    check_every_keyframe(trace)


@pytest.mark.parametrize("change", ["seqs", "finished", "none"])
def test_a_partial_keyframe_that_lies_is_noticed(recorded, tmp_path, change):
    lines, told = lines_of(recorded), 0
    for line in lines:
        if line["kind"] == "partial" and line["state"]["finished"] and not told:
            told += 1
            state = line["state"]
            if change == "seqs":
                name = next(name for name, seq in state["seqs"].items() if seq)
                state["seqs"][name]["num_tokens"] += 1
            elif change == "finished":
                state["finished"] = []
            else:
                state["seqs"]["Z"] = None
    path = tmp_path / "lie.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    trace = read_trace(path)
    trace.problem = None
    states_of(trace)
    assert "is not what the events make" in trace.problem


def test_null_for_a_request_that_no_line_holds_is_a_sentence(recorded, tmp_path):
    lines = [line for line in lines_of(recorded) if line["kind"] != "finished"]
    path = tmp_path / "less.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    trace = read_trace(path)
    state = trace.keyframe(trace.keyframe_at_or_before(len(trace)))
    with pytest.raises(Exception, match="request A"):
        state["seqs"]["A"]


@pytest.mark.parametrize("seqs", [5, None, [], "abc"])
def test_a_state_that_is_no_table_before_a_partial_keyframe_is_a_sentence(recorded, tmp_path, seqs):
    lines = lines_of(recorded)
    at = next(i for i, line in enumerate(lines) if line["kind"] == "finished")
    lines[at - 1]["do"] = [["set", ["seqs"], seqs]]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    trace = read_trace(path)
    Cursor(trace).seek(lines[at]["i"])
    assert trace.problem
