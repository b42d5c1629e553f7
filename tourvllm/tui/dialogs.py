"""What the app asks its user: prompts, lists, forms, and what becomes of the answers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..run_files import SUFFIX, trace_path
from ..tour.errors import ScenarioError
from ..tour.export import export
from ..tour.trace import Trace
from . import watch
from .ask import AskScreen
from .background import in_background
from .board import Board
from .bookmarks import Bookmarks
from .breakpoints import BreakpointEntry
from .help import HelpScreen
from .links import ChildLink
from .lists import (
    BreakpointsScreen,
    ListDialog,
    WatchScreen,
    add_watch,
    breakpoint_prompt,
    watch_prompt,
)
from .pane import Pane
from .prompt import PromptScreen
from .rerun import order_of, own_settings, plan_again
from .restart import FIELDS, RestartScreen
from .session import Session
from .view import Selection

MAX_NOTE = 500
Move = Callable[[], None]
Done = Callable[[str], None]
Make = Callable[[Session], ListDialog]


class Dialogs(Board):
    """The keys that open a dialog."""

    earlier: list[Session]
    _sought = ""

    def ready(self) -> bool:
        """Whether there is a state to talk about; if not, it says so."""
        if self.session.cursor is None:
            self.session.message = (
                "The engine stopped before it began."
                if self.session.error
                else "The engine is still starting: one moment."
            )
            self.show()
            return False
        if not self.session.is_sound():
            self.show()
            return False
        return True

    def stop_playing(self) -> None:
        """A dialog opens: nothing moves under it."""
        raise NotImplementedError

    def prompt(self, prompt: PromptScreen, then: Done, left: Move = lambda: None) -> None:
        """Let a line be typed, then go on with it; `left` if there is none."""

        def typed(text: str | None) -> None:
            self.queue_refresh()  # for what does not show itself
            if text is not None:
                then(text)
            else:
                left()

        self.stop_playing()
        self.push_screen(prompt, typed)

    # Going somewhere

    def action_go_to(self) -> None:
        """Ask for a step's number; the step is shown behind the question as soon as it is found."""
        if self.ready():
            hint = "The step shows as you type   Enter stays there, Escape goes back"
            prompt = PromptScreen(
                "go to step:",
                "",
                hint,
                _step_problem,
                typing=lambda text: self._expect(text, prompt),
            )
            self.prompt(prompt, self._go_to, self.session.peek_no_more)

    def _expect(self, text: str, prompt: PromptScreen) -> None:
        """Look for the step that is typed so far; with none, the reader sees where they are."""
        before = self.session.place().position
        if _step_problem(text):
            self.session.peek_no_more()
        elif missing := self.session.expect_step(int(text)):
            prompt.say(missing)
        if before != self.session.place().position:
            self.queue_refresh()

    def _go_to(self, text: str) -> None:
        if self.session.stay(int(text)):
            self._dirty = False  # it is on the screen already
        else:
            self.move(partial(self.session.go_to_step, int(text)))

    def action_find(self) -> None:
        """Ask for a text, and go to the next stop that has to do with it."""
        if self.ready():
            hint = "a stop, a request, a fact or a word of the reason   Enter finds the next, Escape leaves"
            self.prompt(PromptScreen("find:", self._sought, hint, replace=True), self._find)

    def _find(self, text: str) -> None:
        self._sought = text
        self.move(partial(self.session.find_text, text))

    # Breakpoints, watches, bookmarks, who is followed

    def action_break(self) -> None:
        """Ask for a breakpoint; at first the stop on the screen stands there."""
        if self.ready():
            event = self.session.place().event
            prompt = breakpoint_prompt(self.session, event.stop if event else "")
            self.prompt(prompt, self._add_breakpoint)

    def _add_breakpoint(self, line: str) -> None:
        self.session.breakpoints.append(BreakpointEntry(line))
        self.session.message = f"Breakpoint set: {line}"

    def action_breakpoints(self) -> None:
        """The list of breakpoints."""
        self._list(BreakpointsScreen)

    def action_watch(self) -> None:
        """Ask for an expression to watch."""
        if self.ready():
            self.prompt(watch_prompt(self.session), partial(add_watch, self.session))

    def action_watches(self) -> None:
        """The list of watch expressions."""
        self._list(partial(WatchScreen, selected=self.selection.seq))

    def _list(self, make: Make) -> None:
        if self.ready():
            self.stop_playing()
            self.push_screen(make(self.session), lambda _: self.show())

    def action_bookmark(self) -> None:
        """Ask for a note on this place."""
        if self.ready():
            hint = "a note on this place: [ and ] find it again   Enter keeps it, Escape leaves"
            self.prompt(PromptScreen("bookmark:", "", hint, _note_problem), self._bookmark)

    def _bookmark(self, say: str) -> None:
        self.move(partial(self.session.bookmark, say))

    def action_follow(self) -> None:
        """Ask which request to follow."""
        if not self.ready():
            return
        seqs = list(self.session.place().state.get("seqs") or ())
        if not seqs:
            self.session.message = "There is no request yet to follow."
            self.show()
            return
        hint = f"one of {' '.join(seqs[:40])}   Enter follows, Escape leaves"
        prompt = PromptScreen("follow request:", "", hint, partial(_request_problem, seqs=seqs))
        self.prompt(prompt, self._follow)

    def _follow(self, text: str) -> None:
        seqs = self.session.place().state.get("seqs") or ()
        self.selection = Selection(seq=text if text in seqs else text.upper())

    # Export

    def action_export(self) -> None:
        """Ask for a file, and write the run there."""
        if not self.ready():
            return
        source = self.session.path
        if source is None or not source.is_file():
            self._say(self.session, "There is no trace file of this run to export.")
            return
        if self.session.reading:
            self._say(
                self.session,
                "The trace is still being read, and your bookmarks with it: one moment.",
            )
            return
        name = str(self.session.trace.table("scenario").get("name") or "run").replace("/", "-")
        hint = "the file to write the run to, with your bookmarks   Enter writes, Escape leaves"
        prompt = PromptScreen("export to:", name + SUFFIX, hint, _file_problem)
        self.prompt(prompt, partial(self._export, source))

    def _export(self, source: Path, text: str) -> None:
        session, target = self.session, Path(text).expanduser()
        session.message = f"Writing {text} …"
        lines = [] if session.recording else Bookmarks(session.trace).lines()

        def done(count: int | Exception) -> None:
            said = f"Not exported: {count}"
            if isinstance(count, int):
                said = (
                    f"Written: {target}, {count:,} events. Open it with: tourvllm replay {target}"
                )
            self._say(session, said)

        in_background(self, partial(export, source, target, lines), done)

    def _say(self, session: Session, said: str) -> None:
        session.message = said
        self.show()

    # Again, and side by side

    def action_restart(self) -> None:
        """Ask for the settings of a new run."""
        if not self.ready():
            return
        try:
            defaults = own_settings(self.session.trace)
        except ScenarioError as error:
            self._say(self.session, str(error))
            return
        self.stop_playing()
        form = RestartScreen(self.session.trace.table("engine"), defaults)
        self.push_screen(form, self._restart)

    def _restart(self, changed: dict[str, Any] | None) -> None:
        if changed is None:
            return
        fields = {f"engine.{field.name}" for field in FIELDS}
        try:
            plan = plan_again(self.session.trace, changed, fields)
            path = trace_path(f"{plan.name}-{len(self.earlier) + 2}", None)
        except (ScenarioError, UsageError) as error:
            self._say(self.session, str(error))
            return
        link = type(self.session.link)() if self.session.link else ChildLink()
        session = Session(Trace(), link, self.session.steps, path)
        session.breakpoints = [
            BreakpointEntry(entry.line, entry.enabled)
            for entry in self.session.breakpoints
            if not entry.from_scenario
        ]
        known = watch.of_scenario(self.session.trace)
        session.watches = [text for text in self.session.watches if text not in known]
        self.run_worker(self.begin_anew(session, order_of(plan, str(path.absolute()))))

    async def begin_anew(self, session: Session, order: dict[str, Any]) -> None:
        """Put a new live session in the place of the one on the screen."""
        raise NotImplementedError

    def action_compare(self) -> None:
        """This run beside the one before the restart."""
        from .compare import CompareScreen

        if not self.ready():
            return
        if not self.earlier:
            self._say(
                self.session, "There is no earlier run to compare with: r runs the scenario again."
            )
            return
        self.stop_playing()
        before = self.earlier[-1]
        screen = CompareScreen(before.trace, self.session.trace, before.name, self.session.name)
        self.push_screen(screen, self._compared)

    def _compared(self, step: int | None) -> None:
        if step is not None:
            self.move(partial(self.session.go_to_step, step))
        self.show()

    # Questions and help

    def ask_if_pending(self) -> None:
        """Put the question before which the walk has halted."""
        ask = self.session.pending_ask
        if ask is not None and self.in_front:
            self.stop_playing()
            self.push_screen(AskScreen(ask), self._answered)

    def _answered(self, answer: str | None) -> None:
        self.session.answer(answer)
        self.show()

    def action_help(self) -> None:
        """Show the help page, for the focused pane first."""
        self.stop_playing()
        pane = self.focused if isinstance(self.focused, Pane) else None
        self.push_screen(HelpScreen(pane, self.config.keys))

    def move(self, action: Move) -> None:
        """Move the session."""
        raise NotImplementedError


def _step_problem(text: str) -> str | None:
    return None if text.isdecimal() and len(text) < 12 else f"{text!r} is not a step number."


def _note_problem(text: str) -> str | None:
    return f"A note has at most {MAX_NOTE} characters." if len(text) > MAX_NOTE else None


def _request_problem(text: str, seqs: list[str]) -> str | None:
    if text in seqs or text.upper() in seqs:
        return None
    return f"There is no request {text}: there are {' '.join(seqs[:40])}."


def _file_problem(text: str) -> str | None:
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return f"{text} is a folder: name a file in it."
        if path.exists():
            return f"{text} is there already: name another file."
        if not path.parent.is_dir():
            return f"There is no folder {path.parent}."
    except (OSError, RuntimeError, ValueError) as error:
        return f"No file can have this name: {error}"
    return None
