"""The restart form: the same scenario once more, with other settings of the engine."""

from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual import events

from ..engine.config import ORDERS, POLICIES, EngineConfig
from ..engine.errors import ConfigError
from ..tour.text import printable
from . import theme
from .dialog import Dialog, caret, keys_told, paragraphs

MAX_DIGITS = 9
DIGITS = "0123456789"


@dataclass(frozen=True)
class Field:
    """A row of the form. Without `choices` it is a number."""

    name: str
    about: str
    choices: tuple[Any, ...] = ()


FIELDS = (
    Field("num_blocks", "KV blocks in the pool"),
    Field("block_size", "tokens per block"),
    Field("max_num_batched_tokens", "token budget of a step"),
    Field("max_num_seqs", "requests running at once"),
    Field("policy", "what a step may mix", POLICIES),
    Field("order", "who is first in the queue", ORDERS),
    Field("prefix_caching", "keep full blocks for later", (True, False)),
)


class RestartScreen(Dialog[dict[str, Any] | None]):
    """Asks for engine settings. Enter returns those that differ from `defaults`, with dotted names; Escape None.

    settings: the engine settings of the run on the screen, by their plain names (num_blocks), which the form
    begins with. defaults: those of the scenario's file. What is in neither is the engine's own default.
    """

    HEADING = "restart with other settings"

    def __init__(self, settings: dict[str, Any], defaults: dict[str, Any]) -> None:
        super().__init__()
        engine = EngineConfig()
        self._old = {
            field.name: defaults.get(field.name, getattr(engine, field.name)) for field in FIELDS
        }
        self._new = {
            field.name: settings.get(field.name, self._old[field.name]) for field in FIELDS
        }
        self._row = 0
        self._typing = False

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the scenario's, as `engine.num_blocks`."""
        return {
            f"engine.{name}": value for name, value in self._new.items() if value != self._old[name]
        }

    @property
    def problem(self) -> str:
        """What is wrong with the settings, as a sentence; empty when they are fine."""
        try:
            EngineConfig.from_dict(self._new)
        except ConfigError as error:
            return str(error)
        return ""

    def lines(self, width: int) -> list[Text]:
        """A row for each setting, what is wrong, and the keys."""
        rows = [self._line(number, field, width) for number, field in enumerate(FIELDS)]
        keys = "↑ ↓ row   0-9 ← → change   Del undoes   Enter starts   Esc leaves"
        return [
            Text(),
            *rows,
            Text(),
            *paragraphs(self.problem, width, "bold"),
            *keys_told(keys, width),
        ]

    def _line(self, number: int, field: Field, width: int) -> Text:
        here = number == self._row
        old, new = self._old[field.name], self._new[field.name]
        line = Text()
        line.append(f"{'▶' if here else ' '} {field.name:<23}", style="bold" if here else "")
        value = f"{_shown(new)}{caret() if here and self._typing else ''}"
        if new == old:
            line.append(f"{value:<24}", style="bold" if here else "")
        else:
            line.append(f"{_shown(old)} {theme.arrow()} ")
            line.append(value, style=theme.style("chosen") if here else "bold")
            line.append(" " * max(1, 2 + 23 + 24 - line.cell_len))
        line.append(field.about, style=theme.style("dim"))
        line.truncate(width, overflow="ellipsis")
        return line

    def on_key(self, event: events.Key) -> None:
        """Move, change, start or leave."""
        event.stop()
        field = FIELDS[self._row]
        if event.key == "escape":
            self.dismiss(None)
        elif event.key == "enter":
            if not self.problem:
                self.dismiss(self.changed)
        elif event.key in ("up", "down", "tab", "shift+tab"):
            self._row = (self._row + (1 if event.key in ("down", "tab") else -1)) % len(FIELDS)
            self._typing = False
        elif event.key == "delete":
            self._new[field.name] = self._old[field.name]
            self._typing = False
        elif field.choices:
            self._choose(field, event.key)
        else:
            self._type(field.name, event.key, event.character or "")
        if self.is_active:
            self.show()

    def _choose(self, field: Field, key: str) -> None:
        """The next or the previous choice."""
        step = {"right": 1, "space": 1, "left": -1}.get(key)
        if step is not None:
            value = self._new[field.name]
            at = field.choices.index(value) if value in field.choices else -1
            self._new[field.name] = field.choices[(at + step) % len(field.choices)]

    def _type(self, name: str, key: str, character: str) -> None:
        """A digit begins a new number or goes on with it; the arrows count up and down."""
        value = self._new[name]
        text = str(value) if isinstance(value, int) else ""
        if key in ("left", "right"):
            self._new[name] = max(1, int(text or 0) + (1 if key == "right" else -1))
            self._typing = False
            return
        if character and character in DIGITS:
            text = (text if self._typing else "") + character
        elif key == "backspace":
            text = text[:-1]
        else:
            return
        self._typing = True
        text = text[:MAX_DIGITS]
        self._new[name] = int(text) if text else ""


def _shown(value: Any) -> str:
    """A setting as YAML writes it."""
    return printable(str(value).lower() if isinstance(value, bool) else str(value))[:40]
