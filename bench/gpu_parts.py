"""The parts of the GPU check. Each yields (what, result, good or bad or neither) and watches its own time."""

import gc
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.outputs import RequestOutput
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.kernels import Backend, flash_paged, get_backend
from tourvllm.tour.recorder import FileSink, Recorder
from tourvllm.tour.trace import Event

from tourvllm.plan import find_model
from tourvllm.recording import EngineProbe, initial_state

from .gpu_inputs import Case, Shape, make_case, save_random_qwen3

TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}

TIE = 1e-3
"""Two tokens whose log probabilities are as close as this are equally likely: rounding chooses."""

Found = Iterator[tuple[str, str, bool | None]]


@dataclass(frozen=True)
class Row:
    """A line of the table. good: True or False for a check, None for a measurement."""

    part: str
    what: str
    result: str
    good: bool | None

    @property
    def verdict(self) -> str:
        """Its last cell."""
        return "" if self.good is None else "ok" if self.good else "**WRONG**"


@dataclass(frozen=True)
class Sizes:
    """How large everything is, and where it runs."""

    device: str
    qwen3: dict[str, int]
    shapes: tuple[Shape, ...]
    num_requests: int
    lengths: tuple[int, int]
    budget: int
    max_model_len: int
    short: tuple[int, int]
    decode: tuple[int, int]
    copy_bytes: int


@dataclass
class Job:
    """One part's sizes, the folder for its files, and when its time is up."""

    sizes: Sizes
    folder: Path
    end: float

    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()

    def model(self) -> str:
        """The random model's folder, made when it is first asked for."""
        folder = self.folder / "qwen3"
        if not (folder / "tokenizer.json").exists():
            save_random_qwen3(folder, self.sizes.qwen3, self.sizes.device)
        return str(folder)

    def engine(self, model: str, device: str | None = None, **settings: Any) -> LLMEngine:
        """An engine on the device that is checked, or on another one, in the memory of those before."""
        tidy(self.sizes.device)
        return LLMEngine(model, EngineConfig(device=device or self.sizes.device, **settings))

    def prompts(self, count: int, low: int, high: int, vocab_size: int) -> list[list[int]]:
        """Random prompts of random lengths, the same ones each time."""
        numbers = random.Random(0)
        return [
            [numbers.randrange(1, vocab_size) for _ in range(numbers.randint(low, high))]
            for _ in range(count)
        ]


Part = Callable[[Job], Found]


def machine(device: str) -> str:
    """What it runs on."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if device == "cpu":
        return f"a rehearsal on the CPU ({platform.machine()}), {versions}"
    card = torch.cuda.get_device_properties(0)
    return f"{card.name} (sm{card.major}{card.minor}), CUDA {torch.version.cuda}, {versions}"


def tidy(device: str) -> None:
    """Give back the memory of engines that are gone."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def wait(device: str) -> None:
    """Until the device has done all it was told."""
    if device != "cpu":
        torch.cuda.synchronize()


# Kernels


def kernels(job: Job) -> Found:
    """Every backend against attention in float64, garbage in unused slots and rows of padding included."""
    sizes = job.sizes
    for dtype, tolerance in TOLERANCES.items():
        # float16 has the paths of bfloat16: two shapes are enough.
        for shape in sizes.shapes[-2:] if dtype == "float16" else sizes.shapes:
            case = make_case(shape, getattr(torch, dtype), sizes.device)
            for name, backend in backends(sizes.device, shape, dtype).items():
                if isinstance(backend, str):
                    continue
                worst = error_of(backend, case)
                what = f"{name}, {dtype}, {shape.name}, blocks of {shape.block_size}"
                yield what, f"{worst:.1e} from float64", worst < tolerance
    for name, backend in backends(sizes.device, sizes.shapes[-1], "bfloat16").items():
        if isinstance(backend, str):
            yield name, f"not run: {backend}", None


def error_of(backend: Backend, case: Case) -> float:
    """The largest difference from the answers. NaN counts as infinite."""
    k_cache, v_cache = case.k_cache.clone(), case.v_cache.clone()
    backend.store_kvcache(case.key, case.value, k_cache, v_cache, case.batch)
    scale = case.query.shape[2] ** -0.5
    out = backend.paged_attention(case.query, k_cache, v_cache, case.batch, scale)
    difference = (out.cpu().double() - case.expected).abs().nan_to_num(torch.inf)
    return float(difference.max())


def backends(device: str, shape: Shape, dtype: str) -> dict[str, Backend | str]:
    """Every backend for this shape, or why it is not there."""
    found: dict[str, Backend | str] = {}
    for name in ("torch", "cpu") if device == "cpu" else ("torch", "triton"):
        found[name] = _or_why_not(name, device, shape, dtype)
    for library, attention in flash_paged.LIBRARIES.items():
        problem = flash_paged.problem_of(library, device, shape.block_size, dtype, shape.head_dim)
        name = f"flash ({library})"
        found[name] = problem or Backend(name, "", flash_paged.store()[0], attention)
    return found


