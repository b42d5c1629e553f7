"""What one scheduling step costs, and whether that grows with the queue or the pool.

There is no model here: a runner that computes nothing stands in for it, so that only scheduling is measured.
"""

import gc
import itertools
import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tourvllm.engine.block_manager import BlockManager
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.mixed_scheduler import MixedScheduler
from tourvllm.engine.request import Request
from tourvllm.engine.scheduler import Scheduler
from tourvllm.engine.sequence import Sequence
from tourvllm.tour.recorder import Recorder

from tourvllm.plan import find_model
from tourvllm.recording import EngineProbe, initial_state

from . import ours
from .options import Options
from .turns import now, print_table, take_turns

POLICIES = {"prefill_first": Scheduler, "mixed": MixedScheduler}
QUEUES = (10, 100, 1_000, 10_000)
POOLS = (1_000, 10_000, 100_000)
RUNNING = 16
NUM_IN, NUM_OUT = 64, 32
STEPS_A_TURN = 25
CONFIG = EngineConfig(
    max_num_seqs=RUNNING, max_num_batched_tokens=512, device="cpu", dtype="float32"
)


class NoModel:
    """Stands in for the model runner: the next token of everybody is 5, at once. Notes when it was called."""

    model = None  # so that an engine can hand it a probe
    probe = None

    def __init__(self) -> None:
        self.calls: list[float] = []

    def run(self, seqs: list[Sequence], is_prefill: bool) -> list[int | None]:
        """Token 5 for each whose prompt is computed to its end in this step."""
        self.calls.append(now())
        return [
            5 if seq.num_cached_tokens + seq.num_scheduled_tokens == len(seq) else None
            for seq in seqs
        ]


def main(options: Options) -> None:
    """The scheduler alone, then adding requests, then the whole loop."""
    turns = options.turns or 20
    for policy in POLICIES:
        _scheduler_alone(policy, turns)
    _adding()
    _whole_loop()


def _scheduler_alone(policy: str, turns: int) -> None:
    cells = {(queue, pool): Load(policy, queue, pool) for queue in QUEUES for pool in POOLS}
    gc.collect()
    gc.freeze()  # the other cells' objects are nothing that a collection here should visit
    names = {f"{queue} {pool}": load.run for (queue, pool), load in cells.items()}
    take_turns(names, turns)
    gc.unfreeze()
    print(
        f"Scheduler alone, policy {policy}: `schedule` + `postprocess`, median µs a step (99th percentile), "
        f"{RUNNING} running, {NUM_IN} in + {NUM_OUT} out, {turns * STEPS_A_TURN} steps\n"
    )
    print_table(
        ["waiting", *(f"pool of {pool:,} blocks" for pool in POOLS)],
        ([f"{queue:,}", *(cells[queue, pool].told() for pool in POOLS)] for queue in QUEUES),
    )


class Load:
    """A scheduler under a steady load: for each request that ends, one is added."""

    def __init__(self, policy: str, num_waiting: int, num_blocks: int) -> None:
        config = replace(CONFIG, policy=policy, num_blocks=num_blocks)
        self.manager = BlockManager(num_blocks, config.block_size)
        self.scheduler = POLICIES[policy](config, self.manager)
        self.runner = NoModel()
        self.seconds: list[float] = []
        self._prompts = _prompts()
        self._fill_cache()
        for _ in range(num_waiting + RUNNING):
            self._add()
        for _ in range(2 * NUM_OUT):
            self._step()
        self.seconds.clear()

    def run(self) -> float:
        """Some steps."""
        return sum(self._step() for _ in range(STEPS_A_TURN))

    def told(self) -> str:
        """Median and 99th percentile of the steps so far."""
        ordered = sorted(self.seconds)
        worst = ordered[int(0.99 * (len(ordered) - 1))]
        return f"{statistics.median(ordered) * 1e6:.0f} ({worst * 1e6:.0f})"

    def _fill_cache(self) -> None:
        """Let every block hold a cached prefix, as after long use: each new block evicts an old one."""
        size = self.manager.block_size
        seq = Sequence("old", [7] * len(self.manager.blocks) * size, ours.greedy(1), size)
        self.manager.allocate(seq, self.manager.can_allocate(seq))
        seq.num_scheduled_tokens = len(seq)
        self.manager.hash_blocks(seq)
        self.manager.deallocate(seq)

    def _add(self) -> None:
        seq = Sequence("a", next(self._prompts), ours.greedy(NUM_OUT), self.manager.block_size)
        self.scheduler.add(seq)

    def _step(self) -> float:
        start = now()
        seqs, is_prefill = self.scheduler.schedule()
        planned = now()
        token_ids = self.runner.run(seqs, is_prefill)
        computed = now()
        self.scheduler.postprocess(seqs, token_ids)
        seconds = planned - start + now() - computed
        self.seconds.append(seconds)
        for seq in seqs:
            if seq.finish_reason:
                self._add()
        return seconds


