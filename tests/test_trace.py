"""Trace files: written, read back, cut short, damaged, hostile."""

import copy
import gzip
import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    P,
    Watched,
    greedy,
    line_of,
    make_engine,
    nothing_but,
    record_scenario,
    states_of,
)
from tourvllm.tour import reader, storage
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.errors import TraceError
from tourvllm.tour.reader import open_trace, read_trace
from tourvllm.tour.recorder import FileSink
from tourvllm.tour.state import Requests, empty_state, stored_state
from tourvllm.tour.trace import FORMAT, MAX_LINE, Trace, ends_phase

from tourvllm.info import describe
from tourvllm.plain_run import replay_plain

SUFFIXES = [".jsonl", ".jsonl.gz"]
WRONG = [None, 5, -1, 2**70, 1.5, True, "x", [], {}, [[]], {"a": {}}, ["x", 5]]


@pytest.fixture(scope="module")
def small(mini) -> Watched:
    """A short run: two requests, some thirty events."""
    watched = Watched(make_engine(mini, block_size=4, num_blocks=8))
    watched.generate([P(0, 5), P(9, 11)], greedy(2))
    watched.recorder.close()
    return watched


@pytest.fixture
def write(tmp_path):
    """A factory of trace files: `write(lines, ".jsonl.gz")` or `write(data)`."""

    def make(content, suffix=".jsonl"):
        path = tmp_path / f"trace{suffix}"
        data = content if isinstance(content, bytes) else b"".join(line + b"\n" for line in content)
        path.write_bytes(
            gzip.compress(data, mtime=0)
            if suffix.endswith("gz") and isinstance(content, list)
            else data
        )
        return path

    return make


def header(**fields) -> bytes:
    return line_of(
        **{"kind": "header", "format": FORMAT, "state": empty_state(4, range(3)), **fields}
    )


def event(i: int, /, **fields) -> bytes:
    return line_of(
        **{
            "kind": "event",
            "i": i,
            "step": 1,
            "stop": "step",
            "facts": {"when": "end"},
            "do": [],
            **fields,
        }
    )


def use_everything(path) -> None:
    """Open a trace and read all of it, as the commands `info` and `replay` do."""
    trace = read_trace(path)
    describe(trace)
    replay_plain(trace)


def check_harmless(path, *words: str) -> None:
    """Whatever is in it: it opens and can be walked, or a TraceError says why not."""
    with nothing_but(TraceError, *words):
        use_everything(path)


# Round trip


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_state_is_read_back(mini, tmp_path, suffix):
    path = tmp_path / f"run{suffix}"
    watched = Watched(
        make_engine(mini, block_size=3, num_blocks=9, max_num_batched_tokens=5), [FileSink(path)]
    )
    seen = [copy.deepcopy(watched.state)]
    after = watched.engine.probe.after
    watched.engine.probe.after = lambda e: (after(e), seen.append(copy.deepcopy(watched.state)))
    watched.generate([P(0, 8), P(0, 9), P(3, 10)], greedy(6))
    watched.recorder.close()
    trace = read_trace(path)
    assert trace.problem is None
    assert trace.complete
    assert trace.digest_matches
    assert [trace.event(i) for i in range(len(trace))] == watched.events
    assert states_of(trace) == seen


def test_the_steps_index_covers_every_event_once(small):
    trace = small.trace()
    assert [step.number for step in trace.steps] == sorted({e.step for e in small.events})
    assert [(step.start, step.end) for step in trace.steps] == [
        (min(i), max(i) + 1)
        for i in ([e.i for e in small.events if e.step == step.number] for step in trace.steps)
    ]
    assert [mark.letter for mark in trace.marks] == ["F", "F"]


def test_the_same_run_gives_the_same_events(tmp_path):
    paths = [record_scenario(tmp_path / f"{i}.jsonl") for i in range(2)]
    first, second = map(read_trace, paths)
    assert first.digest() == second.digest()
    assert len(first) > 500
    for i in range(len(first)):
        a, b = first.event(i), second.event(i)
        a.t = b.t = 0
        assert a == b


def test_gzip_and_plain_hold_the_same_lines(small, write):
    assert (
        read_trace(write(small.sink.lines, ".jsonl.gz")).digest()
        == read_trace(write(small.sink.lines)).digest()
    )


def test_a_gzip_of_several_members_is_one_trace(small, write):
    path = write(b"".join(gzip.compress(line + b"\n") for line in small.sink.lines))
    assert read_trace(path).problem is None


