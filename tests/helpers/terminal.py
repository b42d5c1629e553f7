"""A pty with a screen: the command as a person sees it."""

import os
import sys
import time
from pathlib import Path

import pexpect
import pyte

ROOT = Path(__file__).parent.parent.parent


class Terminal:
    """A pty with a screen, like the one in front of a person."""

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (120, 40),
        cwd: Path = ROOT,
        module: str = "tourvllm",
    ) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        environ = {
            **os.environ,
            "TERM": "xterm-256color",
            "OMP_NUM_THREADS": "1",
            "COLORTERM": "truecolor",
        }
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", module, *arguments],
            dimensions=(size[1], size[0]),
            env=environ,
            cwd=str(cwd),
            timeout=30,
        )
        self.seen = b""

    def read(self, seconds: float = 0.05) -> None:
        """Draw what has come."""
        try:
            data = self.process.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            return
        self.seen += data
        self._stream.feed(data)

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Wait until `text` stands on the screen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()
            if text in "\n".join(self.screen.display):
                return
        raise AssertionError(f"{text!r} did not come:\n" + "\n".join(self.screen.display))

    def finish(self) -> int:
        """Wait for the end and return the exit code (128 + n for signal n)."""
        end = time.monotonic() + 15
        while self.process.isalive() and time.monotonic() < end:
            self.read(0.02)
        self.read()
        self.process.close()
        return (
            self.process.exitstatus
            if self.process.exitstatus is not None
            else 128 + self.process.signalstatus
        )

    @property
    def restored(self) -> bool:
        """Whether the alternate screen was left, the cursor shown and the mouse let go."""
        return all(
            self.seen.rfind(off) > self.seen.rfind(on)
            for on, off in (
                (b"\x1b[?1049h", b"\x1b[?1049l"),
                (b"\x1b[?25l", b"\x1b[?25h"),
                (b"\x1b[?1000h", b"\x1b[?1000l"),
            )
        )
