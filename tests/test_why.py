"""The sentence on each stop: it names who and why, for a real run and for any nonsense."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    POLICIES,
    P,
    Watched,
    greedy,
    make_engine,
    pieces_tokenizer,
    record_scenario,
    say,
)
from tourvllm.engine.errors import RequestError
from tourvllm.tour.compare import compare
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.reader import read_trace
from tourvllm.tour.state import empty_state
from tourvllm.tour.stops import GROUPS, STOPS, group_of
from tourvllm.tour.trace import Event, Trace
from tourvllm.tour.why import why


@pytest.fixture(scope="module", params=POLICIES)
def policy(request):
    return request.param


@pytest.fixture(scope="module")
def told(tmp_path_factory, policy):
    """(event, sentence) for every event of kv_pressure, under each policy."""
    path = tmp_path_factory.mktemp("why") / "run.jsonl"
    return told_by(read_trace(record_scenario(path, **{"engine.policy": policy})))


def told_by(trace: Trace) -> list[tuple[Event, str]]:
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


def test_each_wait_names_its_cause_and_its_numbers(told, policy):
    causes = {event.facts["cause"] for event, _ in told if event.stop == "wait"}
    own = "after_preemption" if policy == "mixed" else "behind_chunk"
    assert causes >= {"no_free_blocks", "behind_head", own}
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


def test_an_admission_after_a_preemption_says_how_many_tokens_are_computed_again(told):
    again = [event for event, _ in told if event.stop == "admit" and event.facts["preemptions"]]
    assert again
    for event, text in told:
        if event in again:
            facts = event.facts
            many = f"{facts['num_recomputed_tokens']} of the {facts['num_scheduled_tokens']}"
            assert text.endswith(f" It was preempted: {many} are computed again.")


def test_all_tell_the_same_price_of_preemptions(tmp_path, policy):
    """What is told step by step is what `diff` counts in all."""
    trace = read_trace(
        record_scenario(tmp_path / "t.jsonl", **{"engine.policy": policy, "engine.num_blocks": 16})
    )
    events = [trace.event(i) for i in range(len(trace))]
    told = {  # mixed tells an admission that is cut twice: as admit and as chunk
        (event.step, event.facts["seq"]): event.facts["num_recomputed_tokens"]
        for event in events
        if event.stop in ("admit", "chunk")
    }
    summary = compare(trace, trace).a
    assert sum(told.values()) == summary.recomputed_tokens > 0


def test_what_is_told_of_a_request_that_grows(told):
    for event, text in told:
        if event.stop == "can_append" and event.facts["ok"]:
            newest = event.facts["num_tokens"] - 1
            assert f"(position {newest})" in text or "next ones to compute" in text


def test_the_grouped_layers_are_told_as_one_after_another(told):
    (first, others), (one, rest) = (
        sentences(told, stop)[:2] for stop in ("store_kvcache", "attention")
    )
    assert first.startswith("Layer 1 of 5 writes")
    assert others.startswith("Layers 2 to 5 of 5, one after another, write")
    assert one.startswith("Layer 1 of 5 follows")
    assert rest.startswith("Layers 2 to 5 of 5, one after another, follow")


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


def watch(mini, **settings) -> Watched:
    return Watched(make_engine(mini, **{"block_size": 4, "num_blocks": 64, **settings}))


def test_a_step_says_what_the_sign_of_its_tokens_means(mini):
    watched = watch(mini)
    watched.engine.add_request(P(0, 3), greedy(3), "A")
    watched.engine.add_request(P(0, 3), greedy(3), "B")
    watched.run()
    prefill, decode, _ = sentences(told_by(watched.trace()), "step", when="end")
    assert "a prefill of 6 tokens for 2 requests (num_tokens = 6)," in prefill
    assert (
        "a decode of 2 tokens for 2 requests (num_tokens = -2: the minus marks a decode)," in decode
    )


def test_a_mixed_step_says_what_is_in_it(mini):
    watched = watch(mini, policy="mixed", max_num_batched_tokens=8)
    watched.engine.add_request(P(0, 3), greedy(9), "A")
    watched.step()
    watched.engine.add_request(P(20, 33), greedy(2), "B")
    watched.run()
    told = told_by(watched.trace())
    mixed = sentences(told, "schedule", phase="mixed")
    assert mixed == [
        "This step is mixed: 1 decode and 7 prompt tokens in one batch of A B.",
        "This step is mixed: 1 decode and 6 prompt tokens in one batch of A B.",
    ]
    assert sentences(told, "chunk") == [
        "B has 13 tokens to compute, and 7 of the budget are left for it: 7 run now, and it keeps its place in "
        "running for the rest.",
        "B has 6 tokens to compute, and 7 of the budget are left for it: the rest of its prompt runs now.",
    ]
    assert sentences(told, "step", phase="mixed")[0].startswith(
        "Step 2 is done: a mixed batch of 8 tokens for 2 requests (num_tokens = 8)"
    )
    assert sentences(told, "prepare_prefill")[1].startswith("8 tokens of A B in one flat row.")
    assert "B: 7 tokens computed, 7 of 13 now in the KV cache. Its prompt goes on" in " ".join(
        sentences(told, "postprocess", seq="B")
    )
    assert sentences(told, "can_append", seq="B")[0] == (
        "B has 13 tokens, and the next ones to compute need 2 blocks more. Free: 60. It can grow."
    )
    assert sentences(told, "can_append", seq="A", num_tokens=5) == [
        "A has 5 = 1 * 4 + 1 tokens: its newest one (position 4) starts a new block. Free: 61. It can grow."
    ]


def test_a_chunk_in_waiting_says_that_it_stays_there(mini):
    watched = watch(mini, max_num_batched_tokens=8)
    watched.generate([P(0, 13), P(20, 23)], greedy(1), request_id=["A", "B"])
    told = told_by(watched.trace())
    assert sentences(told, "chunk") == [
        "A has 13 tokens to compute, and 8 of the budget are left for it: 8 run now, and it stays in front of "
        "waiting for the rest."
    ]
    assert sentences(told, "wait") == [
        "B waits (behind_chunk): A takes all that is left of the budget, chunk by chunk."
    ]


def test_who_waits_after_a_preemption_is_told_so(mini):
    watched = watch(mini, policy="mixed", num_blocks=6)
    watched.generate([P(i, i + 7) for i in (0, 20, 40)], greedy(6), request_id=[*"ABC"])
    told = told_by(watched.trace())
    assert sentences(told, "preempt")[0] == (
        "A needs a block and none is free. C came last into running, so it is the victim: back to the front of "
        "waiting. Its 2 blocks will be freed, and up to 8 computed tokens may have to be computed again: "
        "fewer if the prefix cache still knows their blocks then."
    )
    assert sentences(told, "wait", cause="after_preemption")[0] == (
        "C waits (after_preemption): blocks are short: this step has just preempted, so it lets nobody in."
    )


def test_a_prompt_that_needs_several_blocks_says_how_many_there_are(mini):
    watched = watch(mini, policy="mixed", num_blocks=6, max_num_batched_tokens=9)
    watched.engine.add_request(P(0, 11), greedy(9), "A")
    watched.step()
    watched.engine.add_request(P(40, 60), greedy(2), "B")
    watched.run()
    assert sentences(told_by(watched.trace()), "preempt")[0] == (
        "B needs more blocks than are free (1), and it is the last one running: it gives up its own place. "
        "Its 2 blocks will be freed, and up to 7 computed tokens may have to be computed again: "
        "fewer if the prefix cache still knows their blocks then."
    )


def test_without_a_prefix_cache_no_block_is_found_again(mini):
    watched = watch(mini, policy="mixed", num_blocks=6, prefix_caching=False)
    watched.generate([P(i, i + 7) for i in (0, 20, 40)], greedy(6), request_id=[*"ABC"])
    told = sentences(told_by(watched.trace()), "preempt")[0]
    assert told.endswith("will be freed, and 8 computed tokens will have to be computed again.")


def test_by_priority_the_victim_is_the_least_important(mini):
    watched = watch(mini, order="priority", num_blocks=6)
    for name, priority in (("A", 3), ("B", 0), ("C", 1)):
        watched.engine.add_request(P(20 * priority, 20 * priority + 7), greedy(6), name, priority)
    watched.run()
    assert sentences(told_by(watched.trace()), "preempt")[0] == (
        "B needs a block and none is free. A has the lowest priority of those running, so it is the victim: back "
        "to waiting. Its 2 blocks will be freed, and up to 8 computed tokens may have to be computed again: "
        "fewer if the prefix cache still knows their blocks then."
    )


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"stop": ["w5 w6"]}, 'A is finished (stop): it wrote its stop text "w5 w6".'),
        ({"stop_token_ids": [6]}, "A is finished (stop): it chose one of its stop tokens."),
        ({"max_tokens": 2}, "A is finished (length): it has its 2 tokens."),
        (
            {"ignore_eos": False},
            "A is finished (stop): it chose an end-of-sequence token.",
        ),
    ],
    ids=str,
)
def test_the_end_says_what_ended_it(mini, params, sentence):
    watched = watch(mini)
    watched.engine.stop_token_ids = {7}
    say(watched.engine, 3, [5, 6, 7, 8])
    watched.generate([P(0, 3)], greedy(**{"max_tokens": 4, **params}), request_id=["A"])
    assert sentences(told_by(watched.trace()), "finish") == [sentence]


def test_a_stop_text_from_a_stranger_is_harmless(mini):
    watched = watch(mini)
    watched.engine.tokenizer = pieces_tokenizer(["a", "\x1b[31m\n", "b"])
    say(watched.engine, 1, [1, 2])
    watched.generate([[0]], greedy(2, stop=["\x1b[31m\n"]), request_id=["A"])
    (text,) = sentences(told_by(watched.trace()), "finish")
    assert text == 'A is finished (stop): it wrote its stop text "␛[31m⏎".'


def test_a_rejection_gives_the_reason(mini):
    watched = watch(mini, max_model_len=40)
    watched.generate([[], [5, 999], P(0, 30)], greedy(20), request_id=[*"ABC"])
    assert sentences(told_by(watched.trace()), "reject") == [
        "A is rejected: the prompt is empty: give it at least one token.",
        "B is rejected: the prompt's token id 999 is not in the vocabulary (0 to 127).",
        "C is rejected: the prompt of 30 tokens + max_tokens 20 is over max_model_len 40: shorten one of them.",
    ]


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
hash layer last_layer num_layers num_keys pieces computed token_id piece max_tokens budget phase blocks freed
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
