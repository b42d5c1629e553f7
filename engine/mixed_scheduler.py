"""The policy `mixed`, as in vLLM's V1 scheduler: decodes and prompt chunks share one token budget.

Running requests come first, each with its next token or the next chunk of its prompt; what is left of the
budget goes to waiting requests, whose prompts may be cut to any size. When no block is left for a running
request, the last one is preempted; a step that preempted lets nobody in.

What it guarantees (first come, first served): a request that has begun to answer gets a token in every step,
unless it is preempted. A prompt that is still being computed is always the last in `running`, and no more run
than the budget has tokens, so its chunks take only what the decodes leave. By priority, a prompt of higher
priority may take the whole budget of a step.
"""

from .scheduler import Scheduler
from .sequence import Sequence


class MixedScheduler(Scheduler):
    """Decodes and prefill chunks together in one flat batch."""

    def _choose(self) -> tuple[list[Sequence], bool]:
        """Running requests first, then waiting ones, until the budget is used."""
        num_running = len(self.running)
        seqs, budget, is_prefill = self._schedule_running()
        if len(self.running) == num_running:
            admitted = self._schedule_waiting(budget)
            return seqs + admitted, is_prefill or bool(admitted)
        # Whoever came in now could only be preempted next.
        self._wait("after_preemption", preempted=num_running - len(self.running))
        return seqs, is_prefill

    def _schedule_running(self) -> tuple[list[Sequence], int, bool]:
        """The next token or chunk of each running request. Also what is left, and if there was a chunk."""
        scheduled: list[Sequence] = []
        budget, has_chunks = self.max_num_batched_tokens, False
        while len(scheduled) < len(self.running) and budget > 0:
            seq = self.running[len(scheduled)]
            num_tokens = min(self._num_uncomputed(seq), budget)
            if not self._make_room(seq, num_tokens):
                break
            self.block_manager.may_append(seq, num_tokens)
            if self._num_uncomputed(seq) == 1:
                self._decode(seq)
            else:
                self._chunk(seq, budget)
                has_chunks = True
            scheduled.append(seq)
            budget -= num_tokens
        left_out = list(self.running)[len(scheduled) :]
        if self.probe and left_out:
            needs = self._num_uncomputed(left_out[0])
            self.probe("wait", seqs=left_out, cause="token_budget", needs=needs, left=0)
        return scheduled, budget, has_chunks

    def _schedule_waiting(self, budget: int) -> list[Sequence]:
        """Let waiting requests in with what is left of the budget; the last one may get only a chunk."""
        admitted: list[Sequence] = []
        while self.waiting and not self._limit_reached(budget):
            seq = self.waiting[0]
            fit = self.block_manager.can_allocate(seq, budget)
            if not fit.ok:
                self._wait("no_free_blocks", needs=fit.needs, free=self.num_free_blocks)
                break
            self.block_manager.allocate(seq, fit)
            num_tokens = min(self._num_uncomputed(seq), budget)
            self._admit(seq, num_tokens)
            if num_tokens < self._num_uncomputed(seq):
                self._chunk(seq, budget)
            admitted.append(seq)
            budget -= num_tokens
        return admitted

    def _chunk(self, seq: Sequence, budget: int) -> None:
        """Compute the next piece of a prompt that is already in `running`."""
        seq.num_scheduled_tokens = min(self._num_uncomputed(seq), budget)
        if self.probe:
            self.probe("chunk", seq=seq, budget=budget)
