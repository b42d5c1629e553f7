"""Who runs in this step. The policy is nano-vllm's classic one, here called `prefill_first`.

A step is all prefill or all decode. Prefill: requests enter from the front of `waiting`, in order, while the token
budget, the pool and `max_num_seqs` allow; only the first one of a step may be cut to a chunk. When nobody can
enter, each running request decodes one token; when no block is left for one, the last running request is
preempted to the front of `waiting` and later computed again.
"""

from collections import deque
from typing import Any

from .block_manager import BlockManager
from .config import EngineConfig
from .probe import Probe
from .sequence import Sequence, SequenceStatus


class Scheduler:
    """Two queues and the rules that move requests between them."""

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.block_manager = block_manager
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.probe: Probe | None = None

    def is_finished(self) -> bool:
        """Whether no request is left."""
        return not self.waiting and not self.running

    def add(self, seq: Sequence) -> None:
        """Put a new request at the end of `waiting`."""
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Choose the requests of this step. Returns them and whether the step is a prefill."""
        if self.probe:
            self.probe("schedule", when="begin", budget=self.max_num_batched_tokens)
        seqs = self._schedule_prefill()
        is_prefill = bool(seqs)
        if not seqs:
            seqs = self._schedule_decode()
        if self.probe:
            self.probe("schedule", when="end", seqs=seqs, is_prefill=is_prefill)
        return seqs, is_prefill

    def _schedule_prefill(self) -> list[Sequence]:
        """Move requests from `waiting` to `running` until a limit is reached."""
        scheduled: list[Sequence] = []
        budget = self.max_num_batched_tokens
        while self.waiting:
            seq = self.waiting[0]
            if len(self.running) == self.max_num_seqs:
                self._wait(seq, "max_num_seqs", running=len(self.running), limit=self.max_num_seqs)
                break
            # Every running request decodes one token a step, so no more may run than the budget has tokens.
            if budget == 0 or len(self.running) == self.max_num_batched_tokens:
                left = min(budget, self.max_num_batched_tokens - len(self.running))
                self._wait(seq, "token_budget", needs=self._num_uncomputed(seq), left=left)
                break
            hits: list[int] | None = None
            if not seq.block_table:
                hits = self.block_manager.can_allocate(seq)
                if hits is None:
                    self._wait(seq, "no_free_blocks", needs=seq.num_blocks,
                               free=len(self.block_manager.free_block_ids))
                    break
            num_tokens = self._num_uncomputed(seq, hits)
            if num_tokens > budget and scheduled:
                self._wait(seq, "token_budget", needs=num_tokens, left=budget)
                break
            if hits is not None:
                self.block_manager.allocate(seq, hits)
            scheduled.append(seq)
            if num_tokens > budget:
                self._chunk(seq, budget)
                break
            self._admit(seq, num_tokens)
            budget -= num_tokens
        return scheduled

    def _num_uncomputed(self, seq: Sequence, hits: list[int] | None = None) -> int:
        """Tokens of `seq` that are not yet in the KV cache, if it starts with the cached blocks `hits`."""
        return len(seq) - seq.num_cached_tokens - len(hits or ()) * self.block_manager.block_size

    def _admit(self, seq: Sequence, num_tokens: int) -> None:
        """Let the first waiting request run: the rest of its prompt is computed in this step."""
        seq.num_scheduled_tokens = num_tokens
        seq.status = SequenceStatus.RUNNING
        self.waiting.popleft()
        self.running.append(seq)
        if self.probe:
            self.probe("admit", seq=seq)

    def _chunk(self, seq: Sequence, budget: int) -> None:
        """Compute only a piece of the first waiting request; it stays in front and goes on next step."""
        seq.num_scheduled_tokens = budget
        if self.probe:
            self.probe("chunk", seq=seq, budget=budget)
            self.probe("wait", seqs=list(self.waiting)[1:], cause="behind_chunk", behind=seq)

    def _wait(self, seq: Sequence, cause: str, **limit: Any) -> None:
        """Tell the probe which limit stopped the first waiting request; the others wait behind it."""
        if self.probe:
            self.probe("wait", seqs=[seq], cause=cause, **limit)
            self.probe("wait", seqs=list(self.waiting)[1:], cause="behind_head", behind=seq)

    def _schedule_decode(self) -> list[Sequence]:
        """Give each running request one token, preempting the last ones while blocks are short."""
        scheduled: list[Sequence] = []
        while len(scheduled) < len(self.running):
            seq = self.running[len(scheduled)]
            while not self.block_manager.can_append(seq):
                victim = self.running[-1]
                self._preempt(victim, needed_by=seq)
                if victim is seq:
                    break
            else:
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
                scheduled.append(seq)
                if self.probe:
                    self.probe("decode", seq=seq)
        return scheduled

    def _preempt(self, seq: Sequence, needed_by: Sequence) -> None:
        """Send the last running request back to the front of `waiting` and take its blocks."""
        self.running.pop()
        seq.status = SequenceStatus.WAITING
        seq.num_preemptions += 1
        self.waiting.appendleft(seq)
        if self.probe:
            self.probe("preempt", seq=seq, needed_by=needed_by)
        self.block_manager.deallocate(seq)

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
            if token_id is None:
                continue
            ends = token_id in seq.stop_token_ids
            text = seq.detokenizer.push(token_id) if seq.detokenizer and not ends else ""
            seq.append_token(token_id)
            if self.probe:
                self.probe("append_token", seq=seq, token_id=token_id, text=text)
            if ends:
                self.finish(seq, "stop")
            elif seq.num_completion_tokens == seq.max_tokens:
                self.finish(seq, "length")

    def finish(self, seq: Sequence, reason: str) -> None:
        """Take a request out of its queue and give its blocks back."""
        text = seq.detokenizer.finish() if seq.detokenizer else ""
        seq.finish_reason = reason
        seq.num_scheduled_tokens = 0
        queue = self.running if seq.status is SequenceStatus.RUNNING else self.waiting
        seq.status = SequenceStatus.FINISHED
        queue.remove(seq)
        if self.probe:
            self.probe("finish", seq=seq, reason=reason, text=text)
        self.block_manager.deallocate(seq)
