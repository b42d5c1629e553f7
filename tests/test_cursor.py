"""Walking a trace: back undoes forward, and a position shows the same however one came there."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import P, Watched, greedy, line_of, make_engine, record_scenario, states_of
from tourvllm.tour import cursor as cursor_module
from tourvllm.tour import recorder
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.errors import TraceError
from tourvllm.tour.patch import apply, undo
from tourvllm.tour.reader import read_trace
from tourvllm.tour.state import empty_state
from tourvllm.tour.trace import FORMAT, Trace


@pytest.fixture(scope="module", params=["whole", "partial"])
def run(request, tmp_path_factory):
    """The trace of kv_pressure with a keyframe every 40 events or so, and a copy of every state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "KEYFRAME_EVERY", 40)
        patch.setattr(recorder, "LARGE_KEYFRAME", 1 if request.param == "partial" else 2**30)
        trace = read_trace(record_scenario(tmp_path_factory.mktemp("cursor") / "run.jsonl"))
    return trace, states_of(trace)


def watch_walks(monkeypatch) -> list[tuple[int, int]]:
    """The walks forward that are made from now on."""
    walked: list[tuple[int, int]] = []
    each = Trace.each_patches
    monkeypatch.setattr(
        Trace, "each_patches", lambda self, *range: walked.append(range) or each(self, *range)
    )
    return walked


def keyframes(trace: Trace) -> list[int]:
    return sorted({trace.keyframe_at_or_before(position) for position in range(len(trace) + 1)})


def test_keyframes_hold_the_state_of_their_position(run):
    trace, states = run
    assert len(keyframes(trace)) > 3
    for position in keyframes(trace):
        assert trace.keyframe(position) == states[position]


def test_back_undoes_forward_everywhere(run):
    trace, states = run
    cursor = Cursor(trace)
    for position in range(1, len(trace) + 1):
        cursor.seek(position)
        cursor.seek(position - 1)
        assert cursor.state == states[position - 1]
        cursor.seek(position)
        assert cursor.state == states[position]
    for position in range(len(trace), -1, -1):
        cursor.seek(position)
        assert cursor.state == states[position]


def test_step_by_step_forward_and_back(run):
    trace, states = run
    cursor, ends = Cursor(trace), [0]
    while cursor.next_step():
        assert cursor.at_step_end or cursor.at_end  # `generate` ends after the last step
        ends.append(cursor.position)
        assert cursor.previous_step()
        assert cursor.position == ends[-2]
        assert cursor.next_step()
    assert cursor.at_end
    assert ends == [0, *(step.end for step in trace.steps)]
    for end in reversed(ends[:-1]):
        assert cursor.previous_step()
        assert (cursor.position, cursor.state) == (end, states[end])
    assert not cursor.previous_step()
    assert not Cursor(trace).at_end


def test_from_inside_a_step_the_neighbours_are_its_own_ends(run):
    trace, _ = run
    step = trace.steps[2]
    cursor = Cursor(trace)
    cursor.seek(step.start + 3)
    assert cursor.step == step
    assert not cursor.at_step_end
    assert cursor.next_step()
    assert cursor.position == step.end
    cursor.seek(step.start + 3)
    assert cursor.previous_step()
    assert cursor.position == step.start


def test_what_is_shown_began_with_the_event_or_with_the_whole_step(run):
    trace, _ = run
    step, cursor = trace.steps[1], Cursor(trace)
    assert cursor.before == 0
    cursor.seek(step.start + 2)
    assert cursor.before == step.start + 1
    cursor.seek(step.end)
    assert cursor.before == step.start


@settings(max_examples=30)
@given(data=st.data(), near=st.sampled_from([0, 7, 100, 5000]), kept=st.sampled_from([0, 20, 5000]))
def test_any_seeks_show_what_a_walk_from_the_start_shows(run, data, near, kept):
    trace, states = run
    positions = data.draw(st.lists(st.integers(-5, len(trace) + 5), min_size=1, max_size=25))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_module, "NEAR", near)
        patch.setattr(cursor_module, "KEPT", kept)
        cursor = Cursor(trace)
        for position in positions:
            ahead = data.draw(st.sampled_from(["there", "back", "end", ""]))
            for _ in {
                "there": cursor.prepare(position - 3),
                "back": cursor.prepare_way_back(),
                "end": cursor.prepare_end(),
            }.get(ahead, ()):
                assert cursor.state == states[cursor.position]
            cursor.seek(position)
            assert cursor.position == max(0, min(position, len(trace)))
            assert cursor.state == states[cursor.position]


