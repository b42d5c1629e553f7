"""The prediction questions of a trace: which are still open, which one is to be asked now, and the score."""

from ..tour.lessons import Score, grade
from ..tour.trace import Ask, Trace


class Asks:
    """`pending` is the question that the walk has halted before. Each is asked once."""

    def __init__(self, trace: Trace) -> None:
        self.score = Score()
        self.pending: Ask | None = None
        self._trace = trace
        self._closed: set[int] = set()

    def ahead(self, position: int, target: int) -> Ask | None:
        """The first open question on the way from `position` on to `target`."""
        open_ones = [
            i for i in self._trace.asks if position < i <= target and i not in self._closed
        ]
        return self._trace.asks[min(open_ones)] if open_ones else None

    @property
    def all_closed(self) -> bool:
        """Whether every question so far was answered or skipped."""
        return self._closed >= self._trace.asks.keys()

    def close(self, ask: Ask, answer: str | None) -> None:
        """Count an answer (None: it was skipped)."""
        self._closed.add(ask.i)
        self.pending = None
        self.score.count(None if answer is None else grade(ask, answer))