# Long files


@pytest.fixture
def small_blocks(monkeypatch):
    """Files are read in pieces of some hundred bytes, so that a short trace is a long one."""
    monkeypatch.setattr(storage, "BLOCK", 1200)
    monkeypatch.setattr(storage, "_PACKED_PIECE", 70)
    monkeypatch.setattr(storage, "_LARGEST_PIECE", 300)
    monkeypatch.setattr(reader, "FIRST_LOOK", 0)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".members.gz"])
def test_any_event_of_a_file_of_many_blocks(small, small_blocks, tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    data = b"".join(line + b"\n" for line in small.sink.lines)
    members = [data[i : i + 999] for i in range(0, len(data), 999)]
    packed = {".jsonl": data, ".jsonl.gz": gzip.compress(data)}
    path.write_bytes(packed.get(suffix, b"".join(map(gzip.compress, members))))
    trace = read_trace(path)
    assert trace.problem is None
    order = list(range(len(trace)))
    for index in [*order, *reversed(order), *order[::7], *order[::-3]]:
        assert trace.event(index) == small.events[index]
    assert states_of(trace) == states_of(small.trace())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_trace_can_be_walked_while_it_is_read(small, small_blocks, write, suffix):
    trace = open_trace(write(small.sink.lines, suffix))
    lengths, cursor = [len(trace)], Cursor(trace)
    assert 0 < len(trace) < len(small.events)
    for _ in trace.rest:
        assert trace.share < 1
        assert trace.problem is None
        cursor.seek(len(trace))
        assert trace.event(len(trace) - 1) == small.events[len(trace) - 1]
        lengths.append(len(trace))
    assert len(set(lengths)) > 5
    assert trace.share == 1
    assert trace.complete
    assert trace.problem is None
    cursor.seek(len(trace))
    assert cursor.state == small.state


def test_what_is_wrong_with_the_end_is_said_when_all_is_read(small, small_blocks, write):
    trace = open_trace(write(small.sink.lines[:-3]))
    assert trace.problem is None
    assert list(trace.rest)
    assert "not recorded to its end" in trace.problem


def test_a_file_that_changes_under_an_open_trace_is_a_trace_error(small, small_blocks, write):
    path = write(small.sink.lines)
    trace = read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match=r"event 0 is not"):
        trace.event(0)


