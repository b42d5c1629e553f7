"""The lists that a reader keeps while debugging: breakpoints and watch expressions."""

import time
from collections.abc import Callable
from functools import partial

from rich.text import Text
from textual import events
from textual.containers import VerticalScroll

from ..tour.errors import ExpressionError
from ..tour.expressions import names
from ..tour.stops import STOPS
from ..tour.text import printable
from ..tour.triggers import check_breakpoint
from . import theme, watch
from .breakpoints import BreakpointEntry, count_hits
from .dialog import Dialog, keys_told, paragraphs
from .prompt import PromptScreen, name_completer
from .session import Session

COUNT_SECONDS = 0.02
"""How long counting goes on at each tick."""

Done = Callable[[str], None]


class ListDialog(Dialog[None]):
    """A list with a chosen row. A subclass says what its rows are and what its keys do."""

    KEYS = ""
    EMPTY = ""
    BEFORE = 1
    """Lines above the first row."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.row = 0

    def rows(self, width: int) -> list[Text]:
        """A line for each row."""
        raise NotImplementedError

    def lines(self, width: int) -> list[Text]:
        """The rows and the keys."""
        rows = self.rows(width)
        self.row = max(0, min(self.row, len(rows) - 1))
        for number, row in enumerate(rows):
            row.truncate(width, overflow="ellipsis", pad=True)
            if number == self.row:
                row.stylize(theme.style("here"))
        empty = [Text(self.EMPTY, theme.style("dim"))] if not rows else []
        return [Text(), *rows, *empty, Text(), *keys_told(self.KEYS, width)]

    def on_key(self, event: events.Key) -> None:
        """Move, leave, or what the list is for."""
        event.stop()
        if not self.is_active:  # the key before it has opened a prompt: it is typed there
            self.app.post_message(events.Key(event.key, event.character))
        elif event.key in ("escape", "q"):
            self.dismiss(None)
        elif event.key in ("up", "down", "home", "end", "pageup", "pagedown"):
            self._move(event.key)
        else:
            self.pressed(event.key)
            if self.is_active:
                self.show()

    def _move(self, key: str) -> None:
        step = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10, "home": -(10**6)}
        self.row += step.get(key, 10**6)
        self.show()
        box = self.query_one(VerticalScroll)
        top, height = int(box.scroll_offset.y), box.scrollable_content_region.height
        line = self.row + self.BEFORE
        if not top <= line < top + height:
            box.scroll_to(y=max(0, line - height // 2), animate=False, force=True)

    def pressed(self, key: str) -> None:
        """A key that is not for moving."""
        raise NotImplementedError

    def ask(self, prompt: PromptScreen, then: Done) -> None:
        """Let a line be typed, then go on with it."""

        def typed(text: str | None) -> None:
            if text is not None:
                then(text)
            self.show()

        self.app.push_screen(prompt, typed)


def breakpoint_prompt(session: Session, value: str, replaces: str | None = None) -> PromptScreen:
    """Asks for a breakpoint's line. `replaces` is the one that is edited."""

    def problem(text: str) -> str | None:
        if text != replaces and any(entry.line == text for entry in session.breakpoints):
            return f"There is already a breakpoint {text}."
        try:
            check_breakpoint(text, session.request_ids)
        except ExpressionError as error:
            return str(error)
        return None

    return PromptScreen(
        "breakpoint:",
        value,
        "a stop, a request or a condition [if CONDITION] [hits N]   Tab completes, Enter sets, Escape leaves",
        problem,
        name_completer({**dict.fromkeys(STOPS), **names(session.place().state)}),
        replace=replaces is None,
    )


