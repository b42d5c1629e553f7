"""Where to halt and when to speak: breakpoints and narrations, decided on an event and the state after it."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from .cursor import Cursor
from .errors import ExpressionError
from .expressions import evaluate, names
from .scenario import Narration
from .stops import STOPS
from .trace import Event


class Trigger:
    """A stop's name or a condition over the state.

    A stop's name triggers at each such stop. A condition triggers where it becomes true, not all the while that
    it is: so that continuing from there goes on to something new. One that cannot be evaluated (a request that
    does not exist yet) counts as false, and `problem` keeps the reason.
    """

    def __init__(self, text: str, condition: str | None = None) -> None:
        self.text = text
        self.condition = condition
        self.problem: str | None = None
        self._was_true = False

    def holds(self, event: Event | None, state: dict[str, Any]) -> bool:
        """Whether it is true here, whatever was before."""
        if self.text in STOPS and (event is None or event.stop != self.text):
            return False
        needed = [text for text in (self.text, self.condition) if text and text not in STOPS]
        if not needed:
            return True
        values = names(state, event)
        try:
            return all(evaluate(text, values) for text in needed)
        except ExpressionError as error:
            self.problem = str(error)
            return False

    def hit(self, event: Event, state: dict[str, Any]) -> bool:
        """Whether it triggers at this event, the one after the last that was asked about."""
        true = self.holds(event, state)
        hit = true and (self.text in STOPS or not self._was_true)
        self._was_true = true
        return hit


class Narrator:
    """Says each narration once, the first time that its moment comes."""

    def __init__(self, narrations: Iterable[Narration], say: Callable[[str], None]) -> None:
        self._left = [(Trigger(item.at, item.condition), item.say) for item in narrations]
        self._say = say

    def after(self, event: Event, state: dict[str, Any]) -> None:
        """Look whether a narration belongs to this event."""
        for entry in list(self._left):
            if entry[0].hit(event, state):
                self._left.remove(entry)
                self._say(entry[1])

    @property
    def unsaid(self) -> list[str]:
        """The narrations whose moment has not come."""
        return [trigger.text for trigger, _ in self._left]


Search = Generator[None, None, str | None]


def find(cursor: Cursor, texts: Iterable[str], forward: bool) -> str | None:
    """Move `cursor` to the next (or last) place where one of the breakpoints `texts` triggers; return that one.

    With none in that direction it goes to the end (or the start) and returns None.
    """
    steps = search(cursor, texts, forward)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: str | None = done.value
            return found


def search(cursor: Cursor, texts: Iterable[str], forward: bool) -> Search:
    """`find`, one event a step: so that a long search can be watched and given up."""
    triggers = [Trigger(text) for text in texts]
    return _search_forward(cursor, triggers) if forward else _search_back(cursor, triggers)


def first_hit(triggers: Iterable[Trigger], event: Event, state: dict[str, Any]) -> str | None:
    """Ask every trigger about this event, and return the first that triggers."""
    hits = [trigger.text for trigger in triggers if trigger.hit(event, state)]
    return hits[0] if hits else None


def _search_forward(cursor: Cursor, triggers: list[Trigger]) -> Search:
    for trigger in triggers:
        trigger.hit(cursor.event or Event(-1, 0, ""), cursor.state)
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        event = cursor.event
        if event and (hit := first_hit(triggers, event, cursor.state)):
            return hit
        yield
    return None


def _search_back(cursor: Cursor, triggers: list[Trigger]) -> Search:
    """A condition triggers at a position where it holds and at the one before does not."""
    if cursor.position == 0:
        return None
    cursor.seek(cursor.position - 1)
    here = [trigger.holds(cursor.event, cursor.state) for trigger in triggers]
    while cursor.position > 0:
        cursor.seek(cursor.position - 1)
        before = [trigger.holds(cursor.event, cursor.state) for trigger in triggers]
        for trigger, is_true, was_true in zip(triggers, here, before, strict=True):
            if is_true and (trigger.text in STOPS or not was_true):
                cursor.seek(cursor.position + 1)
                return trigger.text
        here = before
        yield
    return None
