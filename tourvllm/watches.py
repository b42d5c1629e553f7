"""Watch expressions in a plain walk: told at each stop where their value changes, as `old -> new`."""

from collections.abc import Iterable
from typing import Any

import msgspec

from .plain import shown
from .tour.errors import ExpressionError
from .tour.expressions import evaluate, names
from .tour.text import printable
from .tour.trace import Event


class Watches:
    """Looks at its expressions after every event. `silent` are those that had no value yet."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self._last: dict[str, tuple[bytes, str]] = {}

    @property
    def silent(self) -> list[str]:
        """The expressions that had no value so far."""
        return [text for text in self._texts if text not in self._last]

    def changes(self, event: Event, state: dict[str, Any]) -> list[str]:
        """One line for each value that changed. Where an expression has no value it keeps its last one."""
        if not self._texts:
            return []
        values = names(state, event)
        lines = (self._change(text, event, values) for text in self._texts)
        return [line for line in lines if line]

    def _change(self, text: str, event: Event, values: dict[str, Any]) -> str:
        try:
            value = evaluate(text, values)
            now = _fingerprint(value), shown(value)
        except ExpressionError:
            return ""
        before = self._last.get(text)
        self._last[text] = now
        if before is None:
            return printable(f"{text} = {now[1]}")
        return "" if before[0] == now[0] else printable(f"{text}: {before[1]} -> {now[1]}")


def _fingerprint(value: Any) -> bytes:
    """The whole value, frozen: the state's lists change in place, and what is shown of a long one is its begin."""
    try:
        return msgspec.json.encode(value)
    except (OverflowError, TypeError, ValueError):
        return shown(value).encode()
