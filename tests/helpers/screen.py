"""What stands on an app's screen, as text lines, read off the picture that Textual draws."""

import html
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from textual.pilot import Pilot

_TEXT = re.compile(r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')
CELL = 12.2
"""Width of a character in the picture."""


def lines(app: Any) -> list[str]:
    """The screen's lines."""
    rows: dict[float, dict[int, str]] = defaultdict(dict)
    for x, y, text in _TEXT.findall(app.export_screenshot()):
        rows[float(y)][round(float(x) / CELL)] = html.unescape(text).replace("\xa0", " ")
    found = []
    for _, cells in sorted(rows.items()):
        line = ""
        for column, text in sorted(cells.items()):
            line = line.ljust(column)[:column] + text
        found.append(line)
    return found


def text(app: Any) -> str:
    """The whole screen."""
    return "\n".join(lines(app))


def pane(app: Any, name: str) -> str:
    """The text of one pane as one paragraph, also what is scrolled out of sight."""
    return " ".join(
        " ".join(line.plain for line in app.screen_stack[0].query_one(f"#{name}")._lines).split()
    )


async def press(pilot: Pilot[Any], keys: Iterable[str]) -> None:
    """Press keys one after another and let the app come to rest."""
    for key in keys:
        await pilot.press(key)
    await settle(pilot)


async def settle(pilot: Pilot[Any], seconds: float = 20) -> None:
    """Wait until the engine rests and the screen shows it."""
    session = pilot.app.session
    for _ in range(int(seconds / 0.02)):
        await pilot.pause(0.02)
        if not session.busy:
            break
    await pilot.pause(0.06)
