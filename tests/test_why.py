"""The sentence on each stop: it names who and why, for a real run and for any nonsense."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import P, Watched, greedy, make_engine, record_scenario
from tourvllm.engine.errors import RequestError
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.reader import read_trace
from tourvllm.tour.state import empty_state
from tourvllm.tour.stops import GROUPS, STOPS, group_of
from tourvllm.tour.trace import Event
from tourvllm.tour.why import why


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """(event, state's step, sentence) for every event of kv_pressure."""
    trace = read_trace(record_scenario(tmp_path_factory.mktemp("why") / "run.jsonl"))
    cursor, found = Cursor(trace), []
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        found.append((cursor.event, why(cursor.event, cursor.state)))
    return found


def sentences(told, stop: str, **facts) -> list[str]:
    return [
        text for event, text in told if event.stop == stop and facts.items() <= event.facts.items()
    ]


def test_every_stop_but_reject_occurs_in_kv_pressure(told):
    assert {event.stop for event, _ in told} == set(STOPS) - {"reject"}


def test_each_event_has_one_finished_sentence_of_its_own(told):
    for event, text in told:
        assert text.endswith((".", "?")), text
        assert "\n" not in text
        assert text != STOPS[event.stop].about, f"{event.stop} fell back on its general description"
        assert not re.search(r"\bNone\b|\{|\bnan\b|  ", text.replace('" "', "")), text


def test_each_sentence_names_its_request(told):
    for event, text in told:
        for name in (
            [event.facts["seq"]] if "seq" in event.facts else event.facts.get("seqs", ())[:8]
        ):
            assert re.search(rf"\b{name}\b", text), (event.stop, text)


def test_each_wait_names_its_cause_and_its_numbers(told):
    causes = {event.facts["cause"] for event, _ in told if event.stop == "wait"}
    assert causes >= {"no_free_blocks", "behind_head", "behind_chunk"}
    for event, text in told:
        if event.stop == "wait":
            assert event.facts["cause"] in text
            for field in ("needs", "free", "left", "limit", "behind"):
                if field in event.facts:
                    assert re.search(rf"\b{event.facts[field]}\b", text), text


def test_a_preemption_names_who_needed_the_block_and_why_this_victim(told):
    for event, text in told:
        if event.stop == "preempt":
            assert event.facts["needed_by"] in text
            assert "last" in text
    assert sentences(told, "preempt")


def test_an_admission_after_a_preemption_says_that_it_is_computed_again(told):
    again = [text for event, text in told if event.stop == "admit" and event.facts["preemptions"]]
    assert again
    assert all("computed again" in text for text in again)


def test_the_other_causes_have_sentences_too(mini):
    watched = Watched(
        make_engine(mini, block_size=4, num_blocks=4, max_num_seqs=1, max_num_batched_tokens=6)
    )
    watched.engine.add_request(P(0, 4), greedy(2), "A")
    watched.engine.add_request(P(0, 5), greedy(2), "B")
    with pytest.raises(RequestError):
        watched.engine.add_request(P(0, 50), greedy(2), "C")
    watched.step()
    watched.engine.abort("B")
    told = [(event, why(event, watched.state)) for event in watched.events]
    assert sentences(told, "wait") == ["B waits (max_num_seqs): 1 running, and 1 is the limit."]
    assert "C is rejected: the prompt of 50 tokens" in sentences(told, "reject")[0]
    assert sentences(told, "finish") == ["B is finished (abort): it was aborted."]


def test_the_table_of_stops_is_whole():
    assert [group.key for group in GROUPS] == [1, 2, 3, 4, 5, 6]
    for name, stop in STOPS.items():
        assert stop.name == name
        assert group_of(name) == stop.group
        assert stop.about.endswith(".")
    assert group_of("unheard of") is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**4000),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
FACTS = """
when seq seqs num_tokens num_requests cause needs free behind hits num_new charged ok reason block_ids
hash layer num_layers num_keys pieces computed token_id piece max_tokens budget phase blocks freed
"""
fact_names = st.sampled_from(FACTS.split())


@settings(max_examples=300)
@given(
    st.sampled_from([*STOPS, "unheard of", "\x1b[31m"]),
    st.dictionaries(fact_names, anything, max_size=6),
    st.dictionaries(
        st.sampled_from(["step", "blocks", "batch", "waiting", "running"]), anything, max_size=3
    ),
)
def test_any_facts_and_any_state_give_one_printable_line(stop, facts, state):
    text = why(Event(0, 1, stop, facts=facts), empty_state(4, range(3)) | state)
    assert text
    assert len(text.splitlines()) == 1
    assert not any(ord(character) < 32 for character in text)


@pytest.mark.parametrize("stop", ["prepare_prefill", "prepare_decode", "can_append"])
def test_a_block_size_of_zero_divides_nothing(stop):
    state = empty_state(0, []) | {
        "batch": {"seqs": ["A"], "input_ids": [1], "positions": [0], "slot_mapping": [0]}
    }
    facts = {"seq": "A", "num_tokens": 4, "needs_block": True, "free": 0, "ok": False}
    assert why(Event(0, 1, stop, facts=facts), state) == STOPS[stop].about
