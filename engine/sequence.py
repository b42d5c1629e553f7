"""A request on its way through the engine: its tokens, its block table and how far it has come."""

from enum import Enum

from .detokenizer import Detokenizer
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
    block_table: logical block i of this sequence is physical block block_table[i].
    """

    def __init__(
        self,
        seq_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        block_size: int,
        stop_token_ids: frozenset[int] = frozenset(),
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.seq_id = seq_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.block_size = block_size
        self.stop_token_ids = stop_token_ids
        self.detokenizer = detokenizer
        self.status = SequenceStatus.WAITING
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_preemptions = 0
        self.block_table: list[int] = []
        self.block_hashes: list[str] = []
        self.finish_reason: str | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

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
        """The generated tokens, without the end-of-sequence token that ended them."""
        end = -1 if self.finish_reason == "stop" else None
        return self.token_ids[self.num_prompt_tokens : end]

    def block(self, i: int) -> list[int]:
        """The tokens of logical block i."""
        return self.token_ids[i * self.block_size : (i + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        """Add a generated token."""
        self.token_ids.append(token_id)