def _or_why_not(name: str, device: str, shape: Shape, dtype: str) -> Backend | str:
    try:
        return get_backend(name, device, shape.block_size, dtype, shape.head_dim)
    except ValueError as error:
        return str(error)


# Tokens


def tokens(job: Job) -> Found:
    """Greedy tokens of the tiny model and of a random Qwen3 in float32: the CPU's."""
    yield from _same_tokens(job, "tiny", find_model("tiny"), 24)
    yield from _same_tokens(job, "random Qwen3", job.model(), job.sizes.short[1])


def _same_tokens(job: Job, name: str, model: str, count: int) -> Found:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 128}
    engine = job.engine(model, device="cpu", **settings)
    prompts = job.prompts(4, 5, 40, engine.model_config.vocab_size)
    expected = greedy(engine, prompts, [count] * len(prompts))
    del engine
    kinds: dict[str, dict[str, Any]] = {"torch": {"attention": "torch"}}
    if job.sizes.device != "cpu":
        kinds["triton, graphs"] = {"attention": "triton"}
        kinds["triton, no graphs"] = {"attention": "triton", "cuda_graphs": False}
        chunks = {"policy": "mixed", "max_num_batched_tokens": 32}
        kinds["triton, mixed policy"] = {"attention": "triton", **chunks}
    for kind, more in kinds.items():
        found = greedy(job.engine(model, **settings, **more), prompts, [count] * len(prompts))
        what = f"{name}, float32, {kind}: as the CPU's {count} tokens of each request"
        yield what, *compared(found, expected)


def compared(found: list[RequestOutput], expected: list[RequestOutput]) -> tuple[str, bool]:
    """What to say about two runs' tokens, and whether they are the same, ties aside."""
    ties, wrong = 0, []
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one.token_ids == other.token_ids:
            continue
        pairs = enumerate(zip(one.token_ids, other.token_ids, strict=True))
        at = next(i for i, (a, b) in pairs if a != b)
        best, second = sorted(other.logprobs[at].values(), reverse=True)[:2]
        if best - second < TIE:
            ties += 1
        else:
            wrong.append(f"request {number} differs from token {at} on (gap {best - second:.1e})")
    same = f"{len(found) - ties - len(wrong)} of {len(found)} requests are the same"
    tied = f", {ties} until two tokens were equally likely" if ties else ""
    return "; ".join([same + tied, *wrong[:2]]), not wrong


