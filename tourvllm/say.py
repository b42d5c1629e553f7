"""Saying what went wrong, on stderr. The text may come from a stranger's file."""

import click

from .tour.text import printable


def say_error(text: str) -> None:
    """Write `tourvllm: ..` without anything that a terminal would obey."""
    lines = [printable(line) for line in text.splitlines()] or [""]
    click.echo("tourvllm: " + "\n".join(lines), err=True)
