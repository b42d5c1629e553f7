"""A Python debugger inside the engine: it halts in the function that told of a stop, right after its action."""

import os
import pdb
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from .errors import UsageError
from .say import say_error
from .sources import frame_to_show, is_engine
from .tour.errors import ExpressionError
from .tour.recorder import Recorder
from .tour.trace import Event
from .tour.triggers import Trigger, check_breakpoint
from .tour.why import why


def check_pdb(line: str, request_ids: list[str]) -> None:
    """Raise UsageError for a breakpoint that could never halt."""
    try:
        check_breakpoint(line, request_ids)
    except ExpressionError as error:
        raise UsageError(f"--pdb {line}: {error}") from error
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        raise UsageError("PYTHONBREAKPOINT=0 switches all breakpoints off: unset it to use --pdb")


class Halter:
    """A listener of a run that opens the debugger at each event where a breakpoint halts.

    The debugger is pdb, or what PYTHONBREAKPOINT and `sys.breakpointhook` say.
    """

    def __init__(self, line: str, recorder: Recorder) -> None:
        self._trigger = Trigger(line)
        self._state = recorder.state
        self._pdb = _EnginePdb(recorder)

    def __call__(self, event: Event) -> None:
        """Halt here, if the breakpoint says so."""
        said = self._trigger.hit(event, self._state)
        if said is None:
            return
        if said != self._trigger.text:
            say_error(said)
        click.echo(f"\nstep {event.step}, {event.stop}: {why(event, self._state)}")
        _call_in(_frame_of(event.stop), self._open_debugger)

    def _open_debugger(self, frame: FrameType) -> None:
        if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
            self._pdb.set_trace(frame)
        else:
            sys.breakpointhook()


class _EnginePdb(pdb.Pdb):
    """pdb; while it talks, the clock of the trace stands still."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def interaction(self, *arguments: Any, **more: Any) -> None:
        """Talk with the user."""
        with self._recorder.halted():
            super().interaction(*arguments, **more)


def _frame_of(stop: str) -> FrameType:
    """The function of the engine that is telling of `stop` right now."""
    frame = sys._getframe()
    while not is_engine(frame.f_code.co_filename):
        assert frame.f_back is not None, "only the engine tells of stops"
        frame = frame.f_back
    return frame_to_show(stop, frame)


def _call_in(frame: FrameType, open_debugger: Callable[[FrameType], None]) -> None:
    """Call `open_debugger` as soon as `frame` runs on, from a trace function.

    A debugger halts at what is traced next, so it must not be called from here: it would halt in the probe. From
    a trace function nothing is traced but what comes after it: the engine's next line, or the function's return.
    """

    def at_next_instruction(traced: FrameType, what: str, argument: object) -> None:
        traced.f_trace_opcodes = False
        traced.f_trace = None
        sys.settrace(None)
        open_debugger(traced)

    frame.f_trace = at_next_instruction
    frame.f_trace_opcodes = True
    sys.settrace(lambda *_: None)
