"""The wire between the app and the engine: a child process, or a thread of this one (`--in-process`).

Both call `receive(lines)` on the app's event loop with whole lines, and `lost(reason)` once when the other side
is gone. Neither ever touches a widget.
"""

import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec

from ..host import QUIT, Command, serve
from ..plain_run import set_threads

LAST_WORDS = 4096
"""Bytes of what a child has printed in which its last words are looked for."""

Receive = Callable[[list[bytes]], None]
Lost = Callable[[str], None]


class Link(Protocol):
    """What the session needs of a wire."""

    async def start(self, order: dict[str, Any], receive: Receive, lost: Lost) -> None:
        """Start the engine's side."""

    def send(self, command: Command) -> None:
        """Send a command; quietly nothing when the other side is gone."""

    async def close(self) -> None:
        """End the other side within two seconds, whatever it does."""


class ChildLink:
    """The engine in a spawned process."""

    GRACE = 1.2
    """Seconds that a child has to close its trace before it is killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the link)
        self._closing = False

    async def start(self, order: dict[str, Any], receive: Receive, lost: Lost) -> None:
        """Start the child; what it prints goes to a log that `lost` quotes."""
        environ = dict(os.environ)
        set_threads(environ)
        incoming, outgoing = os.pipe()
        self._process = await asyncio.create_subprocess_exec(
            # -P keeps the current folder off the import path: a folder `kernels` there must not be imported.
            sys.executable,
            "-P",
            "-m",
            "tourvllm.child",
            str(outgoing),
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(outgoing,),
            env=environ,
            start_new_session=True,
        )
        os.close(outgoing)
        self._write(order)
        self._reader = asyncio.create_task(self._read(self._process, incoming, receive, lost))

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid if self._process else None

    def send(self, command: Command) -> None:
        """Send a command to the child."""
        self._write(command)

    async def close(self) -> None:
        """Ask the child to stop, then make it."""
        process = self._process
        self._closing = True
        if process is None:
            return
        self._write(QUIT)
        try:
            await asyncio.wait_for(process.wait(), self.GRACE)
        except TimeoutError:
            self._kill(process)
            await process.wait()
        if self._reader:
            self._reader.cancel()
        self._log.close()

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _write(self, message: dict[str, Any]) -> None:
        stdin = self._process.stdin if self._process else None
        if stdin and not stdin.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                stdin.write(msgspec.json.encode(message) + b"\n")

    async def _read(
        self, process: asyncio.subprocess.Process, wire: int, receive: Receive, lost: Lost
    ) -> None:
        """Take in lines until the child closes its end of the wire."""
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(wire, "rb"))
        rest = b""
        while chunk := await stream.read(1 << 18):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                receive(lines)
            await asyncio.sleep(0)  # a fast engine must not keep the keys waiting
        transport.close()
        code = await process.wait()
        if not self._closing:
            lost(self._last_words(code))

    def _last_words(self, code: int) -> str:
        if code == 0:
            return ""
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LAST_WORDS))
        printed = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"The engine's process {how}." + (
            f" Its last words: {printed[-1]}" if printed else ""
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Python names no real-time signals
        return f"signal {number}"


class ThreadLink:
    """The engine in a thread of this process: for pdb and for tests."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def start(self, order: dict[str, Any], receive: Receive, lost: Lost) -> None:
        """Start the thread."""
        loop = asyncio.get_running_loop()

        def send(line: bytes) -> None:
            loop.call_soon_threadsafe(receive, line.split(b"\n"))

        def work() -> None:
            serve(order, send, self._commands)

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        """Hand a command to the thread."""
        self._commands.put(command)

    async def close(self) -> None:
        """Ask the thread to stop; a thread that is busy is left behind (it is a daemon)."""
        self._commands.put(QUIT)
        for _ in range(40):
            if self._thread is None or not self._thread.is_alive():
                return
            await asyncio.sleep(0.05)