def _prompts() -> Iterator[list[int]]:
    """Prompts that begin differently, of tokens that the tiny model knows."""
    for i in itertools.count():
        yield [i % 2000, i // 2000, *[7] * (NUM_IN - 2)]


def _adding() -> None:
    rows = {}
    for order in ("fcfs", "priority"):
        config = replace(CONFIG, order=order)
        rows[order] = [f"{_microseconds_to_add(config, queue):.1f}" for queue in QUEUES]
    print("Adding a request to the queue, all of one priority: median µs\n")
    head = ["order", *(f"{queue:,} waiting" for queue in QUEUES)]
    print_table(head, ([order, *cells] for order, cells in rows.items()))


def _microseconds_to_add(config: EngineConfig, num_waiting: int) -> float:
    scheduler = Scheduler(config, BlockManager(1, config.block_size))
    seqs = [Sequence("a", [5], ours.greedy(1), 16) for _ in range(num_waiting)]
    for number, seq in enumerate(seqs):
        seq.number = number
    scheduler.waiting = deque(seqs)
    scheduler._num_added = num_waiting
    times = []
    for _ in range(101):
        seq = Sequence("a", [5], ours.greedy(1), 16)
        start = now()
        scheduler.add(seq)
        times.append(now() - start)
    return statistics.median(times) * 1e6


def _whole_loop() -> None:
    """`generate` with the tiny model's tokenizer: scheduling, detokenizing, outputs, and a recorder or none."""
    engine = LLMEngine(find_model("tiny"), replace(CONFIG, num_blocks=16))
    rows: dict[str, list[str]] = {}
    for policy, recorded in itertools.product(POLICIES, (False, True)):
        name = f"{policy}, all stops recorded" if recorded else policy
        rows[name] = [f"{_loop_time(engine, policy, queue, recorded):.0f}" for queue in QUEUES[1:]]
    print(
        f"The whole loop without a model, `generate`: median µs a step, {RUNNING} running, so many waiting "
        "at the start, pool of 1,000 blocks\n"
    )
    head = ["policy", *(f"{queue:,} waiting" for queue in QUEUES[1:])]
    print_table(head, ([name, *cells] for name, cells in rows.items()))


class _Enough(Exception):
    """Raised by the runner when as many steps have been seen as are wanted."""


class _FewSteps(NoModel):
    """A runner for the first steps of a long run."""

    def run(self, seqs: list[Sequence], is_prefill: bool) -> list[int | None]:
        """As NoModel."""
        if len(self.calls) == 200:
            raise _Enough
        return super().run(seqs, is_prefill)


def _loop_time(engine: LLMEngine, policy: str, num_waiting: int, recorded: bool) -> float:
    runner: Any = _FewSteps()
    runner.model = NoModel()
    engine.config = replace(CONFIG, policy=policy, num_blocks=1_000)
    engine.model_runner = runner
    engine.attach(None)
    engine.restart()
    if recorded:
        engine.attach(EngineProbe(engine, Recorder({}, initial_state(engine), [])))
    prompts = itertools.islice(_prompts(), num_waiting + RUNNING)
    with suppress(_Enough):
        engine.generate([Request(prompt, ours.greedy(NUM_OUT)) for prompt in prompts])
    turns = [b - a for a, b in itertools.pairwise(runner.calls[NUM_OUT:])]
    return statistics.median(turns) * 1e6
