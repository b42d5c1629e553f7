"""The rail."""

from typing import ClassVar

from rich.text import Text

from ...tour.stops import GROUPS, STOPS, group_of
from .. import theme
from ..pane import BOLD, Pane
from ..view import View


class LoopPane(Pane):
    """The rail: six groups with their keys, and the stops of the group that the run is in."""

    TITLE = "loop"
    EMPTY = "The six parts of the loop."
    TERMS: ClassVar[tuple[str, ...]] = ("step", "stop")
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("1 .. 6", "run to the next stop of that group"),
    )

    def build(self, view: View, width: int, height: int) -> list[Text]:
        stop = view.event.stop if view.event else ""
        current = group_of(stop)
        lines = []
        for group in GROUPS:
            here = group is current
            mark = "▶" if here else " "
            lines.append(Text(f"{mark}{group.key} {group.short}", style=BOLD if here else ""))
            if here:
                lines += [
                    Text(f"   {name}", style=theme.style("here" if name == stop else "dim"))
                    for name, entry in STOPS.items()
                    if entry.group is group
                ]
        return lines
