"""The loop: schedule, run the model, postprocess; again until every request has finished."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any

from .block_manager import BlockManager
from .config import EngineConfig
from .detokenizer import Detokenizer, TextStream
from .errors import ConfigError, RequestError
from .families import load_config
from .hub import model_folder
from .loader import Progress
from .mixed_scheduler import MixedScheduler
from .model_runner import ModelRunner
from .outputs import RequestOutput
from .probe import Probe
from .request import Prompt, Request
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence
from .tokenizer import apply_chat_template, encode, load_tokenizer


class LLMEngine:
    """An engine over one model. Add requests and call `step`, or call `run`."""

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        folder = model_folder(model)
        self.model_config = load_config(folder)
        self.tokenizer = load_tokenizer(folder)
        self.model_runner = ModelRunner(folder, self.model_config, self.config, progress)
        self.stop_token_ids = self.model_config.eos_token_ids | _eos_of(self.tokenizer)
        self.max_model_len = self._max_model_len()
        self.probe: Probe | None = None
        self._num_requests = 0
        self.restart()

    def restart(self) -> None:
        """Begin with no request and nothing cached, whatever state an interruption has left."""
        self.block_manager = BlockManager(
            self.config.num_blocks, self.config.block_size, self.config.prefix_caching
        )
        policy = MixedScheduler if self.config.policy == "mixed" else Scheduler
        self.scheduler = policy(self.config, self.block_manager)
        self._seqs: dict[str, Sequence] = {}
        self.attach(self.probe)

    def attach(self, probe: Probe | None) -> None:
        """Let `probe` listen to every stop (None: nobody listens)."""
        for part in (
            self,
            self.scheduler,
            self.block_manager,
            self.model_runner,
            self.model_runner.model,
        ):
            part.probe = probe

    def _max_model_len(self) -> int:
        own_limit = self.model_config.max_position_embeddings
        asked = self.config.max_model_len or own_limit
        if asked > own_limit:
            raise ConfigError(
                "max_model_len", f"is {asked}, and the model has {own_limit} positions"
            )
        return asked

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> str:
        """Queue a request and return its id. Raises RequestError for one that can never run."""
        params = sampling_params or SamplingParams()
        request_id = self._free_id() if request_id is None else request_id
        _check_kinds(request_id, params, priority)
        self._num_requests += 1
        token_ids: list[int] = []
        try:
            if request_id in self._seqs:
                raise RequestError(
                    f"there is a live request with the id {request_id}: choose another id"
                )
            token_ids = self.encode(prompt)
            self._check_possible(token_ids, params)
        except RequestError as error:
            if self.probe:
                self.probe(
                    "reject",
                    request_id=request_id,
                    token_ids=token_ids,
                    params=params,
                    reason=str(error),
                )
            raise
        seq = self._new_sequence(request_id, token_ids, params, priority)
        self._seqs[request_id] = seq
        self.scheduler.add(seq)
        if self.probe:
            self.probe("add_request", seq=seq)
        return request_id

    def _free_id(self) -> str:
        """A number that no live request has as its id."""
        number = self._num_requests
        while str(number) in self._seqs:
            number += 1
        return str(number)

    def _new_sequence(
        self, request_id: str, token_ids: list[int], params: SamplingParams, priority: int
    ) -> Sequence:
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self.stop_token_ids
        own_seed = self.config.seed * 1_000_003 + self._num_requests
        return Sequence(
            request_id,
            token_ids,
            params,
            self.config.block_size,
            stop_token_ids=stop_token_ids,
            stream=TextStream(Detokenizer(self.tokenizer, token_ids), params.stop),
            priority=priority,
            seed=own_seed if params.seed is None else params.seed,
        )

    def checked(
        self, prompt: Prompt, sampling_params: SamplingParams, priority: int = 0
    ) -> list[int]:
        """The prompt's token ids. Raises RequestError if such a request could never run."""
        _check_kinds("", sampling_params, priority)
        token_ids = self.encode(prompt)
        self._check_possible(token_ids, sampling_params)
        return token_ids

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: text, ids, or messages. Raises RequestError for anything else."""
        try:
            if isinstance(prompt, str):
                return encode(self.tokenizer, prompt)
            items: list[Any] = list(prompt)
            if items and isinstance(items[0], dict):
                return encode(self.tokenizer, apply_chat_template(self.tokenizer, items))
            return items
        except (TypeError, UnicodeError) as error:
            raise RequestError(
                f"the prompt is neither text nor token ids nor messages: {prompt!r:.80}"
            ) from error

    def _check_possible(self, token_ids: List[int], params: SamplingParams) -> None:
        """Raise RequestError if such a request can never run."""
        if not token_ids:
            raise RequestError("the prompt is empty: give it at least one token")
        for token_id in token_ids:
            self._check_token_id("the prompt's token id", token_id)
        for token_id in params.stop_token_ids:
            self._check_token_id("stop_token_ids:", token_id)
        num_prompt, num_output = len(token_ids), params.max_tokens
        asked = f"the prompt of {num_prompt} tokens + max_tokens {num_output}"
        if num_prompt + num_output > self.max_model_len:
            raise RequestError(
                f"{asked} is over max_model_len {self.max_model_len}: shorten one of them"
            )
        # The last token's keys and values are never stored.
        needs = -(-(num_prompt + num_output - 1) // self.config.block_size)
        if needs > self.config.num_blocks:
            raise RequestError(
                f"{asked} needs {needs} blocks of {self.config.block_size}, and the pool has "
                f"{self.config.num_blocks}: raise num_blocks or lower max_tokens"
            )

    def _check_token_id(self, what: str, token_id: Any) -> None:
        is_int = isinstance(token_id, int) and not isinstance(token_id, bool)
        last = self.model_config.vocab_size - 1
        if not is_int or not 0 <= token_id <= last:
            raise RequestError(f"{what} {token_id!r} is not in the vocabulary (0 to {last})")

    def abort(self, request_id: str) -> None:
        """Drop a live request and free its blocks. An id that is not live is fine: nothing happens."""
        seq = self._seqs.pop(request_id, None)
        if seq:
            self.scheduler.finish(seq, "abort")

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises EngineError while a request holds a block."""
        self.block_manager.reset_prefix_cache()

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
        self, requests: List[Request], on_output: Callable[[RequestOutput], None] | None = None
    ) -> list[RequestOutput]:
        """Run all requests to their end and return their outputs in order.

        A request that can never run gets an output with finish_reason `rejected`; the others go on. `on_output`
        is called with each output as it comes.
        """
        pending = deque(sorted(range(len(requests)), key=lambda i: requests[i].arrival))
        live: dict[int, Sequence] = {}
        outputs: dict[int, RequestOutput] = {}
        num_steps, num_live = 0, len(self._seqs)
        if self.probe:
            self.probe("generate", when="begin", num_requests=len(requests))
        while pending or live or not self.is_finished():
            num_steps += 1
            done: dict[int, RequestOutput] = {}
            while pending and requests[pending[0]].arrival <= num_steps:
                i = pending.popleft()
                added = self._add(requests[i])
                if isinstance(added, Sequence):
                    live[i] = added
                    num_live += 1
                else:
                    done[i] = added
            self.step()
            if num_live != len(self._seqs):  # somebody has ended, in this step or by an abort
                done |= self._pop_ended(live)
                num_live = len(self._seqs)
            outputs |= done
            for output in done.values():
                if on_output:
                    on_output(output)
        if self.probe:
            self.probe("generate", when="end", num_requests=len(requests))
        return [outputs[i] for i in range(len(requests))]

    def _pop_ended(self, live: dict[int, Sequence]) -> dict[int, RequestOutput]:
        """Take those that have ended out of `live`, and return their outputs."""
        ended = [i for i, seq in live.items() if seq.finish_reason]
        return {i: self._output(live.pop(i)) for i in ended}

    def _add(self, request: Request) -> Sequence | RequestOutput:
        """Queue a request: its sequence, or the output of one that is rejected."""
        request_id = request.request_id or self._free_id()
        try:
            self.add_request(request.prompt, request.sampling_params, request_id, request.priority)
        except RequestError as error:
            return RequestOutput(request_id, None, [], [], "", "rejected", error=str(error))
        return self._seqs[request_id]

    def _output(self, seq: Sequence) -> RequestOutput:
        token_ids = seq.completion_token_ids
        return RequestOutput(
            request_id=seq.seq_id,
            prompt=self.tokenizer.decode(seq.token_ids[: seq.num_prompt_tokens]),
            prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
            token_ids=token_ids,
            text=seq.stream.text if seq.stream else "",
            finish_reason=seq.finish_reason or "",
            stop_reason=seq.stop_reason,
            num_cached_tokens=seq.num_prefix_hits or 0,
            num_preemptions=seq.num_preemptions,
            logprobs=seq.logprobs[: len(token_ids)],
        )


def _eos_of(tokenizer: Any) -> set[int]:
    """The tokenizer's own end-of-sequence token; a checkpoint's config may name others or none."""
    return set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}


def _check_kinds(request_id: Any, params: Any, priority: Any) -> None:
    """Raise RequestError for an argument of a wrong type, and name it."""
    if not isinstance(request_id, str):
        raise RequestError(f"request_id must be a text, not {request_id!r}")
    if not isinstance(params, SamplingParams):
        raise RequestError(f"sampling_params must be SamplingParams, not {params!r:.80}")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(f"priority must be a whole number, not {priority!r}")
