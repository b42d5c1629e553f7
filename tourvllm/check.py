"""Running a trace's scenario again, to see whether the same things happen."""

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from .errors import UsageError
from .plain_run import ENGINE_HELP, set_threads
from .plan import Plan, make_plan
from .tour.text import printable
from .tour.trace import Event, Trace


def check_trace(trace: Trace, path: Path) -> int:
    """Run the scenario in `trace` again and tell the first event that differs. 0 if none does, else 1.

    Times and source lines are not compared: they change with the machine and with the engine's text. A trace that
    was cut short is compared as far as it goes.
    """
    plan = _plan_of(trace, path)
    set_threads(os.environ)
    try:
        from .runs import Run, Stopped
    except ImportError as error:
        raise UsageError(f"{ENGINE_HELP} ({error})") from error
    run = Run(plan, [])

    def compare(event: Event) -> None:
        recorded = trace.event(event.i)
        if _essence(event) != _essence(recorded):
            raise Stopped(_difference(recorded, event))
        if event.i + 1 == len(trace) and not trace.complete:
            raise Stopped("")

    run.listeners.append(compare)
    try:
        run.run()
    except Stopped as stopped:
        if str(stopped):
            click.echo(str(stopped))
            return 1
    except IndexError:
        click.echo(f"The run goes on after the {len(trace):,} events of the trace.")
        return 1
    if run.recorder.count < len(trace):
        click.echo(
            f"The run ends after {run.recorder.count:,} of the trace's {len(trace):,} events."
        )
        return 1
    click.echo(f"{path}: the run was repeated, and all {len(trace):,} events are the same.")
    return 0


def _plan_of(trace: Trace, path: Path) -> Plan:
    scenario = trace.table("scenario")
    if not scenario.get("text"):
        raise UsageError(
            f"{path} holds no scenario to run again: it was recorded from something else"
        )
    settings = scenario.get("settings")
    return make_plan(str(scenario.get("name", "?")), scenario["text"], settings or None)


def _essence(event: Event) -> bytes:
    return msgspec.json.encode([event.step, event.stop, event.facts, event.do])


def _difference(recorded: Event, now: Event) -> str:
    lines = [f"Event {recorded.i}, in step {recorded.step}, differs."]
    for name, event in (("recorded", recorded), ("now", now)):
        facts: dict[str, Any] = event.facts
        lines.append(printable(f"  {name:<9} step {event.step}  {event.stop}  {facts}"[:2000]))
    if recorded.stop == now.stop and recorded.facts == now.facts:
        lines.append(printable(f"  recorded patches {recorded.do}"[:1000]))
        lines.append(printable(f"  now      patches {now.do}"[:1000]))
    return "\n".join(lines)
