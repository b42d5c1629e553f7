"""Hosting an engine for a viewer: commands in, trace lines out, and a halt wherever the viewer asked for one.

The host runs in a child process (`tourvllm.child`) or in a thread (`--in-process`). Besides the trace's own lines
it sends a few of its own: `status` (a word on what it does), `paused` (it halted and waits), `failed`, `done`.
"""

import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from .plan import make_plan
from .tour.recorder import FileSink, Sink
from .tour.stops import group_of
from .tour.trace import Event
from .tour.triggers import Trigger

Command = dict[str, Any]
Send = Callable[[bytes], None]

QUIT: Command = {"cmd": "quit"}
FIRST_HALT: Command = {"cmd": "go", "until": "stop", "name": "step"}
"""Where a run first halts: the requests of step 1 are in the queue and the first step begins."""


class SendSink:
    """Sends trace lines to the viewer."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def write(self, line: bytes) -> None:
        """Send one line."""
        self._send(line)

    def flush(self) -> None:
        """Lines are sent as they come."""


class Stepper:
    """Decides after each event whether to halt, and waits there for the next command."""

    def __init__(self, commands: "SimpleQueue[Command]", say: Callable[..., None]) -> None:
        self._commands = commands
        self._say = say
        self._goal: Command = {}
        self._triggers: dict[str, Trigger] = {}
        self.state: dict[str, Any] = {}

    def wait(self) -> None:
        """Wait for the command that lets the engine go on. Raises Stopped for `quit`."""
        while True:
            command = self._commands.get()
            if self._take(command):
                return

    def after(self, event: Event) -> None:
        """Called after each event; returns when the engine may go on."""
        if self._halts_at(event):
            self._say("paused")
            self.wait()
            return
        try:
            while True:
                if not self._take(self._commands.get_nowait()):
                    self._say("paused")
                    self.wait()
                    return
        except Empty:
            return

    def _take(self, command: Command) -> bool:
        """Whether the engine runs after this command."""
        if command["cmd"] == "quit":
            from .runs import Stopped

            raise Stopped("stopped by the user")
        if command["cmd"] == "go":
            self._goal = command
        return bool(command["cmd"] == "go")

    def _halts_at(self, event: Event) -> bool:
        until = self._goal.get("until")
        # Conditions trigger where they become true, so each is asked at each event, halt or not.
        hits = [self._trigger(text).hit(event, self.state) for text in self._goal.get("breakpoints", ())]
        if until == "event":
            return True
        if until == "step":
            return event.stop == "step" and event.facts["when"] == "end"
        if until == "stop":
            return bool(event.stop == self._goal["name"])
        if until == "group":
            group = group_of(event.stop)
            return group is not None and group.key == self._goal["group"]
        return any(hits)

    def _trigger(self, text: str) -> Trigger:
        return self._triggers.setdefault(text, Trigger(text))


def serve(order: dict[str, Any], send: Send, commands: "SimpleQueue[Command]") -> bool:
    """Run what `order` asks for (name, text, settings, record, verify). Whether it ended without an error."""
    def say(kind: str, **fields: Any) -> None:
        send(msgspec.json.encode({"kind": kind, **fields}))

    file: FileSink | None = None
    try:
        say("status", text="loading torch")
        from .runs import Run, Stopped
    except ImportError as error:
        say("failed", error=f"{error}. Install the engine with: pip install 'tourvllm[engine]'", detail="")
        return False
    try:
        say("status", text="loading the model")
        plan = make_plan(order["name"], order["text"], order["settings"])
        file = FileSink(order["record"])
        sinks: list[Sink] = [file, SendSink(send)]
        run = Run(plan, sinks, verify=order.get("verify", False))
        stepper = Stepper(commands, say)
        stepper.state = run.state
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
