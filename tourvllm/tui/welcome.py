"""The hint that somebody sees who opens the app for the first time."""

from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

WELCOME = """\
 Press n: the engine makes one step. p goes back, s and S go stop by stop; nothing you press can break the run.
 Left: the loop and the line of code that just ran. Right: who waits, who runs, who holds which block. Middle: why.
 ? explains every key, sign and word. Any key takes this hint away."""


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
