"""Where a trace's text lies: in memory while a run is recorded, in its file when it is replayed.

The text of a long run is larger than what a viewer may hold, so a file is read in blocks and only the last few are
kept. A gzip file stays packed: at every block's start the state of the unpacker is remembered, so that a block is
had without unpacking all that is before it.
"""

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Protocol

from .errors import TraceError

BLOCK = 2**20
"""Bytes of text in a block, or a little more."""

_BLOCKS_KEPT = 6
_PACKED_PIECE = 2**15
_LARGEST_PIECE = 2**20


def mark_as_being_written(file: BinaryIO) -> None:
    """Let other programs know, as long as `file` is open, that it still grows; where files can be locked."""
    with suppress(ImportError, OSError):
        from fcntl import LOCK_EX, LOCK_NB, flock

        flock(file, LOCK_EX | LOCK_NB)


def is_being_written(file: BinaryIO) -> bool:
    """Whether a program that has marked the file still writes it."""
    try:
        from fcntl import LOCK_NB, LOCK_SH, LOCK_UN, flock

        flock(file, LOCK_SH | LOCK_NB)
        flock(file, LOCK_UN)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


class Text(Protocol):
    """The text of a trace, as far as it is known."""

    def append(self, line: bytes) -> int:
        """Keep a line that does not come from the file; where it starts."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`; fewer where the file has changed since it was opened."""

    def read_ahead(self, start: int, end: int) -> Iterator[None]:
        """Have the bytes from `start` to `end` at hand, a few milliseconds a turn."""


class MemoryText:
    """Text that grows."""

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, line: bytes) -> int:
        """Keep a line; where it starts."""
        start = len(self._data)
        self._data += line
        self._data += b"\n"
        return start

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`."""
        # A copy, not a view: another thread may read while this one appends, and no buffer grows under a view.
        return bytes(self._data[start:end])

    def read_ahead(self, start: int, end: int) -> Iterator[None]:
        """They are at hand."""
        return iter(())


class FileText:
    """The text of a file that is read from its start to its end, and anywhere in what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._starts = array("Q", [0])
        self._kept: dict[int, bytes] = {}
        self._latest = (0, b"")
        self._size = 0

    def next_piece(self) -> bytes:
        """The next bytes of the text; empty at its end. Raises TraceError when a gzip file is damaged."""
        piece = self._next_piece()
        self._size += len(piece)
        if self._size - self._starts[-1] >= BLOCK:
            self._starts.append(self._size)
            self._begin_block()
        return piece

    @property
    def file_bytes_read(self) -> int:
        """How many bytes of the file were read so far."""
        return self._size

    def append(self, line: bytes) -> int:
        """A line that does not come from the file is not kept: its place is the end of what was read."""
        return self._size

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end` of what was read."""
        first, block = self._latest
        if first <= start and end - first <= len(block):
            return block[start - first : end - first]
        number = bisect_right(self._starts, start) - 1
        pieces = []
        while start < end:
            block, first = self._block(number), self._starts[number]
            piece = block[start - first : end - first]
            pieces.append(piece)
            number += 1
            if number == len(self._starts):
                break
            start = self._starts[number]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_ahead(self, start: int, end: int) -> Iterator[None]:
        """Read the blocks that hold the bytes from `start` to `end`, one a turn."""
        for number in range(bisect_right(self._starts, start) - 1, bisect_left(self._starts, end)):
            self._block(number)
            yield

    def _block(self, number: int) -> bytes:
        last = number == len(self._starts) - 1
        size = (self._size if last else self._starts[number + 1]) - self._starts[number]
        block = self._kept.pop(number, b"")
        if len(block) < size:
            block = self._load(number, size)
        self._kept[number] = block  # the last to be dropped
        self._latest = self._starts[number], block
        if len(self._kept) > _BLOCKS_KEPT:
            del self._kept[next(iter(self._kept))]
        return block

    def _next_piece(self) -> bytes:
        self._file.seek(self._size)
        return self._file.read(BLOCK // 4)

    def _begin_block(self) -> None:
        """Called where a block begins."""

    def _load(self, number: int, size: int) -> bytes:
        self._file.seek(self._starts[number])
        return self._file.read(size)


class GzipText(FileText):
    """The text of a gzip file. One that is cut short ends where it can be unpacked no further."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._unpacker = _Unpacker(file)
        self._unpackers = [self._unpacker.copy()]

    @property
    def file_bytes_read(self) -> int:
        """How many bytes of the file were read so far."""
        return self._unpacker.at

    def _next_piece(self) -> bytes:
        return self._unpacker.next_piece()

    def _begin_block(self) -> None:
        self._unpackers.append(self._unpacker.copy())

    def _load(self, number: int, size: int) -> bytes:
        unpacker, pieces = self._unpackers[number].copy(), []
        while size > 0 and (piece := unpacker.next_piece()):
            pieces.append(piece[:size])
            size -= len(piece)
        return b"".join(pieces)


class _Unpacker:
    """Unpacks a gzip file, of one member or several, from some place on."""

    def __init__(self, file: BinaryIO, at: int = 0, inflater: "zlib._Decompress | None" = None):
        self._file = file
        self._inflater = inflater or zlib.decompressobj(wbits=31)
        self._packed = b""
        self.at = at

    def copy(self) -> "_Unpacker":
        """Another one at the same place."""
        inflater = None if self._inflater.eof else self._inflater.copy()
        return _Unpacker(self._file, self.at - len(self._packed), inflater)

    def next_piece(self) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            if not self._packed:
                self._file.seek(self.at)
                self._packed = self._file.read(_PACKED_PIECE)
                self.at += len(self._packed)
                if not self._packed:
                    return self._unpack()  # what the unpacker still holds back
            if piece := self._unpack():
                return piece

    def _unpack(self) -> bytes:
        if self._inflater.eof:
            self._inflater = zlib.decompressobj(wbits=31)
        try:
            piece = self._inflater.decompress(self._packed, _LARGEST_PIECE)
        except zlib.error as error:
            raise TraceError(f"the gzip data is damaged ({error})") from error
        rest = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        self._packed = rest
        return piece
