"""The standing invariants of a paged-attention loop, checked on the state tree at every stop.

The numbers are those of the design. Invariants 5 (progress) and 6 (outputs) need more than one state and are
checked by the recorder's verifier and by the tests.
"""

from typing import Any

from .errors import VerifyError


def check(state: dict[str, Any], token_budget: int | None = None) -> None:
    """Raise VerifyError with one sentence if `state` breaks an invariant."""
    _check_blocks(state)
    _check_tokens(state, token_budget)
    _check_queues(state)


def check_idle(state: dict[str, Any]) -> None:
    """Invariant 7: with no live request every block is free and nothing per-request is left."""
    blocks = state["blocks"]
    if state["waiting"] or state["running"]:
        _fail(7, f"the loop has ended with live requests: {state['waiting'] + state['running']}")
    if len(blocks["free"]) != blocks["total"] or blocks["ref_count"] or blocks["owners"]:
        _fail(7, f"{blocks['total'] - len(blocks['free'])} blocks are not free at idle")


def _fail(number: int, sentence: str) -> None:
    raise VerifyError(f"invariant {number} is broken: {sentence}")


def _check_blocks(state: dict[str, Any]) -> None:
    blocks, seqs = state["blocks"], state["seqs"]
    free = set(blocks["free"])
    if len(free) != len(blocks["free"]):
        _fail(1, "the free list holds a block twice")
    holders: dict[str, list[str]] = {}
    for seq_id, seq in seqs.items():
        for block_id in seq["block_table"]:
            holders.setdefault(str(block_id), []).append(seq_id)
    if len(free) + len(holders) != blocks["total"]:
        _fail(1, f"{len(free)} free + {len(holders)} in use is not {blocks['total']} in all")
    for block_id, owners in holders.items():
        if int(block_id) in free:
            _fail(1, f"block {block_id} is both free and in the table of {', '.join(owners)}")
        if blocks["ref_count"].get(block_id) != len(owners):
            count = blocks["ref_count"].get(block_id)
            _fail(1, f"block {block_id} has ref_count {count} and stands in {len(owners)} tables")
        if sorted(blocks["owners"].get(block_id, [])) != sorted(owners):
            _fail(1, f"block {block_id} names other owners than the tables that hold it")
    if set(blocks["ref_count"]) != set(holders) or set(blocks["owners"]) != set(holders):
        _fail(1, "a block that no table holds still has a ref_count or an owner")


def _check_tokens(state: dict[str, Any], token_budget: int | None) -> None:
    size = state["blocks"]["size"]
    scheduled_in_all = 0
    for seq_id, seq in state["seqs"].items():
        cached, scheduled = seq["num_cached_tokens"], seq["num_scheduled_tokens"]
        scheduled_in_all += scheduled
        if scheduled < 0 or cached < 0 or cached + scheduled > seq["num_tokens"]:
            _fail(
                3,
                f"{seq_id} has {cached} cached + {scheduled} scheduled of {seq['num_tokens']} tokens",
            )
        if cached + scheduled > len(seq["block_table"]) * size:
            _fail(
                3, f"the block table of {seq_id} does not cover position {cached + scheduled - 1}"
            )
        if not len(seq["token_ids"]) == len(seq["pieces"]) == seq["num_tokens"]:
            _fail(
                3, f"{seq_id} counts {seq['num_tokens']} tokens and holds {len(seq['token_ids'])}"
            )
    if token_budget is not None and scheduled_in_all > token_budget:
        _fail(3, f"{scheduled_in_all} scheduled tokens exceed the budget of {token_budget}")


def _check_queues(state: dict[str, Any]) -> None:
    queued = state["waiting"] + state["running"] + state["finished"]
    if len(set(queued)) != len(queued) or set(queued) != set(state["seqs"]):
        _fail(4, "a request is in no queue or in more than one")
    for seq_id in state["waiting"]:
        seq = state["seqs"][seq_id]
        idle = not seq["num_cached_tokens"] and not seq["num_scheduled_tokens"]
        # Between `allocate` and `admit`/`chunk` of one schedule the request holds blocks and is not yet
        # scheduled: only a state outside of `schedule` breaks the rule.
        if seq["block_table"] and idle and state["phase"] != "schedule":
            _fail(4, f"{seq_id} waits with nothing computed and holds blocks")
