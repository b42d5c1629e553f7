"""Two recorded runs side by side, as text: their settings, what happened in each step, and what it cost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .plain import shown
from .tables import print_table
from .tour.compare import Comparison, Row, StepRow, Summary, compare
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


_QUANTITIES = ("tokens", "waiting", "running", "free", "preempt")


def _steps(found: Comparison, parting: int, every_step: bool) -> None:
    """The steps around the one where the runs part, or all. A star marks those that end in another way.

    What differs first may show at no step's end, or only at a later one's: so its step has a sign of its own.
    """
    rows = found.rows
    if not every_step:
        rows = [row for row in rows if -BEFORE <= row.step - parting <= AFTER]
    columns = ["\nstep"]
    for which in ("first", "second"):
        columns += [f"{which if i == 0 else ''}\n{name}" for i, name in enumerate(_QUANTITIES)]
    differing = [index for index, row in enumerate(rows) if _differs(row)]
    numbers = range(1, len(columns))
    cells = (_step_cells(row, row.step == parting) for row in rows)
    print_table(columns, cells, right=numbers, marked=differing, gap=1)
    left_out = len(found.rows) - len(rows)
    if left_out:
        click.echo(f"{plural(left_out, 'step')} more: --all shows them.")
    if any(row.step == parting and not _differs(row) for row in rows):
        click.echo("< the first difference, which its step's end does not show.")
    click.echo(
        "* the step's end differs. preempt: preemptions so far. Negative tokens: a step of decodes alone.\n"
    )


def _step_cells(row: Row, is_first: bool) -> list[str]:
    sign = " *" if _differs(row) else " <" if is_first else ""
    return [
        f"{row.step}{sign}",
        *_end_of_step(row.a),
        *_end_of_step(row.b),
    ]


def _differs(row: Row) -> bool:
    """Whether the step ends in another way: with other queues, or with more or fewer blocks in use."""
    if row.a is None or row.b is None:
        return True
    in_use = row.a.total - row.a.free, row.b.total - row.b.free
    return in_use[0] != in_use[1] or _end_of_step(row.a) != _end_of_step(
        replace(row.b, free=row.a.free)
    )


def _end_of_step(end: StepRow | None) -> list[str]:
    if end is None:
        return ["-"] * len(_QUANTITIES)
    return [str(n) for n in (end.num_tokens, end.waiting, end.running, end.free, end.preemptions)]


def _totals(found: Comparison) -> None:
    one, other = found.a, found.b
    rows = [[name, *(f"{count(run):,}" for run in (one, other))] for name, count in _TOTALS]
    rows.append(["milliseconds", f"{one.total_ms:,.0f}", f"{other.total_ms:,.0f}"])
    first_tokens = _by_request(one.time_to_first_token, other.time_to_first_token)
    rows += [[f"{seq}: steps to first token", *ends] for seq, *ends in first_tokens]
    finishes = _by_request(one.finish_step, other.finish_step)
    rows += [[f"{seq}: finished in step", *ends] for seq, *ends in finishes]
    print_table(["in all", "first", "second"], rows, right=(1, 2))
    requests = {*one.time_to_first_token, *other.time_to_first_token}
    if len(requests) > MAX_REQUESTS:
        click.echo(f"Shown are {MAX_REQUESTS} of {len(requests)} requests.")


_TOTALS: list[tuple[str, Callable[[Summary], int]]] = [
    ("steps", lambda run: run.steps),
    ("events", lambda run: run.events),
    ("tokens computed", lambda run: run.tokens),
    ("of them again, after a preemption", lambda run: run.recomputed_tokens),
    ("preemptions", lambda run: run.preemptions),
    ("evictions", lambda run: run.evictions),
]


def _by_request(one: dict[str, int], other: dict[str, int]) -> list[list[str]]:
    requests = [*one, *(seq for seq in other if seq not in one)]
    return [
        [seq, str(one.get(seq, "-")), str(other.get(seq, "-"))]
        for seq in sorted(requests)[:MAX_REQUESTS]
    ]
