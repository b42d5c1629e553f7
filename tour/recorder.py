"""Recording: events in, trace lines out, with keyframes, notes, a digest and a closing line.

The recorder is engine-neutral: whoever watches an engine tells it the stop, the facts and the patches. It keeps
the state tree that the patches make, which conditions, narrations and the verifier read.
"""

import gzip
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from .errors import RecordError
from .patch import Patch, apply
from .storage import mark_as_being_written
from .trace import FORMAT, Event

KEYFRAME_EVERY = 500
"""Least number of events between two keyframes; large states get fewer, so that they never double a trace."""

LARGE_KEYFRAME = 2**16
"""Bytes of a keyframe from which on the later ones leave out what has finished."""

MAX_KEPT = 256
"""Lines that a file's sink holds back at most between two flushes."""

_encode = msgspec.json.Encoder().encode


class Sink(Protocol):
    """Where trace lines go: a file, a pipe, a growing Trace."""

    def write(self, line: bytes) -> None:
        """Take one line, without its newline."""

    def flush(self) -> None:
        """Make everything written so far safe."""


class FileSink:
    """A trace file, gzip by suffix `.gz`. Each flush leaves a file that opens to its last whole line.

    The file is opened with the first line: a run that cannot start leaves an older trace alone.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._raw: BinaryIO | None = None
        self._file: Any = None
        self._kept: list[bytes] = []

    @property
    def written(self) -> bool:
        """Whether there is a trace at `path` now."""
        return self._raw is not None

    def write(self, line: bytes) -> None:
        """Append one line. Raises RecordError, as the other methods do, when that cannot be done."""
        self._kept.append(line)
        if self._raw is None or len(self._kept) >= MAX_KEPT:
            self._write_kept()

    def _write_kept(self) -> None:
        """Hand over the lines since the last time, together: one by one they would cost twice as much."""
        with self._told():
            if self._raw is None:
                self._raw = self.path.open("wb")
                mark_as_being_written(self._raw)
                packed = self.path.suffix == ".gz"
                # The fixed name and time keep two equal runs equal but for the times in their events.
                self._file = (
                    gzip.GzipFile("", "wb", 3, fileobj=self._raw, mtime=0) if packed else self._raw
                )
            lines, self._kept = self._kept, []
            self._file.write(b"\n".join([*lines, b""]))

    def flush(self) -> None:
        """Hand all lines to the operating system: a killed process loses none of them."""
        if self._raw is not None:
            self._write_kept()
            with self._told():
                self._file.flush()
                self._raw.flush()

    def close(self) -> None:
        """Close the file; twice is fine."""
        if self._raw is not None:
            with self._told():
                try:
                    if self._kept:
                        self._write_kept()
                    self._file.close()
                finally:
                    self._raw.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"the trace cannot be written to {self.path}: {error.strerror or error}"
            ) from error


class Recorder:
    """Turns stops into trace lines for its sinks.

    `header` holds whatever describes the run (scenario, engine and model config, platform, sources); `state` is
    the initial state, which the recorder owns from now on.
    """

    def __init__(
        self,
        header: dict[str, Any],
        state: dict[str, Any],
        sinks: list[Sink],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.state = state
        self.count = 0
        self._step = 0
        self._sinks = sinks
        self._clock = clock
        self._start = clock()
        self._digest = hashlib.sha256()
        self._since_keyframe = 0
        self._bytes_since_keyframe = 0
        self._keyframe_bytes = 0
        self._leaves_out = False
        self._stored_finished: set[str] = set()
        self._closed = False
        self._write(_encode({"kind": "header", "format": FORMAT, **header, "state": state}))
        self.flush()

    def emit(
        self,
        stop: str,
        step: int,
        at: tuple[str, int] | None,
        facts: dict[str, Any],
        do: list[Patch],
    ) -> Event:
        """Record one stop and apply its patches to the recorder's state. Returns the event."""
        event = Event(i=self.count, step=step, stop=stop, at=at, facts=facts, do=do)
        body = _encode(
            {
                "kind": "event",
                "i": event.i,
                "step": step,
                "stop": stop,
                "at": at,
                "facts": facts,
                "do": do,
            }
        )
        body = body[:-1]
        self._digest.update(body)
        event.t = self._clock() - self._start
        line = body + b',"t":%d}' % event.t
        self._write(line)
        # The state owns what it is given: lists from the event are handed over as copies.
        for patch in do:
            apply(self.state, [*patch[:2], *(_own(value) for value in patch[2:])])
            if self._stored_finished and patch[1][0] == "seqs":
                self._stored_finished.difference_update(patch[1][1:2] or self.state["seqs"])
        self.count += 1
        self._step = step
        self._since_keyframe += 1
        self._bytes_since_keyframe += len(line)
        if (
            self._since_keyframe >= KEYFRAME_EVERY
            and self._bytes_since_keyframe >= self._keyframe_bytes
        ):
            self._keyframe()
        return event

    def note(self, kind: str, **fields: Any) -> None:
        """Record a line that belongs to the last event: a `note` (narration), an `ask` or a `bookmark`."""
        self._write(_encode({"kind": kind, "i": self.count, "step": self._step, **fields}))

    @contextmanager
    def halted(self) -> Iterator[None]:
        """While somebody looks at a halted run: this time does not count in the events' times."""
        since = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - since

    def flush(self) -> None:
        """Make everything recorded so far safe in every sink."""
        for sink in self._sinks:
            sink.flush()

    def close(self, outcome: str = "complete") -> None:
        """Write the closing line. `outcome` says how the run ended; twice is fine."""
        if self._closed:
            return
        self._closed = True
        closing = {
            "kind": "end",
            "count": self.count,
            "digest": self._digest.hexdigest(),
            "outcome": outcome,
        }
        self._write(_encode(closing))
        self.flush()

    def _keyframe(self) -> None:
        kind, state = "keyframe", self.state
        if self._leaves_out:
            kind, state = "partial", self._without_finished()
        line = _encode({"kind": kind, "i": self.count, "state": state})
        self._write(line)
        self._since_keyframe = 0
        self._bytes_since_keyframe = 0
        self._keyframe_bytes = len(line)
        self._leaves_out |= len(line) >= LARGE_KEYFRAME

    def _without_finished(self) -> dict[str, Any]:
        """The state, with null for each request that has finished; a `finished` line holds it, once."""
        seqs, stored = self.state["seqs"], self._stored_finished
        ended = [seq_id for seq_id in self.state["finished"] if seq_id in seqs]
        if new := {seq_id: seqs[seq_id] for seq_id in ended if seq_id not in stored}:
            self._write(_encode({"kind": "finished", "i": self.count, "seqs": new}))
            stored.update(new)
        return {**self.state, "seqs": {**seqs, **dict.fromkeys(ended)}}

    def _write(self, line: bytes) -> None:
        for sink in self._sinks:
            sink.write(line)


def _own(value: Any) -> Any:
    if isinstance(value, list):
        return (
            [_own(item) for item in value]
            if value and isinstance(value[0], list | dict)
            else list(value)
        )
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return value