@pytest.mark.parametrize(("start", "target"), [(0, "end"), ("end", 100), (250, "end")])
def test_a_far_seek_starts_from_a_keyframe(run, monkeypatch, start, target):
    trace, states = run
    start, target = (len(trace) if place == "end" else place for place in (start, target))
    cursor = Cursor(trace)
    cursor.seek(start)
    monkeypatch.setattr(cursor_module, "NEAR", 60)
    monkeypatch.setattr(cursor_module, "_BYTES", 2**20)
    monkeypatch.setattr(cursor_module, "_BACK", 1)
    walked = watch_walks(monkeypatch)
    cursor.seek(target)
    two_steps_before = trace.step_at(trace.step_at(target).start).start
    first, last = walked[0][0], walked[-1][1]
    assert (first, last) == (trace.keyframe_at_or_before(two_steps_before), target)
    assert sum(end - start for start, end in walked) == last - first
    assert cursor.state == states[target]
    walked.clear()
    for _ in range(2):
        assert cursor.previous_step()
        assert cursor.state == states[cursor.position]
    assert not walked


def test_a_place_that_a_far_jump_left_is_gone_back_to_at_once(run, monkeypatch):
    trace, states = run
    monkeypatch.setattr(cursor_module, "NEAR", 60)
    monkeypatch.setattr(cursor_module, "_BYTES", 2**20)
    monkeypatch.setattr(cursor_module, "KEPT", 60)
    cursor = Cursor(trace)
    cursor.seek(len(trace))
    cursor.seek(0)
    walked = watch_walks(monkeypatch)
    for position in (len(trace), 0, len(trace), len(trace) - 5, 0):
        cursor.seek(position)
        assert cursor.state == states[position]
    assert walked == []


def test_what_was_prepared_is_gone_to_without_a_walk(run, monkeypatch):
    trace, states = run
    monkeypatch.setattr(cursor_module, "NEAR", 5)
    monkeypatch.setattr(cursor_module, "KEPT", 50)
    cursor = Cursor(trace)
    cursor.seek(len(trace))
    for _ in cursor.prepare(300):
        assert cursor.position == len(trace)
    walked = watch_walks(monkeypatch)
    cursor.seek(300)
    assert (walked, cursor.state) == ([], states[300])


def test_half_a_way_that_is_prepared_is_used(run, monkeypatch):
    trace, states = run
    monkeypatch.setattr(cursor_module, "NEAR", 10)
    monkeypatch.setattr(cursor_module, "_BYTES", 2**20)
    cursor = Cursor(trace)
    start = trace.keyframe_at_or_before(879)
    assert 879 - start > 20
    walked = watch_walks(monkeypatch)
    preparing = cursor.prepare(879)
    while not walked:
        next(preparing)
    half = walked[-1][1]
    cursor.seek(879)
    assert walked == [(start, half), (half, 879)]
    assert cursor.state == states[879]
    cursor.seek(870)
    assert list(preparing) == []
    assert (cursor.position, cursor.state) == (870, states[870])


@pytest.mark.parametrize("position", [0, 30, 250, 600])
def test_a_look_back_shows_the_state_there_and_goes_nowhere(run, monkeypatch, position):
    trace, states = run
    monkeypatch.setattr(cursor_module, "NEAR", 60)
    monkeypatch.setattr(cursor_module, "KEPT", 100)
    cursor = Cursor(trace)
    cursor.seek(640)
    for _ in range(2):
        with cursor.look_back(position) as state:
            assert state == states[position]
        assert (cursor.position, cursor.state) == (640, states[640])
    assert cursor.sees(position)


def test_the_way_back_is_prepared_beyond_what_can_be_taken_back(run, monkeypatch):
    trace, states = run
    monkeypatch.setattr(cursor_module, "NEAR", 5)
    monkeypatch.setattr(cursor_module, "_BYTES", 2**20)
    cursor = Cursor(trace)
    start = keyframes(trace)[-2]
    cursor.seek(start + 3)
    for _ in cursor.prepare_way_back():
        assert cursor.position == start + 3
    walked = watch_walks(monkeypatch)
    for position in range(start + 2, start - 30, -1):
        cursor.seek(position)
        assert cursor.state == states[position]
    assert walked == []


