"""Breakpoints, narrations and the search for the next or last place where one triggers."""

import re

import pytest
from support import record_scenario
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.errors import ExpressionError
from tourvllm.tour.narrator import Narrator
from tourvllm.tour.reader import read_trace
from tourvllm.tour.scenario import Narration
from tourvllm.tour.triggers import (
    Breakpoint,
    Status,
    Trigger,
    check_breakpoint,
    count,
    find,
    first_hit,
    parse_breakpoint,
)


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


LINES = [
    ("preempt", ("preempt", None, 1)),
    ("  preempt  ", ("preempt", None, 1)),
    ("C", ("C", None, 1)),
    ("free < 2 and len(waiting)", ("free < 2 and len(waiting)", None, 1)),
    ("preempt hits 3", ("preempt", None, 3)),
    ("preempt if free < 2", ("preempt", "free < 2", 1)),
    ("preempt if free < 2 hits 12", ("preempt", "free < 2", 12)),
    ("can_allocate if len(hits) > 0 hits 2", ("can_allocate", "len(hits) > 0", 2)),
    ("can_allocate if hits hits 2", ("can_allocate", "hits", 2)),
    ("1 if free else 0", ("1 if free else 0", None, 1)),
    ("1 if free else 0 if step > 2", ("1 if free else 0", "step > 2", 1)),
    ("C if 1 if free else 0", ("C", "1 if free else 0", 1)),
    ("len([x for x in waiting if x]) if step", ("len([x for x in waiting if x])", "step", 1)),
    ("wait if cause == 'a if b'", ("wait", "cause == 'a if b'", 1)),
    ("wait if cause == 'x hits 3'", ("wait", "cause == 'x hits 3'", 1)),
]


@pytest.mark.parametrize(("line", "parts"), LINES, ids=[line for line, _ in LINES])
def test_a_line_has_three_parts(line, parts):
    assert parse_breakpoint(line) == parts
    assert parse_breakpoint(Breakpoint(*parts).line) == parts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "a breakpoint is one line"),
        ("preempt\nfinish", "a breakpoint is one line"),
        ("preempt if", "'preempt if' is not an expression"),
        ("preempt if free <", "'free <' is not an expression"),
        ("free <", "'free <' is not an expression"),
        ("free < if step", "'free <' is not an expression"),
        ("preempt hits 0", "hits counts from 1"),
        ("preempt hits many", "is not an expression"),
        ("preempt hits -1", "is not an expression"),
        ("x" * 2000, "characters at most"),
        (f"preempt if {'1 + ' * 200}1", "over the limit of 500"),
        ("\0", "is not an expression"),
    ],
)
def test_what_is_no_line_is_a_sentence(line, words):
    with pytest.raises(ExpressionError, match=re.escape(words)):
        Trigger(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("premept", "premept is neither a stop nor a request: did you mean preempt?"),
        ("premept hits 2", "did you mean preempt?"),
        ("waiting", "waiting is neither a stop nor a request"),
        ("Z", "Z is neither a stop nor a request"),
        (
            "preempt if fre < 2",
            "there is no fre, neither in the state nor as a request or a fact: did you mean free?",
        ),
        ("fre < 2", "did you mean free?"),
        ("Z.num_tokens > 3", "there is no Z"),
        ("length(waiting) > 1", "there is no function length; there are abs"),
        ("finish > 2", "finish is a stop and has no value: compare with stop == 'finish'"),
    ],
)
def test_what_could_never_trigger_is_refused(line, words):
    with pytest.raises(ExpressionError, match=re.escape(words)):
        check_breakpoint(line, ["A", "B"])


def test_what_can_trigger_is_not_refused():
    for line, _ in LINES:
        check_breakpoint(line, ["A", "B", "C"])
    check_breakpoint("any(seqs[name].preemptions for name in running) hits 2", [])
    check_breakpoint("wait if cause == 'no_free_blocks' and facts.needs > A.num_tokens", ["A"])


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
    ["D"],
    ["D if stop == 'wait'"],
    ["decode hits 9"],
    ["len(running) == 2 hits 2"],
    ["D hits 4", "finish"],
    ["preempt hits 2", "A if step > 3 hits 5", "free == 0"],
    ["A.block_table[6] > 3"],
    ["decode if A.block_table[6] > 3 hits 3"],
    ["free < 'a'"],
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
    assert "there is no E yet" in trigger.problem
    assert walk(trace, trigger) == [
        next(i + 1 for i in range(len(trace)) if trace.event(i).facts.get("seq") == "E")
    ]


def test_hits_counts_from_the_start_of_the_run(trace):
    every = walk(trace, Trigger("decode"))
    assert walk(trace, Trigger("decode hits 9")) == every[8:]
    cursor = Cursor(trace)
    cursor.seek(every[-3])
    assert find(cursor, ["decode hits 9"], forward=True) == "decode hits 9"
    assert cursor.position == every[-2]
    cursor.seek(every[9])
    assert find(cursor, ["decode hits 9"], forward=False)
    assert cursor.position == every[8]
    assert find(cursor, ["decode hits 9"], forward=False) is None
    triggers = [Trigger(line) for line in ("decode hits 9", "decode", "D")]
    for _ in count(trace, triggers, every[3]):
        pass
    assert {trigger.text: trigger.count for trigger in triggers} == {
        "decode hits 9": 4,
        "decode": 4,
        "D": len([at for at in walk(trace, Trigger("D")) if at <= every[3]]),
    }


def test_a_request_triggers_at_each_event_that_names_it(trace):
    named = walk(trace, Trigger("D"))
    stops = {trace.event(i - 1).stop for i in named}
    assert {"add_request", "wait", "decode", "preempt", "prepare_decode", "sample"} <= stops
    for i in range(len(trace)):
        facts = trace.event(i).facts
        about = [
            facts.get("seq"),
            facts.get("needed_by"),
            facts.get("behind"),
            *facts.get("seqs", []),
        ]
        assert (i + 1 in named) == ("D" in about)


WHY = "free < 'a' cannot be evaluated: '<' not supported between instances of 'int' and 'str'"


def test_a_condition_that_cannot_be_evaluated_halts_once_and_says_why(trace):
    cursor, told = Cursor(trace), []
    triggers = [Trigger("free < 'a'"), Trigger("decode if free < 'a' hits 2")]
    triggers[0].start(None, cursor.state)
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        if said := first_hit(triggers, cursor.event, cursor.state):
            told.append((cursor.event.stop, said))
    assert told == [("generate", WHY), ("decode", WHY.replace("free < 'a'", triggers[1].text, 1))]
    assert [trigger.count for trigger in triggers] == [0, 0]


@pytest.mark.parametrize("start", [0, 300, 900])
def test_a_search_tells_it_wherever_it_begins(trace, start):
    cursor = Cursor(trace)
    cursor.seek(start)
    assert find(cursor, ["preempt hits 2", "free < 'a'"], forward=True) == WHY
    assert cursor.position == start + 1
    assert find(cursor, ["free < 'a'"], forward=False) == (WHY if start else None)
    assert cursor.position == start


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
