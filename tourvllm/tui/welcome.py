"""The hint that somebody sees who opens the app for the first time."""

from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

WELCOME = """\
 Press n for one engine step, p to go back, s for a single stop, ] for a note.
 Causes stand left, effects right, reasons in the middle; nothing can break.
 ? explains keys and signs, and in a pane (Tab) its words. Any key takes this hint away."""

NARROW_WELCOME = """\
 n makes one engine step, p goes back, s goes on by a single stop, ] to a note.
 v turns to the next view, ? explains all. Any key takes this hint away."""
"""The same where the screen holds one view at a time."""


def _mark() -> Path:
    return user_data_path("tourvllm") / "welcomed"


def is_first_run() -> bool:
    """Whether the hint was never shown to this user."""
    try:
        return not _mark().exists()
    except OSError:
        return False


def remember() -> None:
    """Do not show it again; where nothing can be written it comes again."""
    with suppress(OSError):
        _mark().parent.mkdir(parents=True, exist_ok=True)
        _mark().touch()
