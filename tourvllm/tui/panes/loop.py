"""The rail."""

from collections import Counter
from typing import ClassVar

from rich.text import Text

from ...tour.stops import GROUPS, STOPS, Group, group_of
from .. import theme
from ..lines import BOLD, wrap
from ..pane import Pane
from ..view import View

ABOUT = 26
"""The column of a stop's sentence, when the pane has the screen for itself."""


class LoopPane(Pane):
    """The rail: six groups with their keys, and the stops of the group that the run is in.

    Zoomed: all stops, each with what happens there and how often this step has come by so far.
    """

    TITLE = "loop"
    EMPTY = "The six parts of the loop."
    TERMS: ClassVar[tuple[str, ...]] = ("step", "stop")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("1 .. 6", "run to the next stop of that group"),
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._here: int | None = None

    def build(self, view: View, width: int, height: int) -> list[Text]:
        stop = view.event.stop if view.event else ""
        current = group_of(stop)
        lines: list[Text] = []
        self.set_title(
            "loop · how many times this step has come to each stop so far"
            if self.zoomed
            else "loop"
        )
        counts = _counts(view) if self.zoomed else Counter()
        self._here = None
        for group in GROUPS:
            here = group is current
            name = group.name if self.zoomed else group.short
            lines.append(Text(f"{'▶' if here else ' '}{group.key} {name}", BOLD if here else ""))
            for stop_name in _stops(group) if here or self.zoomed else ():
                if stop_name == stop:
                    self._here = len(lines)
                lines += self._stop(stop_name, stop_name == stop, counts[stop_name], width)
        return lines

    def _stop(self, name: str, here: bool, times: int, width: int) -> list[Text]:
        """A stop's name; when zoomed, with its sentence."""
        style = theme.style("here" if here else "dim")
        if not self.zoomed:
            return [Text(f"   {name}", style)]
        head = Text.assemble("   ", (name, theme.style("here") if here else ""))
        head.append(f"{times:>{ABOUT - 3 - head.cell_len}}x " if times else "", BOLD)
        head.pad_right(ABOUT - head.cell_len)
        rows = wrap(STOPS[name].about, width - ABOUT, "" if here else theme.style("dim"))
        return [Text.assemble(" " * ABOUT if i else head, row) for i, row in enumerate(rows)]

    def bring_in_sight(self, height: int) -> None:
        """Bring the stop that we are at in sight."""
        if self._here is not None:
            self.show_line(self._here, height)


def _stops(group: Group) -> list[str]:
    return [name for name, stop in STOPS.items() if stop.group is group]


def _counts(view: View) -> Counter[str]:
    """How often this step has come by each stop so far."""
    first = view.step.start if view.step else view.position
    return Counter(map(view.trace.stop_name, range(first, view.position)))
