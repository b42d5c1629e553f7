"""The table of keys: bindings, the key line, the help page and the configuration file all come from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from textual.binding import Binding

from ..tour.stops import GROUPS


@dataclass(frozen=True)
class Key:
    """What a key does. `id` is its name in the configuration; `keys` are Textual's names, with commas."""

    id: str
    keys: str
    action: str
    about: str
    priority: bool = False


OF_PANES = {"left", "right", "up", "down", "home", "end"}

WALK = (
    Key("next_step", "n,right", "move('next_step')", "one engine step on"),
    Key("previous_step", "p,left", "move('previous_step')", "one engine step back"),
    Key("next_stop", "s", "move('next_stop')", "one stop on"),
    Key("previous_stop", "S", "move('previous_stop')", "one stop back"),
    Key("run_on", "c", "move('run_on')", "on to a breakpoint; with none, to the end"),
    Key("run_back", "C", "move('run_back')", "back to a breakpoint; with none, to the start"),
    Key(
        "finish_phase",
        "f",
        "move('finish_phase')",
        "to the end of this phase: schedule, model, closing",
    ),
    *(
        Key(
            f"group_{group.key}",
            str(group.key),
            f"group({group.key})",
            f"on to the next stop of group {group.key}: {group.name}",
        )
        for group in GROUPS
    ),
    Key("play", "space", "play", "play to a breakpoint, and pause; halt what is on its way"),
    Key("slower", "less_than_sign", "speed(-1)", "play slower"),
    Key("faster", "greater_than_sign", "speed(1)", "play faster"),
)
JUMP = (
    Key(
        "previous_mark",
        "left_square_bracket",
        "move('previous_mark')",
        "to the note or mark before",
    ),
    Key(
        "next_mark",
        "right_square_bracket",
        "move('next_mark')",
        "to the next note or mark (P F E R B of the timeline)",
    ),
    Key(
        "go_to",
        "colon",
        "go_to",
        "to a step by its number; it shows as you type, and a live run goes on to it",
    ),
    Key("find", "slash", "find", "to the next stop that has to do with a text"),
    Key("start", "home", "move('go_to_start')", "to the start"),
    Key("end", "end", "move('go_to_end')", "to the end of what is recorded"),
)
KEEP = (
    Key("break", "b", "break", "breakpoint here, or on a request or a condition"),
    Key("breakpoints", "B", "breakpoints", "the list of breakpoints"),
    Key("watch", "w", "watch", "watch an expression: its value, old → new"),
    Key("watches", "W", "watches", "the list of watch expressions, with ready-made ones"),
    Key("bookmark", "m", "bookmark", "bookmark this place with a note"),
    Key("follow", "x", "follow", "follow a request in all panes; Esc ends it"),
    Key("export", "e", "export", "write the run, with your bookmarks, to a file"),
    Key("restart", "r", "restart", "run the scenario again, with other settings if wanted"),
    Key("compare", "d", "compare", "compare this run with the one before the restart"),
)
LOOK = (
    Key(
        "next_pane",
        "tab",
        "next_pane(1)",
        "next pane; ↑ ↓ PgUp PgDn scroll it, Shift+← → sideways",
        True,
    ),
    Key("previous_pane", "shift+tab", "next_pane(-1)", "the pane before", True),
    Key("zoom", "z", "zoom", "zoom the pane; again or Esc: back"),
    Key("view", "v", "view", "next view, on a small terminal"),
    Key("presenter", "P", "presenter", "presenter mode: few panes, for a projector"),
    Key("theme", "T", "theme", "next theme: dark, light, contrast"),
    Key("help", "question_mark", "help", "this page"),
    Key("interrupt", "ctrl+c", "interrupt", "halt what is on its way", True),
    Key("quit", "q", "quit", "quit"),
)
SECTIONS = (
    ("KEYS: WALK", WALK),
    ("KEYS: JUMP", JUMP),
    ("KEYS: KEEP AND COMPARE", KEEP),
    ("KEYS: LOOK", LOOK),
)
KEYS = {key.id: key for _, section in SECTIONS for key in section}

WIDE_LINE = (
    ("next_step", "step"),
    ("previous_step", "back"),
    ("next_stop", "stop"),
    ("next_mark", "note"),
    ("run_on", "continue"),
    ("break", "break"),
    ("watch", "watch"),
    ("go_to", "go to"),
    ("play", "play"),
    ("restart", "restart"),
    ("zoom", "zoom"),
    ("help", "help"),
    ("quit", "quit"),
)
NARROW_LINE = (
    ("next_step", "step"),
    ("previous_step", "back"),
    ("next_stop", "stop"),
    ("next_mark", "note"),
    ("run_on", "cont"),
    ("break", "break"),
    ("view", "view"),
    ("zoom", "zoom"),
    ("help", "help"),
    ("quit", "quit"),
)
"""What the key line names: the id and a word."""


def while_zoomed(line: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same while one pane has the screen for itself: there are no views, and a way back."""
    return [
        (key_id, "unzoom" if key_id == "zoom" else word)
        for key_id, word in line
        if key_id != "view"
    ]


_SHOWN = {
    "right": "→",
    "left": "←",
    "up": "↑",
    "down": "↓",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "colon": ":",
    "slash": "/",
    "question_mark": "?",
    "space": "space",
    "home": "Home",
    "end": "End",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "ctrl+c": "Ctrl+C",
}


def bindings() -> Iterable[Binding]:
    """Textual's bindings for the table.

    Keys are taken before they go to a pane, so that those typed fast are obeyed in order, and what follows a key
    that opens a dialog goes to the dialog. Only the keys that move in a pane may be the pane's own.
    """
    for key in KEYS.values():
        for one in key.keys.split(","):
            first = key.priority or one not in OF_PANES
            yield Binding(one, key.action, key.about, id=key.id, priority=first)


def shown(keys: str) -> list[str]:
    """How the keys of a binding stand on the screen."""
    return [_SHOWN.get(key.strip(), key.strip()) for key in keys.split(",")]


def key_line(
    words: Iterable[tuple[str, str]], keymap: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """The keys as they are set now, each with its word."""
    for key_id, word in words:
        yield shown(keymap.get(key_id, KEYS[key_id].keys))[0], word


def table(keymap: Mapping[str, str]) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """All keys as they are set now with what they do, by section."""
    for title, section in SECTIONS:
        yield (
            title,
            [("  ".join(shown(keymap.get(key.id, key.keys))), key.about) for key in section],
        )
