"""A trace: the record of a run, in memory, finished or still growing.

On disk a trace is JSON Lines (see docs/trace-format.md). In memory there is an index of the lines, some twenty
bytes an event, and any event is decoded in microseconds from where its text lies: in memory while the run is live,
in the file of a replay. The rest of the program cannot tell them apart.
"""

import hashlib
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from .errors import TraceError
from .keyframes import Keyframes
from .state import check_shape
from .stop_index import StopIndex, Wanted
from .stops import MARKS
from .storage import MemoryText, Text

FORMAT = 1
MAX_LINE = 64 * 2**20
MAX_NOTES = 100
"""Notes that are kept at one position: more come only from somebody who means no good."""


class Event(msgspec.Struct, tag_field="kind", tag="event"):
    """One stop. `at` is [file, line] of the code that just ran; `do` holds the patches; `t` is in ns."""

    i: int
    step: int
    stop: str
    at: tuple[str, int] | None = None
    facts: dict[str, Any] = {}
    do: list[list[Any]] = []
    t: int = 0


class _Head(msgspec.Struct, gc=False):
    """The few fields of a line that the index needs."""

    kind: str = ""
    i: int = -1
    step: int = 0
    stop: str = ""


Few = Annotated[list[str], msgspec.Meta(max_length=100)]


class _Note(msgspec.Struct):
    """A narration or a bookmark."""

    kind: str
    i: int
    step: int = 0
    say: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class Ask(msgspec.Struct):
    """A prediction question, to be asked before the event that leads to position `i` is shown.

    answer: the right one, as text, found from the state at `i` when the run was recorded. choices: may be empty.
    say: what to explain after it.
    """

    kind: str
    i: int
    ask: Annotated[str, msgspec.Meta(max_length=2_000)]
    answer: Annotated[str, msgspec.Meta(max_length=200)]
    step: int = 0
    choices: Annotated[list[str], msgspec.Meta(max_length=9)] = []
    say: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class _Scenario(msgspec.Struct):
    """What a viewer reads of the header's `scenario`."""

    name: str = ""
    title: str = ""
    about: str = ""
    text: str = ""
    settings: dict[str, Any] = {}
    breakpoints: Few = []
    watch: Few = []


class _Header(msgspec.Struct):
    """The types of the header's fields; each may be missing but `format` and `state`."""

    format: Annotated[int, msgspec.Meta(ge=1)]
    state: dict[str, Any]
    scenario: _Scenario = msgspec.field(default_factory=_Scenario)
    engine: dict[str, Any] = {}
    model: dict[str, Any] = {}
    platform: dict[str, Any] = {}
    created: str = ""
    sources: dict[str, str] = {}


@dataclass
class Step:
    """One engine step: its events are `[start, end)`; the numbers are those of its closing event."""

    number: int
    start: int
    end: int
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it is recorded to its end."""
        return self.facts.get("when") == "end"


@dataclass(frozen=True)
class Mark:
    """An event worth jumping to: `letter` is P(reempt), F(inish), E(vict), R(eject) or B(ookmark)."""

    position: int
    step: int
    letter: str


class _Patches(msgspec.Struct, gc=False):
    """What of an event a walk needs."""

    do: list[list[Any]] = []


_decode_event = msgspec.json.Decoder(Event).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_patches = msgspec.json.Decoder(_Patches).decode_lines
_decode_any = msgspec.json.Decoder().decode
_decode_note = msgspec.json.Decoder(_Note).decode
_decode_ask = msgspec.json.Decoder(Ask).decode


_TOGETHER = 64
"""Events that are decoded at once."""

_WITH_FACTS = ("step", "schedule")
"""Stops whose facts the index needs."""

STORED = ("keyframe", "partial")
KINDS = ("header", "event", *STORED, "finished", "note", "ask", "bookmark", "end")


def _read_head(line: bytes) -> _Head:
    try:
        return _decode_head(line)
    except msgspec.ValidationError:
        # The fields of a kind that this version does not know may be of any type.
        whole = _decode_any(line)
        if not isinstance(whole, dict) or whole.get("kind", "event") in KINDS:
            raise
        return _Head()


def ends_phase(event: Event) -> bool:
    """Whether a phase of the step ends here: the scheduling, the model's pass, or the closing."""
    ends = event.stop in ("schedule", "step") and event.facts.get("when") == "end"
    return ends or event.stop == "sample"


