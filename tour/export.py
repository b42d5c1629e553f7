"""Writing a trace to another file, whole: with bookmarks that were kept beside it, and a closing line."""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from .errors import RecordError
from .recorder import FileSink
from .trace import event_body

_encode = msgspec.json.Encoder().encode


class _Head(msgspec.Struct):
    kind: Any = None


_decode_head = msgspec.json.Decoder(_Head).decode


def export(source: Path, target: Path, bookmarks: Iterable[bytes] = ()) -> int:
    """Copy the trace at `source` to `target` and return the number of its events.

    A trace that is cut short, or still recorded, gets its closing line; `bookmarks` are lines that come before it.
    Raises RecordError when there is nothing to read, or `target` cannot be written.
    """
    if target.exists() and source.samefile(target):
        raise RecordError(f"{target} is the trace itself: name another file")
    sink = FileSink(target)
    digest, count, closing = hashlib.sha256(), 0, None
    left = dict.fromkeys(bookmarks)
    try:
        for line in _whole_lines(source):
            kind = _decode_head(line).kind
            if kind == "end":
                closing = line
                break
            if kind == "event":
                digest.update(event_body(line))
                count += 1
            elif kind == "bookmark":
                left.pop(line, None)
            sink.write(line)
        for line in left:
            sink.write(line)
        sink.write(closing or _closing(count, digest.hexdigest()))
    except OSError as error:
        raise RecordError(f"{source} cannot be read: {error.strerror or error}") from error
    finally:
        sink.close()
    return count


def _closing(count: int, digest: str) -> bytes:
    outcome = "exported before the run had ended"
    return _encode({"kind": "end", "count": count, "digest": digest, "outcome": outcome})


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The lines, without their newlines; a torn last one is left out."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        try:
            for line in file:
                if line.endswith(b"\n") and line.strip():
                    _decode_head(line)
                    yield line.rstrip(b"\r\n")
        except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.MsgspecError):
            return  # cut short, or still written: what was whole is there
