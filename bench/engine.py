"""Throughput against transformers, attention backends, and the cost of tracing."""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.tour.recorder import Recorder

from tourvllm.plan import find_model
from tourvllm.recording import EngineProbe, initial_state

Candidate = Callable[[], None]


def main() -> None:
    """Run all comparisons and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--out", type=int, default=64, help="tokens to generate for each")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, transformers {transformers.__version__}\n"
        f"{options.model} {options.dtype}, {options.batch} requests of {options.prompt} in + {options.out} out, "
        f"median of {options.runs} runs"
    )
    candidates = {
        "tourvllm, cpu kernels": tourvllm(options, "cpu"),
        "tourvllm, torch kernels": tourvllm(options, "torch"),
        "tourvllm, all stops recorded": tourvllm(options, "cpu", record=True),
        "transformers generate": transformers_generate(options),
    }
    times = take_turns(candidates, options.runs)
    tokens = options.batch * options.out
    first = times["tourvllm, cpu kernels"]
    for name, seconds in times.items():
        print(
            f"{name:<30} {seconds:8.3f} s {tokens / seconds:10.0f} tok/s {seconds / first:6.2f} x"
        )


def take_turns(candidates: dict[str, Candidate], runs: int) -> dict[str, float]:
    """The median time of each candidate; all run once to warm up, then in turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(runs + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def prompts(options: argparse.Namespace, vocab_size: int) -> list[list[int]]:
    """Different prompts of equal length, without prefixes in common."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        3, vocab_size, (options.batch, options.prompt), generator=generator
    ).tolist()


def tourvllm(options: argparse.Namespace, attention: str, record: bool = False) -> Candidate:
    """The engine here, with or without a recorder that writes nowhere."""
    blocks = options.batch * -(-(options.prompt + options.out) // 16)
    config = EngineConfig(
        num_blocks=blocks, dtype=options.dtype, attention=attention, prefix_caching=False, device="cpu",
        max_num_batched_tokens=options.batch * options.prompt,
    )  # fmt: skip
    engine = LLMEngine(find_model(options.model), config)
    params = SamplingParams(temperature=0, max_tokens=options.out, ignore_eos=True)
    work = prompts(options, engine.model_config.vocab_size)

    def run() -> None:
        if record:
            engine.attach(EngineProbe(engine, Recorder({}, initial_state(engine), [])))
        engine.generate([Request(prompt, params) for prompt in work])

    return run


def transformers_generate(options: argparse.Namespace) -> Candidate:
    """transformers' own loop over one static batch."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        find_model(options.model), dtype=getattr(torch, options.dtype)
    ).eval()
    ids = torch.tensor(prompts(options, model.config.vocab_size))
    settings = {"do_sample": False, "max_new_tokens": options.out, "min_new_tokens": options.out}

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings
            )

    return run


if __name__ == "__main__":
    main()
