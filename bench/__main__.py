"""Measures the speed of tourvllm. Each subcommand prints a table in Markdown."""

import argparse

from . import decode, options, prefill, scheduler, throughput, tracing
from .turns import about_machine, prepare

COMMANDS = {
    "throughput": throughput.equal,
    "mixed": throughput.mixed,
    "decode": decode.main,
    "prefill": prefill.main,
    "tracing": tracing.main,
    "scheduler": scheduler.main,
}


def main() -> None:
    """Run one subcommand, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", choices=[*COMMANDS, "all"])
    options.add_to(parser)
    given = parser.parse_args()
    prepare()
    print(about_machine(), end="\n\n")
    wanted = options.read(given)
    for what in COMMANDS if given.what == "all" else [given.what]:
        COMMANDS[what](wanted)


if __name__ == "__main__":
    main()
