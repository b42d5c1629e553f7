"""All stops of the tour: their group, the lines of the engine that tell of them, and what they mean."""

import json
import sys
from typing import Any

import click

from .sources import folders, hook_lines
from .tables import print_table
from .tour.stops import GROUPS, STOPS, Group


def print_stops(as_json: bool) -> None:
    """Print the table of stops, or the same as JSON. The lines are those of the engine that is installed."""
    if as_json:
        json.dump([_as_dict(name) for name in STOPS], sys.stdout, indent=1)
        click.echo()
        return
    rows = [row for group in GROUPS for row in _group_rows(group)]
    headings = [index for index, row in enumerate(rows) if row[0][:1].isdigit()]
    columns = ["stop", "told at", "what has happened there"]
    print_table(columns, rows, marked=headings, whole=(0, 1))
    click.echo()
    for folder, name in folders().items():
        click.echo(f"{name + '/':<9} {folder}")


def _group_rows(group: Group) -> list[list[str]]:
    """A heading and the group's stops; a stop has one more row for each further file that tells of it."""
    rows = [[f"{group.key} {group.short}", "", ""]]
    for stop in STOPS.values():
        if stop.group is group:
            first, *others = _places(stop.name) or [""]
            rows += [[stop.name, first, stop.about], *(["", place, ""] for place in others)]
    return rows


def _places(stop: str) -> list[str]:
    """Each file that tells of a stop, with its lines: `engine/scheduler.py:47 50`."""
    lines: dict[str, list[str]] = {}
    for file, line in hook_lines(stop):
        lines.setdefault(file, []).append(str(line))
    return [f"{file}:{' '.join(numbers)}" for file, numbers in lines.items()]


def _as_dict(name: str) -> dict[str, Any]:
    stop = STOPS[name]
    roots = {package: folder.parent for folder, package in folders().items()}
    places = [
        {"file": file, "line": line, "path": str(roots[file.partition("/")[0]] / file)}
        for file, line in hook_lines(name)
    ]
    return {"stop": name, "group": vars(stop.group), "told_at": places, "about": stop.about}
