"""Only what changed is painted: the screen must be as if all of it had been."""

import gc
from pathlib import Path

import pytest
from textual.strip import Strip
from tourvllm.tour.reader import read_trace

from tourvllm.tui import garbage
from tourvllm.tui.app import TourApp
from tourvllm.tui.pane import Pane
from tourvllm.tui.session import Session

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"

WALKS = {
    "steps and stops": [*"nnnnssssSSnpp", "end", "p", "home", "n"],
    "a request followed": [*"nnnnn", *["tab"] * 4, "enter", *"ssn", "down", "p", "escape", "s"],
    "scrolled": [
        *"nnn",
        "tab",
        "pagedown",
        "shift+right",
        *"ss",
        "tab",
        "pagedown",
        *"ss",
        "z",
        "s",
    ],
    "another theme": [*"nnst", "s", "t", "n"],
}


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["120x40", "80x24"])
async def test_what_is_painted_is_what_a_whole_repaint_shows(walk, size):
    app = TourApp(Session(read_trace(RECORDED)))
    async with app.run_test(size=size) as pilot:
        for key in WALKS[walk]:
            await pilot.press(key)
            await pilot.pause()
            painted = app.export_screenshot()
            for pane in app.screen.query(Pane):
                pane.notify_style_update()
            for widget in app.screen.query("*"):
                widget.refresh()
            await pilot.pause()
            assert app.export_screenshot() == painted, key


async def test_a_scroll_bar_is_there_when_lines_do_not_fit():
    app = TourApp(Session(read_trace(RECORDED)))
    async with app.run_test(size=(120, 40)) as pilot:
        for key in WALKS["steps and stops"]:
            await pilot.press(key)
            await pilot.pause()
            for pane in app.screen.query(Pane):
                overflows = pane.virtual_size.height > pane.container_size.height
                assert pane.vertical_scrollbar.display == overflows, (key, pane.id)
                assert pane.scroll_offset.y <= pane.max_scroll_y, (key, pane.id)


async def test_what_was_painted_is_let_go_of_without_a_search_for_cycles(monkeypatch):
    """Python's search waits for pauses: until then, each picture would stay."""
    monkeypatch.setattr(garbage, "collect", lambda quiet: None)
    app, counts = TourApp(Session(read_trace(RECORDED))), []
    async with app.run_test(size=(120, 40)) as pilot:
        for key in [*"nnnn", "end", "home"] * 3:
            await pilot.press(key)
            await pilot.pause()
            counts.append(sum(isinstance(thing, Strip) for thing in gc.get_objects()))
    assert counts[-1] < 1.1 * max(counts[:6])
