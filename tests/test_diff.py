"""Two runs side by side: real runs in, and what the command says of them."""

import random
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_traces import trace_of
from support import line_of, record_scenario
from tourvllm.tour.compare import compare
from tourvllm.tour.reader import read_trace

from tourvllm.cli import main

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """kv_pressure with its own pool, with a smaller one, with ample ones, and with another policy."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "same": {},
        "small": {"engine.num_blocks": 16},
        "ample": {"engine.num_blocks": 200},
        "huge": {"engine.num_blocks": 300},
        "mixed": {"engine.policy": "mixed"},
        "uncached": {"engine.prefix_caching": False},
    }
    return {
        name: record_scenario(folder / f"{name}.jsonl.gz", **changes)
        for name, changes in settings.items()
    }


def diff(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_a_repeated_run_is_the_same(runs, tmp_path):
    again = record_scenario(tmp_path / "again.jsonl")
    code, text = diff(runs["same"], again)
    assert (code, "The settings are the same." in text) == (0, True)
    assert "events are the same" in text
    found = compare(read_trace(runs["same"]), read_trace(again))
    assert (found.first_difference, found.position, found.settings) == (None, None, [])


def test_a_smaller_pool_is_told_from_the_cause_to_the_cost(runs):
    code, text = diff(runs["same"], runs["small"])
    assert code == 1
    assert text.splitlines()[0].startswith("first ")
    assert str(runs["small"]) in text.splitlines()[1]
    assert ["engine.num_blocks", "24", "16"] in [line.split() for line in text.splitlines()]
    assert (
        "First difference:\nstep 4: the first run finds room for D (needs 3, free 10), "
        "the second finds no room for D (needs 3, free 2)." in text
    )
    assert "steps more: --all shows them." in text
    rows = [line.split() for line in text.splitlines()]
    assert ["preemptions", "1", "2"] in rows
    assert ["steps", "36", "50"] in rows
    assert ["D:", "steps", "to", "first", "token", "3", "22"] in rows


def test_tokens_found_in_the_prefix_cache_explain_what_was_computed(tmp_path):
    """Without preemptions, what one run finds in the cache is just what the other computes more."""
    on, off = (
        record_scenario(
            tmp_path / f"{caching}.jsonl", "prefix_sharing", **{"engine.prefix_caching": caching}
        )
        for caching in (True, False)
    )
    code, text = diff(on, off)
    rows = [line.split() for line in text.splitlines()]
    assert code == 1
    assert ["tokens", "found", "in", "the", "prefix", "cache", "32", "0"] in rows
    assert ["tokens", "computed", "75", "107"] in rows
    assert "the first run keeps A's full blocks 0 1 2 in the prefix cache, the second" in text


def test_what_a_preempted_request_finds_again_is_counted_too(runs):
    found = compare(read_trace(runs["small"]), read_trace(runs["uncached"]))
    assert (found.a.preemptions, found.b.cached_tokens) == (2, 0)
    trace = read_trace(runs["small"])
    allocated = [e for i in range(len(trace)) if (e := trace.event(i)).stop == "allocate"]
    assert len(allocated) > len({event.facts["seq"] for event in allocated})
    assert found.a.cached_tokens == sum(4 * len(event.facts["hits"]) for event in allocated) > 0


def test_times_are_no_difference_and_stand_last_as_no_result(runs):
    begin = {"t": 0, "stop": "step", "facts": {"when": "begin"}}
    end = {"stop": "step", "facts": {"when": "end", "num_tokens": -2}}
    slow, fast = (trace_of(begin, {**end, "t": t}) for t in (9_000_000, 2_000_000))
    found = compare(slow, fast)
    assert (found.first_difference, found.a.total_ms, found.b.total_ms) == (None, 9, 2)
    _, text = diff(runs["same"], runs["small"])
    (line,) = [line for line in text.splitlines() if " ms" in line or "millisecond" in line]
    assert line == text.splitlines()[-1]
    assert line.startswith("Time: ")
    assert line.endswith(" ms: varies by itself from run to run.")


def test_all_shows_every_step_and_marks_those_that_end_in_another_way(runs):
    _, text = diff(runs["same"], runs["small"], "--all")
    table = [line for line in text.splitlines() if line[:1].isdigit()]
    assert max(map(len, table)) <= 80
    rows = [line.split() for line in table]
    assert [row[0] for row in rows] == [str(step) for step in range(1, 51)]
    assert rows[3][1] == "<"  # the first difference: no number of its step shows it
    assert "\n< the first difference" in text
    # Beside each other: prompt tokens, decodes, waiting, running, blocks in use, preemptions of this step.
    assert " ".join(rows[4]) == "5 * 11 0 0 3 0 1 4 3 17 14 0 0"
    assert " ".join(rows[7]) == "8 * 0 0 4 2 0 2 4 2 19 8 0 1"
    assert rows[40][2::2] == ["-"] * 6
    assert "steps more" not in text


@pytest.mark.parametrize("which", ["small", "mixed"])
def test_a_steps_tokens_are_counts_of_prefill_and_decode(runs, which):
    _, text = diff(runs["same"], runs[which], "--all")
    rows = [line.replace("*", "").replace("<", "").split() for line in text.splitlines()]
    steps = [row for row in rows if row and row[0].isdigit()]
    for number, run in ((1, "same"), (2, which)):
        tokens = [int(n) for row in steps for n in (row[number], row[number + 2]) if n != "-"]
        summary = compare(read_trace(runs[run]), read_trace(runs[run])).a
        assert min(tokens) == 0
        assert sum(tokens) == summary.tokens
        assert sum(int(row[number + 10]) for row in steps if row[number + 10] != "-") > 0


def test_a_larger_pool_that_changes_no_decision_is_told_as_numbers(runs):
    code, text = diff(runs["ample"], runs["huge"])
    assert code == 1
    assert (
        "the decisions are the same, but not all numbers: step 1: can_allocate tells free 200"
        in text
    )
    assert " * " not in text  # as many blocks in use at the end of every step


def test_another_policy_and_two_recordings(runs):
    code, text = diff(runs["same"], runs["mixed"])
    assert (code, "engine.policy" in text) == (1, True)
    assert diff(RECORDED, runs["same"])[0] in (0, 1)  # another version of the engine recorded it


def test_the_position_is_right_after_the_events_that_differ(runs):
    a, b = read_trace(runs["same"]), read_trace(runs["small"])
    found = compare(a, b)
    differing = a.event(found.position - 1), b.event(found.position - 1)
    assert [event.facts["ok"] for event in differing] == [True, False]
    back = compare(b, a)
    assert (back.position, back.a, back.b) == (found.position, found.b, found.a)


def test_the_sums_are_those_of_the_events(runs):
    """Counted again in another way: from the events' patches."""
    trace = read_trace(runs["small"])
    found = compare(trace, trace)
    stops = Counter(trace.event(i).stop for i in range(len(trace)))
    assert (found.a.preemptions, found.a.evictions) == (stops["preempt"], stops["evict"])
    assert found.a.events == len(trace)
    computed: Counter[tuple[str, int]] = Counter()
    for i in range(len(trace)):
        event = trace.event(i)
        for patch in event.do:
            if patch[1] == ["batch"] and patch[2]:
                batch = patch[2]
                ends = zip(
                    batch["seqs"], batch["cu_seqlens_q"], batch["cu_seqlens_q"][1:], strict=False
                )
                computed.update((seq, p) for seq, a, b in ends for p in batch["positions"][a:b])
    assert found.a.tokens == computed.total()
    assert found.a.recomputed_tokens == computed.total() - len(computed) > 0
    last = found.rows[-1]
    assert (last.a.waiting, last.a.running, last.a.in_use, last.a.decode) == (0, 0, 0, 1)
    assert sum(row.a.preemptions for row in found.rows) == 2


