"""The offline API: `LLM(model).generate(prompts, sampling_params)`, as in vLLM and nano-vllm."""

import os
import sys
from collections.abc import Sequence as List
from typing import Any

from tqdm import tqdm

from .engine.config import EngineConfig
from .engine.errors import ConfigError, EngineError, RequestError
from .engine.llm_engine import LLMEngine
from .engine.outputs import RequestOutput
from .engine.probe import Probe
from .engine.request import Prompt, Request
from .engine.sampling_params import SamplingParams
from .plan import find_model

ALIASES = {
    "kvcache_block_size": "block_size",  # nano-vllm
    "num_kvcache_blocks": "num_blocks",
    "num_gpu_blocks_override": "num_blocks",  # vLLM
    "enable_prefix_caching": "prefix_caching",
    "scheduling_policy": "order",
}
"""Names of other engines -> ours."""

WITHOUT_EFFECT = {
    "gpu_memory_utilization",
    "trust_remote_code",
    "disable_log_stats",
}
"""Arguments of other engines that change no result here: taken, so that their scripts run."""


class LLM:
    """An engine for batches of prompts.

    `model` is `tiny`, a folder, or a hub id; the other arguments are engine settings (see EngineConfig), also
    under the names that nano-vllm and vLLM give them. `close` it, or use it in a `with`, to free its memory.
    """

    def __init__(
        self, model: str | os.PathLike[str] = "tiny", *, probe: Probe | None = None, **settings: Any
    ) -> None:
        if settings.pop("tensor_parallel_size", 1) != 1:
            raise ConfigError(
                "tensor_parallel_size", "only 1 is supported: the engine runs on one device"
            )
        known: dict[str, Any] = {}
        if "enforce_eager" in settings:
            known["cuda_graphs"] = not settings.pop("enforce_eager")
        for name, value in settings.items():
            own = ALIASES.get(name, name)
            if own in known:
                raise ConfigError(own, f"is given twice, once as {name}")
            if name not in WITHOUT_EFFECT:
                known[own] = value
        if not isinstance(model, str | os.PathLike):
            raise ConfigError("model", f"must be a name or a path, not {model!r:.60}")
        found = find_model(os.fsdecode(model))
        self._engine: LLMEngine | None = LLMEngine(found, EngineConfig.from_dict(known))
        self._engine.attach(probe)

    @property
    def engine(self) -> LLMEngine:
        """The engine inside. Raises EngineError when it is closed."""
        if self._engine is None:
            raise EngineError("this LLM is closed: create another one")
        return self._engine

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | List[Prompt],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: List[int] | None = None,
    ) -> list[RequestOutput]:
        """Generate for each prompt (text, token ids, or messages) and return the outputs in order.

        One set of sampling parameters serves all prompts, or each has its own. Raises RequestError for a prompt
        that can never run, before anything has run. An error or Ctrl-C on the way leaves no request behind.
        """
        listed = _listed(prompts)
        requests = self._requests(listed, sampling_params, priority)
        with tqdm(
            total=len(requests), desc="Generating", disable=not use_tqdm, file=sys.stderr
        ) as bar:

            def advance(_: RequestOutput) -> None:
                bar.update()

            try:
                outputs = self.engine.generate(requests, on_output=advance)
            except BaseException:
                # Wherever it came from, also out of the middle of a move between two queues.
                self.engine.restart()
                raise
        for prompt, output in zip(listed, outputs, strict=True):
            output.prompt = prompt if isinstance(prompt, str) else output.prompt
        return outputs

    def _requests(
        self, prompts: list[Any], sampling_params: Any, priority: List[int] | None
    ) -> list[Request]:
        """The checked requests. Raises RequestError for the first one that can never run."""
        params = SamplingParams() if sampling_params is None else sampling_params
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if not isinstance(each, list | tuple) or not all(
            isinstance(p, SamplingParams) for p in each
        ):
            raise RequestError(
                f"sampling_params must be SamplingParams or a list of them, not {each!r:.80}"
            )
        ranks = [0] * len(prompts) if priority is None else priority
        if not isinstance(ranks, list | tuple):
            raise RequestError(
                f"priority must be a list of numbers, one a prompt, not {ranks!r:.80}"
            )
        if len(each) != len(prompts) or len(ranks) != len(prompts):
            raise RequestError(
                f"there are {len(prompts)} prompts, {len(each)} sets of sampling parameters and {len(ranks)} "
                "priorities: give one for all, or as many as prompts"
            )
        return [
            Request(self.engine.checked(prompt, param, rank), param, priority=rank)
            for prompt, param, rank in zip(prompts, each, ranks, strict=True)
        ]

    def chat(
        self,
        messages: List[dict[str, str]] | List[List[dict[str, str]]],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate an answer to one conversation, or to each of several."""
        one = bool(messages) and isinstance(messages[0], dict)
        conversations: Any = [messages] if one else messages
        return self.generate(conversations, sampling_params, use_tqdm)

    def close(self) -> None:
        """Free the engine's memory; twice is fine."""
        self._engine = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _listed(prompts: Any) -> list[Any]:
    """The prompts as a list, each a text, token ids or messages. Raises RequestError for what can be neither."""
    if not isinstance(prompts, str | dict | list | tuple):
        raise RequestError(
            f"prompts must be a text, token ids, or a list of them, not {prompts!r:.80}"
        )
    one = isinstance(prompts, str | dict) or (
        bool(prompts) and (isinstance(prompts[0], int) or _is_message(prompts[0]))
    )
    return [_plain(prompt) for prompt in ([prompts] if one else prompts)]


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item


def _plain(prompt: Any) -> Any:
    """A prompt without vLLM's table around it: `{"prompt": ..}`, `{"prompt_token_ids": ..}`; arrays as lists."""
    if isinstance(prompt, dict):
        for key in ("prompt_token_ids", "prompt"):
            if key in prompt:
                return _plain(prompt[key])
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt  # numpy's and torch's token ids
