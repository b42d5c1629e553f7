"""How one request wants its tokens chosen and when it wants to stop."""

import math
from dataclasses import dataclass

from .errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """Per-request sampling, with vLLM's names.

    temperature: 0 is greedy. top_p: smallest set of tokens that holds this much probability.
    top_k: the k likeliest tokens; 0 or -1 is all. seed: same seed, same tokens, whoever shares the batch.
    max_tokens: most tokens to generate. ignore_eos: go on after an end-of-sequence token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            raise RequestError(f"max_tokens must be a whole number of at least 1, not {self.max_tokens!r}")
        if not _is_number(self.temperature) or not 0 <= self.temperature <= 1e6:
            raise RequestError(f"temperature must be a number from 0 up, not {self.temperature!r}")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if not _is_int(self.top_k) or self.top_k < -1:
            raise RequestError(f"top_k must be a whole number from -1 up, not {self.top_k!r}")
        if not _is_int(self.seed) or not -(2**62) < self.seed < 2**62:
            raise RequestError(f"seed must be a whole number, not {self.seed!r}")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos must be true or false, not {self.ignore_eos!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
