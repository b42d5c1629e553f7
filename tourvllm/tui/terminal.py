"""Starting and ending an app so that the terminal is whole afterwards and the exit code is honest."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from traceback import format_exc
from typing import Any, TypeVar

from rich.text import Text
from textual.app import App

Result = TypeVar("Result")


class TerminalApp(App[Result]):
    """An app that, should it fail, says where in its code, and whose defect that is."""

    def _fatal_error(self) -> None:
        # Textual's own shows all that was in memory there: of a long trace that is neither soon done nor of use.
        self.panic(Text(f"{format_exc()}\nThis is a defect of tourvllm, not of what you did."))


def run_app(app: App[Any]) -> int:
    """Run an app in the terminal and return its exit code."""
    with _quiet_terminal():
        asyncio.run(_run_until_signal(app))
    return app.return_code or 0


async def _run_until_signal(app: App[Any]) -> None:
    """Run the app; a polite signal to end restores the terminal first."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
    await app.run_async()


@contextmanager
def _quiet_terminal() -> Iterator[None]:
    """Give the app the terminal and keep everything else that is printed off it, until the app ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    screen = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    saved = os.dup(1), os.dup(2)
    originals = sys.__stdout__, sys.__stderr__
    with tempfile.TemporaryFile() as log:
        sys.__stdout__ = sys.__stderr__ = screen  # type: ignore[misc]
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.__stdout__, sys.__stderr__ = originals  # type: ignore[misc]
            with suppress(OSError):  # the terminal may be gone
                screen.close()
            for number, original in enumerate(saved, 1):
                os.dup2(original, number)
                os.close(original)
            log.seek(0)
            if printed := log.read().decode("utf-8", "replace").strip():
                sys.stderr.write(printed + "\n")
