"""What a listener of the engine looks like.

The engine calls `probe(stop, **facts)` right after the action that the stop names. A listener derives everything
from the objects it is given and must not change them. With no listener a stop costs one test for None.
"""

from typing import Any, Protocol


class Probe(Protocol):
    """A listener: called at every stop with the stop's name and its facts."""

    def __call__(self, stop: str, /, **facts: Any) -> None:
        """Take note of one stop."""
