"""vLLM's side of a comparison: it runs in vLLM's own environment and takes orders on stdin.

A line is a JSON object, and so is the answer, {"seconds": ..}. The first line has LLM's settings, then come
`run` (generate all), `begin` (take requests and compute their prompts), `step` (one step) and `end` (drop them).
"""

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
# Only answers go to stdout; whatever vLLM prints goes where its log goes.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from vllm import LLM, SamplingParams, __version__  # noqa: E402


class Peer:
    """One method an order."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.llm = LLM(enforce_eager=True, enable_prefix_caching=False, **settings)
        self.num_requests = 0

    def run(self, prompts: list[list[int]], lengths: list[int]) -> None:
        """Generate all."""
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [greedy(length) for length in lengths],
            use_tqdm=False,
        )
        assert [len(output.outputs[0].token_ids) for output in outputs] == lengths

    def begin(self, prompts: list[list[int]], lengths: list[int]) -> None:
        """Take requests and step until each has a token."""
        engine = self.llm.llm_engine
        self.num_requests = len(prompts)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            engine.add_request(str(i), {"prompt_token_ids": prompt}, greedy(length))
        while len(engine.step()) < self.num_requests:
            pass

    def step(self) -> None:
        """One step: a token for each."""
        assert len(self.llm.llm_engine.step()) == self.num_requests

    def end(self) -> None:
        """Drop what `begin` took."""
        self.llm.llm_engine.abort_request([str(i) for i in range(self.num_requests)])


def now() -> float:
    """CPU time with one thread, else the clock's, as in turns.py."""
    one = os.environ["OMP_NUM_THREADS"] == "1"
    return time.process_time() if one else time.perf_counter()


def greedy(length: int) -> SamplingParams:
    """Exactly so many tokens, the likeliest ones."""
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)


def answer(value: dict[str, Any]) -> None:
    """Print one answer."""
    print(json.dumps(value), file=answers, flush=True)


def main() -> None:
    """Load the engine, then do what each line says."""
    peer = Peer(json.loads(sys.stdin.readline()))
    answer({"version": __version__})
    for line in sys.stdin:
        order = json.loads(line)
        do = getattr(peer, order.pop("order"))
        start = now()
        do(**order)
        answer({"seconds": now() - start})


if __name__ == "__main__":
    main()