def greedy(engine: LLMEngine, prompts: list[list[int]], counts: list[int]) -> list[RequestOutput]:
    """The likeliest tokens, so many of each request, and how likely the two best were."""
    params = [replace(exactly(count), logprobs=2) for count in counts]
    requests = [Request(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    return engine.generate(requests)


def exactly(count: int) -> SamplingParams:
    """Greedy, so many tokens."""
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


# Graphs


def graphs(job: Job) -> Found:
    """CUDA graphs on and off give the same tokens: float32, batches that shrink, preemptions."""
    low, count = job.sizes.short
    for name, model in (("tiny", find_model("tiny")), ("random Qwen3", job.model())):
        found, kept = [], 0
        for on in (True, False):
            # Too few blocks for all: some are preempted, and computed again.
            engine = job.engine(
                model, dtype="float32", cuda_graphs=on, num_blocks=2 * -(-(40 + count) // 16) + 4,
                max_model_len=256,
            )  # fmt: skip
            kept += engine.model_runner.graphs is not None
            prompts = job.prompts(7, low, 40, engine.model_config.vocab_size)
            found.append(greedy(engine, prompts, [2 + (i * count) // 7 for i in range(7)]))
            del engine
        said, same = compared(*found)
        if job.sizes.device == "cpu":
            yield f"{name}, float32: as without graphs", f"{said} (a CPU has no graphs)", same
        else:
            yield f"{name}, float32: graphs on as off", said, same and kept == 1


# Speed


def throughput(job: Job) -> Found:
    """nano-vllm's own benchmark: 256 requests of 100 to 1024 tokens in and 100 to 1024 out."""
    sizes = job.sizes
    low, high = sizes.lengths
    speeds = {}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("graphs", {"cuda_graphs": True}),
        ("no graphs", {"cuda_graphs": False}),
    ]
    if sizes.device != "cpu":
        shape = Shape("", 256, 16, 8, sizes.qwen3["head_dim"], ())
        for name, backend in backends(sizes.device, shape, "bfloat16").items():
            if name.startswith("flash") and not isinstance(backend, str):
                kinds.append((f"flash, graphs, {name}", {"attention": "flash", "block_size": 256}))
                break
    share = job.left() / len(kinds)
    for kind, more in kinds:
        tidy(sizes.device)
        end = time.perf_counter() + share
        engine = job.engine(
            job.model(), dtype="bfloat16", max_num_seqs=sizes.num_requests, max_num_batched_tokens=sizes.budget,
            max_model_len=sizes.max_model_len, num_blocks=num_blocks(sizes, more.get("block_size", 16)), **more,
        )  # fmt: skip
        prompts = job.prompts(sizes.num_requests, low, high, sizes.qwen3["vocab_size"])
        numbers = random.Random(1)
        outs = [numbers.randint(low, high) for _ in prompts]
        greedy(engine, prompts[:1], [4])
        engine.restart()
        count, seconds, whole = timed_run(engine, prompts, outs, end)
        speeds[kind] = count / seconds
        cut = "" if whole else f", cut after {count} of {sum(outs)} tokens"
        what = f"{len(prompts)} requests of {low}-{high} in, {low}-{high} out, bfloat16, {kind}"
        yield what, f"{count / seconds:,.0f} output tokens/s, {seconds:.1f} s{cut}", None
        del engine
    ratio = speeds["graphs"] / speeds["no graphs"]
    yield "graphs against no graphs", f"{ratio:.2f} x", None


def timed_run(
    engine: LLMEngine, prompts: list[list[int]], outs: list[int], end: float
) -> tuple[int, float, bool]:
    """Generate until all is done or the time is up: new tokens, seconds, whether it was all."""
    for prompt, out in zip(prompts, outs, strict=True):
        engine.add_request(prompt, exactly(out))
    start, count = time.perf_counter(), 0
    while not engine.is_finished() and time.perf_counter() < end:
        done, _ = engine.step()
        count += sum(len(output.token_ids) for output in done)
    live = (*engine.scheduler.running, *engine.scheduler.waiting)
    count += sum(seq.num_completion_tokens for seq in live)
    return count, time.perf_counter() - start, engine.is_finished()


def num_blocks(sizes: Sizes, block_size: int) -> int:
    """Room for all requests of the benchmark, or for what fits into half of the free memory."""
    c = sizes.qwen3
    block_bytes = (
        c["num_hidden_layers"] * 2 * block_size * c["num_key_value_heads"] * c["head_dim"] * 2
    )
    wanted = sizes.num_requests * -(-2 * sizes.lengths[1] // block_size)
    if sizes.device == "cpu":
        return wanted
    free = torch.cuda.mem_get_info()[0]
    return int(min(wanted, free // 2 // block_bytes))


def bandwidth(job: Job) -> Found:
    """How much of the memory's speed attention reaches when it decodes, where reading keys is all there is."""
    sizes = job.sizes
    heads, kv_heads = sizes.qwen3["num_attention_heads"], sizes.qwen3["num_key_value_heads"]
    copied = copy_speed(sizes)
    yield "copy of memory", f"{copied / 1e9:,.0f} GB/s", None
    count, context = sizes.decode
    for block_size in (16, 256):
        sequences = ((1, context - 1),) * count
        shape = Shape("", block_size, heads, kv_heads, sizes.qwen3["head_dim"], sequences)
        case = decode_case(shape, sizes.device)
        moved = 2 * case.k_cache[0, 0].nbytes * count * context
        for name, backend in backends(sizes.device, shape, "bfloat16").items():
            if isinstance(backend, str) or (name == "torch" and sizes.device != "cpu"):
                continue
            run = _attention_of(backend, case)
            reached = moved / seconds_of(run, sizes.device)
            what = f"{name}: {count} decodes of {context} keys, blocks of {block_size}, bfloat16"
            yield what, f"{reached / 1e9:,.0f} GB/s, {reached / copied:.0%} of a copy", None


def copy_speed(sizes: Sizes) -> float:
    """Bytes read and written in a second by a copy within the device's memory."""
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, device=sizes.device)
    target = torch.empty_like(source)
    return 2 * sizes.copy_bytes / seconds_of(lambda: target.copy_(source), sizes.device)


def decode_case(shape: Shape, device: str) -> Case:
    """Decodes over a full cache: what they say does not matter, so nothing is computed for comparison."""
    count, context = len(shape.sequences), sum(shape.sequences[0])
    small = make_case(replace(shape, sequences=((1, 0),)), torch.bfloat16, device)
    width = -(-context // shape.block_size)
    pool = torch.randn(count * width, *small.k_cache.shape[1:], dtype=torch.bfloat16, device=device)
    blocks = list(range(count * width))
    random.Random(0).shuffle(blocks)
    tables = [blocks[i * width : (i + 1) * width] for i in range(count)]
    batch = small.batch.from_lists(
        [-1] * count, list(range(count + 1)), [context] * count, tables, device
    )
    query = small.query.repeat(count, 1, 1)
    return replace(small, query=query, k_cache=pool, v_cache=pool.clone(), batch=batch)


def _attention_of(backend: Backend, case: Case) -> Callable[[], Any]:
    arguments = (case.query, case.k_cache, case.v_cache, case.batch, 0.1)
    return lambda: backend.paged_attention(*arguments)


def seconds_of(run: Callable[[], Any], device: str, times: int = 20) -> float:
    """The mean time of one of `times` runs, after three to warm up."""
    for _ in range(3):
        run()
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait(device)
    return (time.perf_counter() - start) / times


def tracing(job: Job) -> Found:
    """What it costs to record every stop to a gzip file, by turns with a run that nobody listens to."""
    sizes = job.sizes
    count, (_, out) = min(64, sizes.num_requests), sizes.short
    engine = job.engine(
        job.model(), dtype="bfloat16", max_num_seqs=count, num_blocks=count * 8, max_model_len=128,
    )  # fmt: skip
    prompts = job.prompts(count, 8, 40, sizes.qwen3["vocab_size"])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    size = 0
    with tempfile.TemporaryDirectory(dir=job.folder) as folder:
        for turn in range(7):
            recorded = turn % 2 == 0
            engine.attach(None)
            engine.restart()
            sink = FileSink(Path(folder) / f"{turn}.tvllm.jsonl.gz") if recorded else None
            if sink:
                engine.attach(_recording(engine, sink))
            start = time.perf_counter()
            engine.generate([Request(prompt, exactly(out)) for prompt in prompts])
            if turn:
                seconds[recorded].append(time.perf_counter() - start)
            if sink:
                sink.close()
                size = sink.path.stat().st_size
            if turn >= 2 and job.left() < 0:
                break
    plain, traced = min(seconds[False]), min(seconds[True])
    what = f"{count} requests, {out} tokens each, all stops recorded"
    yield what, f"{traced / plain - 1:+.0%} of {plain:.2f} s, {size / 1024:,.0f} KiB", None


def _recording(engine: LLMEngine, sink: FileSink) -> EngineProbe:
    """The probe of a recorded run; the file is flushed after each step, as tourvllm does."""
    recorder = Recorder({}, initial_state(engine), [sink])

    def flush(event: Event) -> None:
        if event.stop == "step" and event.facts["when"] == "end":
            recorder.flush()

    return EngineProbe(engine, recorder, flush)


PARTS: dict[str, tuple[Part, float]] = {
    "kernels": (kernels, 90),
    "tokens": (tokens, 80),
    "graphs": (graphs, 40),
    "bandwidth": (bandwidth, 25),
    "throughput": (throughput, 100),
    "tracing": (tracing, 25),
}
"""Name -> the part and the seconds that it may take."""

FULL = Sizes(
    device="cuda",
    qwen3={
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936, "max_position_embeddings": 40_960,
    },
    shapes=(
        Shape("decodes", 1, 4, 2, 32, ((1, 6), (1, 0), (1, 30), (0, 0))),
        Shape("long decodes", 16, 16, 8, 128, ((1, 4999), (1, 16), (0, 0), (1, 1023))),
        Shape("groups of 3", 16, 9, 3, 64, ((1, 300), (1, 3))),
        Shape("mixed, odd head", 16, 4, 4, 80, ((5, 0), (1, 17), (3, 8))),
        Shape("prompts behind a prefix", 16, 16, 8, 128, ((300, 500), (70, 0), (1, 9))),
        Shape("wide head", 5, 4, 1, 256, ((9, 40), (1, 77))),
        Shape("decodes", 256, 16, 8, 128, ((1, 4999), (1, 16), (0, 0), (1, 255))),
        Shape("prompts behind a prefix", 256, 16, 8, 128, ((300, 500), (70, 0), (1, 256))),
    ),
    num_requests=256,
    lengths=(100, 1024),
    budget=16_384,
    max_model_len=4096,
    short=(8, 24),
    decode=(64, 4096),
    copy_bytes=2**30,
)  # fmt: skip

TINY = Sizes(
    device="cpu",
    qwen3={
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 96, "vocab_size": 500, "max_position_embeddings": 512,
    },
    shapes=(
        Shape("decodes", 1, 4, 2, 32, ((1, 6), (1, 0), (1, 30))),
        Shape("mixed", 256, 4, 2, 32, ((5, 0), (1, 17), (3, 260))),
    ),
    num_requests=6,
    lengths=(4, 12),
    budget=64,
    max_model_len=64,
    short=(3, 8),
    decode=(4, 300),
    copy_bytes=2**20,
)  # fmt: skip
