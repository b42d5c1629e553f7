"""One scenario under several settings: a run for each, a row for each, to see how the limits act together."""

import csv
import os
import sys
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from statistics import mean
from typing import Any

import click

from .errors import UsageError
from .plain_run import ENGINE_HELP, set_threads
from .plan import Plan
from .tables import print_table
from .tour.compare import Summary, Tally
from .tour.text import printable

MAX_RUNS = 200

Values = dict[str, list[Any]]
"""Setting -> the values that it takes in turn."""

COLUMNS: dict[str, Callable[[Summary], str]] = {
    "steps": lambda run: str(run.steps),
    "computed": lambda run: str(run.tokens),
    "from\ncache": lambda run: str(run.cached_tokens),
    "recom-\nputed": lambda run: str(run.recomputed_tokens),
    "preemp-\ntions": lambda run: str(run.preemptions),
    "evic-\ntions": lambda run: str(run.evictions),
    "blocks\nat most": lambda run: str(run.most_blocks),
    "first token\nafter steps": lambda run: _mean(list(run.time_to_first_token.values())),
    "fin-\nished": lambda run: str(len(run.finish_step)),
}
MEANT = (
    "Tokens: computed, found in the prefix cache, computed again after a preemption. Blocks at most: in use\n"
    "at a step's end. First token: steps from a request's arrival to it, the mean of all requests."
)


def sweep(make_plan: Callable[[dict[str, Any]], Plan], values: Values, as_csv: bool) -> None:
    """Run a scenario once for each combination of `values`, and print what each run came to.

    Raises UsageError when there is nothing to vary or too much, and what `make_plan` raises for a combination that
    cannot be run, before the first run.
    """
    runs = prod(map(len, values.values()))
    if runs < 2:
        raise UsageError(
            "a sweep needs a setting with several values: --set engine.num_blocks=16,24,48"
        )
    if runs > MAX_RUNS:
        raise UsageError(f"these are {runs:,} runs, and a sweep has at most {MAX_RUNS}: name fewer")
    plans = [make_plan(dict(zip(values, each, strict=True))) for each in product(*values.values())]
    varied = [key for key, several in values.items() if len(several) > 1]
    columns = [key.removeprefix("engine.") for key in varied] + list(COLUMNS)
    rows = _rows(plans, varied)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(printable(name.replace("-\n", "").replace("\n", " ")) for name in columns)
        writer.writerows(rows)
        return
    done: list[list[str]] = []
    try:
        done.extend(rows)  # row by row: those before an interruption are told
    finally:
        if done:
            print_table(columns, done, right=range(len(columns)), whole=range(len(columns)))
            click.echo(f"\n{MEANT}")


def _rows(plans: list[Plan], varied: list[str]) -> Iterator[list[str]]:
    for number, plan in enumerate(plans, 1):
        if sys.stderr.isatty():
            click.echo(f"\rrun {number} of {len(plans)}", nl=number == len(plans), err=True)
        summary = _run(plan)
        told = [printable(str(plan.settings[key])) for key in varied]
        yield told + [tell(summary) for tell in COLUMNS.values()]


def _run(plan: Plan) -> Summary:
    """What a run comes to. Nothing is recorded."""
    set_threads(os.environ)
    try:
        from .runs import Run
    except ImportError as error:
        raise UsageError(f"{ENGINE_HELP} ({error})") from error
    run, tally = Run(plan, []), Tally()
    run.listeners.append(tally.add)
    run.run()
    return tally.summary


def _mean(numbers: list[int]) -> str:
    return f"{mean(numbers):.1f}" if numbers else "-"