class BreakpointsScreen(ListDialog):
    """The breakpoints: on or off, how often each triggers, where it is from."""

    HEADING = "breakpoints"
    EMPTY = "No breakpoints: a adds one, b adds one at the stop on the screen."
    KEYS = "↑ ↓ choose   space on and off   Enter edit   a add   d delete   Esc close"

    def on_mount(self) -> None:
        """Begin to count how often they trigger."""
        super().on_mount()
        self._counting = count_hits(self.session.trace, self.session.breakpoints)
        self._timer = self.set_interval(1 / 30, self._count)

    def _count(self) -> None:
        if all(entry.count is not None for entry in self.session.breakpoints):
            return
        until = time.monotonic() + COUNT_SECONDS
        try:
            while time.monotonic() < until:
                if next(self._counting, self) is self:  # it has ended: shown, or begun anew
                    self._counting = count_hits(self.session.trace, self.session.breakpoints)
                    self.show()
                    return
        except Exception as error:  # a stranger's trace may hold anything
            self._timer.stop()
            self.session.message = f"The trace is damaged, nothing is counted: {error}"

    def rows(self, width: int) -> list[Text]:
        """On or off, the line, its count, where it is from."""
        return [self._line(entry, width) for entry in self.session.breakpoints]

    def _line(self, entry: BreakpointEntry, width: int) -> Text:
        hits = "…" if entry.count is None else f"{entry.count:,} {self._counted}"
        whose = "scenario" if entry.from_scenario else "yours"
        line = Text(f" {'[x]' if entry.enabled else '[ ]'} {printable(entry.line)}")
        line.truncate(max(10, width - 26), overflow="ellipsis", pad=True)
        return line.append(f"{hits:>14}  {whose:<9}", style="" if entry.enabled else "dim")

    @property
    def _counted(self) -> str:
        """What the counts are of: all that is recorded, also what is still ahead of the reader."""
        return "so far" if self.session.recording else "in the run"

    def pressed(self, key: str) -> None:
        """Toggle, add, edit, delete."""
        entries = self.session.breakpoints
        if key in ("a", "b"):
            self.ask(breakpoint_prompt(self.session, ""), self._add)
        elif not entries:
            return
        elif key == "space":
            entries[self.row].enabled = not entries[self.row].enabled
            entries[self.row].count = None  # the engine does not count those that are off
        elif key in ("d", "delete"):
            del entries[self.row]
        elif key == "enter":
            line = entries[self.row].line
            self.ask(breakpoint_prompt(self.session, line, line), self._replace)

    def _add(self, line: str) -> None:
        self.session.breakpoints.append(BreakpointEntry(line))
        self.row = len(self.session.breakpoints) - 1

    def _replace(self, line: str) -> None:
        if line != self.session.breakpoints[self.row].line:
            self.session.breakpoints[self.row] = BreakpointEntry(line)


def watch_prompt(session: Session, value: str = "") -> PromptScreen:
    """Asks for an expression to watch."""
    cursor = session.place()
    completer = name_completer(names(cursor.state, cursor.event))
    hint = "an expression over the state   Tab completes, Enter watches, Escape leaves"
    check = partial(watch.problem, request_ids=session.request_ids)
    return PromptScreen("watch:", value, hint, check, completer)


def add_watch(session: Session, text: str) -> None:
    """Watch an expression, once."""
    if text not in session.watches and len(session.watches) < watch.MAX_WATCHES:
        session.watches.append(text)


class WatchScreen(ListDialog):
    """The watch expressions with their values, and the ready-made ones."""

    HEADING = "watch expressions"
    KEYS = "↑ ↓ choose   Enter edit, or take a ready-made +   a add   d delete   Esc close"

    def __init__(self, session: Session, selected: str | None) -> None:
        super().__init__(session)
        self._whose = watch.whose(session.place().state, selected)
        self._templates = watch.templates(self._whose)

    def lines(self, width: int) -> list[Text]:
        """Below the list, how to get what is ready-made for another request."""
        told = f"+ is ready-made for {self._whose}: follow another request (x), and it is for that one."
        more = paragraphs(told, width, theme.style("dim")) if self._whose else []
        return [*super().lines(width), *more]

    @property
    def _ready_made(self) -> list[str]:
        return [text for text in self._templates if text not in self.session.watches]

    def rows(self, width: int) -> list[Text]:
        """The user's list, then what may be taken."""
        cursor = self.session.place()
        texts = [(text, "") for text in self.session.watches]
        texts += [(text, "dim") for text in self._ready_made]
        lines = []
        for number, (text, style) in enumerate(texts):
            ready = number >= len(self.session.watches)
            line = Text(f" {'+ ' if ready else ''}{printable(text)}", style=style)
            line.append(f" = {watch.value(text, cursor)}")
            lines.append(line)
        return lines

    def pressed(self, key: str) -> None:
        """Add, take, edit, delete."""
        watches = self.session.watches
        own = self.row < len(watches)
        if key in ("a", "w"):
            self.ask(watch_prompt(self.session), self._add)
        elif key == "enter" and own:
            self.ask(watch_prompt(self.session, watches[self.row]), self._replace)
        elif key == "enter" and self._ready_made:
            self._add(self._ready_made[self.row - len(watches)])
        elif key in ("d", "delete") and own:
            del watches[self.row]

    def _add(self, text: str) -> None:
        add_watch(self.session, text)
        self.row = len(self.session.watches) - 1

    def _replace(self, text: str) -> None:
        self.session.watches[self.row] = text
