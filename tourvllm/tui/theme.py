"""Colours and signs of the screen: dark, light or high contrast, and signs for terminals that have ASCII only.

    theme.use("light", ascii=False)      from the configuration or a key; then draw anew
    theme.style("dim")                   a style by its name, for rich texts; see `STYLES`
    theme.hue(2), theme.tint(2)          the third request's letter on its hue, and text in its hue
    theme.glyph("here")                  a sign by its name; see `GLYPHS`
    theme.shown("▶ 1/24 · ▁▂▃")          any text with our signs, as this terminal can show it
    theme.textual_theme("light")         the colours of boxes and lines, for App.register_theme and App.theme

Panes write the signs as they are: the base of all panes and bars passes what is drawn through `draw`.
"""

from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.style import Style
from rich.text import Text
from textual.theme import Theme as TextualTheme

from ..tour.text import printable

HUES = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")
"""Colours that colour-blind people can tell apart (Okabe and Ito); the letters alone suffice."""

DARKER_HUES = ("#8A5A00", "#1B6A99", "#00694B", "#6B6100", "#A84600", "#94456F")
"""The same hues as text on a light ground: each has a contrast of at least 4.5 to it."""

STYLES = {
    "dim": Style(dim=True),
    "bold": Style(bold=True),
    "new": Style(bold=True, reverse=True),
    "here": Style(bold=True, reverse=True),
    "alarm": Style(bold=True, reverse=True),
    "note": Style(italic=True, color="cyan"),
    "prefill": Style(color="cyan"),
    "decode": Style(color="yellow"),
    "faded": Style(dim=True),
    "chosen": Style(bold=True, reverse=True),
    "column": Style(bold=True, bgcolor="#505050"),
}
"""Styles by what they mean: dim (labels), bold (changed), new (a block taken just now), here (the line or step
that we are at), alarm (an error or a message), note (the narrator), prefill and decode (kinds of tokens), faded
(not of the selected request), chosen (the selected one), column (the step that we are at, behind its
bars)."""

GLYPHS = {
    "here": "▶",
    "next": "→",
    "free": "·",
    "freed": "×",
    "still cached": ":",
    "rule": "│",
    "note": "»",
    "more": "…",
    "cached": "█",
    "scheduled": "▒",
    "later": "·",
}
"""Signs by what they mean. `cached`, `scheduled` and `later` are the parts of a request's bar."""

BARS = "▁▂▃▄▅▆▇█"
"""Shares, from little to all."""

_ASCII = str.maketrans(
    {
        **dict(zip(BARS, ".:-=+*##", strict=True)),
        **{
            "·": ".",
            "×": "x",
            "│": "|",
            "─": "-",
            "▶": ">",
            "→": ">",
            "←": "<",
            "↑": "^",
            "↓": "v",
        },
        **{"»": ">", "…": "~", "▒": "+", "–": "-", "⏎": "$", "⇥": "_", "␛": "?", "�": "?"},
    }
)
"""One character each, so that columns stay where they are."""


@dataclass(frozen=True)
class _Theme:
    tints: tuple[str, ...]
    code: str
    styles: dict[str, Style]
    boxes: TextualTheme


