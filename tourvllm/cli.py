"""The command line. Starting it imports neither torch nor textual: each command loads what it needs."""

import os
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import yaml

from . import __version__
from .engine.config import ATTENTION, EngineConfig
from .engine.errors import EngineError
from .errors import UsageError
from .say import say_error
from .tour.errors import ExpressionError, ScenarioError, TraceError
from .tour.scenario import ODD_YAML


class Group(click.Group):
    """Turns bad input into one sentence and exit code 2, and Ctrl-C into exit code 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # an ASCII terminal shows ? and does not fail
        try:
            _check_folder()
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(130)
        except (UsageError, ScenarioError, TraceError, EngineError) as error:
            say_error(str(error))
            ctx.exit(2)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(128 + SIGPIPE)  # what a shell tells of others that lose their reader
        except OSError as error:
            say_error(f"the output cannot be written: {error.strerror or error}")
            ctx.exit(1)


SIGPIPE = 13


def _drop_output() -> None:
    """Send what is still to be written nowhere: its reader has left, and the closing of stdout must not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # a stand-in for stdout may be no file
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _check_folder() -> None:
    """Raise UsageError in a folder that was deleted: torch's libraries die there without a word."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            "the folder that you are in is gone: change to another one, then run this again"
        ) from error


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="tourvllm")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Step through a real paged-attention engine, forwards and backwards.

    \b
    tourvllm                       choose a scenario or an earlier run on the screen
    tourvllm run kv_pressure       run a scenario; n advances one engine step
    tourvllm list                  the scenarios that ship with it
    tourvllm replay FILE           walk through a recorded run
    """
    if ctx.invoked_subcommand is None:
        if not _has_terminal():
            click.echo(ctx.get_help())
            return
        from .tui.home import home

        sys.exit(home())


_watch = click.option(
    "--watch",
    "watches",
    multiple=True,
    metavar="EXPR",
    help="Show this value; --plain tells its changes: free, A.block_table, len(waiting). Repeatable.",
)


@main.command()
@click.argument("scenario")
@click.option(
    "--model",
    help="Another model: a folder or a hub id such as Qwen/Qwen3-0.6B (tiny ships with tourvllm).",
)
@click.option("--dtype", help="Of weights and KV cache: auto, float32, bfloat16, float16, float64.")
@click.option("--attention", help=f"Kernels for the KV cache: {', '.join(ATTENTION)}.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting: engine.num_blocks=8.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Keep the trace in this file (.jsonl or .jsonl.gz).",
)
@click.option(
    "--plain", is_flag=True, help="Print the walk as text (as when there is no terminal)."
)
@click.option("--steps", type=click.IntRange(min=1), help="Stop after this many engine steps.")
@click.option("--in-process", is_flag=True, help="Keep the engine in this process (for tests).")
@click.option(
    "--verify", is_flag=True, help="Compare the recorded state with the engine at every stop."
)
@_watch
@click.option(
    "--pdb",
    "pdb_at",
    metavar="BREAKPOINT",
    help="Open pdb inside the engine at this stop: preempt, or \"preempt if seq == 'D'\". Implies --plain.",
)
def run(
    scenario: str,
    model: str | None,
    dtype: str | None,
    attention: str | None,
    changes: tuple[str, ...],
    record: Path | None,
    plain: bool,
    steps: int | None,
    in_process: bool,
    verify: bool,
    watches: tuple[str, ...],
    pdb_at: str | None,
) -> None:
    """Run SCENARIO (a YAML file or a bundled name) and step through it."""
    from .plan import make_plan
    from .run_files import trace_path
    from .scenarios_folder import find_scenario

    settings = _settings(changes)
    if model:
        settings["model"] = model
    if dtype:
        settings["engine.dtype"] = dtype
    if attention:
        settings["engine.attention"] = attention
    file = find_scenario(scenario)
    plan = make_plan(file.name, file.text, settings, file.where)
    ids = [request.request_id or "" for request in plan.requests]
    _check_watches(watches, ids)
    if pdb_at:
        from .debugger import check_pdb

        check_pdb(pdb_at, ids)
    path = trace_path(plan.name, record, Path(file.where))
    if plain or pdb_at or not _has_terminal():
        from .plain_run import PlainOptions, run_plain

        sys.exit(run_plain(plan, path, PlainOptions(steps, verify, watches, pdb_at)))
    from .tui.start import run_live

    sys.exit(run_live(plan, path, steps, in_process, verify, watches))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--plain", is_flag=True, help="Print the walk as text (as when there is no terminal)."
)
@_watch
def replay(file: Path, plain: bool, watches: tuple[str, ...]) -> None:
    """Walk through a recorded run; no engine is needed."""
    _check_watches(watches)
    if plain or not _has_terminal():
        from .plain_run import replay_plain

        sys.exit(replay_plain(_read(file), watches))
    from .tui.start import run_replay

    sys.exit(run_replay(_read(file, whole=False), file, watches))


