"""Conditions and watch expressions: the state's own words, and nothing that could do harm."""

import contextlib
import copy
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import nothing_but
from tourvllm.tour.errors import ExpressionError, UnknownNameError
from tourvllm.tour.expressions import MAX_LENGTH, check_names, check_syntax, evaluate, names
from tourvllm.tour.state import empty_state
from tourvllm.tour.trace import Event

from tourvllm.plain import watched

STATE = empty_state(4, range(6)) | {
    "waiting": ["B"],
    "running": ["A"],
    "seqs": {
        "A": {"block_table": [7, 2], "num_tokens": 6, "items": 3},
        "B": {"block_table": [], "num_tokens": 9},
        "free": {"num_tokens": 1},
    },
}
EVENT = Event(
    0, 1, "wait", facts={"cause": "no_free_blocks", "needs": 3, "waiting": "not the queue"}
)


def value(text: str):
    return evaluate(text, names(STATE, EVENT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A.block_table[-1] * block_size + 3", 11),
        ("len(free_block_ids)", 6),
        ("free < 2 or len(waiting) > 0", True),
        ("free == total == len(blocks.free)", True),
        (" free ", 6),
        ("step", 0),
        ("'B' in waiting and 'A' not in waiting", True),
        ("A.num_tokens % block_size == 2", True),
        ("2 ** 10 - 7 // 2", 1021),
        ("max([seqs[x].num_tokens for x in running + waiting] if free else [0])", None),
        ("max([seqs[x].num_tokens for x in ['A', 'B']])", 9),
        ("any(seqs[x].num_tokens > 8 for x in waiting)", True),
        ("sum([1, 2, 3]) + abs(-1) + min(4, 5)", 11),
        ("stop == 'wait' and cause == 'no_free_blocks' and needs > 2", True),
        ("A.items", 3),
        ("seqs['free'].num_tokens", 1),
        ("waiting", ["B"]),
        ("'short' if free < 2 else 'ample'", "ample"),
    ],
)
def test_values(text, expected):
    if expected is None:
        with pytest.raises(ExpressionError, match="numbers"):
            value(text)
    else:
        assert value(text) == expected


def test_the_states_own_names_win_over_facts_and_facts_over_ids():
    assert value("free") == 6
    assert value("waiting") == ["B"]
    assert evaluate("A", names(STATE, Event(0, 1, "x", facts={"A": 5}))) == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 +",
        "free = 2",
        "1; 2",
        "import os",
        "a b",
        "\0",
        "x" * (MAX_LENGTH + 1),
        "(" * 300,
        "def f(): pass",
        "free := 3",
    ],
)
def test_what_is_no_expression_is_refused_before_anything_runs(text):
    with pytest.raises(ExpressionError):
        check_syntax(text)


@pytest.mark.parametrize(
    "text",
    [
        "nobody",
        "A.nothing",
        "A.block_table[9]",
        "1 / 0",
        "waiting + 1",
        "min([])",
        "[][0]",
        "len(3)",
        "waiting.clear()",
        "waiting.append('X')",
        "seqs.pop('A')",
        "seqs.items",
        "seqs.clear",
        "waiting.pop",
        "A.block_table.__class__",
        "().__class__",
        "__import__('os')",
        "open('x')",
        "eval('1')",
        "print(1)",
        "'a'.ljust(10)",
        "'%9d' % 1",
        "'{}'.format(1)",
        "f'{1:9}'",
        "'a' * 9",
        "[0] * 9",
        "waiting + waiting",
        "lambda: 1",
        "2 ** 65",
        "9 ** 9 ** 9",
        "1 << 99999",
        "sum([[1], [2]], [])",
        "[x for x in waiting for y in z]",
    ],
)
def test_what_cannot_be_had_is_a_sentence_and_changes_nothing(text):
    before = copy.deepcopy(STATE)
    with pytest.raises(ExpressionError, match="cannot be evaluated here"):
        value(text)
    assert before == STATE


class State(dict):
    """One that can be watched going."""


@pytest.mark.parametrize("text", ["len(waiting) + free", "A.num_tokens + 1", "nobody"])
def test_a_state_is_let_go_of_at_once(text):
    state = State(STATE)
    gone = weakref.ref(state)
    values = names({}) | {"seqs": state, "waiting": state, "A": STATE["seqs"]["A"]}
    gc.disable()
    try:
        with contextlib.suppress(ExpressionError):
            evaluate(text, values)
        del values, state
        assert gone() is None
    finally:
        gc.enable()


def test_a_loop_is_bounded():
    values = {"many": list(range(400))}
    with pytest.raises(ExpressionError, match="too many"):
        evaluate("[1 for x in many for y in many]", values)


@given(st.text(alphabet="AB.[]()0123456789+-*/%<>=' ,forinlesqzwatgk_:{}", max_size=40))
def test_any_text_gives_a_value_or_an_expression_error(text):
    before = copy.deepcopy(STATE)
    with nothing_but(ExpressionError, "expression", "cannot be evaluated"):
        value(text)
    assert before == STATE


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("A.num_computed_tokens", "A.num_cached_tokens"),
        ("num_computed_tokens > 3", "A.num_cached_tokens"),
        ("B.num_new_tokens", "B.num_scheduled_tokens"),
        ("B.num_completion_tokens", "B.num_tokens - B.num_prompt_tokens"),
        ("A.num_computed", "A.num_cached_tokens"),
        ("A.num_cached_token", "A.num_cached_tokens"),
        ("block_table[-1]", "A.block_table"),
        ("num_free_blocks < 2", "free"),
        ("fre", "free"),
    ],
)
def test_a_name_of_another_engine_or_a_misspelt_one_is_answered_with_ours(text, meant):
    with pytest.raises(ExpressionError, match="did you mean") as error:
        check_names(text, ["B", "A", "1"])
    assert str(error.value).endswith(f"did you mean {meant}?")
    check_names(meant, ["B", "A", "1"])


def test_a_field_that_is_like_no_other_is_answered_with_all():
    with pytest.raises(ExpressionError, match="a request has no zzz: it has status, num_tokens, "):
        check_names("A.zzz", ["A"])


def test_no_warning_reaches_the_terminal(recwarn):
    for text in ("free is 6", "1 (2)", "'\\d'"):
        with nothing_but(ExpressionError, "expression", "cannot be evaluated"):
            value(text)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize(
    ("text", "reason", "unknown"),
    [
        ("batch.slot_mapping", "there is no batch yet", True),
        ("B.num_tokens", "there is no B yet", True),
        ("cause", "there is no cause at this stop", True),
        ("waiting[99]", "the list is shorter", False),
        ("ref_count['99']", "there is no entry '99'", False),
        ("{'a: b': 1}['c']", "there is no entry 'c'", False),
        ("blocks.hsah", "there is no hsah", False),
    ],
)
def test_why_there_is_no_value_is_told_in_a_few_words(text, reason, unknown):
    with pytest.raises(ExpressionError) as error:
        evaluate(text, names(empty_state(4, range(3))))
    assert error.value.reason == reason
    assert isinstance(error.value, UnknownNameError) == unknown
    assert watched(text, names(empty_state(4, range(3)))) == f"({reason})"
