"""Text from a model, a prompt or a stranger's trace, made harmless for a terminal."""

import unicodedata

_PICTURES = {i: chr(0x2400 + i) for i in range(32)} | {127: "␡"}
_DROPPED_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """`text` with control characters as visible pictures and invisible format characters as `�`.

    Escape sequences cannot act, lines cannot break, text direction cannot be turned around.
    """
    if text.isprintable():  # to Python, what is dropped or shown otherwise below is not
        return text
    return "".join(_one(character) for character in text)


def _one(character: str) -> str:
    picture = _PICTURES.get(ord(character))
    if picture:
        return picture
    if character in _JOINERS:
        return character
    return "\ufffd" if unicodedata.category(character) in _DROPPED_CATEGORIES else character


def token(text: str) -> str:
    """A token's text between quotes that show its spaces: `" the"`, newlines as `⏎`."""
    return '"' + printable(text.replace("\n", "⏎").replace("\t", "⇥")) + '"'


def line(text: str) -> str:
    """Running text on one line: line breaks become `⏎`, the rest is made printable."""
    return printable(text.replace("\r\n", "⏎").replace("\n", "⏎"))
