"""Starting and ending the app so that the terminal is whole afterwards and the exit code is honest."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "TEXTUAL_FPS", "120"
)  # before textual is imported: key to paint in one short frame

from textual.app import App

from ..plain_run import set_threads, tell_trace
from ..plan import Plan
from ..say import say_error
from ..tour.trace import Trace
from .app import TourApp
from .links import ChildLink, Link, ThreadLink
from .session import Session


def run_live(plan: Plan, path: Path, steps: int | None, in_process: bool, verify: bool) -> int:
    """Run a plan in the app. 0 when all went well, 1 when the engine or the app failed."""
    link: Link = ThreadLink() if in_process else ChildLink()
    if in_process:
        set_threads(
            os.environ
        )  # before torch is imported; a child's environment is set by its link
    order: dict[str, Any] = {
        "name": plan.name,
        "text": plan.text,
        "settings": plan.settings,
        "record": str(path.absolute()),
        "verify": verify,
    }
    session = Session(Trace(), link, steps)
    code = run_app(TourApp(session, order))
    tell_trace(path, len(session.trace) > 0)
    if session.error:
        say_error(session.error)
        return code or 1
    return code


def run_replay(trace: Trace, path: Path) -> int:
    """Walk a recorded run in the app. 0, or 1 when the app failed."""
    session = Session(trace)
    if trace.problem:
        session.message = trace.problem
    return run_app(TourApp(session))


def run_app(app: App[Any]) -> int:
    """Run an app in the terminal and return its exit code."""
    with _quiet_terminal():
        asyncio.run(_run_until_signal(app))
    return app.return_code or 0


async def _run_until_signal(app: App[Any]) -> None:
    """Run the app; a polite signal to end restores the terminal first."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
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
