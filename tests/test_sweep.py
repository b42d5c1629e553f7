"""`tourvllm sweep`: one scenario under several settings, a row for each run."""

import csv
import io
from itertools import product

import pytest
from click.testing import CliRunner

from tourvllm import sweep
from tourvllm.cli import main

SETTINGS = ("--set", "engine.num_blocks=20,64", "--set", "engine.max_num_seqs=4,8")


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of the command."""
    result = CliRunner().invoke(main, ["sweep", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_each_combination_has_a_row_and_the_values_stand_before_what_they_made():
    code, text, _ = run("config_sweep", *SETTINGS, "--csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["num_blocks"], row["max_num_seqs"]) for row in rows] == [
        *product(["20", "64"], ["4", "8"])
    ]
    first, *_, last = rows
    told = ("steps", "computed", "recomputed", "preemptions", "finished")
    assert [first[name] for name in told] == ["47", "257", "55", "3", "8"]
    assert [last[name] for name in told] == ["20", "202", "0", "0", "8"]
    assert all(int(row["blocks at most"]) <= int(row["num_blocks"]) for row in rows)
    assert float(last["first token after steps"]) < float(first["first token after steps"])


def test_the_table_says_what_its_columns_mean_and_a_setting_with_one_value_has_none():
    code, text, _ = run(
        "kv_pressure", "--set", "engine.prefix_caching=true,false", "--set", "engine.num_blocks=48"
    )
    assert code == 0
    head = text.splitlines()[1].split()
    assert head[0] == "prefix_caching"
    assert "num_blocks" not in text
    on, off = (line.split() for line in text.splitlines()[3:5])
    assert (on[0], off[0], off[3]) == ("True", "False", "0")
    assert int(on[2]) + int(on[3]) == int(off[2])
    assert "Tokens: computed, found in the prefix cache" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a setting with several values: --set engine.num_blocks=16,24,48"),
        (("--set", "engine.num_blocks=16"), "a setting with several values"),
        (("--set", "engine.num_blocks="), "a setting with several values"),
        (("--set", "engine.num_blocks=16,0"), "must be a whole number from 1"),
        (("--set", "engine.num_blocks=16,many"), "engine.num_blocks"),
        (("--set", "num_blocks=16,24"), "did you mean engine.num_blocks?"),
        (("--set", "engine.num_blocks=[16"), "the value cannot be read"),
        (("--set", "engine.num_blocks=" + ",".join(map(str, range(1, 300)))), "at most 200"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_the_first_run(monkeypatch, arguments, words):
    monkeypatch.setattr(sweep, "_run", lambda plan: pytest.fail("it ran"))
    code, text, said = run("kv_pressure", *arguments)
    assert (code, text) == (2, "")
    assert words in said


def test_an_interrupted_sweep_tells_the_runs_that_were_made(monkeypatch):
    made, original = [], sweep._run

    def run_once(plan):
        if made:
            raise KeyboardInterrupt
        made.append(plan)
        return original(plan)

    monkeypatch.setattr(sweep, "_run", run_once)
    code, text, said = run("config_sweep", *SETTINGS)
    assert code == 130
    assert "Interrupted." in said
    assert text.splitlines()[3].split()[:3] == ["20", "4", "47"]
    assert "64" not in text
