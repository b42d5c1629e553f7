"""Real engines for the tests, and a recorder with every check switched on.

Weights are read once a session and shared: loading is the only thing that is not repeated.
"""

import copy
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import torch
from tourvllm.engine import llm_engine, loader, model_runner, tokenizer
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.llm_engine import LLMEngine, RequestOutput
from tourvllm.engine.request import Request
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.engine.sequence import Sequence
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.recorder import FileSink, Recorder
from tourvllm.tour.trace import Event, Trace

from tourvllm.plan import make_plan
from tourvllm.recording import EngineProbe, initial_state
from tourvllm.runs import Run
from tourvllm.scenarios_folder import find_scenario
from tourvllm.verify import Verifier

TINY = Path(str(files("tourvllm.models") / "tiny"))
POLICIES = ("prefill_first", "mixed")

_tokenizer = functools.cache(tokenizer.load_tokenizer)
_decoders: dict[tuple[Path, str, str, str], Any] = {}


def _decoder(
    folder: Path, config: Any, dtype: str, device: str, backend: Any, progress: Any = None
) -> Any:
    key = (folder, dtype, device, backend.name)
    if key not in _decoders:
        _decoders[key] = loader.load_decoder(folder, config, dtype, device, backend, progress)
    # A copy for each engine: the decoder holds the engine's probe.
    return copy.copy(_decoders[key])


def load_models_once(patch: Any) -> None:
    """Let every engine of this session share the weights and the tokenizer of its folder."""
    patch.setattr(llm_engine, "load_tokenizer", _tokenizer)
    patch.setattr(model_runner, "load_decoder", _decoder)


def forget_models() -> None:
    """Free the memory of the weights that are shared so far."""
    _decoders.clear()


def make_engine(folder: Path = TINY, **settings: Any) -> LLMEngine:
    """An engine on the CPU. Unsaid settings are ample."""
    return LLMEngine(folder, EngineConfig(**{"device": "cpu", **settings}))


def greedy(max_tokens: int = 8, **more: Any) -> SamplingParams:
    """Greedy, exactly `max_tokens` tokens."""
    return SamplingParams(
        **{"temperature": 0, "ignore_eos": True, "max_tokens": max_tokens, **more}
    )


def generate(
    engine: LLMEngine,
    prompts: list[Any],
    params: SamplingParams | list[SamplingParams],
    **fields: list[Any],
) -> list[RequestOutput]:
    """Run these prompts to their end; `fields` are lists of other fields of the requests."""
    each = params if isinstance(params, list) else [params] * len(prompts)
    requests = []
    for i, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
        requests.append(
            Request(prompt, own, **{name: values[i] for name, values in fields.items()})
        )
    return engine.generate(requests)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    """The token ids of each output."""
    return [output.token_ids for output in outputs]


def P(first: int, end: int) -> list[int]:
    """A prompt of the token ids first .. end - 1."""
    return list(range(first, end))


def seq_of(
    params: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None
) -> Sequence:
    """A sequence with these tokens, for the sampler."""
    stop_token_ids = frozenset(params.stop_token_ids)
    seq = Sequence("S", prompt or [0], params, 4, stop_token_ids, seed=params.seed or 0)
    for token_id in output or ():
        seq.append_token(token_id)
    return seq


def say(engine: LLMEngine, num_prompt: int, script: list[int], otherwise: int = 0) -> None:
    """Let the model want these tokens after a prompt of that length; else and next best is `otherwise`."""
    vocab_size = engine.model_config.vocab_size

    def forward(batch: Any, kv_cache: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(batch.logits_rows), vocab_size)
        logits[:, otherwise] = 50
        for row, at in enumerate(batch.logits_rows):
            i = batch.positions[at] + 1 - num_prompt
            if i < len(script):
                logits[row, script[i]] = 100
        return logits

    engine.model_runner.model.forward = forward  # type: ignore[method-assign]


