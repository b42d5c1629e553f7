"""One or two plain sentences on what happened at an event and why. All they say comes from the event's facts."""

from collections.abc import Callable
from typing import Any

from .stops import STOPS
from .text import line, token
from .trace import Event

Facts = dict[str, Any]


def why(event: Event, state: dict[str, Any]) -> str:
    """Explain `event`; `state` is the state after it. Unknown stops and odd facts get the plain listing.

    The text is one printable line, whatever the names and tokens in it hold.
    """
    explain = _EXPLAIN.get(event.stop)
    try:
        if explain:
            return line(explain(event.facts, state))
    except Exception:  # a foreign trace may lack a fact or hold anything in its place
        return STOPS[event.stop].about
    return line(f"{event.stop}: {str(event.facts)[:500]}")


def plural(count: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _ids(ids: list[Any], limit: int = 12) -> str:
    shown = " ".join(str(item) for item in ids[:limit])
    return shown + (f" .. ({len(ids)} in all)" if len(ids) > limit else "")


def _generate(f: Facts, s: Facts) -> str:
    if f["when"] == "begin":
        return f"{plural(f['num_requests'], 'request')} to run. The loop repeats step until all have finished."
    after = f"after {plural(s['step'], 'step')}: {_free(s)}."
    if f["num_rejected"]:
        return f"The loop has ended, with {f['num_rejected']} of {f['num_requests']} requests rejected, {after}"
    return f"Every request has finished {after}"


def _free(s: Facts) -> str:
    return f"{len(s['blocks']['free'])} of {plural(s['blocks']['total'], 'block')} free"


def _step(f: Facts, s: Facts) -> str:
    if f["when"] == "begin":
        return f"Step {s['step']} begins: schedule, run the model, postprocess."
    if not f["num_tokens"]:
        return f"Step {s['step']} found nothing to do."
    count = abs(f["num_tokens"])
    kind = "a mixed batch" if f["phase"] == "mixed" else f"a {f['phase']}"
    sign = ": the minus marks a decode" if f["num_tokens"] < 0 else ""  # as nano-vllm counts
    return (
        f"Step {s['step']} is done: {kind} of {plural(count, 'token')} for "
        f"{plural(f['num_seqs'], 'request')} (num_tokens = {f['num_tokens']}{sign}), {_free(s)}."
    )


def _add_request(f: Facts, s: Facts) -> str:
    return (
        f"{f['seq']} joins waiting: a prompt of {plural(f['num_prompt_tokens'], 'token')}, at most "
        f"{f['max_tokens']} more. Its prompt needs {plural(f['needs'], 'block')}; at its longest it needs "
        f"{f['needs_at_most']} of {s['blocks']['total']}."
    )


def _schedule(f: Facts, s: Facts) -> str:
    if f["when"] == "begin":
        return (
            f"Who runs in this step? {len(s['waiting'])} waiting, {len(s['running'])} running, {_free(s)}, a "
            f"budget of {plural(f['budget'], 'token')}."
        )
    if not f["seqs"]:
        return "Nobody can run."
    if f["phase"] == "mixed":
        return (
            f"This step is mixed: {plural(f['num_decodes'], 'decode')} and "
            f"{plural(f['num_tokens'] - f['num_decodes'], 'prompt token')} in one batch of {_ids(f['seqs'])}."
        )
    if f["phase"] == "prefill":
        return f"This step is a prefill of {_ids(f['seqs'])}: {plural(f['num_tokens'], 'token')} in all."
    return f"This step is a decode: one token each for {_ids(f['seqs'])}."


def _admit(f: Facts, s: Facts) -> str:
    text = f"{f['seq']} moves from waiting to running: {plural(f['num_scheduled_tokens'], 'token')} to compute"
    if f["num_cached_tokens"]:
        text += f"; {f['num_cached_tokens']} need no work, their keys and values are already there"
    return text + "." + _again(f)


def _again(f: Facts) -> str:
    """What a preemption costs in this step, for one that came back from it."""
    again = f.get("num_recomputed_tokens")  # an older trace does not tell
    if again is None or not (again or f.get("preemptions")):
        return ""
    return f" It was preempted: {again} of the {f['num_scheduled_tokens']} are computed again."


def _chunk(f: Facts, s: Facts) -> str:
    text = f"{f['seq']} has {f['uncomputed']} tokens to compute, and {f['budget']} of the budget are left for it: "
    if f["num_scheduled_tokens"] == f["uncomputed"]:
        return text + "the rest of its prompt runs now." + _again(f)
    stays = (
        "it stays in front of waiting"
        if f["queue"] == "waiting"
        else "it keeps its place in running"
    )
    return text + f"{f['num_scheduled_tokens']} run now, and {stays} for the rest." + _again(f)


def _wait(f: Facts, s: Facts) -> str:
    verb = "waits" if len(f["seqs"]) == 1 else "wait"
    return f"{_ids(f['seqs'])} {verb} ({f['cause']}): {_WAIT[f['cause']](f)}."


_WAIT: dict[str, Callable[[Facts], str]] = {
    "no_free_blocks": lambda f: f"needs {plural(f['needs'], 'block')}, free {f['free']}",
    "token_budget": lambda f: (
        f"{plural(f['needs'], 'token')} to compute, {f['left']} left of this step's budget"
    ),
    "max_num_seqs": lambda f: f"{f['running']} running, and {f['limit']} is the limit",
    "behind_chunk": lambda f: f"{f['behind']} takes all that is left of the budget, chunk by chunk",
    "behind_head": lambda f: (
        f"{f['behind']} is in front and cannot enter yet, and nobody overtakes"
    ),
    "after_preemption": lambda f: (
        "blocks are short: this step has just preempted, so it lets nobody in"
    ),
}


def _decode(f: Facts, s: Facts) -> str:
    return f"{f['seq']} gets one token in this step: position {f['position']} is computed."


def _preempt(f: Facts, s: Facts) -> str:
    free = len(s["blocks"]["free"])
    short = f"more blocks than are free ({free})" if free else "a block and none is free"
    seq, hashes = s["seqs"][f["seq"]], s["blocks"]["hash"]
    computed = plural(seq["num_cached_tokens"], "computed token")
    price = f"Its {plural(f['blocks'], 'block')} will be freed, and "
    if any(str(block) in hashes for block in seq["block_table"]):
        price += (
            f"up to {computed} may have to be computed again: fewer if the prefix cache still knows "
            "their blocks then."
        )
    else:
        price += f"{computed} will have to be computed again."
    if f["seq"] == f["needed_by"]:
        last = "it is the last one running: it gives up its own place"
        return f"{f['seq']} needs {short}, and {last}. {price}"
    by_priority = f["why_this_one"] == "lowest priority"
    cause = "has the lowest priority of those running" if by_priority else "came last into running"
    where = "back to waiting" if by_priority else "back to the front of waiting"
    return (
        f"{f['needed_by']} needs {short}. {f['seq']} {cause}, so it is the victim: {where}. {price}"
    )


def _can_allocate(f: Facts, s: Facts) -> str:
    hits, new = len(f["hits"]), f["num_new"]
    text = f"{f['seq']} needs {plural(hits + new, 'block')}: "
    text += (
        f"{hits} found in the prefix cache ({_ids(f['hits'])}), {new} new. "
        if hits
        else f"{new} new. "
    )
    if f["needs"] != new:
        text += f"{f['needs'] - new} of those found lie on the free list and leave it too. "
    return text + f"Free: {f['free']}. " + ("It fits." if f["ok"] else "It does not fit.")


def _allocate(f: Facts, s: Facts) -> str:
    text = f"{f['seq']} gets its block table: "
    if f["hits"]:
        text += f"{_ids(f['hits'])} from the prefix cache ({f['num_cached_tokens']} tokens need no work), then "
    return (
        text
        + f"{_ids(f['block_ids'])} from the front of the free list. They need not be neighbours."
    )


def _can_append(f: Facts, s: Facts) -> str:
    size, n = s["blocks"]["size"], f["num_tokens"]
    is_decode = n - s["seqs"][f["seq"]]["num_cached_tokens"] == 1
    if not f["needs"] and is_decode:
        newest = f"its newest token (position {n - 1})"
        return f"{f['seq']} has {plural(n, 'token')}: {newest} still fits into its last block."
    if not f["needs"]:
        return f"{f['seq']} has {n} tokens: the next ones to compute still fit into its blocks."
    text = f"{f['seq']} has {n} tokens, and the next ones to compute need {plural(f['needs'], 'block')} more. "
    if is_decode:
        text = (
            f"{f['seq']} has {n} = {(n - 1) // size} * {size} + 1 tokens: its newest one (position {n - 1}) "
            "starts a new block. "
        )
    return text + f"Free: {f['free']}. " + ("It can grow." if f["ok"] else "It cannot grow.")


def _may_append(f: Facts, s: Facts) -> str:
    if not f["block_ids"]:
        return f"The block table of {f['seq']} stays as it is."
    return f"The block table of {f['seq']} grows by block {_ids(f['block_ids'])}."


def _hash_blocks(f: Facts, s: Facts) -> str:
    what, verb = ("Block", "is") if len(f["block_ids"]) == 1 else ("Blocks", "are")
    return (
        f"{what} {_ids(f['block_ids'])} of {f['seq']} {verb} full now: known to the prefix cache under a hash "
        "of all tokens up to the block's end."
    )


def _evict(f: Facts, s: Facts) -> str:
    return f"Block {f['block_id']} is about to be reused: the prefix cache forgets what it held ({f['hash'][:8]})."


def _deallocate(f: Facts, s: Facts) -> str:
    shared = len(f["block_ids"]) - len(f["freed"])
    are = "is" if len(f["freed"]) == 1 else "are"
    text = f"{f['seq']} lets go of {plural(len(f['block_ids']), 'block')}; {len(f['freed'])} {are} free now"
    text += f", others still hold {shared}" if shared else ""
    return text + ". Cached ones keep their content until they are reused."


def _prepare(f: Facts, s: Facts) -> str:
    size, batch = s["blocks"]["size"], s["batch"]
    position, slot = batch["positions"][0], batch["slot_mapping"][0]
    return (
        f"{plural(len(batch['input_ids']), 'token')} of {_ids(batch['seqs'])} in one flat row. The first: "
        f"{batch['seqs'][0]} at position {position} goes to slot {slot // size} * {size} + {slot % size} = {slot}."
    )


def _store(f: Facts, s: Facts) -> str:
    text = f"the keys and values of {plural(f['num_tokens'], 'token')} to their slots"
    if _is_group(f):
        return f"{_layers(f)}, one after another, write {text}; each has read before the next one writes."
    return f"{_layers(f)} writes {text}."


def _attention(f: Facts, s: Facts) -> str:
    text = f"{plural(f['num_keys'], 'key')} for {plural(f['num_tokens'], 'query token')}"
    if _is_group(f):
        return (
            f"{_layers(f)}, one after another, follow the block tables and read {text}; each right after its "
            "own write."
        )
    return f"{_layers(f)} follows the block tables and reads {text}."


def _layers(f: Facts) -> str:
    """The layer that a stop is about, or those: all but the first share one stop."""
    if _is_group(f):
        return f"Layers {f['layer'] + 1} to {f['last_layer'] + 1} of {f['num_layers']}"
    return f"Layer {f['layer'] + 1} of {f['num_layers']}"


def _is_group(f: Facts) -> bool:
    return bool(f.get("last_layer", f["layer"]) > f["layer"])


def _sample(f: Facts, s: Facts) -> str:
    if not f["seqs"]:
        return "No prompt is computed to its end yet: nothing to sample."
    pairs = zip(f["seqs"], f["pieces"], strict=True)
    shown = [f"{seq} {token(piece)}" for seq, piece in pairs]
    return "The next tokens: " + ", ".join(shown[:8]) + (" .." if len(shown) > 8 else "") + "."


def _postprocess(f: Facts, s: Facts) -> str:
    text = f"{f['seq']}: {plural(f['computed'], 'token')} computed, "
    text += f"{f['num_cached_tokens']} of {f['num_tokens']} now in the KV cache"
    if f["num_cached_tokens"] < f["num_tokens"]:
        return text + ". Its prompt goes on in a later step, so no token comes out yet."
    return text + "."


def _append_token(f: Facts, s: Facts) -> str:
    new = f"{f['num_completion_tokens']} of at most {f['max_tokens']} new"
    return f"{f['seq']} grows by {token(f['piece'])}: {f['num_tokens']} tokens now, {new}."


def _finish(f: Facts, s: Facts) -> str:
    reasons = {
        "stop": (
            f"it wrote its stop text {token(f['stop_reason'])}"
            if isinstance(f["stop_reason"], str)
            else "it chose an end-of-sequence token"
            if f.get("is_eos", True)
            else "it chose one of its stop tokens"
        ),
        "length": f"it has its {f['max_tokens']} tokens",
        "abort": "it was aborted",
    }
    return f"{f['seq']} is finished ({f['reason']}): {reasons.get(f['reason'], f['reason'])}."


def _reject(f: Facts, s: Facts) -> str:
    return f"{f['seq']} is rejected: {f['reason']}."


_EXPLAIN: dict[str, Callable[[Facts, Facts], str]] = {
    "generate": _generate,
    "step": _step,
    "add_request": _add_request,
    "schedule": _schedule,
    "admit": _admit,
    "chunk": _chunk,
    "wait": _wait,
    "decode": _decode,
    "preempt": _preempt,
    "can_allocate": _can_allocate,
    "allocate": _allocate,
    "can_append": _can_append,
    "may_append": _may_append,
    "hash_blocks": _hash_blocks,
    "evict": _evict,
    "deallocate": _deallocate,
    "prepare_prefill": _prepare,
    "prepare_decode": _prepare,
    "store_kvcache": _store,
    "attention": _attention,
    "sample": _sample,
    "postprocess": _postprocess,
    "append_token": _append_token,
    "finish": _finish,
    "reject": _reject,
}
