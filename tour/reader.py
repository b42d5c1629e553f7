"""Reading a trace file, whole or cut short, plain or gzip. A trace from a stranger is untrusted input."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from .errors import TraceError
from .trace import MAX_LINE, Trace

MAX_BYTES = 8 * 2**30
_CHUNK = 1 << 20


def read_trace(path: str | Path) -> Trace:
    """Read the trace at `path`.

    A file cut short anywhere opens to its last whole event, and `trace.problem` says so. Raises TraceError when
    there is no header to start from, and OSError when the file cannot be read.
    """
    trace = Trace()
    try:
        for line in _lines(Path(path)):
            if line.strip():
                trace.feed(line)
    except TraceError as error:
        if trace.header is None:
            raise TraceError(f"{path} is not a tourvllm trace: {error}") from error
        trace.problem = f"the trace stops after event {len(trace)}: {error}"
    if trace.header is None:
        detail = trace.problem or "the file is empty"
        raise TraceError(f"{path} is not a tourvllm trace: {detail}")
    if trace.problem is None and not trace.complete:
        trace.problem = f"the run was not recorded to its end: it stops after event {len(trace)}"
    if trace.problem is None and not trace.digest_matches:
        trace.problem = (
            "the digest in the closing line is not that of the events: the file was changed"
        )
    return trace


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines; the last may be torn, which its reader then says."""
    rest = b""
    for chunk in _chunks(path):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE:
            raise TraceError(f"a line is over the limit of {MAX_LINE:,} bytes")
        yield from lines
    yield rest


def _chunks(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked if they are gzip; stops quietly where a gzip stream is cut short."""
    if path.is_fifo():
        raise TraceError(f"{path} is a pipe: a trace is read from a file")
    total = 0
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        unpacker = zlib.decompressobj(wbits=31) if packed else None
        while data := file.read(_CHUNK):
            while data:
                if unpacker is None:
                    piece, data = data, b""
                else:
                    piece, data, unpacker = _unpack(unpacker, data)
                total += len(piece)
                if total > MAX_BYTES:
                    raise TraceError(
                        f"the trace is over the limit of {MAX_BYTES:,} bytes when unpacked"
                    )
                yield piece


def _unpack(unpacker: "zlib._Decompress", data: bytes) -> tuple[bytes, bytes, "zlib._Decompress"]:
    try:
        piece = unpacker.decompress(data, _CHUNK * 16)
    except zlib.error as error:
        raise TraceError(f"the gzip data is damaged ({error})") from error
    rest = unpacker.unconsumed_tail
    if unpacker.eof:
        rest = unpacker.unused_data
        unpacker = zlib.decompressobj(wbits=31)
    return piece, rest, unpacker
