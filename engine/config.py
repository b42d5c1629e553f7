"""The engine's settings and what they mean. No torch here: a scenario is checked before torch is loaded."""

from dataclasses import dataclass, fields
from typing import Any

from .errors import ConfigError

POLICIES = ("prefill_first", "mixed")
ATTENTION = ("auto", "torch", "cpu", "triton", "flash")
ORDERS = ("fcfs", "priority")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class EngineConfig:
    """How much the engine may hold and do at once.

    block_size: tokens per KV block.
    num_blocks: KV blocks in the pool.
    max_num_seqs: requests that may be running at once.
    max_num_batched_tokens: tokens that one step may compute (the token budget).
    max_model_len: longest prompt + output of a request; None takes the model's own limit.
    policy: the scheduling policy. `prefill_first` makes each step all prefill or all decode; `mixed` puts
        decodes and prompt chunks into one step.
    order: who is first: `fcfs` (first come, first served) or `priority` (the smaller number first).
    prefix_caching: whether full blocks are kept under their hash for later prompts.
    dtype: of weights and KV cache. `auto` is float32 on a CPU and the model's own elsewhere; float64 is for
        exact comparisons.
    device: `auto` is cuda where there is one.
    attention: the kernels for the KV cache: `auto` is the fastest that runs on the device; or `torch`, `cpu`,
        `triton`, `flash`.
    cuda_graphs: whether decodes are captured as CUDA graphs and replayed, where device and kernels allow it.
    seed: what requests without a seed of their own get theirs from.
    """

    block_size: int = 16
    num_blocks: int = 256
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    policy: str = "prefill_first"
    order: str = "fcfs"
    prefix_caching: bool = True
    dtype: str = "auto"
    device: str = "auto"
    attention: str = "auto"
    cuda_graphs: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            _check_count(name, getattr(self, name))
        if self.max_model_len is not None:
            _check_count("max_model_len", self.max_model_len)
        for name in ("prefix_caching", "cuda_graphs"):
            _check_switch(name, getattr(self, name))
        _check_choice("policy", self.policy, POLICIES)
        _check_choice("order", self.order, ORDERS)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("attention", self.attention, ATTENTION)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or abs(self.seed) >= 2**31:
            raise ConfigError("seed", f"must be a whole number below 2**31, not {self.seed!r}")
        if not isinstance(self.device, str):
            raise ConfigError("device", f"must be a name such as cpu or cuda, not {self.device!r}")

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "EngineConfig":
        """Build a config from a scenario's `engine` table. Raises ConfigError for an unknown name."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise ConfigError(
                    name, f"there is no such engine setting; there are {', '.join(known)}"
                )
        return cls(**settings)


MAX_COUNT = 2**24


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise ConfigError(name, f"must be a whole number from 1 to {MAX_COUNT:,}, not {value!r}")


def _check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(name, f"must be true or false, not {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, f"must be {' or '.join(choices)}, not {value!r}")
