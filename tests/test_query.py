"""Expressions along a recorded run, as table and CSV; and watches in the plain walk."""

import csv
import io
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.reader import read_trace

from tourvllm.cli import main

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of the command."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def rows_of(*arguments: object) -> list[dict[str, str]]:
    code, text, _ = run("query", RECORDED, "--csv", *arguments)
    assert code == 0
    return list(csv.DictReader(io.StringIO(text)))


def test_values_at_the_end_of_each_step():
    rows = rows_of("free", "len(waiting)", "D.block_table", "num_tokens")
    cursor = Cursor(trace := read_trace(RECORDED))
    assert [int(row["step"]) for row in rows] == [step.number for step in trace.steps]
    for row in rows:
        cursor.next_step()
        state = cursor.state
        assert int(row["free"]) == len(state["blocks"]["free"])
        assert int(row["len(waiting)"]) == len(state["waiting"])
        table = state["seqs"]["D"]["block_table"] if "D" in state["seqs"] else ""
        assert row["D.block_table"] == str(table)
    # A fact of the event that closes the step: negative for a decode.
    assert [row["num_tokens"] for row in rows[:6]] == ["13", "5", "20", "11", "11", "-4"]


def test_values_at_every_stop_and_at_one_stop():
    assert len(rows_of("free", "--at", "stop")) == len(read_trace(RECORDED))
    assert rows_of("seq", "needed_by", "D.num_tokens", "--at", "preempt") == [
        {
            "step": "13",
            "event": "319",
            "stop": "preempt",
            "seq": "D",
            "needed_by": "B",
            "D.num_tokens": "19",
        }
    ]


def test_the_table_is_the_same_for_people():
    code, text, _ = run("query", RECORDED, "free", "D.block_table")
    lines = [line.split("  ") for line in text.splitlines()]
    assert (code, lines[0][0], len(lines)) == (0, "step", 38)
    assert "[14, 15, 16]" in text
    wide, shortened, _ = run("query", RECORDED, "sorted(seqs.C.token_ids)", "seqs")
    assert (wide, "..." in shortened) == (0, True)


def test_csv_shortens_nothing_and_quotes_what_needs_it():
    rows = rows_of("A.token_ids", "A.pieces", "batch.slot_mapping")
    assert rows[-1]["A.token_ids"].count(",") == 29
    assert rows[-1]["A.pieces"].startswith("['Once'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fre"], "fre has a value nowhere in this trace: there is no fre"),
        (["fre"], "did you mean free?"),
        (["free", "Z.block_table"], "Z.block_table has a value nowhere"),
        (["free["], "'free[' is not an expression"),
        (["free.clear()"], "has a value nowhere"),
        (
            ["free", "--at", "preempts"],
            "--at preempts: there is no such stop; did you mean preempt?",
        ),
        (["free", "--at", "reject"], "reject never happens in this trace"),
        ([], "Missing argument"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--csv"]])
def test_what_cannot_be_answered_is_a_sentence_and_exit_code_2(arguments, words, form):
    code, text, error = run("query", RECORDED, *arguments, *form)
    assert (code, text) == (2, "")
    assert words in error


def test_the_text_of_a_request_is_one_text():
    texts = [row["C.text"] for row in rows_of("C.text")]
    assert texts[0] == ""
    assert texts[-1] == ' Ruby sat up in bed. "Who is there?" asked Ruby.'


def test_another_engines_name_is_answered_with_ours():
    code, text, error = run("query", RECORDED, "C.num_computed_tokens")
    assert (code, text) == (2, "")
    assert error.endswith(
        "a request has no num_computed_tokens: did you mean C.num_cached_tokens?\n"
    )


def test_an_expression_without_a_value_somewhere_has_empty_cells():
    rows = rows_of("E.num_tokens")
    assert [row["E.num_tokens"] for row in rows[:12]] == [""] * 11 + ["12"]


def test_a_watch_tells_each_change_where_it_happens():
    code, text, error = run("replay", RECORDED, "--plain", "--watch", "free", "--watch", "D.status")
    assert code == 0
    changes = [line.split() for line in text.splitlines() if line.startswith("  watch        ")]
    free = [line for line in changes if line[1].startswith("free")]
    assert free[0][1:4] == ["free", "=", "24"]
    for before, after in pairwise(free[1:]):
        assert before[4] == after[2] != after[4]
    states = [(line[2], line[4]) for line in changes if line[1] == "D.status:"]
    assert states == [
        ("waiting", "running"),
        ("running", "waiting"),
        ("waiting", "running"),
        ("running", "finished"),
    ]
    assert "(at deallocate, engine/block_manager.py:" in text
    assert error == ""


def test_a_watch_that_never_has_a_value_is_told_at_the_end():
    code, _, error = run("replay", RECORDED, "--plain", "--watch", "Z.status")
    assert (code, error) == (0, "tourvllm: --watch Z.status: it had no value at any event\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", RECORDED, "--plain", "--watch", "free["],
        ["run", "kv_pressure", "--plain", "--watch", "fre"],
        ["run", "kv_pressure", "--plain", "--watch", "Z.status"],
    ],
)
def test_a_watch_that_is_no_expression_is_refused(arguments):
    code, text, error = run(*arguments)
    assert (code, text) == (2, "")
    assert error.startswith("tourvllm: --watch ")
