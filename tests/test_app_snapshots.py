"""Pictures of the screen, kept: `pytest tests/test_app_snapshots.py --snapshot-update` after a wanted change."""

from pathlib import Path

import pytest
from tourvllm.tour.reader import read_trace

from tourvllm.tui.app import TourApp
from tourvllm.tui.session import Session

RECORDED = Path(__file__).parent / "data" / "kv_pressure.tvllm.jsonl.gz"

MOMENTS = {
    "first_step": [],
    "prefill": ["n", "n", "n"],
    "preemption": ["c"],
    "decode_mid_step": ["n"] * 8 + ["s"] * 12,
    "end": ["end"],
}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["120x40", "80x24"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_screen(snap_compare, moment, size):
    app = TourApp(Session(read_trace(RECORDED)))
    assert snap_compare(app, press=MOMENTS[moment], terminal_size=size)


@pytest.mark.parametrize("view", ["code", "blocks", "output"])
def test_views_of_a_small_terminal(snap_compare, view):
    keys = ["n"] * 10 + ["v"] * (["code", "blocks", "output"].index(view) + 1)
    assert snap_compare(TourApp(Session(read_trace(RECORDED))), press=keys, terminal_size=(80, 24))


def test_help(snap_compare):
    assert snap_compare(
        TourApp(Session(read_trace(RECORDED))), press=["question_mark"], terminal_size=(120, 40)
    )


def test_zoomed_batch(snap_compare):
    keys = ["n", "n", "n", *["tab"] * 7, "z"]
    assert snap_compare(TourApp(Session(read_trace(RECORDED))), press=keys, terminal_size=(120, 40))


def test_no_colour(snap_compare, monkeypatch):
    """U7: with NO_COLOR everything is still told apart by letters and shapes."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(
        TourApp(Session(read_trace(RECORDED))), press=["n"] * 12, terminal_size=(120, 40)
    )
