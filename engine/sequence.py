"""A request on its way through the engine: its tokens, its block table and how far it has come."""

from enum import Enum

from .detokenizer import TextStream
from .sampling_params import SamplingParams


class SequenceStatus(Enum):
    """Which queue a sequence is in."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One request.

    num_cached_tokens: tokens whose keys and values are in the KV cache.
    num_scheduled_tokens: tokens that the current step computes.
    num_prefix_hits: tokens that it found in the prefix cache when it first ran (not when it was recomputed).
    block_table: logical block i of this sequence is physical block block_table[i].
    """

    def __init__(
        self,
        seq_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        block_size: int,
        stop_token_ids: frozenset[int] = frozenset(),
        stream: TextStream | None = None,
        priority: int = 0,
        seed: int = 0,
    ) -> None:
        self.seq_id = seq_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.block_size = block_size
        self.stop_token_ids = stop_token_ids
        self.stream = stream
        self.priority = priority
        self.seed = seed
        self.number = 0
        self.status = SequenceStatus.WAITING
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_preemptions = 0
        self.block_table: list[int] = []
        self.block_hashes: list[str] = []
        self.num_prefix_hits: int | None = None
        self.logprobs: list[dict[int, float]] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def rank(self) -> tuple[int, int]:
        """Its place by priority: the smaller, the sooner; equals by arrival."""
        return self.priority, self.number

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.token_ids)

    @property
    def num_blocks(self) -> int:
        """Blocks that all tokens so far need."""
        return -(-self.num_tokens // self.block_size)

    @property
    def max_tokens(self) -> int:
        """The most tokens that this request may generate."""
        return self.sampling_params.max_tokens

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def completion_token_ids(self) -> list[int]:
        """The generated tokens, without the stop token that ended them."""
        end = -1 if isinstance(self.stop_reason, int) else None
        return self.token_ids[self.num_prompt_tokens : end]

    def block(self, i: int) -> list[int]:
        """The tokens of logical block i."""
        return self.token_ids[i * self.block_size : (i + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        """Add a generated token."""
        self.token_ids.append(token_id)