def test_a_run_that_ends_early(runs, tmp_path):
    whole = runs["same"].read_bytes()
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(whole[:-3000])
    code, text = diff(short, runs["same"])
    assert code == 1
    assert "what is recorded of the first run ends here, the second" in text
    assert "stops after event" in text or "not recorded to its end" in text


def test_bad_input_is_exit_code_2(runs, tmp_path):
    (tmp_path / "x").write_text("hello")
    for files in ((tmp_path / "x", RECORDED), (RECORDED, tmp_path / "nowhere"), (RECORDED,)):
        code, text = diff(*files)
        assert (code, "Traceback" in text) == (2, False)


def test_a_strangers_facts_are_told_harmlessly():
    a = trace_of({"stop": "admit", "facts": {"seq": "\x1b[31m", "num_scheduled_tokens": 1}})
    b = trace_of({"stop": "conquer", "facts": {"seq": [{}]}})
    found = compare(a, b)
    assert found.first_difference is not None
    assert "\x1b" not in found.first_difference
    assert "the second comes to conquer" in found.first_difference


def test_any_facts_at_all_can_be_compared():
    values = [None, True, -1, 10**20, 1.5, "", "A", [], ["A"], [[1]], {}, {"a": 1}]
    keys = (
        "seq",
        "seqs",
        "when",
        "num_tokens",
        "num_cached_tokens",
        "computed",
        "pieces",
        "hits",
        "ok",
    )
    stops = (
        "step",
        "admit",
        "preempt",
        "postprocess",
        "append_token",
        "finish",
        "sample",
        "add_request",
    )
    rng = random.Random(5)
    for _ in range(200):
        traces = [
            trace_of(
                *(
                    {
                        "stop": rng.choice(stops),
                        "step": rng.randrange(3),
                        "facts": {key: rng.choice(values) for key in keys if rng.random() < 0.6},
                    }
                    for _ in range(6)
                )
            )
            for _ in range(2)
        ]
        found = compare(*traces)
        assert found.first_difference is None or len(found.first_difference) < 500


def test_settings_of_a_changed_scenario_and_engine_are_named_by_line():
    a, b = trace_of(), trace_of()
    a.header |= {
        "scenario": {"text": "title: x\nmodel: tiny"},
        "sources": {"engine/a.py": "1\n2\n"},
    }
    b.header |= {"scenario": {"text": "title: x\nmodel: big"}, "sources": {"engine/a.py": "1\n3\n"}}
    assert compare(a, b).settings == [
        ("scenario, line 2", "model: tiny", "model: big"),
        ("engine/a.py, line 2", "2", "3"),
    ]


def test_lines_that_are_no_events_do_not_matter():
    a, b = trace_of({"stop": "admit"}), trace_of({"stop": "admit"})
    b.feed(line_of(kind="note", i=1, say="hello"))
    assert compare(a, b).first_difference is None
