"""Text from a model, a prompt or a stranger's trace, made harmless for a terminal."""

import unicodedata

_PICTURES = {i: chr(0x2400 + i) for i in range(32)} | {127: "␡"}
_DROPPED_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_NON_JOINER = "\u200c"
_EMOJI_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
"""They only change how the characters beside them look, and each terminal makes another width of that: a line with
them would not stay in its columns."""


def printable(text: str) -> str:
    """`text` with control characters as visible pictures and invisible format characters as `�`.

    Escape sequences cannot act, lines cannot break, text direction cannot be turned around, and a text is as wide
    as its characters are one by one.
    """
    # To Python, what is shown otherwise is not printable, but for this one sign.
    if text.isprintable() and _EMOJI_STYLE not in text:
        return text
    text = text.replace(_EMOJI_STYLE, "\ufffd")
    return "".join(c if c.isprintable() else _one(c) for c in text)


def _one(character: str) -> str:
    """One that is not printable to Python, which most kinds of spaces are not."""
    picture = _PICTURES.get(ord(character))
    if picture:
        return picture
    if character == _NON_JOINER:
        return character
    return "\ufffd" if unicodedata.category(character) in _DROPPED_CATEGORIES else character


def token(text: str) -> str:
    """A token's text between quotes that show its spaces: `" the"`, `'"'`, newlines as `⏎`."""
    quote = "'" if '"' in text and "'" not in text else '"'
    return quote + printable(text.replace("\n", "⏎").replace("\t", "⇥")) + quote


def line(text: str) -> str:
    """Running text on one line: line breaks become `⏎`, emoji stand for themselves, the rest is made printable."""
    text = text.replace("\r\n", "⏎").replace("\n", "⏎")
    if not text.isascii():
        text = text.replace(_EMOJI_JOINER, "").replace(_EMOJI_STYLE, "")
    return printable(text)
