"""Tokens a second over whole workloads, of tourvllm and of other engines."""

import statistics

from . import hugging_face, ours, workloads
from .options import Options
from .turns import Candidate, Unavailable, drop_unavailable, print_table, ratio, take_turns
from .vllm_client import Vllm
from .workloads import Workload

AT_ONCE = 16
"""Most requests in a batch, for every engine."""

BUDGET = 2048
"""Most tokens in a step, for every engine that has steps."""


def equal(options: Options) -> None:
    """Requests of one length, which suit static batches best."""
    workload = workloads.equal(AT_ONCE, 64, 64, options.vocab_size)
    print(f"Throughput: {options.name}, {options.dtype}, {AT_ONCE} requests of 64 in + 64 out\n")
    _measure(options, workload, options.turns or 5)


def mixed(options: Options) -> None:
    """Requests of many lengths."""
    workload = workloads.mixed(64, options.vocab_size)
    print(
        f"Throughput: {options.name}, {options.dtype}, {len(workload.prompts)} requests of 16 to 256 in + "
        f"8 to 128 out ({workload.num_prompt_tokens} + {workload.num_new_tokens} tokens), "
        f"at most {AT_ONCE} at once\n"
    )
    _measure(options, workload, options.turns or 3)
    print(_waste(workload), end="\n\n")


class Engines:
    """All engines, loaded once."""

    def __init__(self, options: Options, room: int) -> None:
        args = (options.model, options.dtype, room, AT_ONCE, BUDGET)
        self._ours = {
            "tourvllm": ours.make_engine(*args),
            "tourvllm, policy mixed": ours.make_engine(*args, policy="mixed"),
        }
        self._model = hugging_face.load(options.model, options.dtype)
        self._vllm: Vllm | None = None
        self._no_vllm = "not asked for (--vllm)"
        if options.vllm:
            try:
                self._vllm = Vllm(options.vllm, *args)
            except Unavailable as error:
                self._no_vllm = str(error)

    def candidates(self, workload: Workload) -> dict[str, Candidate]:
        """Each engine's way through the workload."""

        def no_vllm() -> float:
            raise Unavailable(self._no_vllm)

        model, vllm = self._model, self._vllm
        return {
            **{name: ours.run_all(engine, workload) for name, engine in self._ours.items()},
            "transformers `generate`, static batches": hugging_face.static_batches(
                model, workload, AT_ONCE
            ),
            "transformers, continuous batching": hugging_face.continuous_batching(
                model, workload, AT_ONCE, BUDGET
            ),
            f"vLLM {vllm.version}, eager" if vllm else "vLLM": (
                vllm.run_all(workload) if vllm else no_vllm
            ),
        }


def _measure(options: Options, workload: Workload, turns: int) -> None:
    candidates = Engines(options, workload.longest).candidates(workload)
    reasons = drop_unavailable(candidates)
    times = take_turns(candidates, turns, warm_up=0)
    rows = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        rows.append(
            [
                name,
                f"{median:.2f}",
                f"{workload.num_new_tokens / median:.0f}",
                f"{ratio(seconds, times['tourvllm']):.2f}",
            ]
        )
    rows += [[name, "", "", reason] for name, reason in reasons.items()]
    print_table(["", f"seconds, median of {turns}", "new tokens/s", "time, tourvllm = 1"], rows)


def _waste(workload: Workload) -> str:
    """What static batches compute beyond what was asked for, in words."""
    batches = workload.batches(AT_ONCE)
    made = sum(len(batch.lengths) * max(batch.lengths) for batch in batches)
    read = sum(len(batch.prompts) * max(map(len, batch.prompts)) for batch in batches)
    return (
        f"Only tokens that were asked for are counted. The static batches make {made} new tokens for "
        f"{workload.num_new_tokens} and read {read} prompt tokens, padding included, for "
        f"{workload.num_prompt_tokens}."
    )
