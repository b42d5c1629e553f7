"""Milliseconds of one decode step, at batch 1 and 16 and a context of 512 tokens."""

import statistics
from collections.abc import Iterator
from typing import Protocol

from . import hugging_face, ours, workloads
from .options import Options
from .turns import Times, Unavailable, print_table, ratio, take_turns
from .vllm_client import Vllm
from .workloads import Workload

CONTEXT = 512
BATCHES = (1, 16)
WARM_UP = 3


class Steps(Protocol):
    """An engine that decodes step by step."""

    def begin(self, workload: Workload) -> None:
        """Take requests and compute their prompts."""

    def step(self) -> float:
        """One token for each; returns the seconds."""


def main(options: Options) -> None:
    """All engines step in turns, so that each sees the same contexts."""
    turns = options.turns or 32
    prompt = CONTEXT - turns // 2
    engines = dict(_engines(options, CONTEXT + turns + WARM_UP))
    times = {}
    for batch in BATCHES:
        workload = workloads.equal(batch, prompt, turns + WARM_UP + 2, options.vocab_size)
        for engine in engines.values():
            engine.begin(workload)
        steps = {name: engine.step for name, engine in engines.items()}
        times[batch] = take_turns(steps, turns, WARM_UP)
    print(
        f"One decode step: {options.name}, {options.dtype}, contexts of {prompt} to {prompt + turns} tokens, "
        f"{turns} turns\n"
    )
    head = [f"batch {b}: {what}" for b in BATCHES for what in ("median ms", "least", "ratio")]
    print_table(["", *head], ([name, *_cells(times, name)] for name in engines))


def _engines(options: Options, room: int) -> Iterator[tuple[str, Steps]]:
    args = (options.model, options.dtype, room, max(BATCHES), max(BATCHES) * CONTEXT)
    for attention in ("cpu", "torch"):
        yield f"tourvllm, {attention} kernels", ours.OurSteps(ours.make_engine(*args, attention))
    model = hugging_face.load(options.model, options.dtype)
    for kind in ("dynamic", "static"):
        yield f"transformers, {kind} cache", hugging_face.ForwardSteps(model, kind)
    if options.vllm:
        try:
            vllm = Vllm(options.vllm, *args)
        except Unavailable as error:
            print(f"Without vLLM: {error}\n")
        else:
            yield f"vLLM {vllm.version}, eager", vllm


def _cells(times: dict[int, Times], name: str) -> Iterator[str]:
    for of_batch in times.values():
        seconds, ours = of_batch[name], next(iter(of_batch.values()))
        yield f"{statistics.median(seconds) * 1000:.1f}"
        yield f"{min(seconds) * 1000:.1f}"
        yield f"{ratio(seconds, ours):.2f}"