def test_a_trace_that_is_still_recorded_says_so(small, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    sink = FileSink(path)
    for line in small.sink.lines[:9]:
        sink.write(line)
    sink.flush()
    trace = read_trace(path)
    assert len(trace) == 8
    assert "still being recorded" in trace.problem
    assert states_of(trace) == states_of(small.trace())[:9]
    sink.close()
    assert "not recorded to its end" in read_trace(path).problem


MUTATIONS = st.sampled_from(
    [
        lambda line: line,
        lambda line: line[: len(line) // 2],
        lambda line: line + b" ",
        lambda line: b" " + line,
        lambda line: line + line,
        lambda line: b"",
        lambda line: line.replace(b'"kind":"event"', b'"kind":"hologram"'),
        lambda line: line.replace(b'"kind":"event",', b""),
        lambda line: line.replace(b'{"kind"', b'{"x":[1,\n2],"kind"'),
        lambda line: line.replace(b'"stop"', b'"s\\u0074op"'),
        lambda line: line.replace(b'"i":', b'"i":0'),
        lambda line: line.replace(b'"i":', b'"i":1'),
        lambda line: line.replace(b'"step":', b'"step":-'),
        lambda line: line.replace(b'"facts":{', b'"facts":{"a":'),
        lambda line: line.replace(b'"when":"end"', b'"when": "end"'),
        lambda line: line.replace(b'"at":[', b'"at":7,"x":['),
        lambda line: line.replace(b'"}', b'\xff"}'),
        lambda line: line.replace(b'"kind"', b'"stop":"first","kind"'),
    ]
)


@settings(max_examples=200)
@given(data=st.data())
def test_lines_taken_together_are_what_they_are_one_by_one(small, tmp_path_factory, data):
    lines = list(small.sink.lines)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(1, len(lines) - 1))
        lines[at] = data.draw(MUTATIONS)(lines[at])
    text = b"".join(line + b"\n" for line in lines)
    path = tmp_path_factory.getbasetemp() / "mutated.jsonl"
    path.write_bytes(text)
    together, alone, problem = read_trace(path), Trace(), None
    try:
        for line in text.split(b"\n"):
            if line.strip():
                alone.feed(line)
    except TraceError as error:
        problem = f"the trace stops after event {len(alone)}: {error}"
    assert len(together) == len(alone)
    if problem:
        assert together.problem == problem
    for field in ("steps", "marks", "notes", "asks", "header", "closing"):
        assert getattr(together, field) == getattr(alone, field)
    assert together.digest() == alone.digest()
    assert [told(together, i) for i in range(len(alone))] == [
        told(alone, i) for i in range(len(alone))
    ]


def told(trace: Trace, index: int) -> object:
    """An event, or why it is none."""
    try:
        return trace.event(index), trace.stop_name(index)
    except TraceError as error:
        return str(error)


# Looking for a stop


@given(
    after=st.integers(-1, 60),
    wanted=st.sets(st.sampled_from(["step", "schedule", "wait", "finish", "sample", "no such"])),
    forward=st.booleans(),
)
def test_the_next_position_is_that_of_the_nearest_wanted_event(small, after, wanted, forward):
    trace = small.trace()
    positions = [event.i + 1 for event in small.events if event.stop in wanted]
    ends = [event.i + 1 for event in small.events if ends_phase(event)]
    assert trace.next_position(wanted, after, forward) == nearest(positions, after, forward)
    assert trace.next_position(lambda name: name in wanted, after, forward) == nearest(
        positions, after, forward
    )
    assert trace.next_phase_end(after, forward) == nearest(ends, after, forward)


def nearest(positions: list[int], after: int, forward: bool) -> int | None:
    if forward:
        return min((position for position in positions if position > after), default=None)
    return max((position for position in positions if position < after), default=None)


def test_every_events_stop_has_its_name(small):
    trace = small.trace()
    assert [trace.stop_name(i) for i in range(len(trace))] == [e.stop for e in small.events]


# Notes that come later


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_bookmark_joins_a_trace_from_a_file(small, write, suffix):
    trace = read_trace(write(small.sink.lines, suffix))
    before, digest = list(trace.marks), trace.digest()
    trace.feed(line_of(kind="bookmark", i=len(trace) // 2, step=1, say="here"))
    assert trace.notes[len(trace) // 2] == ["here"]
    positions = [mark.position for mark in trace.marks]
    assert positions == sorted(positions)
    assert len(trace.marks) == len(before) + 1
    assert trace.digest() == digest
    assert states_of(trace) == states_of(small.trace())


# A stored state's requests


def request(**fields) -> dict:
    return {
        "status": "waiting",
        **dict.fromkeys(
            ("num_tokens", "num_prompt_tokens", "num_cached_tokens", "num_scheduled_tokens"), 1
        ),
        **{key: [] for key in ("block_table", "token_ids", "pieces", "text")},
        **{"max_tokens": 1, "arrived": 1, "preemptions": 0},
        **{"finish_reason": None, "waits_for": None, **fields},
    }


REQUESTS = {name: request(num_tokens=i) for i, name in enumerate("ABCD")}


def stored_requests(requests: dict = REQUESTS) -> Requests:
    return stored_state(header(state=empty_state(1, [0]) | {"seqs": requests}))["seqs"]


def ways(found: dict) -> list:
    """What the ways to use a dict give."""
    return [
        dict(found),
        {**found},
        {} | found,
        found | {},
        found.copy(),
        copy.copy(found),
        copy.deepcopy(found),
        list(found),
        list(found.values()),
        list(found.items()),
        [found[name] for name in found],
        found.get("A"),
        found.get("no"),
        found.get("no", 5),
        "A" in found,
        len(found),
        repr(found),
        json.loads(json.dumps(found)),
        found.setdefault("B", 1),
        found.pop("B"),
        found.pop("B", 7),
        found.popitem(),
        found.setdefault("new", 1),
        list(found.items()),
        found == {"A": REQUESTS["A"]},
    ]


@pytest.mark.parametrize("way", range(len(ways(dict(REQUESTS)))))
def test_undecoded_requests_are_used_like_any_table(way):
    # Each way on fresh ones, and after those before it.
    assert ways(stored_requests())[way] == ways(dict(REQUESTS))[way]
    assert stored_requests() == REQUESTS
    assert dict(REQUESTS) == stored_requests()
    assert stored_requests() != {}


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_wrong_request_is_a_sentence_when_it_is_looked_at(value):
    found = stored_requests({"F": request(token_ids=value), **REQUESTS, "E": value})
    assert found["A"] == REQUESTS["A"]
    with pytest.raises(TraceError, match="request E"):
        found["E"]
    if value != []:
        with pytest.raises(TraceError, match="request F"):
            list(found.items())


def test_fields_of_a_later_version_are_kept():
    state = empty_state(1, [0]) | {"warp": {"factor": 9}, "seqs": REQUESTS}
    assert stored_state(header(state=state)) == state


# Cut short


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cut_at_any_byte_it_opens_to_its_last_whole_event(small, tmp_path, suffix):
    path = tmp_path / f"whole{suffix}"
    sink = FileSink(path)
    for line in small.sink.lines:
        sink.write(line)
        sink.flush()
    sink.close()
    data, whole = path.read_bytes(), small.trace()
    counts = []
    cut = tmp_path / f"cut{suffix}"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        trace = None
        with nothing_but(TraceError, "is not a tourvllm trace"):
            trace = read_trace(cut)
        if trace is None:
            assert not counts, "once the header is whole every cut opens"
            continue
        counts.append(len(trace))
        assert trace.complete == (trace.problem is None)
        if trace.problem:
            assert f"after event {len(trace)}" in trace.problem
    assert counts == sorted(counts)
    assert set(counts) == set(range(len(whole) + 1))


def test_events_before_a_cut_are_those_that_were_recorded(small, write):
    data = b"".join(line + b"\n" for line in small.sink.lines)
    trace = read_trace(write(data[: len(data) * 2 // 3]))
    assert [trace.event(i) for i in range(len(trace))] == small.events[: len(trace)]
    assert states_of(trace) == states_of(small.trace())[: len(trace) + 1]


KILLED = """
import sys
from support import make_engine, random_qwen3, Watched, greedy
from tourvllm.tour.recorder import FileSink
from pathlib import Path
watched = Watched(make_engine(Path(sys.argv[1])), [FileSink(sys.argv[2])])
watched.engine.add_request(list(range(9)), greedy(400))
while True:
    watched.step()
    watched.recorder.flush()
    print(watched.recorder.count, flush=True)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_killed_recorder_loses_no_flushed_step(mini, tmp_path, suffix):
    path, helpers = tmp_path / f"run{suffix}", os.path.dirname(sys.modules["support"].__file__)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, mini, path],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")])},
    )
    flushed = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    trace = read_trace(path)
    assert len(trace) >= flushed > 20
    assert "not recorded to its end" in trace.problem or "stops after event" in trace.problem
    assert len(states_of(trace)) == len(trace) + 1


# What readers skip


def test_unknown_kinds_and_fields_are_skipped(write):
    lines = [
        header(future={"a": 1}, engine={"block_size": 4, "warp": 9}),
        line_of(kind="hologram", i="seven", step=[1], stop={}),
        event(0, do=[["set", ["phase"], "decode"]], mood="good"),
        line_of(kind="hologram"),
        line_of(no_kind=1),
        b"",
        event(1, stop="teleport"),
        line_of(kind="end", count=2, digest="?", outcome="complete", more=[]),
    ]
    trace = read_trace(write(lines))
    assert len(trace) == 2
    assert states_of(trace)[2]["phase"] == "decode"
    use_everything(write(lines))


def test_a_changed_event_is_noticed(small, write):
    lines = [line.replace(b'"reason":"length"', b'"reason":"legnth"') for line in small.sink.lines]
    trace = read_trace(write(lines))
    assert len(trace) == len(small.events)
    assert trace.digest_matches is False
    assert "was changed" in trace.problem
    assert "NOT the one recorded" in describe(trace)


def test_changed_times_are_not_a_change(small, write):
    lines = [line.replace(b',"t":0}', b',"t":12345}') for line in small.sink.lines]
    assert lines != small.sink.lines
    assert read_trace(write(lines)).problem is None


@pytest.mark.parametrize(
    "break_line",
    [
        lambda line: line[: len(line) // 2],
        lambda line: line.replace(b'"i":5', b'"i":7'),
        lambda line: b"\xff\xfe" + line,
        lambda line: b"\0" * len(line),
        lambda line: b"[]",
        lambda line: b"5",
    ],
    ids=["torn", "gap", "bytes", "NULs", "list", "number"],
)
def test_damage_in_the_middle_opens_to_the_event_before(small, write, break_line):
    lines = list(small.sink.lines)
    lines[6] = break_line(lines[6])
    trace = read_trace(write(lines))
    assert len(trace) == 5
    assert "stops after event 5" in trace.problem
    assert states_of(trace) == states_of(small.trace())[:6]


def test_a_damaged_gzip_opens_to_the_event_before_the_damage(small, write, tmp_path):
    data = bytearray(write(small.sink.lines, ".jsonl.gz").read_bytes())
    outcomes = set()
    for at in range(12, len(data), 7):
        data[at] ^= 0x55
        try:
            trace = read_trace(write(bytes(data), ".jsonl.gz"))
            outcomes.add("cut" if trace.problem else "whole")
        except TraceError:
            outcomes.add("no header")
        data[at] ^= 0x55
    assert "whole" not in outcomes
    assert outcomes


# Hostile files


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"\0" * 100, "not a tourvllm trace"),
        (bytes(range(128, 256)) * 20, "not a tourvllm trace"),
        (b"\x1f\x8b" + b"garbage" * 9, "gzip"),
        (b"\x1f\x8b", "the file is empty"),
        (b"[1, 2]", "not a tourvllm trace"),
        (b'"header"', "not a tourvllm trace"),
        (b'{"kind":"event","i":0}', "first line is not the header"),
        (b"{", "not a tourvllm trace"),
        (b"[" * 200_000, "not a tourvllm trace"),
        (b'{"a":' * 5000, "not a tourvllm trace"),
        (b'{"kind":"header","x":' + b"[" * 3000 + b"]" * 3000 + b"}", "not a tourvllm trace"),
        (b'{"kind":"header","format":' + b"9" * 6000 + b"}", "not a tourvllm trace"),
        (b"\xef\xbb\xbf{}", "not a tourvllm trace"),
        ("héader".encode("utf-16"), "not a tourvllm trace"),
    ],
)
def test_what_is_no_trace_is_a_sentence(write, data, words):
    with pytest.raises(TraceError, match=words):
        read_trace(write(data))


def test_a_folder_and_a_missing_file_are_os_errors(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError, match=str(tmp_path)):
            read_trace(path)


def test_a_newer_format_says_how_to_get_on(write):
    with pytest.raises(TraceError, match="pip install -U tourvllm"):
        read_trace(write([header(format=FORMAT + 1, state="of another kind")]))


@pytest.mark.parametrize(
    "field", ["format", "state", "scenario", "engine", "model", "platform", "created", "sources"]
)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_in_the_header(write, capsys, field, value):
    check_harmless(
        write([header(**{field: value}), event(0, facts={"when": "end"})]), field, "state"
    )


@pytest.mark.parametrize(
    "field", ["name", "title", "about", "settings", "text", "breakpoints", "watch"]
)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_in_the_headers_scenario(write, capsys, field, value):
    check_harmless(write([header(scenario={field: value}), event(0, facts={"when": "end"})]), field)


@pytest.mark.parametrize("field", sorted(empty_state(1, [])))
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_in_the_stored_state(write, capsys, field, value):
    state = empty_state(4, range(3)) | {field: value}
    check_harmless(write([header(state=state), event(0, facts={"when": "end"})]), "state")


PATCHES = [
    [],
    ["set"],
    ["set", []],
    ["set", "phase"],
    ["set", ["waiting", 0], 1],
    ["set", ["no", "way"], 1],
    [5, ["a"], 1],
    ["delete", ["waiting", 0]],
    ["delete", ["nothing"]],
    ["append", ["phase"], [1]],
    ["append", ["waiting"], 5],
    ["take", ["waiting"], 1],
    ["take", ["waiting"], -1],
    ["take", ["waiting"], "x"],
    ["remove", ["waiting"], "A"],
    ["explode", ["waiting"], 1],
    ["set", [["a"], "b"], 1],
    ["set", [{}], 1],
    ["set", None, 1],
    [["set"], ["a"], 1],
    ["prepend", ["blocks", "free", 0], [1]],
    ["set", [], 1],
    ["append", ["waiting", "__class__"], [1]],
]


@pytest.mark.parametrize("patch", PATCHES, ids=repr)
def test_a_patch_that_does_not_fit_is_a_trace_error_and_the_cursor_stays(write, patch):
    trace = read_trace(
        write(
            [
                header(),
                event(0, do=[["set", ["phase"], "x"]]),
                event(1, do=[["set", ["step"], 9], patch]),
            ]
        )
    )
    cursor = Cursor(trace)
    with pytest.raises(TraceError):
        cursor.seek(2)
    assert cursor.position == 1
    assert cursor.state == empty_state(4, range(3)) | {"phase": "x"}


@pytest.mark.parametrize(
    "path", [["blocks"], ["seqs"], ["waiting"], ["batch"], ["blocks", "size"], ["running"]]
)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_patch_that_fits_and_breaks_the_state_ends_the_replay_with_a_sentence(
    write, capsys, path, value
):
    stops = ["prepare_decode", "schedule", "generate", "wait", "step"]
    events = [event(i, stop=stop, do=[["set", path, value]]) for i, stop in enumerate(stops)]
    check_harmless(
        write([header(scenario={"watch": ["free", "blocks.size"]}), *events]), "cannot be shown"
    )


@pytest.mark.parametrize("field", ["at", "facts", "do", "t", "i", "step", "stop"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_in_an_event(write, capsys, field, value):
    path = write([header(), event(0), event(1, **{field: value}), event(2)])
    check_harmless(path, "event 1", "patch")


@pytest.mark.parametrize("depth", [500, 980, 5000])
def test_deep_nesting(write, capsys, depth):
    deep = b"[" * depth + b"]" * depth
    line = event(0, stop="unheard of").replace(b'"end"', deep)
    patch = event(1, facts={}, do=[["append", ["phase"], 0]]).replace(b",0]", b"," + deep + b"]")
    check_harmless(write([header(), line, patch]), "patch", "event")


@pytest.mark.parametrize("kind", ["note", "bookmark", "keyframe", "end"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_in_other_lines(write, capsys, kind, value):
    lines = [
        header(),
        event(0),
        line_of(kind=kind, i=1, say=value, state=value, digest=value, outcome=value),
        event(1),
    ]
    use_everything(write(lines))
    use_everything(write([header(), event(0), line_of(kind=kind, i=value), event(1)]))


def test_a_line_over_the_limit_is_refused_before_it_is_kept(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(header() + b"\n" + event(0) + b"\n")
        file.write(b'{"kind":"event","i":1,"x":"')
        for _ in range(MAX_LINE // 2**20 + 2):
            file.write(b"a" * 2**20)
    trace = read_trace(path)
    assert len(trace) == 1
    assert "over the limit" in trace.problem


def test_nothing_from_a_trace_acts_on_the_terminal(write, capsys):
    evil = "\x1b]0;pwned\x07\x1b[2J\r\n\u202e\x9b31m"
    state = empty_state(4, range(3))
    do = [
        ["append", ["waiting"], [evil]],
        ["set", ["phase"], evil],
        ["append", ["finished"], [evil]],
        [
            "set",
            ["seqs", evil],
            {
                "num_tokens": 1,
                "num_cached_tokens": 0,
                "waits_for": {"cause": "x", "behind": evil},
                "block_table": [1],
            },
        ],
    ]
    facts = {
        "when": "end",
        "phase": evil,
        "seqs": [evil],
        "cause": evil,
        "behind": evil,
        "seq": evil,
        "reason": evil,
    }
    lines = [
        header(
            state=state,
            scenario={"name": evil, "title": evil, "watch": ["phase", repr(evil)]},
            platform={evil: evil},
        )
    ]
    lines += [
        event(i, stop=stop, facts=facts, do=do if not i else [])
        for i, stop in enumerate(["wait", "reject", "evict", evil, "generate", "step"])
    ]
    lines.insert(2, line_of(kind="note", i=1, say=evil))
    path = write(lines)
    print(describe(read_trace(path)))
    replay_plain(read_trace(path))
    shown = capsys.readouterr()
    assert "pwned" in shown.out
    for character in "\x1b\x07\r\u202e\x9b":
        assert character not in shown.out + shown.err


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["header", "event", "keyframe", "note", "bookmark", "end", "odd"]),
            st.dictionaries(
                st.sampled_from(["i", "step", "stop", "at", "facts", "do", "t", "state", "say"]),
                json_values,
            ),
        ),
        max_size=6,
    )
)
def test_any_lines_after_a_header_open_or_are_a_trace_error(lines):
    trace = Trace()
    trace.feed(header())
    with nothing_but(TraceError, "event", "patch", "line", "state"):
        for kind, fields in lines:
            trace.feed(
                json.dumps(
                    {"i": len(trace), "stop": "wait", "step": 1, **fields, "kind": kind}
                ).encode()
            )
        Cursor(trace).seek(len(trace))
        describe(trace)
