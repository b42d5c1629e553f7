"""Watch expressions: those that every reader of the loop types first, and their values."""

from collections.abc import Iterable
from typing import Any

from ..plain import watched
from ..tour.cursor import Cursor
from ..tour.errors import ExpressionError
from ..tour.expressions import check_names, names
from ..tour.trace import Trace

MAX_WATCHES = 100

TEMPLATES = (
    "{seq}.num_tokens",
    "{seq}.num_cached_tokens",
    "{seq}.num_scheduled_tokens",
    "{seq}.block_table",
    "len(free_block_ids)",
    "{seq}.block_table[0] * block_size + 0",
)
"""What the classic tour watches; the last is the slot of a token: block_table[i] * block_size + offset."""


def of_scenario(trace: Trace) -> list[str]:
    """The watch expressions that the trace's header names."""
    found = trace.table("scenario").get("watch")
    lines = found if isinstance(found, list) else []
    return [line for line in lines[:MAX_WATCHES] if isinstance(line, str)]


def whose(state: dict[str, Any], selected: str | None) -> str | None:
    """Whom the ready-made expressions are for: who is followed, or the first that runs, or the first."""
    queues = [*_list(state, "running"), *_list(state, "waiting"), *(state.get("seqs") or ())]
    return selected or next((item for item in queues if isinstance(item, str)), None)


def templates(seq: str | None) -> list[str]:
    """The ready-made expressions for a request; without one, those that need none."""
    return [text.format(seq=seq) for text in TEMPLATES if seq or "{seq}" not in text]


def _list(state: dict[str, Any], key: str) -> list[Any]:
    value = state.get(key)
    return value if isinstance(value, list) else []


def value(text: str, cursor: Cursor) -> str:
    """The value of an expression at the cursor, or why it has none."""
    return watched(text, names(cursor.state, cursor.event))


def problem(text: str, request_ids: Iterable[str]) -> str | None:
    """Why `text` is no watch expression."""
    try:
        check_names(text, request_ids)
    except ExpressionError as error:
        return str(error)
    return None
