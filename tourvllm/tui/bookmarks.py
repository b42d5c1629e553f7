"""Bookmarks of a trace that is not recorded any more: kept beside the user's data, under the trace's digest."""

from bisect import insort
from pathlib import Path
from typing import Annotated

import msgspec
from platformdirs import user_data_path

from ..tour.errors import TourError
from ..tour.trace import Mark, Trace

MAX_BOOKMARKS = 1000


class Bookmark(msgspec.Struct, tag_field="kind", tag="bookmark"):
    """A note on a place. It is written as a line of the trace format."""

    i: int
    step: int
    say: Annotated[str, msgspec.Meta(max_length=10_000)]


class Bookmarks:
    """The user's bookmarks of one trace. They are shown as if the trace itself held them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._path = user_data_path("tourvllm") / "bookmarks" / f"{trace.digest()[:32]}.json"

    def load(self) -> str:
        """Put the kept bookmarks into the trace. A sentence if they cannot be read, else nothing."""
        try:
            for bookmark in self.read():
                self._show(bookmark)
        except (OSError, msgspec.MsgspecError) as error:
            return f"Your bookmarks in {self._path} cannot be read: {error}"
        return ""

    def read(self) -> list[Bookmark]:
        """The kept bookmarks. Raises OSError and MsgspecError."""
        if not self._path.exists():
            return []
        return msgspec.json.decode(self._path.read_bytes(), type=list[Bookmark])[:MAX_BOOKMARKS]

    def lines(self) -> list[bytes]:
        """The kept bookmarks as lines of a trace; none where they cannot be read."""
        try:
            return [msgspec.json.encode(bookmark) for bookmark in self.read()]
        except (OSError, msgspec.MsgspecError):
            return []

    def add(self, i: int, step: int, say: str) -> None:
        """Keep one more. Raises TourError with a sentence when it cannot be kept."""
        bookmark = Bookmark(i, step, say)
        try:
            kept = [*self.read(), bookmark]
            if len(kept) > MAX_BOOKMARKS:
                raise TourError(f"A trace has at most {MAX_BOOKMARKS:,} bookmarks of yours.")
            _write(self._path, msgspec.json.encode(kept))
        except (OSError, msgspec.MsgspecError) as error:
            raise TourError(f"The bookmark cannot be kept in {self._path}: {error}") from error
        self._show(bookmark)

    def _show(self, bookmark: Bookmark) -> None:
        """Put one into the trace, unless it is there: an exported trace has the digest of the first one."""
        said = self._trace.notes.get(bookmark.i, [])
        if bookmark.say not in said and 0 <= bookmark.i <= len(self._trace):
            self._trace.notes[bookmark.i] = [*said, bookmark.say]
            mark = Mark(bookmark.i, bookmark.step, "B")
            insort(self._trace.marks, mark, key=lambda mark: mark.position)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)