@main.command()
@click.argument("scenario")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Values that a setting takes in turn: engine.num_blocks=16,24,48. Repeatable: all combinations are run.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
def sweep(scenario: str, changes: tuple[str, ...], as_csv: bool) -> None:
    """Run SCENARIO under several settings, and print what each run came to."""
    from .plan import Plan, make_plan
    from .scenarios_folder import find_scenario
    from .sweep import sweep as run_all

    file = find_scenario(scenario)

    def plan(settings: dict[str, Any]) -> Plan:
        return make_plan(file.name, file.text, settings, file.where)

    run_all(plan, _settings(changes, several=True), as_csv)


@main.command(name="list")
def list_() -> None:
    """List the scenarios that ship with tourvllm."""
    from .plan import make_plan
    from .scenarios_folder import bundled, bundled_names

    names = bundled_names()
    width = max(map(len, names))
    for name in names:
        plan = make_plan(name, bundled(name).text)
        click.echo(f"{name:<{width}}  {plan.scenario.title}")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def info(file: Path) -> None:
    """Say what a trace holds: the run, its settings, its size, whether it is whole."""
    from .info import describe

    click.echo(describe(_read(file)))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Run the scenario in a trace again and tell the first event that differs."""
    from .check import check_trace

    sys.exit(check_trace(_read(file), file))


@main.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option(
    "--all",
    "every_step",
    is_flag=True,
    help="Show all steps, not only those around the difference.",
)
@click.option("--steps", "every_step", is_flag=True, hidden=True)
def diff(first: Path, second: Path, every_step: bool) -> None:
    """Compare two recorded runs: settings, the first difference, each step, the totals.

    The exit code is 0 if all events are the same, and 1 if not.
    """
    from .diff import diff as compare

    sys.exit(compare(_read(first), _read(second), (first, second), every_step))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("expressions", nargs=-1, required=True, metavar="EXPR...")
@click.option(
    "--at",
    default="step",
    metavar="PLACE",
    help="Where: step (the end of each, the default), stop (every one), or a stop's name.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV, with nothing shortened.")
def query(file: Path, expressions: tuple[str, ...], at: str, as_csv: bool) -> None:
    """Print the values of expressions along a recorded run, such as: free len(waiting) A.block_table"""
    from .query import query as print_values

    print_values(_read(file), list(expressions), at, as_csv)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, with whole paths.")
def stops(as_json: bool) -> None:
    """List the stops: their part of the loop, the engine's lines that tell of them, what they mean."""
    from .stops_table import print_stops

    print_stops(as_json)


@main.command()
def doctor() -> None:
    """Say what this machine has for the engine, and which kernels would run."""
    from .doctor import examine

    lines, well = examine()
    click.echo("\n".join(lines))
    sys.exit(0 if well else 1)


def _settings(changes: tuple[str, ...], several: bool = False) -> dict[str, Any]:
    """Setting -> its value; if `several`, the list of them."""
    settings: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip("."):
            raise UsageError(
                f"--set {change}: write it as key=value, for example engine.num_blocks=8"
            )
        if table := _table_of(key.strip()):
            raise UsageError(
                f"--set {change}: there is no setting {key.strip()}: did you mean {table}.{key.strip()}?"
            )
        try:
            if several:
                settings.setdefault(key.strip(), []).extend(yaml.safe_load(f"[{value}]"))
            else:
                settings[key.strip()] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError, *ODD_YAML) as error:
            raise UsageError(f"--set {change}: the value cannot be read") from error
    return settings


def _table_of(key: str) -> str | None:
    """The table that a setting without one belongs to."""
    from .engine.sampling_params import SamplingParams

    tables = {"engine": fields(EngineConfig), "sampling": fields(SamplingParams)}
    return next((name for name in tables if key in {field.name for field in tables[name]}), None)


def _check_watches(watches: tuple[str, ...], request_ids: list[str] | None = None) -> None:
    """Raise UsageError for what is no expression; with `request_ids` also for a name that will never be there."""
    if not watches:
        return
    from .tour.expressions import check_names, check_syntax

    for text in watches:
        try:
            check_syntax(text) if request_ids is None else check_names(text, request_ids)
        except ExpressionError as error:
            raise UsageError(f"--watch {text}: {error}") from error


def _read(file: Path, whole: bool = True) -> Any:
    """The trace in a file; if not `whole`, what is read of it in a moment."""
    from .tour.reader import open_trace, read_trace

    try:
        return read_trace(file) if whole else open_trace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error


def _has_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
