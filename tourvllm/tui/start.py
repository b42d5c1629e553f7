"""Opening the debugger on a run that begins, or on one that was recorded."""

import os
from pathlib import Path
from typing import Any

from ..plain_run import set_threads, tell_trace
from ..plan import Plan
from ..say import say_error
from ..tour.trace import Trace
from .app import TourApp
from .links import ChildLink, Link, ThreadLink
from .session import Session
from .terminal import run_app


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
