"""The state of a serving loop as a plain JSON tree, engine-neutral and small enough to read in a pager.

    step  phase  waiting[]  running[]  finished[]
    seqs{id: status, num_tokens, num_prompt_tokens, num_cached_tokens, num_scheduled_tokens, block_table,
             token_ids, pieces, text, max_tokens, arrived, preemptions, finish_reason, waits_for}
    blocks{size, total, free[], ref_count{}, hash{}, owners{}}
    batch{seqs, input_ids, positions, slot_mapping, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
          context_lens, block_tables}  or null between steps

`pieces` holds the text of each token, `text` the pieces of output as they were streamed. Keys of `ref_count`,
`hash` and `owners` are block ids as text (JSON has no other keys) and are there only for blocks that have one.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from .errors import TraceError

SEQ_FIELDS = (
    "status",
    "num_tokens",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_scheduled_tokens",
    "block_table",
    "token_ids",
    "max_tokens",
    "preemptions",
)


def empty_state(block_size: int, free_block_ids: Iterable[int]) -> dict[str, Any]:
    """The state before the first request: every block free, no request, no batch."""
    free = list(free_block_ids)
    return {
        "step": 0,
        "phase": "idle",
        "waiting": [],
        "running": [],
        "finished": [],
        "seqs": {},
        "blocks": {
            "size": block_size,
            "total": len(free),
            "free": free,
            "ref_count": {},
            "hash": {},
            "owners": {},
        },
        "batch": None,
    }


class _Seq(msgspec.Struct):
    status: str
    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_scheduled_tokens: int
    block_table: list[int]
    token_ids: list[int]
    pieces: list[str]
    text: list[str]
    max_tokens: int
    arrived: int
    preemptions: int
    finish_reason: str | None
    waits_for: dict[str, Any] | None


class _Blocks(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=1)]
    total: Annotated[int, msgspec.Meta(ge=0)]
    free: list[int]
    ref_count: dict[str, int]
    hash: dict[str, str]
    owners: dict[str, list[str]]


class _Batch(msgspec.Struct):
    seqs: list[str]
    input_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    cu_seqlens_q: list[int]
    cu_seqlens_k: list[int]
    max_seqlen_q: int
    max_seqlen_k: int
    context_lens: list[int]
    block_tables: list[list[int]]


class _State(msgspec.Struct):
    step: int
    phase: str
    waiting: list[str]
    running: list[str]
    finished: list[str]
    seqs: dict[str, _Seq]
    blocks: _Blocks
    batch: _Batch | None


def check_shape(state: Any) -> None:
    """Raise TraceError if a stored state lacks a field or has one of another type. More fields are fine."""
    try:
        msgspec.convert(state, _State)
    except msgspec.ValidationError as error:
        raise TraceError(f"a stored state is not what the trace format says: {error}") from error
