"""The engine's own process: `python -m tourvllm.child FD`. Orders and commands come on stdin, lines go to FD.

Whatever is printed in this process, by Python or by C code, goes to the log that stdout and stderr are.
"""

import os
import sys
import threading
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from .host import QUIT, Command, serve


def main() -> int:
    """Serve one run over the pipes; 0 if it ended well."""
    wire = int(sys.argv[1])
    os.set_inheritable(wire, False)
    out = os.fdopen(wire, "wb", buffering=0)
    order = msgspec.json.decode(sys.stdin.buffer.readline())
    commands: SimpleQueue[Command] = SimpleQueue()
    threading.Thread(target=_read_commands, args=(sys.stdin.buffer, commands), daemon=True).start()

    def send(line: bytes) -> None:
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[out.write(rest) :]

    try:
        return 0 if serve(order, send, commands) else 1
    except BrokenPipeError:
        return 1  # the viewer is gone


def _read_commands(stdin: BinaryIO, commands: "SimpleQueue[Command]") -> None:
    for line in stdin:
        commands.put(msgspec.json.decode(line))
    commands.put(QUIT)  # the viewer closed the pipe or died


if __name__ == "__main__":
    code = main()
    # All is written; to take torch down in order would only make the user wait.
    sys.stderr.flush()
    os._exit(code)
