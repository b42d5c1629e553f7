"""A wrong scenario is one sentence that names the file, the line and the field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import nothing_but
from tourvllm.tour.errors import ScenarioError
from tourvllm.tour.scenario import MAX_BYTES, letters, parse_scenario

from tourvllm.errors import UsageError
from tourvllm.plan import make_plan
from tourvllm.scenarios_folder import bundled_names, find_scenario

GOOD = """\
title: A title
engine:
  block_size: 4
  num_blocks: 8
sampling: {temperature: 0}
requests:
  - {id: A, prompt: "One"}
  - prompt: "Two"
    arrival: 3
    sampling: {max_tokens: 4}
tour:
  - at: preempt
    if: free == 0
    say: "Here"
breakpoints: [free < 2]
watch: [len(waiting)]
"""


def refused(text: str, settings: dict | None = None) -> str:
    with pytest.raises(ScenarioError) as caught:
        make_plan("demo", text, settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_good_one_is_good():
    plan = make_plan("demo", GOOD)
    assert [(request.request_id, request.prompt, request.arrival) for request in plan.requests] == [
        ("A", "One", 1),
        ("B", "Two", 3),
    ]
    assert [request.sampling_params.max_tokens for request in plan.requests] == [64, 4]
    assert plan.engine.block_size == 4


CHANGED = [
    (
        "title: A title",
        "titel: A title",
        1,
        "titel: there is no such field; there are title, requests",
    ),
    ("title: A title", "title: 5", 1, "title: Expected `str`, got `int`"),
    ("title: A title\n", "", 1, "missing required field `title`"),
    ("block_size: 4", "block_size: 0", 3, "engine.block_size: must be a whole number from 1"),
    ("block_size: 4", "block_size: many", 3, "engine.block_size"),
    ("num_blocks: 8", "num_bocks: 8", 4, "engine.num_bocks: there is no such engine setting"),
    ("{temperature: 0}", "{temperature: -1}", 5, "sampling.temperature"),
    ("{temperature: 0}", "{heat: 0}", 5, "sampling.heat: there is no such field"),
    ("{temperature: 0}", "[1]", 5, "sampling: Expected `object`, got `array`"),
    ('id: A, prompt: "One"', "id: A", 7, "requests[0]: give one of prompt, token_ids and messages"),
    ('id: A, prompt: "One"', 'id: A, prompt: "x", token_ids: [1]', 7, "requests[0]: give one of"),
    (
        'id: A, prompt: "One"',
        'id: A, prompt: "x", messages: [{role: user, content: "x"}]',
        7,
        "requests[0]: give one of prompt, token_ids and messages",
    ),
    ('id: A, prompt: "One"', "id: A, messages: []", 7, "requests[0].messages"),
    ('id: A, prompt: "One"', "id: A, messages: [{role: user}]", 7, "requests[0].messages[0]"),
    (
        'id: A, prompt: "One"',
        'id: A, messages: [{role: user, content: "x", name: "y"}]',
        7,
        "requests[0].messages[0].name: there is no such field; there are role, content",
    ),
    ('id: A, prompt: "One"', 'id: A, prompt: "x", priority: high', 7, "requests[0].priority"),
    ("max_tokens: 4", "stop: 7", 10, "requests[1].sampling.stop"),
    ("max_tokens: 4", "min_tokens: 99", 10, "requests[1].sampling.min_tokens"),
    ("max_tokens: 4", "logprobs: -1", 10, "requests[1].sampling.logprobs"),
    ("block_size: 4", "policy: greedy", 3, "engine.policy: must be prefill_first or mixed"),
    ("block_size: 4", "order: lifo", 3, "engine.order: must be fcfs or priority"),
    ('id: A, prompt: "One"', 'id: "A b", prompt: "x"', 7, "requests[0].id"),
    (
        'id: A, prompt: "One"',
        'id: A, promt: "x"',
        7,
        "requests[0].promt: there is no such field; there are id, prompt",
    ),
    ('id: A, prompt: "One"', 'id: A, count: 2, prompt: "x"', 7, "requests[0].count"),
    ('id: A, prompt: "One"', 'count: 0, prompt: "x"', 7, "requests[0].count"),
    ('id: A, prompt: "One"', "id: A, prompt: 5", 7, "requests[0].prompt"),
    ('id: A, prompt: "One"', "id: A, token_ids: [1, x]", 7, "requests[0].token_ids"),
    (
        'prompt: "Two"',
        'id: A\n    prompt: "Two"',
        8,
        "requests[1].id: A is the id of an earlier request",
    ),
    ("arrival: 3", "arrival: 0", 9, "requests[1].arrival"),
    ("max_tokens: 4", "max_tokens: 1.5", 10, "requests[1].sampling.max_tokens"),
    ("max_tokens: 4", "max_token: 1", 10, "requests[1].sampling.max_token: there is no such field"),
    (
        "at: preempt",
        "at: premept",
        12,
        "tour[0].at: premept is neither a stop nor a request: did you mean preempt?",
    ),
    ("at: preempt", "at: free <", 12, "tour[0].at: 'free <' is not an expression"),
    ("if: free == 0", "if: free = 0", 13, "tour[0].if"),
    (
        "if: free == 0",
        "iff: free",
        13,
        "tour[0].iff: there is no such field; there are at, say, if, ask",
    ),
    ('say: "Here"', "say: [1]", 14, "tour[0].say"),
    (
        "breakpoints: [free < 2]",
        "breakpoints: [free, free < 2]",
        15,
        "breakpoints[0]: free is neither a stop nor a request: ",
    ),
    (
        "breakpoints: [free < 2]",
        "breakpoints: free < 2",
        15,
        "breakpoints: Expected `array`, got `str`",
    ),
    ("breakpoints: [free < 2]", "breakpoints: [Z]", 15, "breakpoints[0]: Z is neither a stop nor"),
    ("breakpoints: [free < 2]", "breakpoints: [decod]", 15, "did you mean decode?"),
    ("breakpoints: [free < 2]", "breakpoints: [finish if]", 15, "'finish if' is not an expression"),
    ("breakpoints: [free < 2]", "breakpoints: [finish hits 0]", 15, "hits counts from 1"),
    (
        "breakpoints: [free < 2]",
        "breakpoints: [5]",
        15,
        "breakpoints[0]: Expected `str`, got `int`",
    ),
    (
        "breakpoints: [free < 2]",
        "breakpoints:\n  - finish\n  - at: finish\n    when: free",
        18,
        "breakpoints[1].when: there is no such field; there are at, if, hits",
    ),
    (
        "breakpoints: [free < 2]",
        "breakpoints:\n  - {at: finsh, hits: 2}",
        16,
        "breakpoints[0].at: finsh is neither a stop nor a request: did you mean finish?",
    ),
    (
        "breakpoints: [free < 2]",
        "breakpoints:\n  - at: finish\n    if: fre < 2",
        17,
        "breakpoints[0].if: there is no fre, neither in the state nor",
    ),
    (
        "breakpoints: [free < 2]",
        "breakpoints:\n  - at: finish\n    hits: 0",
        17,
        "breakpoints[0].hits: Expected `int` >= 1",
    ),
    ("breakpoints: [free < 2]", "breakpoints: [{if: free < 2}]", 15, "missing required field `at`"),
    ("if: free == 0", "if: premption", 13, "tour[0].if: there is no premption"),
    ("if: free == 0", "if: C.num_tokens > 3", 13, "tour[0].if: there is no C"),
    ('say: "Here"', "say: ''", 14, "tour[0].say"),
    (
        'say: "Here"',
        'say: "Here"\n    ask: {question: "Who?", answer: sek}',
        15,
        "tour[0].ask.answer: there is no sek, neither in the state nor as a request or a fact: did you mean seq?",
    ),
    (
        'say: "Here"',
        'say: "Here"\n    ask: {question: "Who?", answer: seq, choice: [A]}',
        15,
        "tour[0].ask.choice: there is no such field; there are question, answer, choices",
    ),
    ('say: "Here"', 'say: "Here"\n    ask: {answer: seq}', 15, "missing required field `question`"),
    ('say: "Here"', 'say: "Here"\n    ask: who', 15, "tour[0].ask: Expected `object | null`"),
    (
        'say: "Here"',
        'say: "Here"\n    ask: {question: "Who?", answer: seq, choices: [B, A]}',
        15,
        "tour[0].ask.choices[0]: B reads as the letter of another choice",
    ),
    (
        'say: "Here"',
        f'say: "Here"\n    ask: {{question: "Who?", answer: seq, choices: {list(range(9, 19))}}}',
        15,
        "tour[0].ask.choices",
    ),
    ("watch: [len(waiting)]", "watch: [len(]", 16, "watch[0]"),
    ("watch: [len(waiting)]", "title: twice", 16, "title stands twice in this table"),
    ("{temperature: 0}", "{temperature: 0, temperature: 1}", 5, "temperature stands twice"),
    ("{temperature: 0}", "{[1]: 0}", 5, "a key is no word"),
    ("{temperature: 0}", "&x {temperature: 0}\nabout: *x", 6, "aliases (*name) are not supported"),
    ("title: A title", "title: [unclosed", 2, "the YAML cannot be read"),
    ("title: A title", "title: A: title", 1, "the YAML cannot be read"),
    ("title: A title", "\ttitle: A title", 1, "the YAML cannot be read"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"), CHANGED, ids=[f"{words[:40]}" for *_, words in CHANGED]
)
def test_an_error_names_line_and_field(old, new, line, words):
    assert old in GOOD
    message = refused(GOOD.replace(old, new, 1))
    assert message.startswith(f"demo, line {line}: ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing", "the file is empty"),
        ("[1]", "is a table of keys"),
        ("text", "is a table of keys"),
        ("--- {}\n--- {}", "the YAML cannot be read"),
        ("!!python/object/apply:os.system [ls]", "the YAML cannot be read"),
        ("title: !!python/name:os.system x", "the YAML cannot be read"),
        ("title: \0", "the YAML cannot be read"),
        ("a: 2001-99-99", "the YAML cannot be read"),
        ("a: " + "9" * 5000, "the YAML cannot be read"),
        ("a: " + "[" * 3000, "the YAML cannot be read"),
        ("{a: &x [*x]}", "aliases"),
        ("x" * (MAX_BYTES + 1), "bytes at most"),
        (GOOD.replace("A title", '"\\ud800"'), "half of a surrogate pair"),
        (GOOD.replace("requests:", "requests: []\nx:"), "requests"),
        ("title: x\nrequests: []", "requests"),
        (
            GOOD.replace('id: A, prompt: "One"', 'count: 10000, prompt: "One"'),
            "10,000 requests at most",
        ),
        (GOOD.replace("A title", "x\n1: 2"), "line 1"),
    ],
)
def test_what_is_no_scenario_is_a_sentence(text, words):
    assert words in refused(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine.num_blocks": 0}, "engine.num_blocks"),
        ({"engine.warp": 1}, "engine.warp"),
        ({"engine": 5}, "engine"),
        ({"title.x": 1}, "--set title.x: title is not a table"),
        ({"requests.0": 1}, "requests is not a table"),
        ({"nonsense": 1}, "nonsense"),
        ({"sampling.seed": 10**40}, "sampling.seed"),
        ({"": 1}, "there is no such field"),
        ({"title": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_a_wrong_change_is_refused_like_a_wrong_file(settings, words):
    assert words in refused(GOOD, settings)


def test_breakpoints_are_lines_or_tables():
    tables = """breakpoints:
  - finish hits 2
  - A
  - {at: preempt, if: "free < 2 and A.preemptions", hits: 3}
  - at: len(running) if running else 0
    if: step > 4
  - {at: B}