_DARK = _Theme(
    HUES,
    "ansi_dark",
    STYLES,
    TextualTheme(
        "tourvllm-dark",
        primary="#0178D4",
        secondary="#004578",
        accent="#ffa62b",
        warning="#ffa62b",
        error="#ba3c5b",
        success="#4EBF71",
        foreground="#e0e0e0",
    ),
)
_LIGHT = _Theme(
    DARKER_HUES,
    "ansi_light",
    {
        **STYLES,
        "dim": Style(color="#5c5c5c"),
        "note": Style(italic=True, color="#00617a"),
        "prefill": Style(color="#00617a"),
        "decode": Style(color="#8a5a00"),
        "faded": Style(color="#707070"),
        "column": Style(bold=True, bgcolor="#BBBBBB"),
    },
    TextualTheme(
        "tourvllm-light",
        primary="#004578",
        secondary="#0178D4",
        accent="#A84600",
        warning="#A84600",
        error="#ba3c5b",
        success="#00694B",
        foreground="#101010",
        background="#FAFAFA",
        surface="#EEEEEE",
        panel="#DDDDDD",
        dark=False,
    ),
)
_CONTRAST = _Theme(
    HUES,
    "ansi_dark",
    {
        **STYLES,
        "dim": Style(),
        "note": Style(bold=True, color="bright_cyan"),
        "prefill": Style(color="bright_cyan"),
        "decode": Style(color="bright_yellow"),
        "column": Style(bold=True, bgcolor="#0000C0"),
    },
    TextualTheme(
        "tourvllm-contrast",
        primary="#FFFFFF",
        secondary="#FFFFFF",
        accent="#FFFF00",
        warning="#FFFF00",
        error="#FF6060",
        success="#60FF60",
        foreground="#FFFFFF",
        background="#000000",
        surface="#000000",
        panel="#303030",
    ),
)
_CODE_ON_LIGHT = {"yellow": "#8a5a00", "green": "#2f6d1b", "cyan": "#00617a"}
"""What stands for colours of source code that are too pale on a light ground."""

_THEMES = {"dark": _DARK, "light": _LIGHT, "contrast": _CONTRAST}
NAMES = tuple(_THEMES)
"""The themes, in the order of the key that goes through them."""

_now, _now_ascii = "dark", False


def use(name: str, ascii: bool = False) -> None:
    """From now on draw in this theme. An unknown name raises KeyError with a sentence."""
    global _now, _now_ascii
    if name not in _THEMES:
        raise KeyError(f"there is no theme {name!r}: choose one of {', '.join(NAMES)}")
    _now, _now_ascii = name, ascii


def name() -> str:
    """The theme in use."""
    return _now


def is_ascii() -> bool:
    """Whether signs are ASCII only."""
    return _now_ascii


def style(what: str) -> Style:
    """A style by its name, one of `STYLES`."""
    return _THEMES[_now].styles[what]


def hue(index: int) -> Style:
    """Black letters on the hue of request number `index`."""
    return _on_hue(HUES[index % len(HUES)])


def tint(index: int) -> Style:
    """Text in the hue of request number `index`."""
    tints = _THEMES[_now].tints
    return _in_colour(tints[index % len(tints)])


@lru_cache
def _on_hue(colour: str) -> Style:
    return Style(color="black", bgcolor=colour, bold=True)


@lru_cache
def _in_colour(colour: str) -> Style:
    return Style(color=colour)


def code() -> str:
    """The name of rich's highlighting theme for source code."""
    return _THEMES[_now].code


def code_colour(color: Color | None) -> Color | str | None:
    """A colour of rich's highlighting, as it can be read in this theme."""
    return _CODE_ON_LIGHT.get(color.name, color) if color and _now == "light" else color


def glyph(what: str) -> str:
    """A sign by its name, one of `GLYPHS`."""
    return shown(GLYPHS[what])


def shown(text: str) -> str:
    """`text` with our signs as this terminal can show them; the words of prompts and models stay as they are."""
    return text.translate(_ASCII) if _now_ascii and not text.isascii() else text


def arrow() -> str:
    """What stands between an old and a new value: one ASCII sign would be read as a comparison."""
    return "->" if _now_ascii else "→"


def draw(line: Text) -> Text:
    """A styled line as this terminal can show it; changed in place. Every sign stays one cell wide.

    What could act on the terminal becomes visible instead, wherever it came from.
    """
    if not line.plain.isprintable():
        line.plain = printable(line.plain)
    if _now_ascii and not line.plain.isascii():
        line.plain = shown(line.plain)
    return line


def textual_theme(name: str) -> TextualTheme:
    """The colours of boxes and lines that go with a theme, under the name `tourvllm-NAME`."""
    return _THEMES[name].boxes
