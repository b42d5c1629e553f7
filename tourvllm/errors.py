"""Errors that end a command with a sentence and exit code 2 (bad input)."""


class UsageError(Exception):
    """The user asked for something that cannot be; the message says what and how else."""
