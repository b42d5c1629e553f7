"""Opening the debugger on a run that begins, or on one that was recorded."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..plain_run import set_threads, tell_trace
from ..plan import Plan
from ..say import say_error
from ..tour.lessons import Progress
from ..tour.trace import Trace
from .app import TourApp
from .config import read_config
from .links import ChildLink, Link, ThreadLink
from .rerun import order_of
from .session import Session
from .terminal import run_app
from .welcome import is_first_run


def run_live(
    plan: Plan,
    path: Path,
    steps: int | None,
    in_process: bool,
    verify: bool,
    watches: Sequence[str] = (),
) -> int:
    """Run a plan in the app. 0 when all went well, 1 when the engine or the app failed."""
    link: Link = ThreadLink() if in_process else ChildLink()
    if in_process:
        # Before torch is imported; a child's environment is set by its link.
        set_threads(os.environ)
    session = Session(Trace(), link, steps, path)
    progress = Progress()
    progress.opened(plan.name)
    order = order_of(plan, str(path.absolute()), verify)
    return _run(session, watches, progress, order)


def run_replay(trace: Trace, path: Path, watches: Sequence[str] = ()) -> int:
    """Walk a recorded run in the app. 0, or 1 when the app failed."""
    session = Session(trace, path=path)
    session.message = trace.problem or session.message
    return _run(session, watches, Progress())


def _run(
    session: Session,
    watches: Sequence[str],
    progress: Progress,
    order: dict[str, Any] | None = None,
) -> int:
    """Show a session until its user quits. The exit code tells whether the last engine failed."""
    session.watches += [text for text in watches if text not in session.watches]
    app = TourApp(session, order, read_config(), is_first_run(), progress)
    code = run_app(app)
    for path in app.traces:
        tell_trace(path, True)
    if app.session.error:
        say_error(app.session.error)
        return code or 1
    return code
