"""Hosting an engine for a viewer: commands in, trace lines out, and a halt wherever the viewer asked for one.

The host runs in a child process (`tourvllm.child`) or in a thread (`--in-process`). Besides the trace's own lines
it sends a few of its own: `status` (a word on what it does), `paused` (it halted and waits), `failed`, `done`.
"""

import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import msgspec

from .engine.errors import EngineError
from .errors import UsageError
from .plain_run import ENGINE_HELP
from .plan import make_plan
from .tour.errors import RecordError, TourError
from .tour.recorder import FileSink, Recorder
from .tour.stops import MARKS, group_of
from .tour.trace import Event, ends_phase
from .tour.triggers import Trigger, first_hit

Command = dict[str, Any]
Send = Callable[[bytes], None]

QUIT: Command = {"cmd": "quit"}
FIRST_HALT: Command = {"cmd": "go", "until": "stop", "name": "step"}
"""Where a run first halts: the requests of step 1 are in the queue and the first step begins."""


class SendSink:
    """Sends trace lines to the viewer, once the file before it in the list of sinks has them safely.

    So a killed engine loses nothing that was on screen.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        """Keep one line for the next flush."""
        self._lines.append(line)

    def flush(self) -> None:
        """Send what is kept."""
        if self._lines:
            self._send(b"\n".join(self._lines))
            self._lines.clear()


class Stepper:
    """Decides after each event whether to halt, and waits there for the next command.

    Commands: `go` (until: event, step, phase, stop, group, mark or break; number: of the step to end; breaks:
    whether breakpoints halt on the way to it; breakpoints: their lines; counts: how often each had triggered
    before the engine first heard of it), `pause`, `bookmark` and `quit`.
    """

    def __init__(
        self, commands: "SimpleQueue[Command]", say: Callable[..., None], recorder: Recorder
    ) -> None:
        self._commands = commands
        self._say = say
        self._recorder = recorder
        self._goal: Command = {}
        self._running = False
        self._triggers: dict[str, Trigger] = {}
        self._last: Event | None = None
        self._told = False

    def told(self, _: object) -> None:
        """Called when something is said or asked at an event, before `after` hears of it."""
        self._told = True

    def wait(self) -> None:
        """Wait for the command that lets the engine go on. Raises Stopped for `quit`."""
        self._running = False
        with self._recorder.halted():  # the reader's time is not the step's
            while not self._running:
                self._obey(self._commands.get())

    def after(self, event: Event) -> None:
        """Called after each event; returns when the engine may go on."""
        self._last = event
        hit = self._breakpoint(event)
        halt = hit is not None or self._reached(event)
        self._told = False
        while not halt and not self._commands.empty():
            self._obey(self._commands.get())
            halt = not self._running
        if halt:
            self._recorder.flush()
            counts = {line: trigger.count for line, trigger in self._triggers.items()}
            self._say("paused", breakpoint=hit, counts=counts)
            self.wait()

    def _breakpoint(self, event: Event) -> str | None:
        """The breakpoint to halt at, or why one cannot be evaluated.

        All of them are asked at each event, whatever the goal: conditions trigger where they become true, and hits
        are counted over the whole run. Only a run to a breakpoint halts at one, and a step that is played.
        """
        hit = first_hit(self._triggers.values(), event, self._recorder.state)
        breaks = self._goal.get("until") == "break" or self._goal.get("breaks", False)
        return hit if breaks or hit not in self._triggers else None

    def _obey(self, command: Command) -> None:
        """Obey a command: it may set the engine running, halt it, or leave that as it is."""
        kind = command["cmd"]
        if kind == "quit":
            from .runs import Stopped

            raise Stopped("stopped by the user")
        if kind == "bookmark":
            self._bookmark(command)
        elif kind == "go":
            self._goal, self._running = command, True
            self._take_breakpoints(command.get("breakpoints", ()), command.get("counts", {}))
        else:
            self._running = False

    def _bookmark(self, command: Command) -> None:
        """Write a bookmark into the trace, at the position that the viewer looks at."""
        where = {key: command[key] for key in ("i", "step") if key in command}
        self._recorder.note("bookmark", say=command["say"], **where)
        self._recorder.flush()

    def _take_breakpoints(self, lines: Iterable[str], counts: dict[str, int]) -> None:
        """Keep the breakpoints that are known, and their counts; prime the new ones."""
        self._triggers = {
            line: self._triggers.get(line) or self._primed(line, counts) for line in lines
        }

    def _primed(self, line: str, counts: dict[str, int]) -> Trigger:
        """A new breakpoint. What is already true here is nothing new: only what becomes true later halts."""
        trigger = Trigger(line)
        trigger.start(self._last, self._recorder.state)
        trigger.count = counts.get(line, 0)
        return trigger

    def _reached(self, event: Event) -> bool:
        """Whether the goal of the last `go` is here."""
        until = self._goal.get("until")
        if until == "event":
            return True
        if until == "step":
            ends = event.stop == "step" and event.facts["when"] == "end"
            return bool(ends and event.step >= self._goal.get("number", 0))
        if until == "phase":
            return ends_phase(event)
        if until == "stop":
            return bool(event.stop == self._goal["name"])
        if until == "group":
            group = group_of(event.stop)
            return group is not None and group.key == self._goal["group"]
        return until == "mark" and (self._told or event.stop in MARKS)


def serve(order: dict[str, Any], send: Send, commands: "SimpleQueue[Command]") -> bool:
    """Run what `order` asks for (name, text, settings, record, verify). Whether it ended without an error."""

    def say(kind: str, **fields: Any) -> None:
        send(msgspec.json.encode({"kind": kind, **fields}))

    try:
        say("status", text="loading torch")
        from .runs import Run, Stopped
    except ImportError as error:
        say("failed", error=f"{ENGINE_HELP} ({error})", detail="")
        return False
    file = FileSink(order["record"])
    try:
        say("status", text="loading the model")
        plan = make_plan(order["name"], order["text"], order["settings"])

        def progress(share: float) -> None:
            say("status", text=f"loading the model {share:.0%}")

        run = Run(plan, [file, SendSink(send)], order.get("verify", False), progress)
        stepper = Stepper(commands, say, run.recorder)
        run.listeners.append(stepper.after)
        run.narrate = run.put = stepper.told
        say("status", text="ready")
        stepper.wait()
        run.run()
        file.close()
        say("done")
        return True
    except Stopped:
        return True
    except Exception as error:
        ours = isinstance(error, TourError | EngineError | UsageError)
        told = str(error) if ours else f"{type(error).__name__}: {error}"
        say("failed", error=told, detail=traceback.format_exc())
        return False
    finally:
        with suppress(RecordError):  # told, or the user has quit
            file.close()
