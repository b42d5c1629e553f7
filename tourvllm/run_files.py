"""Where traces are kept when no file is named: the newest runs, in the user's cache folder."""

import os
import stat
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from platformdirs import user_cache_path

from .errors import UsageError

KEPT = 100
SUFFIX = ".tvllm.jsonl.gz"


def trace_path(name: str, record: Path | None, scenario: Path | None = None) -> Path:
    """The file to record to: `record`, or a new one in the cache. Raises UsageError if it cannot be written.

    `scenario` is the file that is run: a trace must not take its place.
    """
    if record is not None:
        if not record.parent.is_dir():
            raise UsageError(f"--record {record}: there is no folder {record.parent}")
        if record.is_dir():
            raise UsageError(
                f"--record {record} is a folder: name a file, for example {record / (name + SUFFIX)}"
            )
        if record.is_fifo() or record.is_socket():
            raise UsageError(f"--record {record} is no file: a trace is written to a file")
        if (
            scenario is not None
            and record.exists()
            and scenario.exists()
            and record.samefile(scenario)
        ):
            raise UsageError(f"--record {record} is the scenario itself: name another file")
        if not os.access(record if record.exists() else record.parent, os.W_OK):
            raise UsageError(f"--record {record}: this file cannot be written")
        return record
    folder = runs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}): name a file with --record"
        ) from error
    short = name.encode("utf-8", "replace")[:100].decode("utf-8", "ignore")
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    return folder / f"{short}-{moment}-{os.getpid()}{SUFFIX}"


def runs_folder() -> Path:
    """The folder of runs for which no file was named."""
    return user_cache_path("tourvllm") / "runs"


def runs_by_age(folder: Path) -> list[tuple[float, Path]]:
    """When each run in the folder was written, and its file, oldest first. What is no file is left out."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(
            OSError
        ):  # another process may take it away meanwhile; a link may lead nowhere
            about = path.stat()
            if stat.S_ISREG(about.st_mode):
                found.append((about.st_mtime, path))
    return sorted(found)


def _prune(folder: Path) -> None:
    """Keep the newest runs only."""
    runs = runs_by_age(folder)
    for _, path in runs[: max(0, len(runs) - KEPT + 1)]:
        path.unlink(missing_ok=True)
