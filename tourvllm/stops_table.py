"""All stops of the tour: their group, the lines of the engine that tell of them, and what they mean."""

import json
import sys
from typing import Any

import click

from .sources import folders, hook_lines
from .tables import print_table
from .tour.stops import STOPS


def print_stops(as_json: bool) -> None:
    """Print the table of stops, or the same as JSON. The lines are those of the engine that is installed."""
    if as_json:
        json.dump([_as_dict(name) for name in STOPS], sys.stdout, indent=1)
        click.echo()
        return
    rows = [
        [stop.name, f"{stop.group.key} {stop.group.short}", _places(stop.name), stop.about]
        for stop in STOPS.values()
    ]
    print_table(["stop", "group", "told at", "what has happened there"], rows)
    click.echo()
    for folder, name in folders().items():
        click.echo(f"{name + '/':<9} {folder}")


def _places(stop: str) -> str:
    """`engine/scheduler.py:47 50 engine/mixed_scheduler.py:12`."""
    lines: dict[str, list[str]] = {}
    for file, line in hook_lines(stop):
        lines.setdefault(file, []).append(str(line))
    return " ".join(f"{file}:{' '.join(numbers)}" for file, numbers in lines.items())


def _as_dict(name: str) -> dict[str, Any]:
    stop = STOPS[name]
    roots = {package: folder.parent for folder, package in folders().items()}
    places = [
        {"file": file, "line": line, "path": str(roots[file.partition("/")[0]] / file)}
        for file, line in hook_lines(name)
    ]
    return {"stop": name, "group": vars(stop.group), "told_at": places, "about": stop.about}