"""
    plan = make_plan("demo", GOOD.replace("breakpoints: [free < 2]\n", tables))
    assert plan.scenario.breakpoints == [
        "finish hits 2",
        "A",
        "preempt if free < 2 and A.preemptions hits 3",
        "len(running) if running else 0 if step > 4",
        "B",
    ]


def test_requests_without_an_id_may_be_named():
    text = GOOD.replace('prompt: "Two"', 'prompt: "Two"\n    count: 2').replace(
        "[free < 2]", "[C, B]"
    )
    assert make_plan("demo", text).scenario.breakpoints == ["C", "B"]


def test_changes_replace_and_add():
    plan = make_plan(
        "demo", GOOD, {"engine.num_blocks": 5, "engine.max_num_seqs": 2, "sampling.top_k": 3}
    )
    assert (plan.engine.num_blocks, plan.engine.max_num_seqs, plan.engine.block_size) == (5, 2, 4)
    assert plan.requests[0].sampling_params.top_k == 3
    assert plan.settings == {"engine.num_blocks": 5, "engine.max_num_seqs": 2, "sampling.top_k": 3}


def test_a_missing_model_is_named():
    for model in ("/nowhere", "~nobody-of-that-name/x", "a\0b", "x" * 5000, "."):
        with pytest.raises(UsageError, match="there is no model at"):
            make_plan("demo", GOOD, {"model": model})


@pytest.mark.parametrize("path", ["nowhere.yaml", "no/such/place", "", "a\0b", "x" * 5000])
def test_a_scenario_that_is_not_there_names_those_that_are(path):
    with pytest.raises(UsageError) as caught:
        find_scenario(path)
    assert (
        "kv_pressure" in str(caught.value)
        or "cannot be read" in str(caught.value)
        or "folder" in str(caught.value)
    )


def test_finding(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(GOOD)
    assert find_scenario(str(file)).name == "mine"
    assert "kv_pressure" in bundled_names()
    same = [
        find_scenario(n) for n in ("kv_pressure", "scenarios/kv_pressure.yaml", "kv_pressure.yaml")
    ]
    assert len({(file.name, file.text) for file in same}) == 1
    with pytest.raises(UsageError, match="is a folder"):
        find_scenario(str(tmp_path))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        find_scenario(str(file))
    file.write_text("x" * (MAX_BYTES + 1))
    with pytest.raises(UsageError, match="bytes"):
        find_scenario(str(file))


def test_letters_skip_what_is_taken():
    assert letters(4, {"B"}) == ["A", "C", "D", "E"]
    assert letters(30, set())[25:] == ["Z", "AA", "AB", "AC", "AD"]


def test_many_equal_requests_get_ids_of_their_own():
    plan = make_plan("demo", GOOD.replace('prompt: "Two"', 'prompt: "Two"\n    count: 30'))
    ids = [request.request_id for request in plan.requests]
    assert len(set(ids)) == len(ids) == 31


@given(st.text(alphabet="tie: l\nrqus-[]{}\"'&*!|>#%@,promAB1", max_size=120))
def test_any_text_is_a_scenario_or_a_scenario_error(text):
    with nothing_but(ScenarioError, "demo, line", "demo: "):
        parse_scenario(text, "demo")
