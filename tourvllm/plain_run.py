"""Runs and replays without the app: the walk as text, with honest exit codes."""

import os
import signal
import sys
import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from shutil import which
from types import FrameType

import click

from .plain import PlainWalk
from .plan import Plan
from .say import say_error
from .tour.cursor import Cursor
from .tour.errors import RecordError, TraceError, VerifyError
from .tour.reader import open_trace
from .tour.recorder import FileSink
from .tour.trace import Event, Trace
from .watches import Watches

ENGINE_HELP = "the engine is not installed. Install it with: pip install 'tourvllm[engine]'"


@dataclass(frozen=True)
class PlainOptions:
    """How to walk: `steps` ends it early, `watches` are told where they change, `pdb` is a breakpoint for pdb."""

    steps: int | None = None
    verify: bool = False
    watches: tuple[str, ...] = ()
    pdb: str | None = None


def run_plain(plan: Plan, path: Path, options: PlainOptions) -> int:
    """Run a plan and print it. 0 when it ran to its end or was stopped, 1 when the engine failed."""
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
        _print_run(plan, sink, options)
        code = 0
    except (Stopped, BdbQuit, SystemExit) as ended:
        how = str(ended) if isinstance(ended, Stopped) else "\nstopped in the debugger"
        click.echo(f"{how.replace('stopped', 'Stopped', 1)}.")
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
    if written and path.is_file() and _opens(path):
        command = f"{_command()} replay {quote(str(path))}"
        click.echo(f"\nTrace: {path}\nReplay it with: {command}", err=True)


def _command() -> str:
    """How this program is called here: by its path if a shell does not find it."""
    called = Path(sys.argv[0])
    return "tourvllm" if called.name != "tourvllm" or which("tourvllm") else quote(str(called))


def _opens(path: Path) -> bool:
    """Whether there is a trace to replay: a disk may have been full before the header was whole."""
    with suppress(TraceError, OSError):
        return open_trace(path).header is not None
    return False


def _print_run(plan: Plan, sink: FileSink, options: PlainOptions) -> None:
    from .runs import Run, Stopped

    watches = Watches(options.watches)
    walk = PlainWalk(click.echo, plan.scenario.watch, watches.changes)
    walk.title(plan.scenario.title, plan.scenario.about)
    run = Run(plan, [sink], options.verify, _loading_progress())
    run.narrate, run.put = walk.note, walk.ask
    run.listeners.append(lambda event: walk.event(event, run.state))
    if options.pdb:
        from .debugger import Halter

        run.listeners.append(Halter(options.pdb, run.recorder))
    if steps := options.steps:
        run.listeners.append(lambda event: _stop_after(event, steps, Stopped))
    with _heard_interrupts(at_once=options.pdb is not None) as heard:  # pdb has its own way
        run.listeners.append(lambda event: heard())
        run.run()
    _tell_silent(watches)


@contextmanager
def _heard_interrupts(at_once: bool) -> Iterator[Callable[[], None]]:
    """What it yields raises KeyboardInterrupt if Ctrl-C was pressed: between two events, where the trace is whole.

    Python would raise it anywhere, also in the middle of a line of the trace, and drops what is raised in a
    destructor. Pressed a second time it is raised at once.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            signal.default_int_handler(number, frame)
        pressed = True

    def hear() -> None:
        if pressed:
            raise KeyboardInterrupt

    if at_once or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield hear
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield hear
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _tell_silent(watches: Watches) -> None:
    """Say which expressions were watched for nothing."""
    for text in watches.silent:
        say_error(f"--watch {text}: it had no value at any event")


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


def replay_plain(trace: Trace, watched: Iterable[str] = ()) -> int:
    """Print a recorded run. 0 when the trace is whole, 1 when it is cut short or damaged."""
    watch = trace.table("scenario").get("watch")
    watches = Watches(watched)
    walk = PlainWalk(click.echo, watch if isinstance(watch, list) else [], watches.changes)
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
    _tell_silent(watches)
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
