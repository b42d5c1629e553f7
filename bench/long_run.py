"""Records a long run of a large pool, without a model: a stand-in for the forward pass returns random logits.

Scheduler, block manager, batch layout and recorder are the real ones, and so is the size of the trace.
"""

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.tour.recorder import FileSink
from tourvllm.tour.trace import Event

from tourvllm.plan import Plan, make_plan
from tourvllm.runs import Run, Stopped

SCENARIO = """
title: "A long run of a large pool"
about: "The requests are random tokens; the forward pass is a stand-in."
model: tiny
engine: {{block_size: 16, num_blocks: {num_blocks}, max_num_seqs: 128, max_num_batched_tokens: 2048}}
requests: [{{id: A, prompt: "in the recorded run there are many"}}]
breakpoints: [preempt]
watch: ["len(free_block_ids)"]
"""
EVENTS_A_REQUEST = 800
"""About as many events as a request of such a length makes; rather too few, so that there are requests enough."""


def record(path: Path, num_events: int, num_blocks: int) -> None:
    """Record at least `num_events` events, to the end of a step, at `path`."""
    plan = make_plan("long_run", SCENARIO.format(num_blocks=num_blocks))
    plan = replace(plan, requests=_requests(num_events // EVENTS_A_REQUEST + 200))
    sink = FileSink(path)
    run = _run(plan, sink)

    def enough(event: Event) -> None:
        if event.stop == "step" and event.facts["when"] == "end" and event.i >= num_events:
            raise Stopped("long enough")

    run.listeners.append(enough)
    try:
        run.run()
    except Stopped:
        pass
    finally:
        sink.close()


def _run(plan: Plan, sink: FileSink) -> Run:
    run = Run(plan, [sink])
    vocab_size = run.engine.model_config.vocab_size

    def forward(batch: Any, kv_cache: torch.Tensor) -> torch.Tensor:
        return torch.rand(len(batch.logits_rows), vocab_size)

    run.engine.model_runner.model.forward = forward  # type: ignore[method-assign]
    return run


def _requests(count: int) -> list[Request]:
    """100 to 700 tokens in, 64 to 256 out, five requests every six steps; each fourth shares a long prefix."""
    numbers = random.Random(0)
    prefixes = [_tokens(numbers, 128) for _ in range(8)]
    requests = []
    for i in range(count):
        shared = numbers.choice(prefixes) if i % 4 == 0 else []
        prompt = shared + _tokens(numbers, numbers.randint(100, 700))
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=numbers.randint(64, 256))
        requests.append(Request(prompt, params, f"R{i}", arrival=1 + i * 6 // 5))
    return requests


def _tokens(numbers: random.Random, count: int) -> list[int]:
    return [numbers.randrange(3, 2000) for _ in range(count)]


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
