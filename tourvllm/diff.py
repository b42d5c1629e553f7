"""Two recorded runs side by side, as text: their settings, what happened in each step, and what it cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .plain import shown
from .tables import print_table
from .tour.compare import TIMES_VARY, Comparison, Row, Summary, compare
from .tour.text import printable
from .tour.trace import Trace
from .tour.why import plural

BEFORE, AFTER = 3, 9
"""Steps that are shown before and after the one where the runs part."""
MAX_REQUESTS = 20


def diff(a: Trace, b: Trace, names: tuple[Path, Path], every_step: bool) -> int:
    """Print the comparison of two runs. 0 if all events are the same, else 1."""
    found = compare(a, b)
    for which, name, trace in zip(("first", "second"), names, (a, b), strict=True):
        click.echo(printable(f"{which:<7} {name} ({trace.table('scenario').get('name', '?')})"))
        if trace.problem:
            click.echo(printable(f"{'':<7} {trace.problem}"))
    click.echo()
    _settings(found)
    if found.first_difference is None:
        click.echo(f"All {found.a.events:,} events are the same.")
        return 0
    click.echo(f"First difference:\n{found.first_difference}.\n")
    _steps(found, _parting_step(a, found), every_step)
    _totals(found)
    return 1


def _settings(found: Comparison) -> None:
    if found.settings:
        rows = [[key, _value(one), _value(other)] for key, one, other in found.settings]
        print_table(["setting", "first", "second"], rows)
        click.echo()
    else:
        click.echo("The settings are the same.\n")


def _value(value: Any) -> str:
    return "-" if value is None else shown(value)


def _parting_step(trace: Trace, found: Comparison) -> int:
    step = trace.step_at(min(found.position or 0, len(trace)))
    return step.number if step else 0


_QUANTITIES = {
    "prefill": "prefill",
    "decode": "decode",
    "waiting": "waiting",
    "running": "running",
    "in use": "in_use",
    "preempt": "preemptions",
}
"""Column -> what it tells of a `StepRow`."""


def _steps(found: Comparison, parting: int, every_step: bool) -> None:
    """The steps around the one where the runs part, or all. A star marks those that differ.

    What differs first may be in none of the columns, or only in a later step's: so its step has a sign of its own.
    """
    rows = found.rows
    if not every_step:
        rows = [row for row in rows if -BEFORE <= row.step - parting <= AFTER]
    columns = ["\nstep"]
    for name in _QUANTITIES:
        columns += [f"{name}\n1st", "\n2nd"]
    differing = [index for index, row in enumerate(rows) if row.a != row.b]
    numbers = range(1, len(columns))
    cells = (_step_cells(row, row.step == parting) for row in rows)
    print_table(columns, cells, right=numbers, marked=differing, gap=1)
    left_out = len(found.rows) - len(rows)
    if left_out:
        click.echo(f"{plural(left_out, 'step')} more: --all shows them.")
    if any(row.step == parting and row.a == row.b for row in rows):
        click.echo("< the first difference, which none of these numbers shows.")
    click.echo(
        "* the step differs.\n"
        "prefill, decode: tokens. waiting, running, blocks in use: at the step's end.\n"
    )


def _step_cells(row: Row, is_first: bool) -> list[str]:
    cells = [f"{row.step}{' *' if row.a != row.b else ' <' if is_first else ''}"]
    for name in _QUANTITIES.values():
        cells += ["-" if end is None else str(getattr(end, name)) for end in (row.a, row.b)]
    return cells


def _totals(found: Comparison) -> None:
    one, other = found.a, found.b
    rows = [[name, *(f"{count(run):,}" for run in (one, other))] for name, count in _TOTALS]
    first_tokens = _by_request(one.time_to_first_token, other.time_to_first_token)
    rows += [[f"{seq}: steps to first token", *ends] for seq, *ends in first_tokens]
    finishes = _by_request(one.finish_step, other.finish_step)
    rows += [[f"{seq}: finished in step", *ends] for seq, *ends in finishes]
    differing = [index for index, (_, *ends) in enumerate(rows) if ends[0] != ends[1]]
    print_table(["in all", "first", "second"], rows, right=(1, 2), marked=differing)
    requests = {*one.time_to_first_token, *other.time_to_first_token}
    if len(requests) > MAX_REQUESTS:
        click.echo(f"Shown are {MAX_REQUESTS} of {len(requests)} requests.")
    times = f"Time: {one.total_ms:,.0f} ms, {other.total_ms:,.0f} ms"
    click.secho(f"\n{times}: {TIMES_VARY}.", dim=True)


_TOTALS: list[tuple[str, Callable[[Summary], int]]] = [
    ("steps", lambda run: run.steps),
    ("events", lambda run: run.events),
    ("tokens computed", lambda run: run.tokens),
    ("of them again, after a preemption", lambda run: run.recomputed_tokens),
    ("tokens found in the prefix cache", lambda run: run.cached_tokens),
    ("preemptions", lambda run: run.preemptions),
    ("evictions", lambda run: run.evictions),
]


def _by_request(one: dict[str, int], other: dict[str, int]) -> list[list[str]]:
    requests = [*one, *(seq for seq in other if seq not in one)]
    return [
        [seq, str(one.get(seq, "-")), str(other.get(seq, "-"))]
        for seq in sorted(requests)[:MAX_REQUESTS]
    ]
