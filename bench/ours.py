"""tourvllm as a candidate: whole workloads, and decode steps one by one."""

from tourvllm.engine.config import EngineConfig
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams

from .turns import Candidate, now, timed
from .workloads import Workload

BLOCK_SIZE = 16


def make_engine(
    model: str,
    dtype: str,
    room: int,
    max_num_seqs: int,
    budget: int,
    attention: str = "auto",
    policy: str = "prefill_first",
) -> LLMEngine:
    """An engine on the CPU without prefix caching. `room`: tokens that a request may have."""
    config = EngineConfig(
        num_blocks=max_num_seqs * -(-room // BLOCK_SIZE), block_size=BLOCK_SIZE, dtype=dtype, device="cpu",
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, attention=attention, policy=policy,
        prefix_caching=False,
    )  # fmt: skip
    return LLMEngine(model, config)


def run_all(engine: LLMEngine, workload: Workload) -> Candidate:
    """Generate all of a workload."""

    def run() -> None:
        outputs = engine.generate(
            [
                Request(prompt, greedy(length))
                for prompt, length in zip(workload.prompts, workload.lengths, strict=True)
            ]
        )
        assert [len(output.token_ids) for output in outputs] == workload.lengths

    return timed(run)


class OurSteps:
    """Decode steps of the whole engine: scheduler, model, sampler and detokenizer."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine

    def begin(self, workload: Workload) -> None:
        """Take requests and compute their prompts."""
        self.engine.restart()
        for prompt, length in zip(workload.prompts, workload.lengths, strict=True):
            self.engine.add_request(prompt, greedy(length))
        while self.engine.scheduler.waiting:
            self.engine.step()

    def step(self) -> float:
        """One token for each."""
        start = now()
        self.engine.step()
        return now() - start


def greedy(length: int) -> SamplingParams:
    """Exactly so many tokens, the likeliest ones."""
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
