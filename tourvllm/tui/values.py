"""The values of watch expressions, now and before what has just happened."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from ..plain import watched
from ..tour.cursor import NEAR, Cursor
from ..tour.expressions import names
from ..tour.trace import Trace

Row = tuple[str, str, str, bool]
"""(text, value before, value, whether it changed)."""

MOST = 20
_Key = tuple[int, tuple[str, ...]]
_known: WeakKeyDictionary[Trace, dict[_Key, tuple[str, ...]]] = WeakKeyDictionary()


def values(cursor: Cursor, texts: list[str]) -> tuple[Row, ...]:
    """Each expression with its values before and after the change that the cursor shows.

    That is the whole step at a step's end, else the one event; the values before a very long step are not fetched.
    """
    shown = tuple(texts[:MOST])
    if not shown:
        return ()
    here, start = cursor.position, cursor.before
    now = _values_at(cursor, here, shown)
    before = _values_at(cursor, start, shown) if here - start <= NEAR else now
    rows = zip(shown, before, now, strict=True)
    return tuple((text, old, new, old != new) for text, old, new in rows)


def prepare(cursor: Cursor, position: int, texts: list[str]) -> Iterator[None]:
    """Find the values at `position`, if that is near: they may be told as the ones before."""
    shown = tuple(texts[:MOST])
    known = _known.setdefault(cursor.trace, {})
    if shown and (position, shown) not in known and cursor.sees(position):
        yield
        _values_at(cursor, position, shown)


def _values_at(cursor: Cursor, position: int, texts: tuple[str, ...]) -> tuple[str, ...]:
    known = _known.setdefault(cursor.trace, {})
    key = (position, texts)
    if key not in known:
        if len(known) > 1000:
            known.clear()
        with cursor.look_back(position) as state:
            scope = names(state, cursor.trace.event(position - 1) if position else None)
            known[key] = tuple(watched(text, scope) for text in texts)
    return known[key]