def test_preparing_a_broken_part_says_nothing(run):
    trace = Trace()
    trace.feed(line_of(kind="header", format=FORMAT, state=empty_state(1, [0])))
    for i in range(1500):
        trace.feed(line_of(kind="event", i=i, step=1, stop="x", do=[["delete", ["none"]]]))
    cursor = Cursor(trace)
    list(cursor.prepare(1400))
    assert cursor.position == 0
    with pytest.raises(TraceError, match="does not fit"):
        cursor.seek(1400)


def test_a_growing_trace_is_walked_as_it_grows(mini):
    watched = Watched(make_engine(mini, block_size=4, num_blocks=16))
    watched.engine.add_request(P(0, 6), greedy(3))
    trace, fed = Trace(), 0
    cursor = Cursor.__new__(Cursor)
    while not watched.engine.is_finished():
        watched.step()
        for line in watched.sink.lines[fed:]:
            trace.feed(line)
        if not fed:
            cursor = Cursor(trace)
        fed = len(watched.sink.lines)
        while cursor.next_step():
            pass
        assert cursor.at_end
        assert cursor.state == watched.state


def test_a_lying_keyframe_is_a_trace_error(run):
    trace = Trace()
    trace.feed(line_of(kind="header", format=FORMAT, state=empty_state(1, [0])))
    for i in range(9):
        trace.feed(line_of(kind="event", i=i, step=i, stop="x", do=[["set", ["step"], i]]))
        trace.feed(line_of(kind="keyframe", i=i + 1, state={"phase": 5}))
    cursor = Cursor(trace)
    cursor.seek(9)
    cursor._here.undo.clear()
    with pytest.raises(TraceError, match="state"):
        cursor.seek(4)
    assert (cursor.position, cursor.state["step"]) == (9, 8)


# Patches

values = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=8,
)
trees = st.fixed_dictionaries(
    {
        "list": st.lists(st.integers(0, 3), max_size=5),
        "deep": st.fixed_dictionaries({"list": st.lists(values, max_size=3)}),
    },
    optional={"value": values},
)
paths = st.sampled_from(
    [
        ["list"],
        ["deep", "list"],
        ["value"],
        ["deep", "new"],
        ["deep"],
        ["value", "x"],
        ["no", "way"],
    ]
)
patches = st.one_of(
    st.tuples(st.just("set"), paths, values),
    st.tuples(st.just("delete"), paths),
    st.tuples(st.sampled_from(["append", "prepend"]), paths, st.lists(values, max_size=3)),
    st.tuples(st.just("take"), paths, st.integers(-1, 4)),
    st.tuples(st.just("remove"), paths, values),
).map(list)


@settings(max_examples=400)
@given(trees, st.lists(patches, max_size=8))
def test_undo_takes_back_any_patches_that_apply(tree, todo):
    history = []
    for patch in todo:
        before = copy.deepcopy(tree)
        try:
            token = apply(tree, copy.deepcopy(patch))
        except TraceError:
            assert tree == before, "a patch that does not fit changes nothing"
            continue
        history.append((before, token))
    for before, token in reversed(history):
        undo(tree, token)
        assert tree == before


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (["set", ["a"], 5], {"a": 5, "l": [1, 2, 1]}),
        (["set", ["new"], [0]], {"a": 0, "l": [1, 2, 1], "new": [0]}),
        (["delete", ["a"]], {"l": [1, 2, 1]}),
        (["append", ["l"], [8, 9]], {"a": 0, "l": [1, 2, 1, 8, 9]}),
        (["prepend", ["l"], [8, 9]], {"a": 0, "l": [8, 9, 1, 2, 1]}),
        (["take", ["l"], 2], {"a": 0, "l": [1]}),
        (["remove", ["l"], 1], {"a": 0, "l": [2, 1]}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_each_kind_of_patch(patch, expected):
    state = {"a": 0, "l": [1, 2, 1]}
    token = apply(state, patch)
    assert state == expected
    undo(state, token)
    assert state == {"a": 0, "l": [1, 2, 1]}