class Lines:
    """A sink that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    def flush(self) -> None:
        """Nothing to do."""


class Watched:
    """An engine whose every stop is recorded, and checked against it and the invariants."""

    def __init__(self, engine: LLMEngine, sinks: list[Any] | None = None) -> None:
        self.engine = engine
        self.sink = Lines()
        self.recorder = Recorder(
            {}, initial_state(engine), [self.sink, *(sinks or [])], clock=lambda: 0
        )
        self.state = self.recorder.state
        self.verifier = Verifier(engine, self.state)
        self.events: list[Event] = []
        engine.attach(EngineProbe(engine, self.recorder, self._after))

    def _after(self, event: Event) -> None:
        self.events.append(event)
        self.verifier(event)

    def facts(self, stop: str) -> list[dict[str, Any]]:
        """The facts of every event of this stop so far."""
        return [event.facts for event in self.events if event.stop == stop]

    def generate(self, prompts: list[Any], params: Any, **fields: list[Any]) -> list[RequestOutput]:
        """Run these prompts to their end."""
        return generate(self.engine, prompts, params, **fields)

    def step(self) -> list[RequestOutput]:
        """One step of the engine."""
        return self.engine.step()[0]

    def run(self, limit: int = 5000) -> dict[str, RequestOutput]:
        """Step until nobody is left."""
        outputs: dict[str, RequestOutput] = {}
        for _ in range(limit):
            if self.engine.is_finished():
                return outputs
            outputs |= {output.request_id: output for output in self.step()}
        raise AssertionError(f"not finished after {limit} steps")

    def trace(self) -> Trace:
        """What was recorded so far."""
        trace = Trace()
        for line in self.sink.lines:
            trace.feed(line)
        return trace


def random_qwen3(
    folder: Path,
    tokenizer: Path | None = None,
    max_shard_size: str = "1GB",
    seed: int = 0,
    **config: Any,
) -> Path:
    """Save a random Qwen3 made with transformers; its tokenizer names each token, or is copied."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    settings = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "pad_token_id": None,
        "bos_token_id": None,
        "initializer_range": 0.3,
    }
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**{**settings, **config}))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer:
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    else:
        random_tokenizer(config["vocab_size"]).save_pretrained(folder)
    return folder


def random_tokenizer(vocab_size: int) -> Any:
    """A tokenizer that only names the tokens: w0, w1, .."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pieces_tokenizer(texts: list[str]) -> Any:
    """A tokenizer whose token i reads texts[i], with nothing between two of them."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {text: i for i, text in enumerate(texts)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=texts[0]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def with_config(folder: Path, target: Path, file: str = "config.json", **changes: Any) -> Path:
    """A copy of a model folder with some keys of its config changed (None: removed)."""
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    config = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    config = {key: value for key, value in {**config, **changes}.items() if value is not None}
    (target / file).unlink(missing_ok=True)
    (target / file).write_text(json.dumps(config))
    return target


def states_of(trace: Trace) -> list[dict[str, Any]]:
    """A copy of the state at every position."""
    cursor, found = Cursor(trace), []
    for position in range(len(trace) + 1):
        cursor.seek(position)
        found.append(copy.deepcopy(cursor.state))
    return found


def record_scenario(path: Path, name: str = "kv_pressure", **settings: Any) -> Path:
    """Run a scenario with every check on and record it to `path`."""
    sink = FileSink(path)
    file = find_scenario(name)
    Run(
        make_plan(file.name, file.text, {"engine.device": "cpu", **settings}), [sink], verify=True
    ).run()
    sink.close()
    return path


@contextmanager
def nothing_but(kind: type[Exception], *words: str) -> Iterator[None]:
    """The body ends well or raises `kind` with one of `words`; never anything else."""
    try:
        yield
        return
    except kind as error:
        message = str(error)
    assert any(word in message for word in words), message


def line_of(**fields: Any) -> bytes:
    """One line of a trace."""
    return msgspec.json.encode(fields)
