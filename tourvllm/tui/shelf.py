"""What the home screen offers: lessons with progress, recent runs, a file. Each as a line and in detail."""

import time
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from ..engine.config import EngineConfig
from ..errors import UsageError
from ..plan import make_plan
from ..recent import RecentRun
from ..scenarios_folder import bundled, bundled_names
from ..tour.errors import ScenarioError
from ..tour.lessons import Lesson, Progress
from ..tour.scenario import Scenario
from ..tour.text import line as one_line
from ..tour.text import printable
from . import theme
from .dialog import flowing, paragraphs

NAME_WIDTH = 20


@dataclass(frozen=True)
class Heading:
    """The line above a section; nobody can take it."""

    text: str
    key = ""
    words = ""
    does = ""

    def line(self, width: int) -> Text:
        """The section's name."""
        return Text(f" {self.text}", theme.style("dim"))


@dataclass(frozen=True)
class LessonItem:
    """A bundled scenario. `scenario` is None until its file has been read, or where it cannot be."""

    name: str
    scenario: Scenario | None = None
    progress: Lesson | None = None
    problem: str = ""
    does = "runs it"

    @property
    def key(self) -> str:
        """What this item is known by."""
        return f"lesson {self.name}"

    @property
    def words(self) -> str:
        """What a filter looks in."""
        return f"{self.name} {self.scenario.title if self.scenario else ''}"

    def line(self, width: int) -> Text:
        """Name, title, and how far one has come."""
        title = self.scenario.title if self.scenario else self.problem
        return _columns(self.name, printable(title), _standing(self.progress), width)

    def detail(self, width: int) -> list[Text]:
        """What it is about, how big it is, and how far one has come."""
        if self.scenario is None:
            return paragraphs(self.problem, width)
        return [
            *paragraphs(self.scenario.title, width, theme.style("bold")),
            Text(),
            *flowing(self.scenario.about, width),
            Text(),
            *paragraphs(_size(self.scenario), width, theme.style("dim")),
            *paragraphs(_best(self.progress), width, theme.style("dim")),
        ]


@dataclass(frozen=True)
class RunItem:
    """A recorded run."""

    run: RecentRun
    does = "replays it"

    @property
    def key(self) -> str:
        """What this item is known by."""
        return f"run {self.run.path}"

    @property
    def words(self) -> str:
        """What a filter looks in."""
        return f"{self.run.name} {self._changes}"

    @property
    def _changes(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.run.settings.items())[:200]

    @property
    def _steps(self) -> str:
        more = "+" if self.run.more else ""
        return f"{self.run.steps:,}{more} {'step' if self.run.steps == 1 else 'steps'}"

    @property
    def _ending(self) -> str:
        """How the run ended, where there is something to say about it."""
        if self.run.outcome == "complete" or self.run.more:
            return ""
        return self.run.outcome or "not recorded to its end"

    def line(self, width: int) -> Text:
        """Scenario, length, what was changed, how it ended if not well, and when it was."""
        told = [self._steps, self._changes, self._ending.partition(":")[0]]
        middle = "  ".join(one_line(part) for part in told if part)
        return _columns(one_line(self.run.name), middle, _age(time.time() - self.run.when), width)

    def detail(self, width: int) -> list[Text]:
        """Which run it is, and where its file lies."""
        lines = [
            *paragraphs(self.run.title or self.run.name, width, theme.style("bold")),
            Text(),
            *paragraphs(
                f"A recorded run of {self._steps}, {_age(time.time() - self.run.when)}.", width
            ),
        ]
        if self._changes:
            lines += paragraphs(f"With {self._changes}", width)
        if self._ending:
            lines += paragraphs(f"It ended so: {self._ending}", width)
        return [*lines, Text(), *paragraphs(str(self.run.path), width, theme.style("dim"))]


@dataclass(frozen=True)
class OpenItem:
    """The way to a file of one's own."""

    key = "open"
    does = "opens one"
    words = "open a file"

    def line(self, width: int) -> Text:
        """What can be opened."""
        return _columns(
            "open a file …", "a trace (.jsonl, .jsonl.gz) or a scenario (.yaml)", "", width
        )

    def detail(self, width: int) -> list[Text]:
        """What comes of it."""
        about = "A trace is replayed as it was recorded, on any machine. A scenario is run."
        return flowing(about, width)


Item = Heading | LessonItem | RunItem | OpenItem


def unread_lessons() -> list[LessonItem]:
    """The bundled scenarios by name alone: what the first picture shows."""
    return [LessonItem(name) for name in bundled_names()]


def read_lessons() -> list[LessonItem]:
    """The bundled scenarios, read, with the reader's progress."""
    progress = Progress()
    return [_read_lesson(name, progress) for name in bundled_names()]


def _read_lesson(name: str, progress: Progress) -> LessonItem:
    item = partial(LessonItem, name, progress=progress.of(name))
    try:
        return item(scenario=make_plan(name, bundled(name).text).scenario)
    except (UsageError, ScenarioError, OSError) as error:
        return item(problem=str(error))


def _standing(lesson: Lesson | None) -> str:
    """How far one has come with a lesson, in a word."""
    if lesson is None or not (lesson.done or lesson.opened):
        return ""
    if not lesson.done:
        return "begun"
    return f"done {lesson.best}/{lesson.asked}" if lesson.best is not None else "done"


def _best(lesson: Lesson | None) -> str:
    """The best result so far, as a sentence."""
    if lesson is None or lesson.best is None:
        return ""
    return f"At best you had {lesson.best} of {lesson.asked} questions right."


def _size(scenario: Scenario) -> str:
    """The scenario in numbers."""
    engine = EngineConfig.from_dict(scenario.engine)
    requests = sum(request.count for request in scenario.requests)
    asks = sum(narration.ask is not None for narration in scenario.tour)
    parts: list[tuple[int, str, str]] = [
        (requests, "request", ""),
        (engine.num_blocks, "block", f" of {engine.block_size} tokens"),
        (len(scenario.tour), "note", ""),
        (asks, "question", ""),
    ]
    told = [f"{n:,} {what}{'' if n == 1 else 's'}{more}" for n, what, more in parts if n]
    return f"{', '.join(told)}; at most {engine.max_num_batched_tokens:,} tokens computed a step."


def _columns(name: str, middle: str, right: str, width: int) -> Text:
    """A line of the list: a name, what it is, and something at its right end."""
    room = width - NAME_WIDTH - len(right) - 5
    line = Text(f"   {name}")
    line.truncate(NAME_WIDTH + 2, overflow="ellipsis", pad=True)
    told = Text(f" {middle}", theme.style("dim"))
    told.truncate(max(0, room), overflow="ellipsis", pad=True)
    return line.append_text(told).append(f" {right}")


def _age(seconds: float) -> str:
    """How long ago."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count:,} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def matches(item: Item, wanted: str) -> bool:
    """Whether a filter lets this item through."""
    return all(word in item.words.casefold() for word in wanted.casefold().split())
