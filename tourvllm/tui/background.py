"""Long work beside the screen."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

from textual.message_pump import MessagePump

Result = TypeVar("Result")


def in_background(
    pump: MessagePump, work: Callable[[], Result], done: Callable[[Result | Exception], None]
) -> None:
    """Run `work` in a thread; then `done` in the app, with what came of it, if `pump` is still on the screen.

    The end of the app does not wait for the thread, as it would for a textual worker.
    """

    def run() -> None:
        result: Result | Exception
        try:
            result = work()
        except Exception as error:
            result = error
        with suppress(RuntimeError):  # the app has ended meanwhile
            pump.call_later(done, result)

    Thread(target=run, daemon=True).start()
