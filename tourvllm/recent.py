"""The runs that were recorded without naming a file: what each is, told from its first and its last lines."""

import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .run_files import runs_by_age, runs_folder

SHOWN = 20
SECONDS_A_RUN = 0.2
MAX_HEADER = 16 * 2**20
_CHUNK = 1 << 16
_TAIL = 1 << 20
_STEP = re.compile(rb'"kind": ?"event", ?"i": ?\d+, ?"step": ?(\d+),')


class _Scenario(msgspec.Struct):
    name: str = ""
    title: str = ""
    about: str = ""
    settings: dict[str, Any] = {}


class _Header(msgspec.Struct):
    scenario: _Scenario = msgspec.field(default_factory=_Scenario)


class _End(msgspec.Struct):
    kind: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class RecentRun:
    """A recorded run. `steps` are those found; `more`: the file was too long to be read to its end.

    outcome: how the run ended; empty when the file does not say. when: seconds since the epoch.
    """

    path: Path
    when: float
    name: str
    title: str = ""
    about: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    more: bool = False
    outcome: str = ""


def recent_runs() -> Iterator[RecentRun]:
    """The newest runs, newest first, each read for a moment at most. What is no trace is left out."""
    for when, path in runs_by_age(runs_folder())[: -SHOWN - 1 : -1]:
        try:
            yield _read(path, when)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def _read(path: Path, when: float) -> RecentRun:
    until = time.monotonic() + SECONDS_A_RUN
    first, last, steps, more = b"", b"", 0, False
    for piece in _pieces(path):
        if not first.endswith(b"\n"):
            head, end, _ = piece.partition(b"\n")
            first += head + end
            if len(first) > MAX_HEADER:
                break
        last = last[-_TAIL:] + piece
        if found := _STEP.findall(last):
            steps = int(found[-1][:9])
        if time.monotonic() > until:
            more = True
            break
    header = msgspec.json.decode(first, type=_Header).scenario
    return RecentRun(
        path,
        when,
        header.name,
        header.title,
        header.about,
        header.settings,
        steps,
        more,
        "" if more else _outcome(last),
    )


def _pieces(path: Path) -> Iterator[bytes]:
    """What can be unpacked of a gzip file; it ends quietly where the file is torn."""
    unpacker = zlib.decompressobj(wbits=31)
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            try:
                yield unpacker.decompress(data)
            except zlib.error:
                return


def _outcome(last: bytes) -> str:
    """What the closing line says, if there is one."""
    try:
        end = msgspec.json.decode(last.rstrip().rpartition(b"\n")[2], type=_End)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return end.outcome if end.kind == "end" else ""
