"""Questions in a scenario, how answers are graded, what is remembered of a learner, and the glossary."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Lines, load_models_once
from tourvllm.tour.glossary import GLOSSARY, as_markdown
from tourvllm.tour.lessons import Progress, Score, grade
from tourvllm.tour.scenario import CHOICE_LETTERS
from tourvllm.tour.trace import Ask, Trace

from tourvllm.plain import PlainWalk
from tourvllm.plain_run import replay_plain
from tourvllm.plan import make_plan
from tourvllm.runs import Run
from tourvllm.tui import panes

LESSON = """\
title: A lesson
engine: {block_size: 4, num_blocks: 16, device: cpu}
sampling: {temperature: 0, max_tokens: 5, ignore_eos: true}
requests:
  - {id: A, prompt: "Once upon a time, there was"}
tour:
  - at: allocate
    ask: {question: "Which blocks does A get?", answer: block_ids}
    say: The first ones of the free list.
  - at: preempt
    ask: {question: "Never asked", answer: seq}
    say: Nothing
  - at: finish
    ask: {question: "Why does A end?", answer: reason, choices: [stop, length]}
    say: It has its 5 tokens.
"""


def record(text: str, settings: dict | None = None) -> tuple[Run, Trace]:
    """Run a scenario; the trace as a reader sees it."""
    with pytest.MonkeyPatch.context() as patch:
        load_models_once(patch)
        sink = Lines()
        run = Run(make_plan("lesson", text, settings), [sink])
        run.run()
    trace = Trace()
    for line in sink.lines:
        trace.feed(line)
    return run, trace


def test_a_question_is_recorded_with_its_answer_at_its_moment():
    run, trace = record(LESSON)
    assert [ask.ask for ask in trace.asks.values()] == [
        "Which blocks does A get?",
        "Why does A end?",
    ]
    for position, ask in trace.asks.items():
        event = trace.event(position - 1)
        assert (ask.i, ask.step) == (position, event.step)
    first, last = trace.asks.values()
    assert trace.event(first.i - 1).stop == "allocate"
    assert (first.answer, first.choices) == ("0, 1", [])
    assert first.say == "The first ones of the free list."
    assert (last.answer, last.choices) == ("length", ["stop", "length"])
    assert run.narrator.unsaid == ["preempt"]
    assert trace.notes == {}


def test_a_question_that_has_no_answer_is_left_out_and_told():
    wrong = LESSON.replace("answer: block_ids", "answer: 'A.block_table[99]'")
    other = LESSON.replace("choices: [stop, length]", "choices: [stop, abort]")
    empty = LESSON.replace("answer: block_ids", "answer: A.text")
    twice = LESSON.replace("at: finish\n", "at: allocate\n").replace(
        "answer: reason", "answer: seq"
    )
    for text, reason, asked in (
        (wrong, "the list is shorter", 1),
        (other, "its answer length is none of its choices", 1),
        (empty, "its answer has 0 characters", 1),
        (twice.replace(", choices: [stop, length]", ""), "A second question at this moment", 1),
    ):
        _, trace = record(text)
        (said,) = [note for notes in trace.notes.values() for note in notes]
        assert reason in said
        assert said.endswith(("free list.", "5 tokens."))
        assert len(trace.asks) == asked


def test_changed_settings_take_the_questions_away_too():
    _, trace = record(LESSON, {"engine.num_blocks": 17})
    assert trace.asks == {}
    (said,) = [note for notes in trace.notes.values() for note in notes]
    assert "engine.num_blocks=17" in said


def test_the_plain_walk_tells_question_and_answer_live_and_replayed(capsys):
    lines: list[str] = []
    walk = PlainWalk(lines.append)
    with pytest.MonkeyPatch.context() as patch:
        load_models_once(patch)
        sink = Lines()
        run = Run(make_plan("lesson", LESSON), [sink])
        run.put = walk.ask
        run.listeners.append(lambda event: walk.event(event, run.state))
        run.run()
    live = "\n".join(lines)
    assert "Question: Which blocks does A get? Answer: 0, 1" in live
    assert "Question: Why does A end? (a) stop (b) length Answer: length" in live
    assert "» It has its 5 tokens." in live
    trace = Trace()
    for line in sink.lines:
        trace.feed(line)
    assert replay_plain(trace) == 0
    assert live in capsys.readouterr().out


def ask(answer: str, *choices: str) -> Ask:
    return Ask("ask", 1, "?", answer, choices=list(choices))


RIGHT = [
    (ask("4"), "4"),
    (ask("4"), " 4.0 "),
    (ask("4"), "+4."),
    (ask("-3"), "-3"),
    (ask("0.5"), "0.50"),
    (ask("D"), "d"),
    (ask("no_free_blocks"), "No_Free_Blocks"),
    (ask("3, 4"), "3 4"),
    (ask("3, 4"), "[3,4]"),
    (ask("the last one"), "The  last one."),
    (ask("length", "stop", "length"), "b"),
    (ask("length", "stop", "length"), "B)"),
    (ask("length", "stop", "length"), "LENGTH"),
    (ask("D", "A", "B", "C", "D"), "d"),
    (ask("20", "10", "20"), "20"),
    (ask("53"), "13*4+1"),
    (ask("53"), " 13 * 4 + 1 "),
    (ask("13"), "(21 - 2*4)"),
    (ask("3"), "6 / 2"),
    (ask("20", "10", "20"), "10 + 10"),
    (ask("20", "10", "20"), "b"),
]
WRONG = [
    (ask("4"), "5"),
    (ask("4"), ""),
    (ask("4"), "   "),
    (ask("4"), "4 4"),
    (ask("3, 4"), "4, 3"),
    (ask("-3"), "3"),
    (ask("4"), "a"),
    (ask("length", "stop", "length"), "a"),
    (ask("length", "stop", "length"), "c"),
    (ask("length", "stop", "length"), "ab"),
    (ask("b", "b", "a"), "a"),
    (ask("4"), "²"),
    (ask("1"), "1e0"),
    (ask("53"), "13*4"),
    (ask("1"), "1/0"),
    (ask("5"), "((5*1"),
    (ask("1"), "9**9**9**9"),
    (ask("3, 4"), "3+4"),
    (ask("10", "10", "20"), "10 + 10"),
    (ask("9" * 40), "9" * 39 + "8"),
]


@pytest.mark.parametrize(("question", "text"), RIGHT)
def test_right(question, text):
    assert grade(question, text)


@pytest.mark.parametrize(("question", "text"), WRONG)
def test_wrong(question, text):
    assert not grade(question, text)


@given(
    st.lists(st.text(min_size=1, max_size=8), max_size=9), st.text(max_size=8), st.text(max_size=9)
)
def test_any_answer_gets_a_grade(choices, answer, text):
    assert grade(ask(answer, *choices), text) in (True, False)


@given(st.lists(st.from_regex(r"[a-z]{2,6}", fullmatch=True), min_size=2, max_size=9, unique=True))
def test_exactly_one_letter_is_right(choices):
    right = [grade(ask(choices[-1], *choices), letter) for letter in CHOICE_LETTERS]
    assert right.index(True) == len(choices) - 1
    assert sum(right) == 1


def test_a_score_counts():
    score = Score()
    for right in (True, False, None, True):
        score.count(right)
    assert score == Score(right=2, asked=3, skipped=1)
    assert str(score) == "2 of 3 right, 1 skipped"
    assert str(Score(1, 1)) == "1 of 1 right"


NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def progress(path: Path) -> Progress:
    return Progress(path / "deep" / "progress.json", now=lambda: NOON)


def test_progress_is_kept(tmp_path):
    first = progress(tmp_path)
    first.opened("tour")
    assert first.of("tour").opened == "2025-03-01T12:00:00+00:00"
    assert not progress(tmp_path).of("tour").done
    first.finished("tour", Score(right=5, asked=8))
    first.finished("tour", Score(right=3, asked=8))
    again = progress(tmp_path).of("tour")
    assert (again.done, again.best, again.asked) == (True, 5, 8)
    assert progress(tmp_path).of("other").opened == ""
    assert [path.name for path in first.path.parent.iterdir()] == ["progress.json"]


def test_a_walk_without_questions_has_no_best(tmp_path):
    kept = progress(tmp_path)
    kept.finished("plain", Score())
    assert (kept.of("plain").done, kept.of("plain").best) == (True, None)


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[]", b'{"tour": 5}', b'{"tour": {"best": "x"}}', b"\xff\xfe", b"[" * 9999, b""],
)
def test_a_damaged_file_is_set_aside(tmp_path, damage):
    kept = progress(tmp_path)
    kept.path.parent.mkdir()
    kept.path.write_bytes(damage)
    again = progress(tmp_path)
    again.opened("tour")
    assert kept.path.with_name("progress.json.damaged").read_bytes() == damage
    assert json.loads(kept.path.read_text())["tour"]["opened"]


def test_a_place_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "deep").write_text("a file")
    kept = progress(tmp_path)
    kept.finished("tour", Score(1, 2))
    assert kept.of("tour").best == 1
    assert progress(tmp_path).of("tour").best is None


def test_the_glossary_page_says_the_same():
    page = Path(__file__).resolve().parent.parent / "docs" / "glossary.md"
    assert page.read_text("utf-8") == as_markdown()


def test_the_terms_of_the_panes_are_in_the_glossary():
    named = [term for name in panes.__all__ for term in getattr(getattr(panes, name), "TERMS", ())]
    assert len(named) > 10
    assert set(named) <= set(GLOSSARY)


def test_the_glossary_is_in_order_and_short():
    assert len(GLOSSARY) >= 30
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.casefold)
    for term, text in GLOSSARY.items():
        assert 40 < len(text) <= 240, term
        assert text.endswith("."), term
        assert text.count(". ") <= 2, term


def test_two_programs_at_once_keep_each_others_progress(tmp_path):
    one, other = Progress(tmp_path / "p.json"), Progress(tmp_path / "p.json")
    one.finished("tour", Score(2, 3))
    other.finished("kv_pressure", Score(1, 1))
    assert Progress(tmp_path / "p.json").of("tour").best == 2
    assert Progress(tmp_path / "p.json").of("kv_pressure").done
