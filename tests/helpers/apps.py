"""Apps to press keys in: over a recorded run, over a live engine, over nothing."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tourvllm.tour.reader import read_trace
from tourvllm.tour.trace import Trace

from tourvllm.plan import make_plan
from tourvllm.scenarios_folder import bundled
from tourvllm.tui.app import TourApp
from tourvllm.tui.links import Link
from tourvllm.tui.rerun import order_of
from tourvllm.tui.session import Session

DATA = Path(__file__).parent.parent / "data"
RECORDED = DATA / "kv_pressure.tvllm.jsonl.gz"
WIDE, NARROW = (120, 40), (80, 24)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Bookmarks, progress, configuration, runs and exports of a test are its own."""
    for kind in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.chdir(tmp_path)


def replay(path: Path = RECORDED, **options: Any) -> TourApp:
    """The app over a trace file."""
    return TourApp(Session(read_trace(path), path=path), **options)


def live(
    tmp_path: Path,
    link: Link,
    name: str = "kv_pressure",
    steps: int | None = None,
    text: str = "",
    **settings: Any,
) -> TourApp:
    """The app over an engine that runs a bundled scenario, or `text`."""
    plan = make_plan(name, text or bundled(name).text, settings)
    record = tmp_path / "run.tvllm.jsonl.gz"
    return TourApp(Session(Trace(), link, steps, record), order_of(plan, str(record), verify=True))


def at(app: TourApp) -> tuple[int, int]:
    """The step and the position shown."""
    cursor = app.session.cursor
    assert cursor is not None
    return (cursor.step.number if cursor.step else 0), cursor.position


def with_lines(path: Path, *added: dict[str, Any]) -> Path:
    """The recorded run, written to `path`, with more lines, each behind the event that leads to its `i`."""
    with path.open("wb") as file:
        for line in gzip.decompress(RECORDED.read_bytes()).splitlines(keepends=True):
            file.write(line)
            head = json.loads(line)
            if head["kind"] == "event":
                for entry in added:
                    if entry["i"] == head["i"] + 1:
                        file.write(json.dumps(entry).encode() + b"\n")
    return path


class NoLink:
    """A wire on which nothing ever comes."""

    async def start(self, order, receive, lost):
        """Nothing comes."""

    def send(self, command):
        """Nobody hears it."""

    async def close(self):
        """Nothing to end."""
