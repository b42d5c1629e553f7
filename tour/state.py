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
from typing import Any

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
