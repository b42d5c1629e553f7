"""Texts from models, prompts and strangers are inert on a terminal."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tourvllm.tour.text import line, printable, token


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]text[/]", "plain [bold]text[/]"),
        ("\x1b[31m", "␛[31m"),
        ("a\tb\nc\rd", "a␉b␊c␍d"),
        ("bell\x07 null\0 del\x7f", "bell␇ null␀ del␡"),
        ("\x9b2J", "\ufffd2J"),
        ("turn\u202ereversed", "turn\ufffdreversed"),
        ("\u2028", "\ufffd"),
        ("\ud800", "\ufffd"),
        ("é 中 😀", "é 中 😀"),
        ("👩\u200d🚀 ❤\ufe0f", "👩\ufffd🚀 ❤\ufffd"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\ufeff", "\ufffd"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


def test_tokens_show_their_spaces_and_lines_stay_one():
    assert token(" the") == '" the"'
    assert token("\n\n\t") == '"⏎⏎⇥"'
    assert token('"') == "'\"'"
    assert token(' "yes" ') == "' \"yes\" '"
    assert token("\"'") == '""\'"'
    assert line("one\r\ntwo\nthree") == "one⏎two⏎three"
    assert line("👩\u200d🚀 ❤\ufe0f") == "👩🚀 ❤"


@given(st.text(st.characters(codec=None)))
def test_no_text_keeps_a_character_that_acts(text):
    for shown in (printable(text), token(text), line(text)):
        assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
        assert len(shown.splitlines()) <= 1
        shown.encode()


@given(st.text(st.sampled_from('a" 👩🚀❤漢🇩🇪🏽1\u20e3\u0301\u200c\u200d\ufe0f')), st.integers(0, 9))
def test_a_text_is_as_wide_as_its_parts_wherever_it_is_split(text, at):
    for shown in (printable(text), token(text), line(text)):
        assert cell_len(shown) == cell_len(shown[:at]) + cell_len(shown[at:])


def test_every_single_character_is_harmless():
    acting = [
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(printable(c)) in ("Cc", "Cs")
    ]
    assert acting == []
    assert all(
        unicodedata.bidirectional(printable(chr(c))) not in ("RLO", "LRO", "RLI", "LRI")
        for c in range(0x2000, 0x2070)
    )
