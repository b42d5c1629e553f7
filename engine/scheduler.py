"""Who runs in this step. The policy here is nano-vllm's classic one, `prefill_first`.

A step is all prefill or all decode. Prefill: requests enter from the front of `waiting`, in order, while the
token budget, the pool and `max_num_seqs` allow; only the first one of a step may be cut to a chunk. When nobody
can enter, each running request decodes one token; when no block is left for one, the last running request is
preempted to the front of `waiting` and later computed again.

What it guarantees: prompts enter as soon as there is room. What it does not: a running request may wait for its
next token as long as prompts keep coming. The policy `mixed` (mixed_scheduler.py) bounds that wait.
"""

from collections import deque
from typing import Any

from .block_manager import BlockManager, Fit
from .config import EngineConfig
from .probe import Probe
from .sequence import Sequence, SequenceStatus


class Scheduler:
    """Two queues and the rules that move requests between them."""

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.order = config.order
        self.block_manager = block_manager
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.probe: Probe | None = None
        self._num_added = 0

    def is_finished(self) -> bool:
        """Whether no request is left."""
        return not self.waiting and not self.running

    def add(self, seq: Sequence) -> None:
        """Put a new request at the end of `waiting` (by priority: behind its equals)."""
        self._num_added += 1
        seq.number = self._num_added
        self._insert(self.waiting, seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Choose the requests of this step. Returns them and whether prompts are computed in it."""
        if self.probe:
            self.probe("schedule", when="begin", budget=self.max_num_batched_tokens)
        seqs, is_prefill = self._choose()
        if self.probe:
            self.probe("schedule", when="end", seqs=seqs, is_prefill=is_prefill)
        return seqs, is_prefill

    def _choose(self) -> tuple[list[Sequence], bool]:
        """Prefill if anybody can enter, else decode."""
        seqs = self._schedule_prefill()
        if seqs:
            return seqs, True
        return self._schedule_decode(), False

    def _schedule_prefill(self) -> list[Sequence]:
        """Move requests from `waiting` to `running` until a limit is reached."""
        scheduled: list[Sequence] = []
        budget = self.max_num_batched_tokens
        while self.waiting and not self._limit_reached(budget):
            seq = self.waiting[0]
            fit = None
            if not seq.block_table:
                fit = self.block_manager.can_allocate(seq)
                if not fit.ok:
                    self._wait("no_free_blocks", needs=fit.needs, free=self.num_free_blocks)
                    break
            num_tokens = self._num_uncomputed(seq, fit)
            if num_tokens > budget and scheduled:
                self._wait("token_budget", needs=num_tokens, left=budget)
                break
            if fit:
                self.block_manager.allocate(seq, fit)
            scheduled.append(seq)
            if num_tokens > budget:
                self._chunk(seq, budget)
                break
            self._admit(seq, num_tokens)
            budget -= num_tokens
        return scheduled

    def _limit_reached(self, budget: int) -> bool:
        """Whether `max_num_seqs` or the token budget stops the first waiting request."""
        running, seq = len(self.running), self.waiting[0]
        if running == self.max_num_seqs:
            self._wait("max_num_seqs", running=running, limit=self.max_num_seqs)
            return True
        # Every running request decodes one token a step, so no more may run than the budget has tokens.
        left = min(budget, self.max_num_batched_tokens - running)
        if left == 0:
            self._wait("token_budget", needs=self._num_uncomputed(seq), left=0)
            return True
        return False

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self.block_manager.free_block_ids)

    def _num_uncomputed(self, seq: Sequence, fit: Fit | None = None) -> int:
        """Tokens of `seq` that are not in the KV cache, if it starts with the cached blocks of `fit`."""
        hits = len(fit.hits) if fit else 0
        return len(seq) - seq.num_cached_tokens - hits * self.block_manager.block_size

    def _admit(self, seq: Sequence, num_tokens: int) -> None:
        """Let the first waiting request run; `num_tokens` of it are computed in this step."""
        seq.num_scheduled_tokens = num_tokens
        seq.status = SequenceStatus.RUNNING
        self.waiting.popleft()
        self._insert(self.running, seq)
        if self.probe:
            self.probe("admit", seq=seq)

    def _chunk(self, seq: Sequence, budget: int) -> None:
        """Compute only a piece of the first waiting request; it stays in front and goes on next step."""
        seq.num_scheduled_tokens = budget
        if self.probe:
            self.probe("chunk", seq=seq, budget=budget)
            self.probe("wait", seqs=list(self.waiting)[1:], cause="behind_chunk", behind=seq)

    def _wait(self, cause: str, **limit: Any) -> None:
        """Tell the probe which limit stopped the first waiting request; the others wait behind it."""
        if self.probe:
            head, *others = self.waiting
            self.probe("wait", seqs=[head], cause=cause, **limit)
            self.probe("wait", seqs=others, cause="behind_head", behind=head)

    def _schedule_decode(self) -> list[Sequence]:
        """Give each running request one token, preempting the last ones while blocks are short."""
        scheduled: list[Sequence] = []
        while len(scheduled) < len(self.running):
            seq = self.running[len(scheduled)]
            if self._make_room(seq, 1):
                self.block_manager.may_append(seq)
                self._decode(seq)
                scheduled.append(seq)
        return scheduled

    def _make_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Preempt from the end of `running` until `seq` can grow. False if it was the last and went itself."""
        while not self.block_manager.can_append(seq, num_tokens):
            victim = self.running[-1]
            self._preempt(victim, needed_by=seq)
            if victim is seq:
                return False
        return True

    def _decode(self, seq: Sequence) -> None:
        """Compute the newest token of a running request in this step."""
        seq.num_scheduled_tokens = 1
        if self.probe:
            self.probe("decode", seq=seq)

    def _preempt(self, seq: Sequence, needed_by: Sequence) -> None:
        """Send the last running request back to the front of `waiting` and take its blocks."""
        self.running.pop()
        seq.status = SequenceStatus.WAITING
        seq.num_preemptions += 1
        self._insert(self.waiting, seq, in_front=True)
        if self.probe:
            self.probe("preempt", seq=seq, needed_by=needed_by)
        self.block_manager.deallocate(seq)

    def _insert(self, queue: deque[Sequence], seq: Sequence, in_front: bool = False) -> None:
        """Put `seq` into a queue: first come, first served; or by priority, then by arrival."""
        if self.order == "fcfs":
            queue.appendleft(seq) if in_front else queue.append(seq)
            return
        # A prompt that is half computed holds blocks, and nobody may get in front of it.
        first = 1 if queue is self.waiting and queue and queue[0].block_table else 0
        place = len(queue)
        while place > first and queue[place - 1].rank > seq.rank:
            place -= 1
        queue.insert(place, seq)

    def postprocess(self, seqs: list[Sequence], token_ids: list[int | None]) -> None:
        """Close the step: count what was computed, append the new tokens, let go of who is done.

        `token_ids` has one entry for each sequence, None for one whose prompt is not yet computed to its end.
        """
        for seq, token_id in zip(seqs, token_ids, strict=True):
            self.block_manager.hash_blocks(seq)
            seq.num_cached_tokens += seq.num_scheduled_tokens
            computed, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
            if self.probe:
                self.probe("postprocess", seq=seq, computed=computed)
            if token_id is not None:
                self._append_token(seq, token_id)

    def _append_token(self, seq: Sequence, token_id: int) -> None:
        """Add the new token, stream its text, and end the request if it is over."""
        # A stop token is not part of the answer; the token that completes a stop string is.
        missing = seq.sampling_params.min_tokens - seq.num_completion_tokens
        stops = missing <= 0 and token_id in seq.stop_token_ids
        text = seq.stream.push(token_id, may_stop=missing <= 1) if seq.stream and not stops else ""
        seq.append_token(token_id)
        if self.probe:
            self.probe("append_token", seq=seq, token_id=token_id, text=text)
        if stops:
            self.finish(seq, "stop", token_id)
        elif seq.stream and seq.stream.stopped_by:
            self.finish(seq, "stop", seq.stream.stopped_by)
        elif seq.num_completion_tokens == seq.max_tokens:
            self.finish(seq, "length")

    def finish(self, seq: Sequence, reason: str, stop_reason: int | str | None = None) -> None:
        """Take a request out of its queue and give its blocks back."""
        text = seq.stream.finish() if seq.stream else ""
        seq.finish_reason, seq.stop_reason = reason, stop_reason
        seq.num_scheduled_tokens = 0
        queue = self.running if seq.status is SequenceStatus.RUNNING else self.waiting
        seq.status = SequenceStatus.FINISHED
        queue.remove(seq)
        if self.probe:
            self.probe("finish", seq=seq, reason=reason, text=text)
        self.block_manager.deallocate(seq)
