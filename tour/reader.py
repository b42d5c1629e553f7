"""Reading a trace file, whole or cut short, plain or gzip. A trace from a stranger is untrusted input."""

from collections.abc import Iterator
from os import fstat
from pathlib import Path

from .errors import TraceError
from .storage import FileText, GzipText
from .trace import MAX_LINE, Trace

MAX_BYTES = 8 * 2**30
FIRST_EVENTS = 2000
"""So many events are read before a trace is first shown."""


def read_trace(path: str | Path) -> Trace:
    """Read the trace at `path`, all of it.

    A file cut short anywhere opens to its last whole event, and `trace.problem` says so. Raises TraceError when
    there is no header to start from, and OSError when the file cannot be read.
    """
    trace, rest = open_trace(path)
    for _ in rest:
        pass
    return trace


def open_trace(path: str | Path) -> tuple[Trace, Iterator[None]]:
    """The trace at `path` with its first events, and an iterator that reads the rest, a few milliseconds a turn.

    `trace.share` says how much is read; what is wrong with the end of the file is known, in `trace.problem`, when
    the iterator has ended. Raises what `read_trace` raises.
    """
    path = Path(path)
    if path.is_fifo():
        raise TraceError(f"{path} is a pipe: a trace is read from a file")
    file = path.open("rb", buffering=0)
    packed = file.read(2) == b"\x1f\x8b"
    text = GzipText(file) if packed else FileText(file)
    trace = Trace(text)
    trace.share = 0.0
    reading = _read(trace, text, path, fstat(file.fileno()).st_size)
    for _ in reading:
        if len(trace) >= FIRST_EVENTS:
            break
    return trace, reading


def _read(trace: Trace, text: FileText, path: Path, size: int) -> Iterator[None]:
    try:
        for lines, start in _lines(text):
            trace.take(lines, start)
            trace.share = min(1.0, text.file_bytes_read / max(1, size))
            yield
    except TraceError as error:
        if trace.header is None:
            raise TraceError(f"{path} is not a tourvllm trace: {error}") from error
        trace.problem = f"the trace stops after event {len(trace)}: {error}"
    trace.share = 1.0
    if trace.header is None:
        raise TraceError(f"{path} is not a tourvllm trace: the file is empty")
    if trace.problem is None and not trace.complete:
        trace.problem = f"the run was not recorded to its end: it stops after event {len(trace)}"
    if trace.problem is None and not trace.digest_matches:
        trace.problem = (
            "the digest in the closing line is not that of the events: the file was changed"
        )


def _lines(text: FileText) -> Iterator[tuple[list[bytes], int]]:
    """Some lines at a time, and where in the text they start. The last may be torn, which its reader then says."""
    torn: list[bytes] = []
    start = size = 0
    while piece := text.next_piece():
        size += len(piece)
        if size > MAX_BYTES:
            raise TraceError(f"the trace is over the limit of {MAX_BYTES:,} bytes when unpacked")
        first, newline, others = piece.partition(b"\n")
        torn.append(first)
        if sum(map(len, torn)) > MAX_LINE:
            raise TraceError(f"a line is over the limit of {MAX_LINE:,} bytes")
        if newline:
            lines = [b"".join(torn), *others.split(b"\n")]
            torn = [lines.pop()]
            yield lines, start
            start = size - len(torn[0])
    yield [b"".join(torn)], start
