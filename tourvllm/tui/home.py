"""The home screen: lessons, recent runs, a file of one's own; and back here when a run is left."""

import gzip
import sys
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Static

from ..errors import UsageError
from ..plan import Plan, make_plan
from ..recent import RecentRun, recent_runs
from ..run_files import trace_path
from ..scenarios_folder import ScenarioFile, bundled, find_scenario
from ..tour.errors import TourError, TraceError
from ..tour.reader import open_trace
from ..tour.text import printable
from ..tour.trace import MAX_LINE, Trace
from . import theme
from .background import in_background
from .bars import key_line
from .config import read_config
from .dialog import Dialog, caret, flowing, paragraphs, put
from .prompt import PromptScreen
from .rows import Rows
from .shelf import (
    Heading,
    Item,
    LessonItem,
    OpenItem,
    RunItem,
    matches,
    read_lessons,
    unread_lessons,
)
from .terminal import TerminalApp, run_app

NARROW_BELOW = 100
MAX_SAID = 6
"""Lines that a message may take."""

Choice = Plan | tuple[Trace, Path]


def home() -> int:
    """Show the home screen, run what is chosen, come back; until the user quits. Returns the exit code."""
    said, chosen, told = "", "", ""
    try:
        while True:
            app = HomeApp(said, chosen)
            code = run_app(app)
            if app.return_value is None:
                return code
            code, words = play(app.return_value)
            told += words
            if code > 128:  # a signal meant to end it all
                return code
            said, chosen = words.strip() if code else "", app.chosen
    finally:
        sys.stderr.write(told)


def play(choice: Choice) -> tuple[int, str]:
    """Run a plan or replay a trace. Returns its exit code and what it said on stderr."""
    from .start import run_live, run_replay  # not before the home screen stands

    with redirect_stderr(StringIO()) as words:
        try:
            if isinstance(choice, Plan):
                path = trace_path(choice.name, None)
                code = run_live(choice, path, steps=None, in_process=False, verify=False)
            else:
                code = run_replay(*choice)
        except UsageError as error:
            return 2, f"{error}\n"
    return code, words.getvalue()


