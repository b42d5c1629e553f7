"""The loop: schedule, run the model, postprocess; again until every request has finished."""

from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .block_manager import BlockManager
from .config import EngineConfig
from .detokenizer import Detokenizer
from .errors import ConfigError, RequestError
from .loader import load_tokenizer
from .model_runner import ModelRunner
from .probe import Probe
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence

Prompt = str | List[int]


@dataclass
class RequestOutput:
    """What became of a request. `finish_reason`: stop, length, abort or rejected (then `error` says why)."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    error: str | None = None


class LLMEngine:
    """An engine over one model folder. Add requests and call `step`, or call `generate`."""

    def __init__(self, model: str | Path, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        folder = Path(model)
        self.tokenizer = load_tokenizer(folder)
        self.model_runner = ModelRunner(folder, self.config)
        self.model_config = self.model_runner.model_config
        self.stop_token_ids = self.model_config.eos_token_ids | _eos_of(self.tokenizer)
        self.max_model_len = self._max_model_len()
        self.block_manager = BlockManager(
            self.config.num_blocks, self.config.block_size, self.config.prefix_caching
        )
        self.scheduler = Scheduler(self.config, self.block_manager)
        self.probe: Probe | None = None
        self._seqs: dict[str, Sequence] = {}
        self._num_requests = 0

    def attach(self, probe: Probe | None) -> None:
        """Let `probe` listen to every stop (None: nobody listens)."""
        for part in (self, self.scheduler, self.block_manager, self.model_runner, self.model_runner.model):
            part.probe = probe

    def _max_model_len(self) -> int:
        own_limit = self.model_config.max_position_embeddings
        asked = self.config.max_model_len or own_limit
        if asked > own_limit:
            raise ConfigError("max_model_len", f"is {asked}, and the model has {own_limit} positions")
        return asked

    def add_request(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> str:
        """Queue a request and return its id. Raises RequestError for one that can never run."""
        params = sampling_params or SamplingParams()
        if request_id is None:
            request_id = str(self._num_requests)
        if request_id in self._seqs:
            raise RequestError(f"there is a live request with the id {request_id}: choose another id")
        self._num_requests += 1
        token_ids = self._encode(prompt)
        reason = self._why_never(token_ids, params)
        if reason:
            if self.probe:
                self.probe("reject", request_id=request_id, token_ids=token_ids, params=params, reason=reason)
            raise RequestError(reason)
        seq = Sequence(
            request_id, token_ids, params, self.config.block_size,
            stop_token_ids=frozenset() if params.ignore_eos else self.stop_token_ids,
            detokenizer=Detokenizer(self.tokenizer, token_ids),
        )
        self._seqs[request_id] = seq
        self.scheduler.add(seq)
        if self.probe:
            self.probe("add_request", seq=seq)
        return request_id

    def _encode(self, prompt: Prompt) -> list[int]:
        try:
            return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        except (TypeError, UnicodeError) as error:
            raise RequestError(f"the prompt is neither text nor a list of token ids: {prompt!r:.80}") from error

    def _why_never(self, token_ids: List[int], params: SamplingParams) -> str | None:
        """Why this request can never run, or None. The last token's keys and values are never stored."""
        vocab_size = self.model_config.vocab_size
        if not token_ids:
            return "the prompt is empty: give it at least one token"
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                return f"the prompt's token id {token_id!r} is not in the vocabulary (0 to {vocab_size - 1})"
        num_prompt, num_output = len(token_ids), params.max_tokens
        if num_prompt + num_output > self.max_model_len:
            return (f"the prompt of {num_prompt} tokens + max_tokens {num_output} is over max_model_len "
                    f"{self.max_model_len}: shorten one of them")
        needs = -(-(num_prompt + num_output - 1) // self.config.block_size)
        if needs > self.config.num_blocks:
            return (f"the prompt of {num_prompt} tokens + max_tokens {num_output} needs {needs} blocks of "
                    f"{self.config.block_size}, and the pool has {self.config.num_blocks}: raise num_blocks or "
                    "lower max_tokens")
        return None

    def abort(self, request_id: str) -> None:
        """Drop a live request and free its blocks. An id that is not live is fine: nothing happens."""
        seq = self._seqs.pop(request_id, None)
        if seq:
            self.scheduler.finish(seq, "abort")

    def is_finished(self) -> bool:
        """Whether no request is left."""
        return self.scheduler.is_finished()

    def step(self) -> tuple[list[RequestOutput], int]:
        """One turn of the loop. Returns what finished, and the number of tokens: negative for a decode."""
        if self.probe:
            self.probe("step", when="begin")
        seqs, is_prefill = self.scheduler.schedule()
        num_tokens = sum(seq.num_scheduled_tokens for seq in seqs) if is_prefill else -len(seqs)
        if seqs:
            token_ids = self.model_runner.run(seqs, is_prefill)
            self.scheduler.postprocess(seqs, token_ids)
        outputs = [self._output(self._seqs.pop(seq.seq_id)) for seq in seqs if seq.finish_reason]
        if self.probe:
            self.probe("step", when="end", seqs=seqs, num_tokens=num_tokens)
        return outputs, num_tokens

    def generate(
        self,
        prompts: List[Prompt],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        request_ids: List[str] | None = None,
        arrivals: List[int] | None = None,
    ) -> list[RequestOutput]:
        """Run all prompts to their end and return their outputs in order.

        arrivals[i] is the step (from 1) before which prompt i is added; all at once by default. A request that
        can never run gets an output with finish_reason `rejected`; the others go on.
        """
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        ids = request_ids or [str(self._num_requests + i) for i in range(len(prompts))]
        pending = sorted(range(len(prompts)), key=lambda i: arrivals[i] if arrivals else 1)
        outputs: dict[int, RequestOutput] = {}
        index_of: dict[str, int] = {}
        num_steps = 0
        if self.probe:
            self.probe("generate", when="begin", num_requests=len(prompts))
        while pending or not self.is_finished():
            num_steps += 1
            while pending and (arrivals is None or arrivals[pending[0]] <= num_steps):
                i = pending.pop(0)
                try:
                    self.add_request(prompts[i], sampling_params[i], ids[i])
                    index_of[ids[i]] = i
                except RequestError as error:
                    outputs[i] = RequestOutput(ids[i], [], [], "", "rejected", str(error))
            finished, _ = self.step()
            for output in finished:
                if output.request_id in index_of:
                    outputs[index_of[output.request_id]] = output
        if self.probe:
            self.probe("generate", when="end", num_requests=len(prompts))
        return [outputs[i] for i in range(len(prompts))]

    def _output(self, seq: Sequence) -> RequestOutput:
        return RequestOutput(
            request_id=seq.seq_id,
            prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
            token_ids=seq.completion_token_ids,
            text=seq.detokenizer.text if seq.detokenizer else "",
            finish_reason=seq.finish_reason or "",
        )


def _eos_of(tokenizer: Any) -> set[int]:
    """The tokenizer's own end-of-sequence token; a checkpoint's config may name others or none."""
    return set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