_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a broken line raises."""


def _broken_event(index: int, error: Exception) -> TraceError:
    return TraceError(f"event {index} is not what the trace format says: {error}")


def event_body(line: bytes) -> bytes:
    """The part of an event line that does not depend on the clock: all before the closing `"t"` field."""
    cut = line.rfind(b',"t":')
    return line if cut < 0 else line[:cut]


class Trace:
    """The lines of a run and their index. `len(trace)` is the number of events.

    Positions count applied events: position 0 is the initial state, position k the state after event k - 1.
    `problem` is what is wrong with the trace, as a sentence. `share` is how much of its file has been read, 0 to
    1; `rest` reads on, a few milliseconds a turn: a long trace is shown while it is still read.
    """

    def __init__(self, text: Text | None = None) -> None:
        self.header: dict[str, Any] | None = None
        self.closing: dict[str, Any] | None = None
        self.problem: str | None = None
        self.share = 1.0
        self.rest: Iterator[None] = iter(())
        self.steps: list[Step] = []
        self.marks: list[Mark] = []
        self.notes: dict[int, list[str]] = {}
        self.asks: dict[int, Ask] = {}
        self._text: Text = text or MemoryText()
        self._starts = array("Q")
        self._sizes = array("I")
        self._stops = StopIndex()
        self._keyframes = Keyframes(self._text)
        self._digest = hashlib.sha256()
        self._ahead: tuple[tuple[int, int], list[list[list[Any]]]] | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def table(self, key: str) -> dict[str, Any]:
        """The header's table `key`, or an empty one: a stranger's header may hold anything."""
        value = (self.header or {}).get(key)
        return value if isinstance(value, dict) else {}

    @property
    def complete(self) -> bool:
        """Whether the run was recorded to its end (the closing line is there)."""
        return self.closing is not None

    def feed(self, line: bytes) -> str:
        """Take in one line of a live run, or a note on any, and return its kind. Unknown kinds are skipped.

        Raises TraceError for a broken line.
        """
        if len(line) > MAX_LINE:
            raise TraceError(f"a line of {len(line):,} bytes is over the limit of {MAX_LINE:,}")
        return self._take_checked(line, self._text.append(line))

    def take(self, lines: list[bytes], start: int) -> None:
        """Take in lines that lie in the text from `start` on, a newline after each.

        Raises TraceError for a broken one; those before it are taken.
        """
        try:
            heads = [_decode_head(line) for line in lines] if self.header else []
        except _BROKEN:
            heads = []  # one of them is empty, foreign or broken
        for number, line in enumerate(lines):
            if heads and heads[number].kind == "event":
                self._take_event(line, heads[number], start)
            elif line.strip():
                self._take_checked(line, start)
            start += len(line) + 1

    def event(self, index: int) -> Event:
        """Decode event `index` afresh (the caller owns the result)."""
        if not 0 <= index < len(self._starts):
            raise IndexError(f"event {index} of {len(self._starts)}")
        start = self._starts[index]
        try:
            return _decode_event(self._text.read(start, start + self._sizes[index]))
        except _BROKEN as error:
            raise _broken_event(index, error) from error

    def each_patches(self, first: int, end: int) -> Iterator[list[list[Any]]]:
        """The patches of each of the events `first` .. `end - 1`, decoded afresh."""
        if self._ahead and self._ahead[0] == (first, end):
            (_, decoded), self._ahead = self._ahead, None
            yield from decoded
            return
        for start in range(first, end, _TOGETHER):
            yield from self._patches(start, min(start + _TOGETHER, end))

    def decode_ahead(self, first: int, end: int) -> None:
        """Decode these patches now: the next `each_patches` of them, and only that, has them at once."""
        self._ahead = (first, end), list(self.each_patches(first, end))

    def _patches(self, first: int, end: int) -> Iterable[list[list[Any]]]:
        """Most lines follow one on the other: then they are decoded together, in half the time."""
        start, last = self._starts[first], self._starts[end - 1] + self._sizes[end - 1]
        if last - start == sum(self._sizes[first:end]) + end - first - 1:
            with suppress(*_BROKEN):
                events = _decode_patches(self._text.read(start, last))
                if len(events) == end - first:
                    return [event.do for event in events]
        return (self.event(index).do for index in range(first, end))

    def stop_name(self, index: int) -> str:
        """The stop of event `index`, without decoding it."""
        return self._stops.name(index)

    def next_position(self, wanted: Wanted, after: int, forward: bool = True) -> int | None:
        """The nearest position after `after` (or before it) whose event is at a wanted stop.

        `wanted` is a set of names or a test of a name. Found at once, also among a million events.
        """
        return self._stops.next(wanted, after, forward)

    def next_phase_end(self, after: int, forward: bool = True) -> int | None:
        """The nearest position after `after` (or before it) where a phase of a step has ended (`ends_phase`)."""
        return self._stops.next_phase_end(after, forward)

    def initial_state(self) -> dict[str, Any]:
        """A fresh copy of the state before the first event."""
        return self.keyframe(0)

    def keyframe_at_or_before(self, position: int) -> int:
        """The last position not after `position` whose state is stored."""
        return self._keyframes.at_or_before(position)

    def keyframe_after(self, position: int) -> int | None:
        """The first position after `position` whose state is stored."""
        return self._keyframes.after(position)

    def keyframe_size(self, position: int) -> int:
        """The bytes of the stored state at `position`, which `keyframe_at_or_before` returned."""
        return self._keyframes.size(position)

    def read_keyframe_ahead(self, position: int) -> Iterator[None]:
        """Make `keyframe` quick, a few milliseconds a turn."""
        return self._keyframes.read_ahead(position)

    def keyframe(self, position: int) -> dict[str, Any]:
        """A fresh copy of the stored state at `position`, which `keyframe_at_or_before` returned."""
        return self._keyframes.state(position)

    def compare_keyframe(self, position: int, state: dict[str, Any]) -> None:
        """Note it in `problem` if the state stored at `position` is not the one that the events make there.

        A large state is not compared.
        """
        if not self._keyframes.compare(position, state) and self.problem is None:
            self.problem = f"the state stored at event {position} is not what the events make"

    def step_at(self, position: int) -> Step | None:
        """The step that the event before `position` belongs to; None at position 0 or with no event."""
        if position <= 0 or not self.steps:
            return None
        return self.steps[bisect_right(self.steps, position - 1, key=lambda step: step.start) - 1]

    def digest(self) -> str:
        """The digest of all events so far, times left out: equal for equal runs."""
        return self._digest.hexdigest()

    @property
    def digest_matches(self) -> bool | None:
        """Whether the closing line's digest is that of the events; None while there is no closing line."""
        return None if self.closing is None else self.closing.get("digest") == self.digest()

    def _take_checked(self, line: bytes, start: int) -> str:
        """Take in one line of any kind, and return the kind."""
        try:
            head = _read_head(line)
            if self.header is None:
                self._take_header(line, start)
            elif head.kind == "event":
                self._take_event(line, head, start)
            elif head.kind in STORED and head.i == len(self._starts):
                self._keyframes.add(head.i, start, start + len(line))
            elif head.kind == "finished" and head.i == len(self._starts):
                self._keyframes.add_finished(head.i, line)
            elif head.kind in ("note", "bookmark"):
                self._take_note(line, head)
            elif head.kind == "ask":
                self._take_ask(line, head)
            elif head.kind == "end":
                self.closing = _decode_any(line)
        except _BROKEN as error:
            raise TraceError(f"a line is not what the trace format says: {error}") from error
        return head.kind

    def _take_header(self, line: bytes, start: int) -> None:
        header = _decode_any(line)
        if not isinstance(header, dict) or header.get("kind") != "header":
            raise TraceError("the first line is not the header of a tourvllm trace")
        version = header.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise TraceError(
                f"this trace has format {version}, and this tourvllm reads up to {FORMAT}: "
                "upgrade with `pip install -U tourvllm`"
            )
        msgspec.convert(header, _Header)
        check_shape(header["state"])
        self._keyframes.add(0, start, start + len(line))
        self.header = header

    def _take_event(self, line: bytes, head: _Head, start: int) -> None:
        position = len(self._starts)
        if head.i != position:
            raise TraceError(f"event {position} is missing: the next line is event {head.i}")
        event = _decode_event(line) if head.stop in _WITH_FACTS else None
        if not self.steps or self.steps[-1].number != head.step:
            self.steps.append(Step(head.step, position, position))
        step = self.steps[-1]
        step.end = position + 1
        if event and event.stop == "step":
            step.facts = event.facts
        if head.stop == "sample" or (event and ends_phase(event)):
            self._stops.add_phase_end(position + 1)
        elif head.stop in MARKS:
            self.marks.append(Mark(position + 1, head.step, MARKS[head.stop]))
        self._stops.add(head.stop)
        self._starts.append(start)
        self._sizes.append(len(line))
        self._digest.update(event_body(line))

    def _take_note(self, line: bytes, head: _Head) -> None:
        if 0 <= head.i <= len(self._starts):
            note = _decode_note(line)
            said = self.notes.setdefault(head.i, [])
            if len(said) < MAX_NOTES:
                said.append(note.say)
            if head.kind == "bookmark":
                mark = Mark(head.i, head.step, "B")
                insort(self.marks, mark, key=lambda mark: mark.position)

    def _take_ask(self, line: bytes, head: _Head) -> None:
        """A position has one question at most: the first."""
        if 0 < head.i <= len(self._starts):
            self.asks.setdefault(head.i, _decode_ask(line))
