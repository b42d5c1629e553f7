"""Where to halt: breakpoints, decided on an event and the state after it, and the search for one.

A breakpoint is one line, `AT [if CONDITION] [hits N]`. AT is the name of a stop, the id of a request, or a
condition over the state.
"""

import re
from collections.abc import Collection, Generator, Iterable
from enum import Enum
from typing import Any, NamedTuple

from .cursor import Cursor
from .errors import ExpressionError, UnknownNameError
from .expressions import bare_word, check_names, check_syntax, closest, evaluate, names
from .stops import STOPS
from .trace import Event, Trace

MAX_LINE = 1200
"""Characters of a breakpoint: two conditions and what stands between them."""

_HITS = re.compile(r"(.*\S)\s+hits\s+(\d{1,9})", re.S)


class Breakpoint(NamedTuple):
    """The parts of a breakpoint's line."""

    at: str
    condition: str | None = None
    hits: int = 1

    @property
    def line(self) -> str:
        """The line that has these parts."""
        text = f"{self.at} if {self.condition}" if self.condition else self.at
        return f"{text} hits {self.hits}" if self.hits > 1 else text


def parse_breakpoint(line: str) -> Breakpoint:
    """The parts of a line. Raises ExpressionError with a sentence.

    An `if` that belongs to an expression (`a if b else c`) does not end AT: the first one that leaves an
    expression on both of its sides does.
    """
    text = line.strip()
    if len(text) > MAX_LINE:
        raise ExpressionError(f"a breakpoint has {MAX_LINE:,} characters at most")
    if len(text.splitlines()) != 1:
        raise ExpressionError("a breakpoint is one line: AT [if CONDITION] [hits N]")
    found = _HITS.fullmatch(text)
    rest, hits = (found[1], int(found[2])) if found else (text, 1)
    if hits < 1:
        raise ExpressionError(
            "hits counts from 1: it halts at the N-th time and each time after it"
        )
    if _is_expression(rest):
        return Breakpoint(rest, None, hits)
    for word in re.finditer(r"\sif\s", rest):
        at, condition = rest[: word.start()].strip(), rest[word.end() :].strip()
        if _is_expression(at) and _is_expression(condition):
            return Breakpoint(at, condition, hits)
    at, _, condition = rest.partition(" if ")
    check_syntax(at)
    check_syntax(condition or rest)
    raise ExpressionError(f"{line!r} is not a breakpoint: AT [if CONDITION] [hits N]")


def _is_expression(text: str) -> bool:
    try:
        check_syntax(text)
    except ExpressionError:
        return False
    return True


def check_breakpoint(text: str, request_ids: Collection[str]) -> None:
    """Raise ExpressionError for a line that could never trigger, with the name that was probably meant."""
    parts = parse_breakpoint(text)
    check_place(parts.at, request_ids)
    if parts.condition:
        check_names(parts.condition, request_ids)


def check_place(at: str, request_ids: Collection[str]) -> None:
    """Raise ExpressionError if `at` is no stop, none of these requests and no condition over the state."""
    check_syntax(at)
    if not bare_word(at):
        check_names(at, request_ids)
    elif at not in STOPS and at not in request_ids:
        meant = closest(at, [*STOPS, *request_ids])
        advice = f"did you mean {meant}?" if meant else f"the stops are {', '.join(STOPS)}"
        raise ExpressionError(f"{at} is neither a stop nor a request: {advice}")


class Status(Enum):
    """What a trigger finds at a place."""

    NO = "no"
    YES = "yes"
    BROKEN = "broken"


