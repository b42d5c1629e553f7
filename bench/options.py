"""What the subcommands ask for alike: model, dtype, turns, vLLM."""

import argparse
from dataclasses import dataclass

from tourvllm.engine.families import load_config
from tourvllm.engine.hub import model_folder

from tourvllm.plan import find_model


@dataclass(frozen=True)
class Options:
    """model: its folder. vllm: the Python of an environment that has vLLM."""

    name: str
    model: str
    vocab_size: int
    dtype: str
    turns: int | None
    vllm: str | None


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that make `Options`."""
    parser.add_argument("--model", default="tiny", help="as for tourvllm: tiny, a folder, a hub id")
    parser.add_argument("--dtype", default="bfloat16", help="of weights and KV cache")
    parser.add_argument("--turns", type=int, help="how often each candidate has its turn")
    parser.add_argument(
        "--vllm",
        metavar="PYTHON",
        help="python of an environment that has vLLM, to compare with it",
    )


def read(given: argparse.Namespace) -> Options:
    """Find the model and read what its config says."""
    folder = model_folder(find_model(given.model))
    vocab_size = load_config(folder).vocab_size
    name = "tiny" if given.model == "tiny" else folder.name
    return Options(name, str(folder), vocab_size, given.dtype, given.turns, given.vllm)
