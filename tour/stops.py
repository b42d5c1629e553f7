"""The table of tour stops: the single source for the app's rail, help, scenario checks and docs.

A stop is a point of the serving loop where the engine calls its probe. The six groups follow the classic
breakpoint tour of a minimal vLLM; the group's number is the key that runs to it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """One of the six parts of the loop. `key` is the digit that runs to it in the app."""

    key: int
    name: str
    short: str


@dataclass(frozen=True)
class Stop:
    """A named point of the loop and one sentence on what has just happened there."""

    name: str
    group: Group
    about: str


GROUPS = (
    Group(1, "The outer loop", "loop"),
    Group(2, "The scheduler", "schedule"),
    Group(3, "KV blocks", "blocks"),
    Group(4, "Tensor prep", "tensors"),
    Group(5, "KV written and read", "kv"),
    Group(6, "Closing the loop", "close"),
)

_ABOUT: dict[int, dict[str, str]] = {
    1: {
        "add_request": "A request has joined the end of the waiting queue.",
        "step": "One turn of the loop begins or ends: schedule, run the model, postprocess.",
        "generate": "The outer loop begins or ends: it repeats step until every request has finished.",
    },
    2: {
        "schedule": "The scheduler begins or ends choosing the requests of this step.",
        "admit": "A request has moved from waiting to running: in this step its prompt is computed, or begun.",
        "chunk": "A prompt does not fit into what is left of the budget and may be cut: a piece of it runs now.",
        "wait": "A request gets nothing in this step, and this is the limit that stopped it.",
        "decode": "A running request is given one token in this step.",
        "preempt": "A running request lost its place and its blocks, so that another one can grow.",
    },
    3: {
        "can_allocate": "The block manager has looked up the prompt's block hashes and counted free blocks.",
        "allocate": "A request has received its block table: cached blocks first, then free ones.",
        "can_append": "Whether the newest token fits into the last block or starts a free one has been checked.",
        "may_append": "The request's table has grown by a block if its newest token starts one.",
        "hash_blocks": "Blocks that are now full have entered the prefix cache under their chained hash.",
        "evict": "A cached block is about to be reused: it has left the prefix cache.",
        "deallocate": "A request has let go of its blocks; those that nobody else holds are free.",
    },
    4: {
        "prepare_prefill": "The prompts' tokens lie in one flat row, each with its position and its KV slot.",
        "prepare_decode": "Each running request adds its last token, with its position and its KV slot.",
    },
    5: {
        "store_kvcache": "A layer has written each token's key and value into the token's slot.",
        "attention": "A layer has read the past keys and values back through the block tables.",
    },
    6: {
        "sample": "The next token of each request has been chosen from the model's logits.",
        "postprocess": "The step's tokens now count as computed: their keys and values are in the cache.",
        "append_token": "The new token has been appended to its request.",
        "finish": "A request is done and has left the queues.",
        "reject": "A request was refused when it was added; the others go on.",
    },
}

STOPS: dict[str, Stop] = {
    name: Stop(name, group, about) for group in GROUPS for name, about in _ABOUT[group.key].items()
}

FACTS: dict[str, str] = {
    "add_request": "seq num_prompt_tokens max_tokens needs needs_at_most",
    "step": "when phase num_tokens num_decodes num_seqs waiting running free total",
    "generate": "when num_requests num_rejected",
    "schedule": "when budget phase seqs num_tokens num_decodes",
    "admit": "seq num_scheduled_tokens num_cached_tokens num_recomputed_tokens preemptions",
    "chunk": "seq num_scheduled_tokens num_cached_tokens num_recomputed_tokens uncomputed budget queue",
    "wait": "seqs cause needs free left running limit behind",
    "decode": "seq position",
    "preempt": "seq needed_by why_this_one num_tokens blocks",
    "can_allocate": "seq hits num_new needs free ok recompute",
    "allocate": "seq hits block_ids num_cached_tokens",
    "can_append": "seq num_tokens needs free ok",
    "may_append": "seq block_ids",
    "hash_blocks": "seq block_ids hashes",
    "evict": "block_id hash",
    "deallocate": "seq block_ids freed",
    "prepare_prefill": "seqs num_tokens",
    "prepare_decode": "seqs num_tokens",
    "store_kvcache": "layer last_layer num_layers num_tokens",
    "attention": "layer last_layer num_layers num_tokens num_keys",
    "sample": "seqs token_ids pieces",
    "postprocess": "seq computed num_cached_tokens num_tokens",
    "append_token": "seq token_id piece text num_tokens num_completion_tokens max_tokens",
    "finish": "seq reason stop_reason text max_tokens num_completion_tokens is_eos",
    "reject": "seq num_prompt_tokens max_tokens reason",
}
"""Stop -> the names of its facts, some of which are there only in some cases. Conditions may use them."""

MARKS = {"preempt": "P", "finish": "F", "evict": "E", "reject": "R"}
"""Stops that get a mark on the timeline, with the letter that stands for them."""


def group_of(stop: str) -> Group | None:
    """The group of the stop named `stop`, or None for a name that this version does not know."""
    return STOPS[stop].group if stop in STOPS else None
