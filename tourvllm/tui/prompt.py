"""A line to type at the bottom of the screen. What is wrong with it is said above it, and it stays open."""

import re
from collections.abc import Callable
from os.path import commonprefix
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from ..tour.text import printable
from . import theme
from .dialog import Modal

Check = Callable[[str], str | None]
Complete = Callable[[str], list[str]]
MAX_TYPED = 2000
_WORD = re.compile(r"[A-Za-z_][\w.]*$")


class PromptScreen(Modal[str | None]):
    """Asks for a line. Returns it once `check` has nothing against it; None when the user leaves.

    label: what is asked for. value: what stands there already; `replace`: typing takes its place.
    check: the sentence that says what is wrong, or None. complete: what may follow a beginning, for Tab.
    typing: told the line as it is typed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave"),
        Binding("tab", "complete", "complete", priority=True),
    ]
    DEFAULT_CSS: ClassVar[str] = """
    PromptScreen { background: transparent; }
    PromptScreen > Vertical { dock: bottom; height: 2; background: $panel; }
    PromptScreen Static { height: 1; width: 1fr; }
    PromptScreen #label { width: auto; text-style: bold; }
    PromptScreen Input { width: 1fr; background: $panel; }
    """

    def __init__(
        self,
        label: str,
        value: str = "",
        hint: str = "Enter goes, Escape leaves",
        check: Check = lambda text: None,
        complete: Complete | None = None,
        replace: bool = False,
        typing: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__()
        self._label = label
        self._value = value
        self._hint = hint
        self._check = check
        self._complete = complete
        self._replace = replace
        self._typing = typing

    def compose(self) -> ComposeResult:
        """A line that explains, over the line to type."""
        with Vertical():
            yield Static(self._said(self._hint), id="said", markup=False)
            with Horizontal():
                yield Static(f" {self._label} ", id="label", markup=False)
                yield Input(
                    self._value, compact=True, select_on_focus=self._replace, max_length=MAX_TYPED
                )

    def on_mount(self) -> None:
        """Type at the end of what stands there."""
        self.query_one(Input).focus()

    def _said(self, text: str, alarm: bool = False) -> Text:
        line = Text(f" {printable(text)}", no_wrap=True, overflow="ellipsis")
        line.stylize(theme.style("alarm" if alarm else "dim"))
        return theme.draw(line)

    def say(self, text: str, alarm: bool = False) -> None:
        """Put a sentence above the line."""
        self.query_one("#said", Static).update(self._said(text, alarm), layout=False)

    async def on_key(self, event: events.Key) -> None:
        """Keys that were typed before the line had the focus are for it: fingers can be quicker than a screen.

        A letter that the line has taken does not come here.
        """
        line = self.query_one(Input)
        if event.key == "enter":
            event.stop()
            await line.action_submit()
        elif event.key == "backspace" and self.focused is not line:
            line.action_delete_left()
        elif event.is_printable and event.character:
            if line.select_on_focus:
                line.value, line.select_on_focus = "", False
            line.insert_text_at_cursor(event.character)

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        """Return what was typed, or say what is wrong with it."""
        event.stop()
        typed = event.value.strip()
        problem = self._check(typed) if typed else None
        if problem:
            self.say(problem, alarm=True)
        else:
            self.dismiss(typed or None)

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """What was said of an earlier line is no longer true."""
        event.stop()
        self.say(self._hint)
        self._typing(event.value.strip())

    def on_click(self, event: events.Click) -> None:
        """A click outside leaves."""
        if event.screen_y < self.size.height - 2:
            self.dismiss(None)

    def action_leave(self) -> None:
        """Leave without a line."""
        self.dismiss(None)

    def action_complete(self) -> None:
        """Complete the name before the cursor as far as there is one way to go on."""
        line = self.query_one(Input)
        found = _WORD.search(line.value[: line.cursor_position])
        start = found[0] if found else ""
        ways = self._complete(start) if self._complete else []
        if not ways:
            return
        line.insert_text_at_cursor(commonprefix(ways)[len(start) :])  # noqa: RUF071  (of names)
        if len(ways) > 1:
            self.call_after_refresh(self.say, "  ".join(way.rpartition(".")[2] for way in ways))


def name_completer(values: dict[str, Any]) -> Complete:
    """Completes the names of `values`, and after a dot the keys of what a name stands for."""

    def complete(start: str) -> list[str]:
        owner, _, rest = start.rpartition(".")
        table: Any = values
        for key in owner.split(".") if owner else ():
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            return []
        prefix = f"{owner}." if owner else ""
        return sorted(
            prefix + key
            for key in table
            if isinstance(key, str) and key.startswith(rest) and key.isidentifier()
        )

    return complete
