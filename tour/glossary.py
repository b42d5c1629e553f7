"""The words of paged attention and continuous batching, as vLLM and nano-vllm use them, each in plain words."""

GLOSSARY: dict[str, str] = {
    "attention": (
        "The part of a layer where each token looks back at the tokens before it: its query is compared "
        "with their keys, and their values are mixed by how well they match."
    ),
    "block": (
        "A run of block_size neighbouring slots of the KV cache: the unit in which memory is handed out. "
        "A block belongs to one request, or to several that share a prefix."
    ),
    "block pool": (
        "All blocks of the KV cache, num_blocks of them. They are made once and only change hands."
    ),
    "block table": (
        "A request's list of physical block ids: entry i holds its tokens i * block_size and on. The "
        "blocks may lie anywhere in the pool; the table keeps their order."
    ),
    "chunk": (
        "A piece of a prompt that is computed in one step, because the whole does not fit into the token "
        "budget; vLLM calls this chunked prefill. By the policy fifo only a step's first prompt may be cut, "
        "by mixed any."
    ),
    "context_lens": (
        "For each request of the batch, how many tokens attention reads for it, those computed now included."
    ),
    "continuous batching": (
        "Requests join and leave the batch between any two steps. Nobody waits for the longest one to "
        "end, as in static batching."
    ),
    "cu_seqlens": (
        "Cumulative sequence lengths, beginning with 0: where each request begins and ends in the flat "
        "row. cu_seqlens_q counts the tokens computed now, cu_seqlens_k all tokens that attention reads."
    ),
    "decode": (
        "A step, or a request's part of it, that computes one newest token and gets the next one out of "
        "it."
    ),
    "end of sequence": (
        "The token (EOS) with which the model says that its answer is over. The request finishes when it "
        "is sampled, unless ignore_eos is set."
    ),
    "eviction": (
        "A free block whose content is still cached is about to be reused, so the prefix cache forgets "
        "that content."
    ),
    "free list": (
        "The ids of the blocks that nobody holds, in the order in which they are handed out. Blocks "
        "without a cached prefix come first."
    ),
    "hash": (
        "A short fingerprint of a full block's tokens and of all tokens before it. Equal hashes mean an "
        "equal beginning, so that the block can be shared."
    ),
    "KV cache": (
        "The keys and values of all tokens computed so far, kept on the device so that no step computes them "
        "twice. Each layer has a cache of its own, and a token has the same slot in all of them."
    ),
    "max_num_seqs": (
        "The most requests that may run at once. Further ones wait, even with blocks and budget left."
    ),
    "mixed": (
        "A scheduling policy, vLLM's: decodes and prompt chunks share a step and its token budget. "
        "Running requests come first."
    ),
    "num_cached_tokens": (
        "How many tokens of a request have their keys and values in the KV cache: computed in earlier "
        "steps, or found by a prefix hit."
    ),
    "num_scheduled_tokens": (
        "How many tokens of a request this step computes: 1 in a decode, a prompt or chunk in a prefill."
    ),
    "num_tokens": (
        "Of a request: its prompt and output so far. Of a step: the tokens computed; a minus says that it was a "
        "decode. nano-vllm counts so: -4 is one token for each of 4 requests."
    ),
    "position": (
        "A token's place in its own request, counted from 0. The rotary embedding turns by it."
    ),
    "preemption": (
        "No block is free for a request that must grow, so the last running one loses its blocks and goes "
        "back to the front of waiting. Its tokens stay; the computed ones are computed again, but for blocks "
        "still cached."
    ),
    "prefill": (
        "A step, or a request's part of it, that computes many tokens of a prompt at once."
    ),
    "prefill_first": (
        "A scheduling policy, nano-vllm's: a step is all prefill or all decode, and prompts that can "
        "enter go first."
    ),
    "prefix cache": (
        "Full blocks that are kept under their hash, also after their request has left. A later request "
        "that begins with the same tokens takes them over instead of computing them."
    ),
    "prefix hit": (
        "A block at the beginning of a prompt that is found in the prefix cache and needs no computing. A hit "
        "that nobody holds is taken off the free list, so it is charged like a new block."
    ),
    "ref_count": (
        "How many requests hold a block. It goes up when a request shares the block and down when one "
        "lets go; at 0 the block is free."
    ),
    "running": (
        "The queue of requests that have their blocks and take part in decodes, in the order in which "
        "they entered."
    ),
    "sample": (
        "To choose the next token from the model's logits, the scores of all tokens. At temperature 0 it "
        "is the likeliest one (greedy)."
    ),
    "slot": (
        "The place of one token's keys and values in the KV cache: block_id * block_size + offset, with "
        "offset = position % block_size."
    ),
    "slot_mapping": (
        "For each token of the flat row, the slot that its key and value are written to."
    ),
    "step": "One turn of the outer loop: schedule, run the model once, postprocess.",
    "stop": (
        "A named point of the loop, such as admit or preempt, at which this debugger can halt. The action "
        "that it is named after has just happened."
    ),
    "token budget": (
        "The most tokens that one step may compute over all requests: max_num_batched_tokens. It keeps a "
        "step short."
    ),
    "waiting": (
        "The queue of requests that have not entered or were preempted. They enter from its front, and "
        "nobody overtakes."
    ),
}
"""Term -> one or two sentences. docs/glossary.md says the same."""


def as_markdown() -> str:
    """The glossary as the page docs/glossary.md."""
    terms = [f"- **{term}**: {text}" for term, text in GLOSSARY.items()]
    return "\n".join(["# Glossary", "", *terms, ""])
