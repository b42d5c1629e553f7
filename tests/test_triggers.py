"""Breakpoints, narrations and the search for the next or last place where one triggers."""

import pytest
from support import record_scenario
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.reader import read_trace
from tourvllm.tour.narrator import Narrator
from tourvllm.tour.scenario import Narration
from tourvllm.tour.triggers import Status, Trigger, find


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return read_trace(record_scenario(tmp_path_factory.mktemp("triggers") / "run.jsonl"))


def walk(trace, trigger: Trigger) -> list[int]:
    """Every position where a trigger hits on a walk from the start to the end."""
    cursor, hits = Cursor(trace), []
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        if trigger.hit(cursor.event, cursor.state):
            hits.append(cursor.position)
    return hits


TEXTS = [
    ["preempt"],
    ["finish"],
    ["schedule"],
    ["free < 2"],
    ["len(waiting) > 1"],
    ["'C' in running"],
    ["A.num_tokens > 20"],
    ["stop == 'wait' and cause == 'no_free_blocks'"],
    ["preempt", "free == 0", "evict"],
    ["step == 7"],
    ["False"],
    ["nobody.knows"],
    ["stop == 'generate'"],
]


@pytest.mark.parametrize("texts", TEXTS, ids=" | ".join)
def test_forward_and_back_find_the_same_places(trace, texts):
    cursor, forward, back = Cursor(trace), [], []
    while find(cursor, texts, forward=True):
        forward.append(cursor.position)
    assert cursor.at_end
    cursor.seek(len(trace))
    end_counts = [len(trace)] if forward and forward[-1] == len(trace) else []
    while find(cursor, texts, forward=False):
        back.append(cursor.position)
    assert cursor.position == 0
    assert end_counts + back == forward[::-1]


@pytest.mark.parametrize("texts", TEXTS[:8], ids=" | ".join)
def test_find_stops_where_a_walk_would(trace, texts):
    cursor, found = Cursor(trace), []
    while find(cursor, texts, forward=True):
        found.append(cursor.position)
    assert found == walk(trace, Trigger(texts[0]))
    assert found


def test_a_stop_hits_at_each_such_event(trace):
    stops = [trace.event(i).stop for i in range(len(trace))]
    assert walk(trace, Trigger("decode")) == [
        i + 1 for i, stop in enumerate(stops) if stop == "decode"
    ]


def test_a_condition_hits_where_it_becomes_true_only(trace):
    cursor = Cursor(trace)
    for position in walk(trace, Trigger("len(running) == 2")):
        cursor.seek(position)
        assert len(cursor.state["running"]) == 2
        cursor.seek(position - 1)
        assert len(cursor.state["running"]) != 2


def test_a_stop_with_a_condition_hits_at_each_stop_where_it_holds(trace):
    hits = walk(trace, Trigger("admit if seq == 'C'"))
    cursor = Cursor(trace)
    for position in hits:
        cursor.seek(position)
        assert (cursor.event.stop, cursor.event.facts["seq"]) == ("admit", "C")
    assert 0 < len(hits) < len(walk(trace, Trigger("admit")))


def test_what_cannot_be_evaluated_is_false_and_says_why(trace):
    trigger = Trigger("E.num_tokens > 0")
    assert trigger.status(None, trace.initial_state()) is Status.NO
    assert "'E' is not defined" in trigger.problem
    assert walk(trace, trigger) == [
        next(i + 1 for i in range(len(trace)) if trace.event(i).facts.get("seq") == "E")
    ]


def test_each_narration_is_said_once_and_the_first_time(trace):
    said: list[tuple[int, str]] = []
    cursor = Cursor(trace)
    narrator = Narrator(
        [
            Narration("preempt", "a victim"),
            Narration("step", "the third", condition="step == 3"),
            Narration("free == 0", "all taken"),
            Narration("reject", "never"),
        ],
        lambda say: said.append((cursor.position, say)),
        lambda ask: said.append((ask.i, ask.ask)),
    )
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        narrator.after(cursor.event, cursor.state)
    assert sorted(said) == sorted(
        [
            (walk(trace, Trigger("preempt"))[0], "a victim"),
            (walk(trace, Trigger("step if step == 3"))[0], "the third"),
            (walk(trace, Trigger("free == 0"))[0], "all taken"),
        ]
    )
    assert narrator.unsaid == ["reject"]
