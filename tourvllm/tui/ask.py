"""A prediction question: what will happen next? The run goes on when it is answered or skipped.

It stands at the bottom of the screen: the answer has to be found in what is shown above it.
"""

import re
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events

from ..tour.lessons import grade
from ..tour.scenario import CHOICE_LETTERS
from ..tour.trace import Ask
from . import theme
from .dialog import Dialog, caret, keys_told, paragraphs

MAX_ANSWER = 200
OF_NUMBERS = "0123456789+-*/(). "
"""What is typed for a number, or for the sum that comes to it."""

CLOSES = ("enter", "space", "escape", "n", "s")
LEAVES = "Tab looks behind it   Esc skips"


class AskScreen(Dialog[str | None]):
    """Asks `ask`, then tells whether the answer was right. Returns the answer, or None when it was skipped."""

    DEFAULT_CSS: ClassVar[str] = """
    AskScreen { align: center bottom; background: transparent; }
    """
    HEADING = "what happens next?"

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask
        self._answer = ""
        self._answered = False
        self._aside = False
        self._refused = False
        self._numeric = bool(re.fullmatch(r"[+-]?\d+(\.\d+)?", ask.answer.strip()))

    @property
    def right(self) -> bool:
        """Whether the answer given is the right one."""
        return grade(self.ask, self._answer)

    def lines(self, width: int) -> list[Text]:
        """The question with its choices or a line to type in; afterwards the result."""
        if self._aside:
            return [Text("Tab: back to the question", theme.style("dim"))]
        question = [*paragraphs(self.ask.ask, width, "bold"), Text()]
        refusal = Text(f" {self._wanted}, please " if self._refused else "", theme.style("alarm"))
        if self._answered:
            return [*question, *self._result(width)]
        if self.ask.choices:
            keys = f"{self._letters[0]}-{self._letters[-1]} ↑ ↓ choose   Enter answers   {LEAVES}"
            return [*question, *self._choices(width), refusal, *keys_told(keys, width)]
        return [
            *question,
            *paragraphs(f"your answer: {self._answer}{caret()}", width),
            refusal,
            *keys_told(f"type it   Enter answers   {LEAVES}", width),
        ]

    @property
    def _letters(self) -> str:
        """The keys that choose."""
        return CHOICE_LETTERS[: len(self.ask.choices)]

    @property
    def _wanted(self) -> str:
        """What is an answer here."""
        if self.ask.choices:
            return f"{', '.join(self._letters[:-1])} or {self._letters[-1]}".removeprefix(" or ")
        return "a number" if self._numeric else "an answer"

    def _choices(self, width: int) -> list[Text]:
        lines = []
        for letter, choice in zip(CHOICE_LETTERS, self.ask.choices, strict=False):
            here = letter == self._answer
            if choice.lower() == letter:  # it is its own letter
                letter, choice = choice, ""
            first, *rest = paragraphs(choice, width - 5, "bold" if here else "")
            lines.append(Text.assemble(f"{'▶' if here else ' '} ", (letter, "bold"), "  ", first))
            lines += [Text.assemble("     ", line) for line in rest]
        return lines

    def _result(self, width: int) -> list[Text]:
        """Right or wrong, both answers, and why."""
        colours = theme.textual_theme(theme.name())
        word, colour = ("right", "success") if self.right else ("not quite", "warning")
        style = Style(color=getattr(colours, colour), bold=True, reverse=True)
        lines = [Text(f" {word} ", style)]
        lines += paragraphs(f"you said: {self._given}", width)
        if not self.right:
            lines += paragraphs(f"the answer: {self.ask.answer}", width)
        if self.ask.say:
            lines += [Text(), *paragraphs(self.ask.say, width)]
        return [*lines, Text(), Text("Enter goes on", theme.style("dim"))]

    @property
    def _given(self) -> str:
        """The answer as the reader knows it: the text of the choice, or what was typed."""
        if self.ask.choices:
            return self.ask.choices[CHOICE_LETTERS.index(self._answer)]
        return self._answer

    def on_key(self, event: events.Key) -> None:
        """Take in an answer; after it, a key that goes on closes. Tab clears the view behind, and back."""
        event.stop()
        if self._aside or event.key == "tab":
            self._aside = not self._aside
            self.show()
            return
        if self._answered:
            if event.key in CLOSES:
                self.dismiss(self._answer)
            return
        if event.key == "escape":
            self.dismiss(None)
            return
        if event.key == "enter":
            self._answer = self._answer.strip()
            self._answered = bool(self._answer)
            self._refused = not self._answered
        elif self.ask.choices:
            self._choose(event.key)
        elif event.key == "backspace":
            self._answer = self._answer[:-1]
        elif event.is_printable and event.character:
            self._type(event.character)
        self.show()

    def _type(self, text: str) -> None:
        """Take in what is typed. Where a number is asked for, a key that would walk on is no answer."""
        self._refused = self._numeric and any(sign not in OF_NUMBERS for sign in text)
        if not self._refused:
            self._answer = (self._answer + text)[:MAX_ANSWER]

    def _choose(self, key: str) -> None:
        letters, letter = self._letters, key.lower()
        if letter not in letters:
            meant = [
                sign
                for sign, choice in zip(letters, self.ask.choices, strict=False)
                if choice.lower()[:1] == letter
            ]
            letter = meant[0] if len(meant) == 1 else letter
        self._refused = letter not in (*letters, "up", "down")
        if key in ("up", "down"):
            at = letters.index(self._answer) if self._answer else (-1 if key == "down" else 0)
            self._answer = letters[(at + (1 if key == "down" else -1)) % len(letters)]
        elif not self._refused:
            self._answer = letter

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text is typed text, on one line."""
        if not self._answered and not self.ask.choices:
            self._type(" ".join(event.text.split()))
            self.show()
