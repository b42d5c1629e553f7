"""Truth, checked: the tree that the patches built against the live engine objects, at every stop."""

from typing import Any

from .tour.errors import VerifyError
from .tour.invariants import check, check_idle
from .tour.state import SEQ_FIELDS
from .tour.trace import Event


class Verifier:
    """Call it after each event. Raises VerifyError with the first difference or broken invariant."""

    def __init__(self, engine: Any, state: dict[str, Any]) -> None:
        self.engine = engine
        self.state = state
        self._progress = 0
        self.num_checked = 0

    def __call__(self, event: Event) -> None:
        where = f"event {event.i} ({event.stop}, step {event.step})"
        try:
            self._compare()
            check(self.state, self.engine.config.max_num_batched_tokens)
            self._check_hashes()
            self._check_scheduled(event)
            self._check_progress(event)
            if event.stop == "generate" and event.facts["when"] == "end":
                check_idle(self.state)
        except VerifyError as error:
            raise VerifyError(f"{where}: {error}") from None
        self.num_checked += 1

    def _compare(self) -> None:
        scheduler, manager, state = self.engine.scheduler, self.engine.block_manager, self.state
        blocks = state["blocks"]
        _same("waiting", state["waiting"], [seq.seq_id for seq in scheduler.waiting])
        _same("running", state["running"], [seq.seq_id for seq in scheduler.running])
        _same("blocks.free", blocks["free"], list(manager.free_block_ids))
        held = {str(block.block_id): block.ref_count for block in manager.blocks if block.ref_count}
        _same("blocks.ref_count", blocks["ref_count"], held)
        hashes = {str(block.block_id): block.hash for block in manager.blocks if block.hash}
        _same("blocks.hash", blocks["hash"], hashes)
        for seq in [*scheduler.waiting, *scheduler.running]:
            for field in SEQ_FIELDS:
                _same(f"{seq.seq_id}.{field}", state["seqs"][seq.seq_id][field], _live(seq, field))

    def _check_hashes(self) -> None:
        manager = self.engine.block_manager
        for value, block_ids in manager.hash_to_block_ids.items():
            for block_id in block_ids:
                if manager.blocks[block_id].hash != value:
                    raise VerifyError(
                        f"invariant 2 is broken: block {block_id} does not carry the hash {value}"
                    )

    def _check_scheduled(self, event: Event) -> None:
        if event.stop == "schedule" and event.facts["when"] == "end":
            for name in event.facts["seqs"]:
                if self.state["seqs"][name]["num_scheduled_tokens"] < 1:
                    raise VerifyError(f"invariant 3 is broken: {name} is scheduled with no token")

    def _check_progress(self, event: Event) -> None:
        if event.stop in ("postprocess", "finish", "reject"):
            self._progress += 1
        if event.stop == "step":
            live = self.state["waiting"] or self.state["running"]
            if event.facts["when"] == "end" and live and not self._progress:
                raise VerifyError("invariant 5 is broken: a step with work to do moved nobody on")
            self._progress = 0


def _live(seq: Any, field: str) -> Any:
    if field == "status":
        return seq.status.value
    if field == "preemptions":
        return seq.num_preemptions
    return getattr(seq, field)


def _same(what: str, recorded: Any, live: Any) -> None:
    if recorded != live:
        raise VerifyError(
            f"{what} is recorded as {str(recorded)[:200]} and is {str(live)[:200]} in the engine"
        )
