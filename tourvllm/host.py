"""Hosting an engine for a viewer: commands in, trace lines out, and a halt wherever the viewer asked for one.

The host runs in a child process (`tourvllm.child`) or in a thread (`--in-process`). Besides the trace's own lines
it sends a few of its own: `status` (a word on what it does), `paused` (it halted and waits), `failed`, `done`.
"""

import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from .plain_run import ENGINE_HELP
from .plan import make_plan
from .tour.recorder import FileSink, Recorder, Sink
from .tour.stops import group_of
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
    """Decides after each event whether to halt, and waits there for the next command."""

    def __init__(
        self, commands: "SimpleQueue[Command]", say: Callable[..., None], recorder: Recorder
    ) -> None:
        self._commands = commands
        self._say = say
        self._recorder = recorder
        self._goal: Command = {}
        self._triggers: list[Trigger] = []
        self._last: Event | None = None

    def wait(self) -> None:
        """Wait for the command that lets the engine go on. Raises Stopped for `quit`."""
        while not self._take(self._commands.get()):
            pass

    def after(self, event: Event) -> None:
        """Called after each event; returns when the engine may go on."""
        self._last = event
        # Conditions trigger where they become true, so each one is asked at each event.
        hit = first_hit(self._triggers, event, self._recorder.state)
        paused = hit is not None or self._reached(event)
        while not paused and not self._commands.empty():
            paused = not self._take(self._commands.get())
        if paused:
            self._recorder.flush()
            self._say("paused", breakpoint=hit)
            self.wait()

    def _take(self, command: Command) -> bool:
        """Obey a command. Whether the engine runs after it."""
        if command["cmd"] == "quit":
            from .runs import Stopped

            raise Stopped("stopped by the user")
        if command["cmd"] != "go":
            return False
        self._goal = command
        self._triggers = [Trigger(text) for text in command.get("breakpoints", ())]
        for trigger in self._triggers:
            # What is already true here is nothing new: only what becomes true later halts.
            trigger.hit(self._last or Event(-1, 0, ""), self._recorder.state)
        return True

    def _reached(self, event: Event) -> bool:
        """Whether the goal of the last `go` is here."""
        until = self._goal.get("until")
        if until == "event":
            return True
        if until == "step":
            return event.stop == "step" and event.facts["when"] == "end"
        if until == "phase":
            return ends_phase(event)
        if until == "stop":
            return bool(event.stop == self._goal["name"])
        if until == "group":
            group = group_of(event.stop)
            return group is not None and group.key == self._goal["group"]
        return False


def serve(order: dict[str, Any], send: Send, commands: "SimpleQueue[Command]") -> bool:
    """Run what `order` asks for (name, text, settings, record, verify). Whether it ended without an error."""

    def say(kind: str, **fields: Any) -> None:
        send(msgspec.json.encode({"kind": kind, **fields}))

    file: FileSink | None = None
    try:
        say("status", text="loading torch")
        from .runs import Run, Stopped
    except ImportError as error:
        say("failed", error=f"{ENGINE_HELP} ({error})", detail="")
        return False
    try:
        say("status", text="loading the model")
        plan = make_plan(order["name"], order["text"], order["settings"])
        file = FileSink(order["record"])
        sinks: list[Sink] = [file, SendSink(send)]

        def progress(share: float) -> None:
            say("status", text=f"loading the model {share:.0%}")

        run = Run(plan, sinks, order.get("verify", False), progress)
        stepper = Stepper(commands, say, run.recorder)
        run.listeners.append(stepper.after)
        say("status", text="ready")
        stepper.wait()
        run.run()
        say("done")
        return True
    except Stopped:
        return True
    except Exception as error:
        say("failed", error=f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        return False
    finally:
        if file:
            file.close()
