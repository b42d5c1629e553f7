"""Runs and replays without the app: the walk as text, with honest exit codes."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import click

from .plain import PlainWalk
from .plan import Plan
from .say import say_error
from .tour.cursor import Cursor
from .tour.errors import RecordError, TraceError, VerifyError
from .tour.recorder import FileSink
from .tour.trace import Event, Trace

ENGINE_HELP = "the engine is not installed. Install it with: pip install 'tourvllm[engine]'"


def run_plain(plan: Plan, path: Path, steps: int | None, verify: bool) -> int:
    """Run a plan and print it. 0 when it ran to its end (or to `steps`), 1 when the engine failed."""
    set_threads(os.environ)
    try:
        from .engine.errors import EngineError
        from .runs import Stopped
    except ImportError as error:
        say_error(f"{ENGINE_HELP} ({error})")
        return 2
    sink = FileSink(path)
    code = 1
    try:
        _print_run(plan, sink, steps, verify)
        code = 0
    except Stopped as stopped:
        click.echo(f"Stopped: {stopped}.")
        code = 0
    except KeyboardInterrupt:
        click.echo("\nInterrupted.", err=True)
        code = 130
    except BrokenPipeError:
        raise
    except VerifyError as error:
        say_error(f"the recorded state is not the engine's: {error}")
    except EngineError as error:
        say_error(str(error))
        code = 2
    except RecordError as error:
        say_error(str(error))
    except OSError as error:
        say_error(f"the output cannot be written: {error.strerror or error}")
    except Exception as error:
        traceback.print_exc()
        say_error(f"the engine failed: {type(error).__name__}: {error}")
    finally:
        closed = _close(sink)
    tell_trace(path, sink.written)
    return code if closed else code or 1


def tell_trace(path: Path, written: bool) -> None:
    """Say where the trace is, if there is one that can be replayed."""
    if written and path.is_file() and path.stat().st_size:
        click.echo(f"\nTrace: {path}\nReplay it with: tourvllm replay {quote(str(path))}", err=True)


def _print_run(plan: Plan, sink: FileSink, steps: int | None, verify: bool) -> None:
    from .runs import Run, Stopped

    walk = PlainWalk(click.echo, plan.scenario.watch)
    walk.title(plan.scenario.title, plan.scenario.about)
    run = Run(plan, [sink], verify, _loading_progress())
    run.narrate, run.put = walk.note, walk.ask
    run.listeners.append(lambda event: walk.event(event, run.state))
    if steps:
        run.listeners.append(lambda event: _stop_after(event, steps, Stopped))
    run.run()


def _loading_progress() -> Callable[[float], None]:
    """Tells on a terminal how far the weights are loaded, once that takes longer than a second."""
    start = time.monotonic()

    def show(share: float) -> None:
        if sys.stderr.isatty() and time.monotonic() - start > 1:
            click.echo(f"\rloading the model {share:.0%}", nl=share == 1, err=True)

    return show


def _close(sink: FileSink) -> bool:
    try:
        sink.close()
    except RecordError:  # a full disk, already told
        return False
    return True


def replay_plain(trace: Trace) -> int:
    """Print a recorded run. 0 when the trace is whole, 1 when it is cut short or damaged."""
    watch = trace.table("scenario").get("watch")
    walk = PlainWalk(click.echo, watch if isinstance(watch, list) else [])
    walk.title(trace.table("scenario").get("title", ""), trace.table("scenario").get("about", ""))
    cursor = Cursor(trace)
    for note in trace.notes.get(0, []):
        walk.note(note)
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        for note in trace.notes.get(cursor.position, []):
            walk.note(note)
        if ask := trace.asks.get(cursor.position):
            walk.ask(ask)
        try:
            walk.event(trace.event(cursor.position - 1), cursor.state)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            what = f"event {cursor.position - 1} leaves a state that cannot be shown"
            raise TraceError(f"{what}: {error!r}") from error
    if trace.problem:
        say_error(trace.problem)
        return 1
    return 0


def set_threads(environ: "os._Environ[str] | dict[str, str]") -> None:
    """Leave a core to the terminal app; and idle threads must not spin. Before torch is imported."""
    cores = os.cpu_count() or 1
    environ.setdefault("OMP_NUM_THREADS", str(max(1, min(cores - 1, 8))))
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _stop_after(event: Event, steps: int, stopped: type[BaseException]) -> None:
    if event.stop == "step" and event.facts["when"] == "end" and event.step >= steps:
        raise stopped(f"stopped after {steps} {'step' if steps == 1 else 'steps'}")
