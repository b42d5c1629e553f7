"""What a request gives back."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestOutput:
    """What became of a request.

    finish_reason: stop, length, abort or rejected (then `error` says why). stop_reason: the stop string or stop
    token that ended it. token_ids: without the stop token. num_cached_tokens: prompt tokens found in the prefix
    cache. logprobs: for each generated token, if asked for.

    It can be read as vLLM's (`output.outputs[0].text`) and as nano-vllm's (`output["text"]`).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    logprobs: list[dict[int, float]] = field(default_factory=list)
    error: str | None = None

    @property
    def outputs(self) -> list["RequestOutput"]:
        """The one completion of this request, where vLLM's code looks for it."""
        return [self]

    @property
    def finished(self) -> bool:
        """Always: outputs are given out when a request has ended."""
        return True

    def __getitem__(self, key: str) -> Any:
        """`output["text"]`, `output["token_ids"]`, as nano-vllm returns them."""
        return getattr(self, key)
