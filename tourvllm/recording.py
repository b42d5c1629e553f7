"""From the engine's stops to events: what each stop's facts are and which patches it makes.

This is the only place that knows both the engine's objects and the tour's state. Each method below belongs to one
stop, has its name, and returns the facts and the patches. Facts and patches come from host-side data alone: a
hook never makes a GPU wait.
"""

import sys
from collections.abc import Callable
from typing import Any

from .sources import line_that_ran
from .tour.patch import Patch
from .tour.recorder import Recorder
from .tour.state import empty_state
from .tour.trace import Event

Facts = dict[str, Any]
Told = tuple[Facts, list[Patch]]

_WHY_THE_LAST = {"fcfs": "last in running", "priority": "lowest priority"}
"""Order of the queues -> why the victim of a preemption is the one it is."""


def initial_state(engine: Any) -> dict[str, Any]:
    """The state tree of an engine that holds no request; its prefix cache may be warm."""
    state = empty_state(engine.config.block_size, engine.block_manager.free_block_ids)
    blocks = engine.block_manager.blocks
    state["blocks"]["hash"] = {str(block.block_id): block.hash for block in blocks if block.hash}
    return state


class EngineProbe:
    """Listens to an engine and tells a recorder. `after(event)` is called when an event is recorded."""

    def __init__(
        self, engine: Any, recorder: Recorder, after: Callable[[Event], None] | None = None
    ) -> None:
        self.engine = engine
        self.recorder = recorder
        self.after = after
        self._num_steps = 0
        self._in_step = False
        self._pieces: dict[int, str] = {}
        self._waits: dict[str, Facts] = {}
        self._lost: dict[str, int] = {}
        self._phase = "idle"
        self._num_decodes = 0
        self._num_rejected = 0

    def __call__(self, stop: str, /, **given: Any) -> None:
        """Record one stop, with the line of the code that called."""
        if stop == "wait" and not given["seqs"]:
            return
        facts, do = getattr(self, f"_{stop}")(**given)
        at = line_that_ran(stop, sys._getframe(1))
        step = self._step_of(stop, given)
        event = self.recorder.emit(stop, step, at, facts, [*self._leaves_step(stop), *do])
        if self.after:
            self.after(event)

    def _step_of(self, stop: str, given: Facts) -> int:
        """The step an event belongs to. What happens between two steps belongs to the one that follows."""
        if stop == "step":
            self._in_step = given["when"] == "begin"
            self._num_steps += self._in_step
        over = stop == "generate" and given["when"] == "end"
        return self._num_steps if self._in_step or over or stop == "step" else self._num_steps + 1

    def _leaves_step(self, stop: str) -> list[Patch]:
        """A step can be looked at as a whole at its end. The first event after it takes its batch away."""
        state = self.recorder.state
        if self._in_step or stop == "step" or (state["batch"] is None and state["phase"] == "idle"):
            return []
        return [["set", ["phase"], "idle"], ["set", ["batch"], None]]

    def piece(self, token_id: int) -> str:
        """The text of one token, for showing it alone."""
        if token_id not in self._pieces:
            text = self.engine.tokenizer.decode([token_id])
            if "\ufffd" in text:  # a part of a character
                text = f"<{self.engine.tokenizer.convert_ids_to_tokens([token_id])[0]}>"
            self._pieces[token_id] = text
        return self._pieces[token_id]

    # 1 The outer loop

    def _generate(self, when: str, num_requests: int) -> Told:
        facts = {"when": when, "num_requests": num_requests, "num_rejected": self._num_rejected}
        return facts, []

    def _add_request(self, seq: Any) -> Told:
        size = seq.block_size
        record = {
            "status": seq.status.value,
            "num_tokens": seq.num_tokens,
            "num_prompt_tokens": seq.num_prompt_tokens,
            "num_cached_tokens": seq.num_cached_tokens,
            "num_scheduled_tokens": seq.num_scheduled_tokens,
            "block_table": list(seq.block_table),
            "token_ids": list(seq.token_ids),
            "pieces": [self.piece(token_id) for token_id in seq.token_ids],
            "text": [],
            "max_tokens": seq.max_tokens,
            "arrived": self._num_steps + 1,
            "preemptions": 0,
            "finish_reason": None,
            "waits_for": None,
        }
        facts = {
            "seq": seq.seq_id,
            "num_prompt_tokens": seq.num_prompt_tokens,
            "max_tokens": seq.max_tokens,
            "needs": seq.num_blocks,
            "needs_at_most": -(-(seq.num_prompt_tokens + seq.max_tokens - 1) // size),
        }
        again = seq.seq_id in self.recorder.state["finished"]  # the id of a request that has ended
        forgotten: list[Patch] = [["remove", ["finished"], seq.seq_id]] if again else []
        return facts, [
            *forgotten,
            ["set", ["seqs", seq.seq_id], record],
            *self._moved("waiting", seq),
        ]

    def _moved(self, queue: str, seq: Any) -> list[Patch]:
        """The patch that makes the recorded queue the live one, if `seq` has joined or left it."""
        old = self.recorder.state[queue]
        live = getattr(self.engine.scheduler, queue)
        if len(live) == len(old):
            return []
        if len(live) < len(old):
            first = old[0] == seq.seq_id
            return [["take", [queue], 1] if first else ["remove", [queue], seq.seq_id]]
        if live[-1] is seq:
            return [["append", [queue], [seq.seq_id]]]
        if live[0] is seq:
            return [["prepend", [queue], [seq.seq_id]]]
        return [["set", [queue], _ids(live)]]

    def _reject(self, request_id: str, token_ids: list[int], params: Any, reason: str) -> Told:
        self._num_rejected += 1
        facts = {
            "seq": request_id,
            "num_prompt_tokens": len(token_ids),
            "max_tokens": params.max_tokens,
            "reason": reason,
        }
        return facts, []

    def _step(self, when: str, seqs: list[Any] | None = None, num_tokens: int = 0) -> Told:
        if when == "begin":
            return {"when": when}, [
                ["set", ["step"], self._num_steps + 1],
                ["set", ["phase"], "schedule"],
                ["set", ["batch"], None],
            ]
        scheduler, manager = self.engine.scheduler, self.engine.block_manager
        facts = {
            "when": when,
            "phase": self._phase,
            "num_tokens": num_tokens,
            "num_decodes": self._num_decodes,
            "num_seqs": len(seqs or ()),
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "free": len(manager.free_block_ids),
            "total": len(manager.blocks),
        }
        return facts, []

    # 2 The scheduler

    def _schedule(
        self, when: str, seqs: list[Any] | None = None, is_prefill: bool = False, budget: int = 0
    ) -> Told:
        if when == "begin":
            self._num_decodes = 0
            return {"when": when, "budget": budget}, []
        seqs = seqs or []
        self._phase = "idle"
        if seqs:
            self._phase = (
                "decode" if not is_prefill else "mixed" if self._num_decodes else "prefill"
            )
        facts = {
            "when": when,
            "phase": self._phase,
            "seqs": _ids(seqs),
            "num_tokens": sum(seq.num_scheduled_tokens for seq in seqs),
            "num_decodes": self._num_decodes,
        }
        return facts, [["set", ["phase"], self._phase]]

    def _admit(self, seq: Any) -> Told:
        facts = {
            "seq": seq.seq_id,
            "num_scheduled_tokens": seq.num_scheduled_tokens,
            "num_cached_tokens": seq.num_cached_tokens,
            "num_recomputed_tokens": self._num_recomputed(seq),
            "preemptions": seq.num_preemptions,
        }
        do = [
            _set(seq, "num_scheduled_tokens", seq.num_scheduled_tokens),
            _set(seq, "status", seq.status.value),
            *self._moved("waiting", seq),
            *self._moved("running", seq),
            *self._no_longer_waits(seq),
        ]
        return facts, do

    def _num_recomputed(self, seq: Any) -> int:
        """How many of the scheduled tokens had keys and values once, and lost them to a preemption."""
        again = self._lost.get(seq.seq_id, 0) - seq.num_cached_tokens
        return int(max(0, min(seq.num_scheduled_tokens, again)))

    def _chunk(self, seq: Any, budget: int) -> Told:
        facts = {
            "seq": seq.seq_id,
            "num_scheduled_tokens": seq.num_scheduled_tokens,
            "num_cached_tokens": seq.num_cached_tokens,
            "num_recomputed_tokens": self._num_recomputed(seq),
            "uncomputed": seq.num_tokens - seq.num_cached_tokens,
            "budget": budget,
            "queue": seq.status.value,
        }
        scheduled = _set(seq, "num_scheduled_tokens", seq.num_scheduled_tokens)
        return facts, [scheduled, *self._no_longer_waits(seq)]

    def _wait(self, seqs: list[Any], cause: str, behind: Any = None, **limit: Any) -> Told:
        reason = {"cause": cause, **limit, **({"behind": behind.seq_id} if behind else {})}
        changed = [seq for seq in seqs if self._waits.get(seq.seq_id) != reason]
        self._waits.update((seq.seq_id, reason) for seq in changed)
        return {"seqs": _ids(seqs), **reason}, [
            _set(seq, "waits_for", dict(reason)) for seq in changed
        ]

    def _no_longer_waits(self, seq: Any) -> list[Patch]:
        return [_set(seq, "waits_for", None)] if self._waits.pop(seq.seq_id, None) else []

    def _decode(self, seq: Any) -> Told:
        self._num_decodes += 1
        facts = {"seq": seq.seq_id, "position": seq.num_cached_tokens}
        scheduled = _set(seq, "num_scheduled_tokens", seq.num_scheduled_tokens)
        return facts, [scheduled, *self._no_longer_waits(seq)]

    def _preempt(self, seq: Any, needed_by: Any) -> Told:
        self._lost[seq.seq_id] = max(self._lost.get(seq.seq_id, 0), seq.num_cached_tokens)
        facts = {
            "seq": seq.seq_id,
            "needed_by": needed_by.seq_id,
            "why_this_one": _WHY_THE_LAST[self.engine.config.order],
            "num_tokens": seq.num_tokens,
            "blocks": len(seq.block_table),
        }
        do: list[Patch] = [
            *self._moved("running", seq),
            *self._moved("waiting", seq),
            _set(seq, "status", seq.status.value),
            _set(seq, "preemptions", seq.num_preemptions),
        ]
        return facts, do

    # 3 KV blocks

    def _can_allocate(self, seq: Any, fit: Any) -> Told:
        facts = {
            "seq": seq.seq_id,
            "hits": list(fit.hits),
            "num_new": fit.num_new,
            "needs": fit.needs,
            "free": len(self.engine.block_manager.free_block_ids),
            "ok": fit.ok,
            "recompute": seq.num_preemptions > 0,
        }
        return facts, []

    def _allocate(self, seq: Any, hits: list[int], block_ids: list[int]) -> Told:
        facts = {
            "seq": seq.seq_id,
            "hits": list(hits),
            "block_ids": list(block_ids),
            "num_cached_tokens": seq.num_cached_tokens,
        }
        do = [patch for block_id in hits for patch in self._took(seq, block_id, in_order=False)]
        do += [patch for block_id in block_ids for patch in self._took(seq, block_id)]
        do.append(["append", ["seqs", seq.seq_id, "block_table"], list(seq.block_table)])
        do.append(_set(seq, "num_cached_tokens", seq.num_cached_tokens))
        return facts, do

    def _took(self, seq: Any, block_id: int, in_order: bool = True) -> list[Patch]:
        """One block more for `seq`: `in_order` from the front of the free list, else from wherever it was."""
        key = str(block_id)
        ref_count = self.engine.block_manager.blocks[block_id].ref_count
        patches: list[Patch] = [["set", ["blocks", "ref_count", key], ref_count]]
        if ref_count > 1:
            return [*patches, ["append", ["blocks", "owners", key], [seq.seq_id]]]
        taken = (
            ["take", ["blocks", "free"], 1]
            if in_order
            else ["remove", ["blocks", "free"], block_id]
        )
        return [*patches, taken, ["set", ["blocks", "owners", key], [seq.seq_id]]]

    def _can_append(self, seq: Any, needs: int, ok: bool) -> Told:
        facts = {
            "seq": seq.seq_id,
            "num_tokens": seq.num_tokens,
            "needs": needs,
            "free": len(self.engine.block_manager.free_block_ids),
            "ok": ok,
        }
        return facts, []

    def _may_append(self, seq: Any, block_ids: list[int]) -> Told:
        facts = {"seq": seq.seq_id, "block_ids": list(block_ids)}
        if not block_ids:
            return facts, []
        do = [patch for block_id in block_ids for patch in self._took(seq, block_id)]
        return facts, [*do, ["append", ["seqs", seq.seq_id, "block_table"], list(block_ids)]]

    def _hash_blocks(self, seq: Any, block_ids: list[int]) -> Told:
        hashes = [self.engine.block_manager.blocks[block_id].hash for block_id in block_ids]
        do: list[Patch] = [
            ["set", ["blocks", "hash", str(block_id)], value]
            for block_id, value in zip(block_ids, hashes, strict=True)
        ]
        return {"seq": seq.seq_id, "block_ids": list(block_ids), "hashes": hashes}, do

    def _evict(self, block_id: int, hash: str) -> Told:
        return {"block_id": block_id, "hash": hash}, [["delete", ["blocks", "hash", str(block_id)]]]

    def _deallocate(self, seq: Any, block_ids: list[int], freed: list[int]) -> Told:
        blocks = self.engine.block_manager.blocks
        do: list[Patch] = []
        free_now = set(freed)
        for block_id in reversed(block_ids):
            key = str(block_id)
            if block_id not in free_now:
                do.append(["set", ["blocks", "ref_count", key], blocks[block_id].ref_count])
                do.append(["remove", ["blocks", "owners", key], seq.seq_id])
                continue
            do.append(["delete", ["blocks", "ref_count", key]])
            do.append(["delete", ["blocks", "owners", key]])
            kind = "append" if blocks[block_id].hash else "prepend"
            do.append([kind, ["blocks", "free"], [block_id]])
        do.append(_set(seq, "block_table", []))
        do.append(_set(seq, "num_cached_tokens", 0))
        return {"seq": seq.seq_id, "block_ids": list(block_ids), "freed": list(freed)}, do

    # 4 Tensor prep

    def _prepare_prefill(self, seqs: list[Any], batch: Any) -> Told:
        laid_out = {
            "seqs": _ids(seqs),
            "input_ids": list(batch.input_ids),
            "positions": list(batch.positions),
            "slot_mapping": list(batch.slot_mapping),
            "cu_seqlens_q": list(batch.cu_seqlens_q),
            "cu_seqlens_k": list(batch.cu_seqlens_k),
            "max_seqlen_q": batch.max_seqlen_q,
            "max_seqlen_k": batch.max_seqlen_k,
            "context_lens": list(batch.context_lens),
            "block_tables": [list(table) for table in batch.block_tables],
        }
        return {"seqs": _ids(seqs), "num_tokens": len(batch.input_ids)}, [
            ["set", ["batch"], laid_out]
        ]

    _prepare_decode = _prepare_prefill

    # 5 KV written and read

    def _store_kvcache(self, layer: int, num_layers: int, batch: Any) -> Told:
        return {**_layers(layer, num_layers), "num_tokens": len(batch.slot_mapping)}, []

    def _attention(self, layer: int, num_layers: int, batch: Any) -> Told:
        facts = {
            **_layers(layer, num_layers),
            "num_tokens": len(batch.input_ids),
            "num_keys": batch.cu_seqlens_k[-1],
        }
        return facts, []

    # 6 Closing the loop

    def _sample(self, seqs: list[Any], token_ids: list[int]) -> Told:
        pieces = [self.piece(token_id) for token_id in token_ids]
        return {"seqs": _ids(seqs), "token_ids": list(token_ids), "pieces": pieces}, []

    def _postprocess(self, seq: Any, computed: int) -> Told:
        facts = {
            "seq": seq.seq_id,
            "computed": computed,
            "num_cached_tokens": seq.num_cached_tokens,
            "num_tokens": seq.num_tokens,
        }
        do = [
            _set(seq, "num_cached_tokens", seq.num_cached_tokens),
            _set(seq, "num_scheduled_tokens", 0),
        ]
        return facts, do

    def _append_token(self, seq: Any, token_id: int, text: str) -> Told:
        piece = self.piece(token_id)
        facts = {
            "seq": seq.seq_id,
            "token_id": token_id,
            "piece": piece,
            "text": text,
            "num_tokens": seq.num_tokens,
            "num_completion_tokens": seq.num_completion_tokens,
            "max_tokens": seq.max_tokens,
        }
        path = ["seqs", seq.seq_id]
        do: list[Patch] = [
            ["append", [*path, "token_ids"], [token_id]],
            ["append", [*path, "pieces"], [piece]],
            _set(seq, "num_tokens", seq.num_tokens),
        ]
        return facts, do + ([["append", [*path, "text"], [text]]] if text else [])

    def _finish(self, seq: Any, reason: str, text: str) -> Told:
        self._lost.pop(seq.seq_id, None)
        facts = {
            "seq": seq.seq_id,
            "reason": reason,
            "stop_reason": seq.stop_reason,
            "text": text,
            "max_tokens": seq.max_tokens,
            "num_completion_tokens": seq.num_completion_tokens,
        }
        if isinstance(seq.stop_reason, int) and seq.stop_reason not in self.engine.stop_token_ids:
            facts["is_eos"] = False
        do: list[Patch] = [
            *self._moved("running", seq),
            *self._moved("waiting", seq),
            ["append", ["finished"], [seq.seq_id]],
            _set(seq, "status", seq.status.value),
            _set(seq, "finish_reason", reason),
            _set(seq, "num_scheduled_tokens", 0),
            *self._no_longer_waits(seq),
        ]
        return facts, do + ([["append", ["seqs", seq.seq_id, "text"], [text]]] if text else [])


def _layers(layer: int, num_layers: int) -> Facts:
    """The last layer's stops stand for all but the first one: `layer` .. `last_layer`."""
    if layer > 1:
        return {"layer": 1, "last_layer": layer, "num_layers": num_layers}
    return {"layer": layer, "num_layers": num_layers}


def _ids(seqs: list[Any]) -> list[str]:
    return [seq.seq_id for seq in seqs]


def _set(seq: Any, field: str, value: Any) -> Patch:
    return ["set", ["seqs", seq.seq_id, field], value]