class HomeApp(TerminalApp[Choice]):
    """Offers what can be run. Returns a checked plan, or an opened trace; None when the user quits.

    said: what is to be told at the start. chosen: the key of the item to begin at.
    """

    TITLE = "tourvllm"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title, #keys { height: 1; background: $panel; }
    #said { padding: 0 1; }
    #body { height: 1fr; layout: horizontal; }
    #list { width: 1fr; padding-top: 1; }
    #detail { width: 36%; min-width: 44; padding: 1 1 0 2; border-left: solid $primary 60%; scrollbar-size: 1 1;
        scrollbar-color: $primary; scrollbar-background: $surface; }
    Screen.-narrow #body { layout: vertical; }
    Screen.-narrow #list { height: 1fr; padding-top: 0; }
    Screen.-narrow #detail {
        width: 1fr; min-width: 0; height: 9; padding: 0 1; border-left: none; border-top: solid $primary 60%;
    }
    Screen.-low #detail { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, said: str = "", chosen: str = "") -> None:
        super().__init__()
        self.chosen = chosen
        self._said = said
        self._filter: str | None = None
        self._opening = False
        self._lessons = unread_lessons()
        self._runs: list[RecentRun] | None = None
        self._items: list[Item] = []

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="title", markup=False)
        with Container(id="body"):
            yield Rows(self._row, self._stands, id="list")
            with VerticalScroll(id="detail", can_focus=False):
                yield Static(id="about", markup=False)
        yield Static(id="said", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Show the names at once; titles, progress and recent runs are read beside the screen."""
        self._dress()
        title = Text.assemble((" tourvllm ", theme.style("here")))
        title.append("  step through a real paged-attention engine", theme.style("dim"))
        self.query_one("#title", Static).update(title)
        self.query_one(Rows).focus()
        self._fill()
        in_background(self, read_lessons, self._lessons_are_read)
        in_background(self, lambda: list(recent_runs()), self._runs_are_read)

    def _dress(self) -> None:
        """Put on the user's theme."""
        config = read_config()
        theme.use(config.theme, config.ascii)
        boxes = theme.textual_theme(config.theme)
        self.register_theme(boxes)
        self.theme = boxes.name
        self._said = self._said or config.problem

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout for the new size."""
        self.screen_stack[0].set_class(event.size.width < NARROW_BELOW, "-narrow")
        self.screen_stack[0].set_class(event.size.height < 18, "-low")
        self.call_after_refresh(self._show)

    # The list

    def _lessons_are_read(self, lessons: list[LessonItem] | Exception) -> None:
        if isinstance(lessons, Exception):
            self._say(f"The lessons cannot be read: {lessons}")
        else:
            self._lessons = lessons
            self._fill()

    def _runs_are_read(self, runs: list[RecentRun] | Exception) -> None:
        if isinstance(runs, Exception):
            self._say(f"The recent runs cannot be read: {runs}")
        else:
            self._runs = runs
            self._fill()

    def _fill(self) -> None:
        """Lay out the sections that hold something; the chosen item stays the chosen one."""
        rows = self.query_one(Rows)
        if rows.moved and self._item:  # its message may still be on its way
            self.chosen = self._item.key
        runs = [RunItem(run) for run in self._runs or ()]
        sections: tuple[tuple[str, list[Item]], ...] = (
            ("LESSONS", list(self._lessons)),
            ("RECENT RUNS", list(runs)),
            ("YOUR OWN", [OpenItem()]),
        )
        self._items = []
        for name, all_items in sections:
            items = [item for item in all_items if matches(item, self._filter or "")]
            if items:
                gap = [Heading("")] if self._items else []
                self._items += [*gap, Heading(name), *items]
        keys = [item.key for item in self._items]
        at = keys.index(self.chosen) if self.chosen in keys else 0
        rows.fill(len(self._items), at)
        self._show()

    def _row(self, number: int, width: int) -> Text:
        return self._items[number].line(width)

    def _stands(self, number: int) -> bool:
        return not isinstance(self._items[number], Heading)

    @property
    def _item(self) -> Item | None:
        """The chosen item."""
        rows = self.screen_stack[0].query_one(Rows)
        if rows.chosen < len(self._items) and self._stands(rows.chosen):
            return self._items[rows.chosen]
        return None

    def on_rows_moved(self) -> None:
        """Tell more about the item that is chosen now."""
        if self._item is not None:
            self.chosen = self._item.key
        self._show()

    def _show(self) -> None:
        """The detail of the chosen item, what there is to say, and the keys."""
        base, item = self.screen_stack[0], self._item
        width = base.query_one("#detail").scrollable_content_region.width
        if width > 0:
            lines = item.detail(width) if item and not isinstance(item, Heading) else []
            if base.has_class("-narrow"):  # there is no row to spare
                lines = [line for line in lines if line.plain]
            self._put("about", lines)
        said = (
            paragraphs(self._said, self.size.width - 2, theme.style("bold")) if self._said else []
        )
        self._put("said", said[-MAX_SAID:])
        base.query_one("#said").display = bool(said)
        self._put("keys", [self._keys()])

    def _put(self, name: str, lines: list[Text]) -> None:
        put(self.screen_stack[0].query_one(f"#{name}", Static), lines)

    def _keys(self) -> Text:
        does = self._item.does if self._item else "runs"
        if self._filter is not None:
            return Text(
                f" only those with: {printable(self._filter)}{caret()}   Enter {does}, Escape shows all"
            )
        keys = (("↑ ↓", "choose"), ("Enter", does), ("/", "filter"), ("?", "help"), ("q", "quit"))
        return key_line("", keys)

    def _say(self, text: str) -> None:
        self._said = text
        self._show()

    # Taking an item

    def on_rows_taken(self) -> None:
        """Run or open the chosen item."""
        item = self._item
        if self._opening or item is None:
            return
        self.chosen = item.key
        if isinstance(item, LessonItem):
            self._run(partial(bundled, item.name))
        elif isinstance(item, RunItem):
            self._open(item.run.path)
        elif isinstance(item, OpenItem):
            prompt = PromptScreen("open which file?", check=_cannot_open)
            self.push_screen(prompt, self._open_named)

    def _run(self, find: Callable[[], ScenarioFile]) -> None:
        """Check a scenario and leave the home screen for it."""
        try:
            self.exit(_plan(find()))
        except (UsageError, TourError, OSError) as error:
            self._say(str(error))

    def _open_named(self, text: str | None) -> None:
        if text and _is_scenario(text):
            self._run(partial(find_scenario, str(Path(text).expanduser())))
        elif text:
            self._open(Path(text).expanduser())

    def _open(self, path: Path) -> None:
        """Read a trace, beside the screen, and leave the home screen for it."""
        self._opening = True
        self._say(f"opening {path.name} …")

        def opened(trace: Trace | Exception) -> None:
            self._opening = False
            if isinstance(trace, Trace):
                self.exit((trace, path))
            else:
                self._say(f"{path.name} cannot be opened: {trace}")

        in_background(self, partial(open_trace, path), opened)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a filter is typed, keys are text; over a dialog they are its own."""
        return self._filter is None and len(self.screen_stack) == 1

    def action_filter(self) -> None:
        """Type what the items must hold."""
        self._filter = ""
        self._fill()

    def action_help(self) -> None:
        """Show what the home screen is for."""
        self.push_screen(HomeHelp())

    def on_key(self, event: events.Key) -> None:
        """Take in a filter; Escape takes it away."""
        if len(self.screen_stack) > 1 or self._filter is None:
            return
        if event.key == "escape":
            self._filter = None
        elif event.key == "backspace":
            self._filter = self._filter[:-1]
        elif event.is_printable and event.character and len(self._filter) < 40:
            self._filter += event.character
        else:
            return
        event.stop()
        self._fill()


def _plan(file: ScenarioFile) -> Plan:
    return make_plan(file.name, file.text, where=file.where)


def _is_scenario(text: str) -> bool:
    return text.endswith((".yaml", ".yml"))


def _cannot_open(text: str) -> str | None:
    """Why the file of that name is neither a scenario nor a trace, as far as its first line tells."""
    try:
        path = Path(text).expanduser()
        if _is_scenario(text):
            _plan(find_scenario(str(path)))
        elif path.is_dir():
            return f"{text} is a folder: name a file in it"
        elif path.is_file():
            Trace().feed(_first_line(path))
        else:
            return f"there is no file {text}"
    except TraceError as error:
        return f"{text} is not a tourvllm trace: {error}"
    except (UsageError, TourError) as error:
        return str(error)
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
        return f"{text} cannot be read: {error}"
    return None


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        return file.readline(MAX_LINE)


HELP = (
    ("Enter", "run the lesson, replay the run, or open the file that is chosen"),
    ("↑ ↓", "choose; Home, End, PgUp and PgDn go far; the mouse does it too"),
    ("/", "show only what holds some words; Escape shows all"),
    ("q", "quit; in a run, q comes back to this screen"),
)

ABOUT = """
A lesson is a scenario: a few requests, an engine, and a narrator who tells what happens and asks what will happen
next. Begin with the first one. In a run, n makes one engine step, p goes back, ? tells the other keys.

Each run is recorded. It stands under the recent runs and can be walked again without an engine; the newest hundred
are kept.
"""


class HomeHelp(Dialog[None]):
    """What the home screen is for, and its keys."""

    HEADING = "home"

    def lines(self, width: int) -> list[Text]:
        """Keys, then words."""
        keys = []
        for key, what in HELP:
            first, *rest = paragraphs(what, width - 7)
            keys.append(Text.assemble((f"{key:<7}", "bold"), first))
            keys += [Text.assemble(" " * 7, line) for line in rest]
        close = Text("Any key closes this", theme.style("dim"))
        return [Text(), *keys, Text(), *flowing(ABOUT, width), Text(), close]

    def on_key(self, event: events.Key) -> None:
        """Any key closes."""
        event.stop()
        self.dismiss(None)
