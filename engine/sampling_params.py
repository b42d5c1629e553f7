"""How one request wants its tokens chosen and when it wants to stop."""

import math
from dataclasses import dataclass, field
from typing import Any

from .errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """Per-request sampling, with vLLM's names. A wrong value raises RequestError that names the field.

    temperature: 0 is greedy. top_p: the smallest set of tokens that holds this much probability.
    top_k: the k likeliest tokens; 0 or -1 is all. min_p: tokens at least this likely, as a share of the likeliest.
    seed: same seed, same tokens, whoever shares the batch; None takes one from the engine's seed.
    repetition_penalty: above 1 makes tokens of prompt and output less likely; presence_penalty and
    frequency_penalty: taken off the logits of output tokens, once or for each time.
    max_tokens, min_tokens: most and fewest tokens to generate. stop: texts that end the output (they are cut
    off). stop_token_ids: tokens that do. ignore_eos: go on after an end-of-sequence token.
    logprobs: how many of the likeliest tokens to report, with their log probabilities, for each output token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 64
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", [self.stop])
        for name in ("stop", "stop_token_ids"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, [])
        for name, (test, wanted) in _RULES.items():
            value = getattr(self, name)
            if not test(value):
                raise RequestError(f"{name} must be {wanted}, not {value!r:.60}")
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} is over max_tokens {self.max_tokens}")

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e300
        and math.isfinite(value)
    )


_RULES: dict[str, tuple[Any, str]] = {
    "temperature": (lambda v: _is_number(v) and 0 <= v <= 1e6, "a number from 0 up"),
    "top_p": (lambda v: _is_number(v) and 0 < v <= 1, "above 0 and at most 1"),
    "top_k": (lambda v: _is_int(v) and v >= -1, "a whole number from -1 up"),
    "min_p": (lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "seed": (lambda v: v is None or (_is_int(v) and abs(v) < 2**62), "a whole number"),
    "repetition_penalty": (lambda v: _is_number(v) and 0 < v <= 1e6, "a number above 0"),
    "presence_penalty": (lambda v: _is_number(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "frequency_penalty": (lambda v: _is_number(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "max_tokens": (lambda v: _is_int(v) and v >= 1, "a whole number of at least 1"),
    "min_tokens": (lambda v: _is_int(v) and v >= 0, "a whole number from 0 up"),
    "stop": (
        lambda v: isinstance(v, list) and all(isinstance(text, str) and text for text in v),
        "a text or a list of texts that are not empty",
    ),
    "stop_token_ids": (
        lambda v: isinstance(v, list) and all(_is_int(token_id) for token_id in v),
        "a list of token ids",
    ),
    "ignore_eos": (lambda v: isinstance(v, bool), "true or false"),
    "logprobs": (
        lambda v: v is None or (_is_int(v) and 0 <= v <= 100),
        "a whole number from 0 to 100",
    ),
}
