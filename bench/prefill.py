"""Prompt tokens a second: prompts in, one new token each."""

import statistics

from . import hugging_face, ours, workloads
from .options import Options
from .turns import Candidate, Times, Unavailable, print_table, ratio, take_turns
from .vllm_client import Vllm
from .workloads import Workload

LENGTH = 512
BATCHES = (1, 8)


def main(options: Options) -> None:
    """Measure one prompt, then several at once."""
    turns = options.turns or 7
    args = (options.model, options.dtype, LENGTH + 1, max(BATCHES), max(BATCHES) * LENGTH)
    engines = {name: ours.make_engine(*args, name) for name in ("cpu", "torch")}
    model = hugging_face.load(options.model, options.dtype)
    vllm = None
    if options.vllm:
        try:
            vllm = Vllm(options.vllm, *args)
        except Unavailable as error:
            print(f"Without vLLM: {error}\n")

    def candidates(workload: Workload) -> dict[str, Candidate]:
        found = {
            f"tourvllm, {name} kernels": ours.run_all(engine, workload)
            for name, engine in engines.items()
        }
        found["transformers, one forward pass"] = hugging_face.prefill(model, workload)
        if vllm:
            found[f"vLLM {vllm.version}, eager"] = vllm.run_all(workload)
        return found

    times = {}
    for batch in BATCHES:
        workload = workloads.equal(batch, LENGTH, 1, options.vocab_size)
        times[batch] = take_turns(candidates(workload), turns)
    print(f"Prefill: {options.name}, {options.dtype}, median of {turns} turns\n")
    head = [f"{b} x {LENGTH}: {what}" for b in BATCHES for what in ("prompt tokens/s", "ratio")]
    print_table(["", *head], ([name, *_cells(times, name)] for name in times[BATCHES[0]]))


def _cells(times: dict[int, Times], name: str) -> list[str]:
    cells = []
    for batch, of_batch in times.items():
        seconds, ours = of_batch[name], next(iter(of_batch.values()))
        cells.append(f"{batch * LENGTH / statistics.median(seconds):.0f}")
        cells.append(f"{ratio(seconds, ours):.2f}")
    return cells
