"""A line to type at the bottom of the screen. What is wrong with it is said above it, and it stays open."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from os.path import commonprefix
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from ..tour.text import printable
from . import theme
from .dialog import Modal, put
from .lines import wrap

Check = Callable[[str], str | None]
Complete = Callable[[str], list[str]]
MAX_TYPED = 2000
MOST_SAID = 3
"""Lines that a hint or a problem may take."""

PATIENCE = 1.0
"""Seconds in which letters reach the line, however busy the machine is."""

_WORD = re.compile(r"[A-Za-z_][\w.]*$")


class PromptScreen(Modal[str | None]):
    """Asks for a line. Returns it once `check` has nothing against it; None when the user leaves.

    label: what is asked for. value: what stands there already; `replace`: typing takes its place.
    check: the sentence that says what is wrong, or None. complete: what may follow a beginning, for Tab.
    typing: told the line as it is typed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("enter", "submit", "take the line", priority=True),
        Binding("tab", "complete", "complete", priority=True),
    ]
    DEFAULT_CSS: ClassVar[str] = """
    PromptScreen { background: transparent; }
    PromptScreen > Vertical { dock: bottom; height: auto; background: $panel; }
    PromptScreen Horizontal { height: 1; }
    PromptScreen #said { width: 1fr; padding: 0 1; }
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
        self._told: tuple[str, bool] = hint, False
        self._refused: str | None = None

    def compose(self) -> ComposeResult:
        """A line that explains, over the line to type."""
        with Vertical():
            yield Static(id="said", markup=False)
            with Horizontal():
                yield Static(f" {self._label} ", id="label", markup=False)
                yield Input(
                    self._value, compact=True, select_on_focus=self._replace, max_length=MAX_TYPED
                )

    def on_mount(self) -> None:
        """Type at the end of what stands there."""
        self._show_told()
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        """Break the sentence above the line anew."""
        self._show_told()

    def say(self, text: str, alarm: bool = False) -> None:
        """Put a sentence above the line."""
        if self._told != (text, alarm):
            self._told = text, alarm
            self._show_told()

    def _show_told(self) -> None:
        text, alarm = self._told
        width = max(1, self.app.size.width - 2)
        lines = wrap(printable(text), width, theme.style("alarm" if alarm else "dim"))
        if len(lines) > MOST_SAID:
            lines = [
                *lines[: MOST_SAID - 1],
                Text(f"{lines[MOST_SAID - 1].plain[: width - 2]} …", lines[0].style),
            ]
        put(self.query_one("#said", Static), lines)

    def on_key(self, event: events.Key) -> None:
        """Keys that were typed before the line had the focus are for it: fingers can be quicker than a screen.

        A letter that the line has taken does not come here.
        """
        line = self.query_one(Input)
        if event.key == "backspace" and self.focused is not line:
            event.stop()
            line.action_delete_left()
        elif event.is_printable and event.character:
            event.stop()
            if line.select_on_focus:
                line.value, line.select_on_focus = "", False
            line.insert_text_at_cursor(event.character)

    def on_paste(self, event: events.Paste) -> None:
        """The same for what was pasted."""
        line = self.query_one(Input)
        if self.focused is not line:
            line.insert_text_at_cursor(next(iter(event.text.splitlines()), ""))

    async def _typed_so_far(self) -> Input | None:
        """The line, once the letters that are on their way to it have come; None where the prompt was left.

        The app waits here, so that no later key is taken for one of the line's.
        """
        if self.is_active:
            await _at_rest(self)
        line = next(iter(self.query(Input)), None)
        if line is not None and self.is_active:
            await _at_rest(line)
        return line if self.is_active else None

    async def action_submit(self) -> None:
        """Return what was typed, or say what is wrong with it."""
        line = await self._typed_so_far()
        if line is None:
            return
        typed = line.value.strip()
        problem = self._check(typed) if typed else None
        if problem:
            self._refused = line.value
            self.say(problem, alarm=True)
        else:
            self.dismiss(typed or None)

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """What was said of an earlier line is no longer true."""
        event.stop()
        if event.value != self._refused:
            self.say(self._hint)
        self._typing(event.value.strip())

    def on_click(self, event: events.Click) -> None:
        """A click outside leaves."""
        if event.screen_y < self.query_one(Vertical).region.y:
            self.dismiss(None)

    def action_leave(self) -> None:
        """Leave without a line."""
        self.dismiss(None)

    async def action_complete(self) -> None:
        """Complete the name before the cursor as far as there is one way to go on."""
        line = await self._typed_so_far()
        if line is None:
            return
        found = _WORD.search(line.value[: line.cursor_position])
        start = found[0] if found else ""
        ways = self._complete(start) if self._complete else []
        if not ways:
            return
        line.insert_text_at_cursor(commonprefix(ways)[len(start) :])  # noqa: RUF071  (of names)
        if len(ways) > 1:
            self.call_after_refresh(self.say, "  ".join(way.rpartition(".")[2] for way in ways))


async def _at_rest(widget: Widget) -> None:
    """Wait until a widget has taken in what was sent to it so far."""
    rests = asyncio.Event()
    if widget.call_later(rests.set):
        with suppress(TimeoutError):
            await asyncio.wait_for(rests.wait(), PATIENCE)


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
