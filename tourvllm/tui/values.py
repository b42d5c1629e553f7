"""The values of watch expressions, now and before what has just happened."""

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
    Changes the cursor's place and brings it back.
    """
    shown = tuple(texts[:MOST])
    if not shown:
        return ()
    now = _evaluate(cursor, shown)
    here, start = cursor.position, cursor.before
    known = _known[cursor.trace].get((start, shown))
    before = known or (_visit(cursor, start, shown) if here - start <= NEAR else now)
    rows = zip(shown, before, now, strict=True)
    return tuple((text, old, new, old != new) for text, old, new in rows)


def _visit(cursor: Cursor, position: int, texts: tuple[str, ...]) -> tuple[str, ...]:
    here = cursor.position
    try:
        cursor.seek(position)
        return _evaluate(cursor, texts)
    finally:
        cursor.seek(here)


def _evaluate(cursor: Cursor, texts: tuple[str, ...]) -> tuple[str, ...]:
    known = _known.setdefault(cursor.trace, {})
    key = (cursor.position, texts)
    if key not in known:
        if len(known) > 1000:
            known.clear()
        scope = names(cursor.state, cursor.event)
        known[key] = tuple(watched(text, scope) for text in texts)
    return known[key]
