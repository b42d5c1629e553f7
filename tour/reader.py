"""Reading a trace file, whole or cut short, plain or gzip. A trace from a stranger is untrusted input."""

from collections.abc import Iterator
from io import FileIO
from os import fstat
from pathlib import Path
from time import monotonic

from .errors import TraceError
from .storage import FileText, GzipText, is_being_written
from .trace import MAX_LINE, Trace

MAX_BYTES = 8 * 2**30
FIRST_LOOK = 0.1
"""Seconds for which a trace is read before it is first shown: then most are whole."""


def read_trace(path: str | Path) -> Trace:
    """Read the trace at `path`, all of it.

    A file cut short anywhere opens to its last whole event, and `trace.problem` says so. Raises TraceError when
    there is no header to start from, and OSError when the file cannot be read.
    """
    trace = open_trace(path)
    for _ in trace.rest:
        pass
    return trace


def open_trace(path: str | Path) -> Trace:
    """The trace at `path` with its first events at least; `trace.rest` reads the others.

    What is wrong with the end of the file is known, in `trace.problem`, when all is read. Raises what `read_trace`
    raises.
    """
    path = Path(path)
    if path.is_fifo():
        raise TraceError(f"{path} is a pipe: a trace is read from a file")
    file = path.open("rb", buffering=0)
    packed = file.read(2) == b"\x1f\x8b"
    text = GzipText(file) if packed else FileText(file)
    trace = Trace(text)
    trace.share = 0.0
    trace.rest = _read(trace, text, path, file)
    until = monotonic() + FIRST_LOOK
    for _ in trace.rest:
        if len(trace) and monotonic() > until:
            break
    return trace


def _read(trace: Trace, text: FileText, path: Path, file: FileIO) -> Iterator[None]:
    size = fstat(file.fileno()).st_size
    try:
        for lines, start in _lines(text):
            trace.take(lines, start)
            trace.share = min(0.99, text.file_bytes_read / max(1, size))
            yield
    except TraceError as error:
        if trace.header is None:
            raise TraceError(f"{path} is not a tourvllm trace: {error}") from error
        trace.problem = f"the trace stops after event {len(trace)}: {error}"
    except OSError as error:
        if trace.header is None:
            raise
        trace.problem = f"the trace cannot be read on after event {len(trace)}: {error}"
    trace.share = 1.0
    if trace.header is None:
        raise TraceError(f"{path} is not a tourvllm trace: the file is empty")
    if trace.problem is None and not trace.complete:
        trace.problem = (
            f"the run is still being recorded: this is how far it was, at event {len(trace)}"
            if is_being_written(file)
            else f"the run was not recorded to its end: it stops after event {len(trace)}"
        )
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
