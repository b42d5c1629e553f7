"""Prediction questions: grading an answer, a run's score, and what a learner has done so far.

Answers are graded as a teacher would: `5`, `5.0` and ` 5 ` are the same number, `3 4` and `[3, 4]` the same list,
and a choice may be named by its letter.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
from platformdirs import user_data_path

from .errors import ExpressionError
from .expressions import evaluate
from .scenario import CHOICE_LETTERS
from .trace import Ask

MAX_BYTES = 2**20


def grade(ask: Ask, text: str) -> bool:
    """Whether `text` answers the question rightly: by value, by text in any case, or by a choice's letter."""
    given = _same(text)
    if not given:
        return False
    if given == _same(ask.answer) or _computed(text) == _same(ask.answer):
        return True
    if any(given == _same(choice) for choice in ask.choices):
        return False
    letter = text.strip().rstrip(".)").lower()
    letters = CHOICE_LETTERS[: len(ask.choices)]
    chosen = letters.find(letter) if len(letter) == 1 else -1
    return chosen >= 0 and _same(ask.choices[chosen]) == _same(ask.answer)


def _same(text: str) -> tuple[Any, ...]:
    """What two answers have in common if they are the same: their words and numbers."""
    words = re.split(r"[\s,;\[\]()]+", text.casefold().strip().rstrip("."))
    return tuple(_number(word) for word in words if word)


def _computed(text: str) -> tuple[Any, ...] | None:
    """The number that an answer such as `13*4+1` comes to; None for what is no arithmetic."""
    if not re.fullmatch(r"[0-9+\-*/() ]+", text):
        return None
    try:
        return (evaluate(text, {}),)
    except ExpressionError:
        return None


def _number(word: str) -> Any:
    if not re.fullmatch(r"[+-]?(\d{1,15})(\.\d{1,15})?", word):
        return word
    return float(word)


@dataclass
class Score:
    """How a run's questions were answered. `asked` counts those that got an answer; skipped ones are apart."""

    right: int = 0
    asked: int = 0
    skipped: int = 0

    def count(self, right: bool | None) -> None:
        """Count one question: right, wrong, or None for a skipped one."""
        self.asked += right is not None
        self.right += right is True
        self.skipped += right is None

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.right} of {self.asked} right{skipped}"


class Lesson(msgspec.Struct):
    """What was done of one scenario. `best` of `asked` questions right; `opened` is a date in ISO 8601."""

    done: bool = False
    best: int | None = None
    asked: int = 0
    opened: str = ""


class Progress:
    """A learner's progress, kept in a small file of this user. It is a comfort: no fault of the file is an error.

    A damaged file is set aside under `.damaged`; where it cannot be written, progress lasts as long as the
    program.
    """

    def __init__(
        self,
        path: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path = path or user_data_path("tourvllm") / "progress.json"
        self._now = now
        self._lessons = self._read()

    def of(self, scenario: str) -> Lesson:
        """What was done of a scenario, by its name."""
        return self._lessons.get(scenario, Lesson())

    def opened(self, scenario: str) -> None:
        """Note that a scenario is open now."""
        self._lesson(scenario).opened = self._now().isoformat(timespec="seconds")
        self._write()

    def finished(self, scenario: str, score: Score) -> None:
        """Note that a scenario was walked to its end. The best score stays."""
        lesson = self._lesson(scenario)
        lesson.done = True
        if score.asked and (lesson.best is None or score.right > lesson.best):
            lesson.best, lesson.asked = score.right, score.asked
        self._write()

    def _lesson(self, scenario: str) -> Lesson:
        """What is to be changed, with what other programs have written meanwhile around it."""
        self._lessons |= self._read()
        return self._lessons.setdefault(scenario, Lesson())

    def _read(self) -> dict[str, Lesson]:
        try:
            with self.path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, Lesson])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._set_aside()
        except OSError:  # there is none yet, or it is out of reach
            pass
        return {}

    def _set_aside(self) -> None:
        with suppress(OSError):
            self.path.replace(self.path.with_name(self.path.name + ".damaged"))

    def _write(self) -> None:
        """Replace the file in one move, so that a killed program leaves the old one or the new one."""
        temporary = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                temporary = file.name
                file.write(msgspec.json.format(msgspec.json.encode(self._lessons)))
            os.replace(temporary, self.path)
        except OSError:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