class Trigger:
    """A breakpoint at work. Raises ExpressionError for a line that is none.

    A stop's name triggers at each such stop, a request's id at each event whose facts name it. A condition
    triggers where it becomes true, not all the while that it is: so that continuing from there goes on to
    something new. `count` is how often it has triggered; it halts from the N-th time on.

    What a name has no value for yet (a request that has not arrived, the fact of another stop) counts as false.
    Any other condition that cannot be evaluated halts once, and `problem` keeps the reason.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at, self.condition, self.hits = parse_breakpoint(text)
        self.count = 0
        self.problem: str | None = None
        self._at_events = self.at in STOPS or bare_word(self.at)
        self._needed = [
            *([] if self._at_events else [self.at]),
            *([self.condition] if self.condition else []),
        ]
        self._before = Status.NO
        self._complained = False

    def status(self, event: Event | None, state: dict[str, Any]) -> Status:
        """Whether it is true here, whatever was before."""
        if self._at_events and not (event and self._is_about(event)):
            return Status.NO
        if not self._needed:
            return Status.YES
        values = names(state, event)
        try:
            return Status.YES if all(evaluate(text, values) for text in self._needed) else Status.NO
        except UnknownNameError as error:
            self.problem = error.reason
            return Status.NO
        except ExpressionError as error:
            self.problem = error.reason
            return Status.BROKEN

    def say(self, now: Status) -> str:
        """What to say where it halts: its line, or why that cannot be evaluated."""
        return (
            f"{self.text} cannot be evaluated: {self.problem}"
            if now is Status.BROKEN
            else self.text
        )

    def begins(self, before: Status, now: Status) -> bool:
        """Whether it triggers where it is `now`, having been `before` at the event before."""
        return now is Status.BROKEN or (
            now is Status.YES and (self._at_events or before is not Status.YES)
        )

    def start(self, event: Event | None, state: dict[str, Any]) -> None:
        """Begin to watch here. What is true already is nothing new: it does not count."""
        self._before = self.status(event, state)
        self._complained = False

    def hit(self, event: Event, state: dict[str, Any]) -> str | None:
        """What to say if it halts at this event, the one after the last that was asked about."""
        now = self.status(event, state)
        begins = self.begins(self._before, now)
        self._before = now
        return self.say(now) if begins and self.halts(now) else None

    def halts(self, now: Status) -> bool:
        """Count one that triggers here, and whether it halts: from its N-th time on, or for its first problem."""
        if now is Status.BROKEN:
            first, self._complained = not self._complained, True
            return first
        self.count += 1
        return self.count >= self.hits

    def _is_about(self, event: Event) -> bool:
        if self.at in STOPS:
            return event.stop == self.at
        facts = event.facts
        several = facts.get("seqs")
        return any(facts.get(key) == self.at for key in ("seq", "needed_by", "behind")) or (
            isinstance(several, list) and self.at in several
        )


Search = Generator[None, None, str | None]


def find(cursor: Cursor, texts: Iterable[str], forward: bool) -> str | None:
    """Move `cursor` to the next (or last) place where one of the breakpoints `texts` halts; return what to say.

    With none in that direction it goes to the end (or the start) and returns None.
    """
    return _to_end(search(cursor, texts, forward))


def search(cursor: Cursor, texts: Iterable[str], forward: bool) -> Search:
    """`find`, one event a step: so that a long search can be watched and given up.

    A condition that cannot be evaluated halts each search anew: whoever was told turns it off. Raises
    ExpressionError at once for a line that is no breakpoint.
    """
    triggers = [Trigger(text) for text in texts]
    return _search_forward(cursor, triggers) if forward else _search_back(cursor, triggers)


def first_hit(triggers: Iterable[Trigger], event: Event, state: dict[str, Any]) -> str | None:
    """Ask every trigger about this event, and return what the first that halts has to say."""
    told = [said for trigger in triggers if (said := trigger.hit(event, state))]
    return told[0] if told else None


def _to_end(steps: Search) -> str | None:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: str | None = done.value
            return found


def count(trace: Trace, triggers: list[Trigger], position: int | None = None) -> Search:
    """Let the triggers count what happens from the run's start to `position`, one event a step.

    Without a position, to the end of what is recorded when the counting comes there.
    """
    if not triggers:
        return None
    cursor = Cursor(trace)
    for trigger in triggers:
        trigger.start(None, cursor.state)
    while cursor.position < (len(trace) if position is None else position):
        cursor.seek(cursor.position + 1)
        if event := cursor.event:
            first_hit(triggers, event, cursor.state)
        yield
    return None


def _search_forward(cursor: Cursor, triggers: list[Trigger]) -> Search:
    yield from count(cursor.trace, [t for t in triggers if t.hits > 1], cursor.position)
    for trigger in triggers:
        trigger.start(cursor.event, cursor.state)
    while not cursor.at_end:
        cursor.seek(cursor.position + 1)
        event = cursor.event
        if event and (told := first_hit(triggers, event, cursor.state)):
            return told
        yield
    return None


def _search_back(cursor: Cursor, triggers: list[Trigger]) -> Search:
    """A condition triggers at a position where it holds and at the one before does not."""
    if cursor.position == 0:
        return None
    yield from count(cursor.trace, [t for t in triggers if t.hits > 1], cursor.position - 1)
    cursor.seek(cursor.position - 1)
    here = [_look(trigger, cursor) for trigger in triggers]
    while cursor.position > 0:
        cursor.seek(cursor.position - 1)
        before = [_look(trigger, cursor) for trigger in triggers]
        told = [
            said
            for trigger, (now, said), (was, _) in zip(triggers, here, before, strict=True)
            if _passed(trigger, now, was)
        ]
        if told:
            cursor.seek(cursor.position + 1)
            return told[0]
        here = before
        yield
    return None


def _look(trigger: Trigger, cursor: Cursor) -> tuple[Status, str]:
    status = trigger.status(cursor.event, cursor.state)
    return status, trigger.say(status)


def _passed(trigger: Trigger, now: Status, was: Status) -> bool:
    """Whether to halt at a place that a search comes back to; its time is taken off the count."""
    if not trigger.begins(was, now):
        return False
    halts = now is Status.BROKEN or trigger.hits == 1 or trigger.count >= trigger.hits
    trigger.count -= now is Status.YES
    return halts
