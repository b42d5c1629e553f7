"""Python's search for unused cycles, done between keys: in a long trace it takes up to 60 ms, now and then."""

import gc
from collections.abc import Iterable, Sequence

from textual.strip import Strip

MOST = 100_000
"""New objects with which no quiet moment is waited for: somebody may keep a key down."""

SELDOM = 10
"""Times more seldom than its threshold says is everything searched: most of it has come to stay."""

OFTEN = 5
"""Times that a place was kept, each with some megabytes of unused cycles."""

_kept = 0


def put_off() -> None:
    """From now on search only in `collect`. What has been loaded by now stays, and is not searched again."""
    Strip.divide = divide  # type: ignore[method-assign, assignment]
    gc.freeze()
    gc.disable()


_divide = Strip.divide


def divide(strip: Strip, cuts: Iterable[int]) -> Sequence[Strip]:
    """Textual's `Strip.divide`, but that a strip which is cut nowhere does not keep itself.

    Textual's does, in its cache of what it was cut into: each line that was ever painted is a cycle then, with its
    segments, and nine tenths of all that there is to search for.
    """
    wanted = [cut for cut in cuts if cut <= strip.cell_length]
    return [strip] if wanted == [strip.cell_length] else _divide(strip, wanted)


def keep() -> None:
    """What is there now has come to stay: it is not searched, until `search_kept`."""
    global _kept
    gc.freeze()
    _kept += 1


def search_kept() -> None:
    """Search, for a third of a second, also what was kept, if that was often: some of it is unused by now."""
    global _kept
    if _kept >= OFTEN:
        _kept = 0
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def collect(quiet: bool) -> None:
    """Search about as far as Python would have by itself, if the moment is quiet or too much has gathered."""
    most_young, most_middle, most_old = gc.get_threshold()
    young, middle, old = gc.get_count()
    if young > (most_young if quiet else MOST):
        gc.collect(0 if middle <= most_middle else 1 if old <= SELDOM * most_old else 2)


def put_off_no_more() -> None:
    """Let Python search by itself again."""
    gc.enable()
    gc.unfreeze()
