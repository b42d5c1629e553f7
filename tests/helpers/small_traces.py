"""Traces that no engine recorded: exactly these events."""

from typing import Any

from support import line_of
from tourvllm.tour.state import empty_state
from tourvllm.tour.trace import Trace


def trace_of(*events: dict[str, Any]) -> Trace:
    """A trace of these events; step 1, no facts and no patches where nothing is said."""
    trace = Trace()
    trace.feed(line_of(kind="header", format=1, state=empty_state(4, range(4))))
    for i, event in enumerate(events):
        trace.feed(line_of(**{"kind": "event", "i": i, "step": 1, "do": [], "facts": {}, **event}))
    return trace
