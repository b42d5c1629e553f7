"""What a scenario says and asks while it runs, and when: each entry of its `tour` once, at its first moment."""

from collections.abc import Callable, Iterable
from typing import Any

from .errors import ExpressionError
from .expressions import evaluate, names
from .scenario import Narration, Question
from .trace import Ask, Event
from .triggers import Breakpoint, Trigger

LONGEST_ANSWER = 200
"""Characters of an answer, as the trace format has it."""


class Narrator:
    """Says or asks each entry once, the first time that its moment comes.

    A question that has no answer there is left out: what was to be told after it says so.
    """

    def __init__(
        self, entries: Iterable[Narration], say: Callable[[str], None], ask: Callable[[Ask], None]
    ) -> None:
        self._left = [(Trigger(Breakpoint(e.at, e.condition).line), e) for e in entries]
        self._say = say
        self._ask = ask

    def after(self, event: Event, state: dict[str, Any]) -> None:
        """Look whether an entry belongs to this event."""
        asked = False
        for item in list(self._left):
            trigger, entry = item
            if not trigger.hit(event, state) or not trigger.count:
                continue
            self._left.remove(item)
            if entry.ask is None:
                self._say(entry.say)
            elif asked:
                self._say(f"(A second question at this moment is left out.) {entry.say}")
            else:
                asked = self._put(entry.ask, entry.say, event, state)

    @property
    def unsaid(self) -> list[str]:
        """The entries whose moment has not come."""
        return [trigger.text for trigger, _ in self._left]

    def _put(self, question: Question, say: str, event: Event, state: dict[str, Any]) -> bool:
        """Ask a question. Whether it could be asked."""
        try:
            answer = as_text(evaluate(question.answer, names(state, event)))
            _check(answer, question.choices)
        except ExpressionError as error:
            self._say(f"(A question is left out: {error}.) {say}")
            return False
        self._ask(
            Ask("ask", event.i + 1, question.question, answer, event.step, question.choices, say)
        )
        return True


def as_text(value: Any) -> str:
    """An answer as a person would write it: `yes`, `12`, `3, 4`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(as_text(item) for item in value) if isinstance(value, list) else str(value)


def _check(answer: str, choices: list[str]) -> None:
    if len(answer) > LONGEST_ANSWER or not answer.strip():
        raise ExpressionError(f"its answer has {len(answer):,} characters")
    if choices and answer not in choices:
        raise ExpressionError(f"its answer {answer} is none of its choices")
