"""Random life of an engine: requests come, are refused, aborted and answered, in pools of any size.

Only the forward pass is a stand-in, cheap and exact: each slot of a real paged store keeps a number made of its
token, its position and all that was read back before it through the block table, and the next token is made of all
that is read back. So a wrong slot, table, length or chunk changes the tokens. Scheduler, block manager, batch
layout, sampler, text stream, recorder and verifier are the real ones.

`pytest -m fuzz` runs 10,000 workloads; the plain suite some hundred.
"""

import functools
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import POLICIES, Watched, make_engine, seq_of
from tourvllm.engine.block_manager import BlockManager
from tourvllm.engine.errors import EngineError, RequestError
from tourvllm.engine.model import Batch
from tourvllm.engine.model_runner import ModelRunner
from tourvllm.engine.outputs import RequestOutput
from tourvllm.engine.sampler import sample
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.engine.sequence import Sequence
from tourvllm.tour.errors import VerifyError
from tourvllm.tour.invariants import check_idle

VOCAB = 16
EOS = 0
LETTERS = ".abcdefghijklmno"
MAX_MODEL_LEN = 48
MOST_REQUESTS = 12


class Letters:
    """A tokenizer of one letter a token."""

    eos_token_id = EOS

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return "".join(LETTERS[token_id] for token_id in token_ids)


def number_of(token_id: int, position: int, past: list[int]) -> int:
    """What a slot keeps."""
    return hash((token_id, position, *past))


def logits_of(numbers: list[int]) -> list[float]:
    """Small numbers with ties, from all that the last token attends to."""
    bits = hash(tuple(numbers))
    return [float(bits >> 3 * k & 7) for k in range(VOCAB)]


class StandIn:
    """A forward pass over a paged store. `UNWRITTEN` is what a slot keeps that nobody has written."""

    UNWRITTEN = -1

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.store = [self.UNWRITTEN] * (num_blocks * block_size)

    def __call__(self, batch: Any, kv_cache: torch.Tensor) -> torch.Tensor:
        rows, starts = [], batch.cu_seqlens_q
        for i, context_len in enumerate(batch.context_lens):
            slots = self._slots(batch.block_tables[i], context_len)
            first_key = context_len - (starts[i + 1] - starts[i])
            for key, row in enumerate(range(starts[i], starts[i + 1]), first_key):
                past = [self.store[slot] for slot in slots[:key]]
                number = number_of(batch.input_ids[row], batch.positions[row], past)
                self.store[batch.slot_mapping[row]] = number
        # As in a real layer, all is written before anything is read for the result.
        for i, context_len in enumerate(batch.context_lens):
            if starts[i + 1] - 1 in batch.logits_rows:
                slots = self._slots(batch.block_tables[i], context_len)
                rows.append(logits_of([self.store[slot] for slot in slots]))
        return torch.tensor(rows).view(-1, VOCAB)

    def _slots(self, table: list[int], count: int) -> list[int]:
        size = self.block_size
        return [table[position // size] * size + position % size for position in range(count)]


Answer = tuple[list[int], str, int | str | None, str]


@functools.lru_cache(50_000)
def lone_answer(prompt: tuple[int, ...], choice: int, max_tokens: int, seed: int) -> Answer:
    """What a request gets where there is nothing but lists: ids, finish reason, stop reason, text."""
    params = params_of(choice, max_tokens, seed)
    stop_ids = {*params.stop_token_ids, *([] if params.ignore_eos else [EOS])}
    seq, numbers, text = seq_of(params, [*prompt]), [], ""
    seq.stop_token_ids = frozenset(stop_ids)
    while True:
        for position in range(len(numbers), len(seq)):
            numbers.append(number_of(seq.token_ids[position], position, numbers))
        (token_id,) = sample(torch.tensor([logits_of(numbers)]), [seq])
        count = seq.num_completion_tokens
        if token_id in stop_ids and count >= params.min_tokens:
            return seq.completion_token_ids, "stop", token_id, text
        seq.append_token(token_id)
        text += LETTERS[token_id]
        ended = [(text.rfind(stop), stop) for stop in params.stop if text.endswith(stop)]
        if ended and count + 1 >= params.min_tokens:
            at, stop = min(ended)
            return seq.completion_token_ids, "stop", stop, text[:at]
        if count + 1 == max_tokens:
            return seq.completion_token_ids, "length", None, text


KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0},
    {"temperature": 0.7},
    {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "ignore_eos": True},
    {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.5},
    {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": 1.0, "logprobs": 2},
    {"temperature": 0, "min_tokens": 5, "stop_token_ids": [1, 2, 3]},
    {"temperature": 0, "stop": ["ab", "c", "kli"], "ignore_eos": True},
    {"temperature": 0.9, "stop": ["de", "efg"], "min_tokens": 3},
]
"""How requests may want their tokens chosen."""


@functools.lru_cache(50_000)
def params_of(choice: int, max_tokens: int, seed: int) -> SamplingParams:
    kind = KINDS[choice]
    min_tokens = min(kind.get("min_tokens", 0), max_tokens)
    return SamplingParams(**{**kind, "min_tokens": min_tokens}, max_tokens=max_tokens, seed=seed)


SHARED = tuple(i * 7 % VOCAB for i in range(40))
"""Prompts begin with a piece of this one or of its reverse, so that they share prefixes."""

REFUSED: list[tuple[Any, dict[str, Any]]] = [
    ([], {}),
    ([5, 128], {}),
    ([-1], {}),
    (None, {}),
    ([1] * MAX_MODEL_LEN, {}),
    ([1], {"request_id": 7}),
    ([1], {"priority": "high"}),
    ([1], {"sampling_params": "greedy"}),
]
"""Prompts and arguments that are never taken."""


@dataclass(frozen=True)
class Wish:
    """A request before it is asked: where its prompt begins as others do, and what it wants."""

    shared: int
    backwards: bool
    own: list[int]
    choice: int
    max_tokens: int
    priority: int

    @property
    def prompt(self) -> tuple[int, ...]:
        shared = (SHARED[::-1] if self.backwards else SHARED)[: self.shared]
        return (*shared, *self.own) or (1,)


WISHES = st.builds(
    Wish,
    shared=st.sampled_from([0, 3, 8, 16, 17, 24]),
    backwards=st.booleans(),
    own=st.lists(st.integers(0, VOCAB - 1), max_size=6),
    choice=st.integers(0, len(KINDS) - 1),
    max_tokens=st.sampled_from([1, 2, 4, 7, 12, 20]),
    priority=st.integers(0, 2),
)


class Life(RuleBasedStateMachine):
    """One engine, watched at every stop, and what each of its requests must get."""

    folder: Any = None
    reached: ClassVar[Counter[str]] = Counter()

    @initialize(
        policy=st.sampled_from(POLICIES),
        order=st.sampled_from(["fcfs", "priority"]),
        block_size=st.integers(1, 16),
        tokens=st.sampled_from([4, 24, 36, 44, 44, 48, 48, 60, 90, 400]),
        budget=st.sampled_from([1, 2, 3, 5, 8, 13, 40, 1000]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 12]),
        prefix_caching=st.sampled_from([True, True, False]),
        wishes=st.lists(WISHES, min_size=2, max_size=6),
    )
    def begin(
        self, policy, order, block_size, tokens, budget, max_num_seqs, prefix_caching, wishes
    ):
        self.num_blocks = -(-tokens // block_size)
        self.block_size = block_size
        self.engine = make_engine(
            self.folder,
            policy=policy,
            order=order,
            block_size=block_size,
            num_blocks=self.num_blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            prefix_caching=prefix_caching,
            max_model_len=MAX_MODEL_LEN,
        )
        self.engine.tokenizer = Letters()
        self.engine.stop_token_ids = {EOS}
        self.engine.model_runner.model.forward = StandIn(self.num_blocks, block_size)
        self.watched = Watched(self.engine)
        self.expected: dict[str, Answer] = {}
        self.live: dict[str, Any] = {}
        self.count = 0
        for wish in wishes:
            self._add(wish)

    @rule(wish=WISHES)
    @precondition(lambda self: self.count < MOST_REQUESTS)
    def add(self, wish):
        self._add(wish)

    def _add(self, wish: Wish) -> None:
        name, self.count = f"R{self.count}", self.count + 1
        params = params_of(wish.choice, wish.max_tokens, self.count)
        length = len(wish.prompt) + wish.max_tokens
        if -(-(length - 1) // self.block_size) > self.num_blocks or length > MAX_MODEL_LEN:
            with pytest.raises(RequestError, match=r"blocks|max_model_len"):
                self.engine.add_request([*wish.prompt], params, name, wish.priority)
            self.reached["cannot fit"] += 1
            return
        self.engine.add_request([*wish.prompt], params, name, wish.priority)
        self.live[name] = self.engine._seqs[name]
        self.expected[name] = lone_answer(wish.prompt, wish.choice, wish.max_tokens, self.count)

    @rule(which=st.integers(0, len(REFUSED) - 1))
    def add_what_is_refused(self, which):
        prompt, arguments = REFUSED[which]
        before = [*self.engine._seqs]
        with pytest.raises(RequestError):
            self.engine.add_request(prompt, **arguments)
        assert [*self.engine._seqs] == before

    @rule()
    @precondition(lambda self: self.live)
    def add_a_name_that_lives(self):
        with pytest.raises(RequestError, match="live request with the id"):
            self.engine.add_request([1], None, next(iter(self.live)))

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self._step()

    @rule(which=st.integers(0, MOST_REQUESTS))
    @precondition(lambda self: self.count)
    def abort(self, which):
        """A live one, one that has ended, or one that never was."""
        name = f"R{which % (self.count + 1)}"
        self.engine.abort(name)
        if name in self.live:
            self.reached["abort"] += 1
            seq = self.live.pop(name)
            assert not seq.block_table
            assert seq.finish_reason == "abort"
        assert name not in self.engine._seqs

    @rule(when_idle=st.booleans())
    def reset_the_cache(self, when_idle):
        if when_idle:
            self._finish()
        manager = self.engine.block_manager
        if len(manager.free_block_ids) < self.num_blocks:
            with pytest.raises(EngineError):
                self.engine.reset_prefix_cache()
            return
        self.reached["reset"] += bool(manager.hash_to_block_ids)
        self.engine.reset_prefix_cache()
        assert not manager.hash_to_block_ids

    def teardown(self):
        if not hasattr(self, "watched"):
            return
        self._finish()
        assert not self.live
        assert not self.engine._seqs
        check_idle(self.watched.state)
        self._note()

    def _finish(self) -> None:
        for _ in range(2000):
            if self.engine.is_finished():
                return
            self._step()
        raise AssertionError("the loop does not end")

    def _step(self) -> None:
        outputs, num_tokens = self.engine.step()
        assert abs(num_tokens) <= self.engine.config.max_num_batched_tokens
        assert len(self.engine.scheduler.running) <= self.engine.config.max_num_seqs
        for output in outputs:
            self._check(output)
            del self.live[output.request_id]
        for name, seq in self.live.items():
            ids, _, _, text = self.expected[name]
            count = seq.num_completion_tokens
            assert seq.token_ids[seq.num_prompt_tokens :] == ids[:count]
            assert text.startswith(seq.stream.text)
        self.reached["steps"] += 1

    def _check(self, output: RequestOutput) -> None:
        found = (output.token_ids, output.finish_reason, output.stop_reason, output.text)
        assert found == self.expected[output.request_id]
        streamed = self.watched.state["seqs"][output.request_id]["text"]
        assert "".join(streamed) == output.text

    def _note(self) -> None:
        stops = Counter(event.stop for event in self.watched.events)
        self.reached["workloads"] += 1
        self.reached["events"] += len(self.watched.events)
        for stop in ("preempt", "chunk", "evict", "reject", "finish", "hash_blocks"):
            self.reached[stop] += bool(stops[stop])
        self.reached["hit"] += any(facts["hits"] for facts in self.watched.facts("allocate"))
        self.reached["mixed"] += any(
            facts.get("phase") == "mixed" for facts in self.watched.facts("schedule")
        )
        for cause in {facts["cause"] for facts in self.watched.facts("wait")}:
            self.reached[cause] += 1


REACHED = [
    *(
        "preempt",
        "chunk",
        "evict",
        "reject",
        "finish",
        "hash_blocks",
        "hit",
        "mixed",
        "abort",
        "reset",
    ),
    *("no_free_blocks", "token_budget", "max_num_seqs", "behind_head", "behind_chunk"),
    *("after_preemption", "cannot fit"),
]
"""What many workloads must meet."""


def live_many(folder: Any, count: int) -> Counter[str]:
    """Run so many workloads and say what they reached."""
    Life.folder, Life.reached = folder, Counter()
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=count,
            stateful_step_count=16,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Life.reached["workloads"] >= count * 0.95
    for what in REACHED:
        assert Life.reached[what] >= count * 0.01, f"{what}: {Life.reached}"
    return Life.reached


def test_some_hundred_workloads(mini):
    live_many(mini, 300)


@pytest.mark.fuzz
def test_ten_thousand_workloads(mini, capsys):
    began = time.monotonic()
    reached = live_many(mini, 10_000)
    with capsys.disabled():
        print(
            f"\nfuzz: {reached['workloads']:,} workloads, {reached['steps']:,} steps, "
            f"{reached['events']:,} stops checked, {time.monotonic() - began:.0f} s; with "
            + ", ".join(f"{what} {reached[what]:,}" for what in REACHED)
        )


def without_a_chain(manager: BlockManager, seq: Sequence, i: int) -> str:
    return str(seq.block(i))


def hits_to_the_last_token(manager: BlockManager, seq: Sequence) -> list[int]:
    found = []
    for i in range(len(seq) // manager.block_size):
        block_id = manager._cached_block(manager._hash_of(seq, i), seq.block(i))
        if block_id is None:
            break
        found.append(block_id)
    return found


def one_slot_off(runner: ModelRunner, seqs: list[Sequence]) -> Batch:
    batch = FLATTEN(runner, seqs)
    batch.slot_mapping[-1] = batch.slot_mapping[0]
    return batch


def one_key_short(runner: ModelRunner, seqs: list[Sequence]) -> Batch:
    batch = FLATTEN(runner, seqs)
    if len(seqs) > 1 and batch.context_lens[0] > 1:
        batch.context_lens[0] -= 1
    return batch


FLATTEN = ModelRunner._flatten
FAULTS = [
    (BlockManager, "_hash_of", without_a_chain),
    (BlockManager, "_cached_prefix", hits_to_the_last_token),
    (BlockManager, "_evict", lambda manager, block_id: None),
    (ModelRunner, "_flatten", one_slot_off),
    (ModelRunner, "_flatten", one_key_short),
]


@pytest.mark.parametrize(
    ("part", "name", "fault"),
    FAULTS,
    ids=[
        "hash without a chain",
        "hits to the last token",
        "no eviction",
        "one slot off",
        "one key short",
    ],
)
def test_a_fault_in_the_engine_is_found(mini, monkeypatch, part, name, fault):
    monkeypatch.setattr(part, name, fault)
    Life.folder = mini
    with pytest.raises((AssertionError, VerifyError)):
        run_state_machine_as_test(
            Life,
            settings=settings(
                max_examples=200,
                stateful_step_count=16,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_the_stand_in_notices_each_kind_of_fault():
    """A reader of the store sees a wrong slot, table, length and order."""
    prompt = [3, 1, 4, 1, 5, 9]

    def run(**changes: Any) -> list[float]:
        batch = {
            "input_ids": prompt,
            "positions": [0, 1, 2, 3, 4, 5],
            "slot_mapping": [2, 3, 0, 1, 6, 7],
            "cu_seqlens_q": [0, 6],
            "context_lens": [6],
            "block_tables": [[1, 0, 3]],
            "logits_rows": [5],
        }
        return StandIn(4, 2)(SimpleNamespace(**batch | changes), torch.zeros(0)).tolist()[0]

    numbers: list[int] = []
    for position, token_id in enumerate(prompt):
        numbers.append(number_of(token_id, position, numbers))
    assert run() == logits_of(numbers)
    for changes in (
        {"slot_mapping": [2, 3, 0, 1, 6, 5]},
        {"slot_mapping": [2, 3, 1, 0, 6, 7]},
        {"block_tables": [[0, 1, 3]]},
        {"context_lens": [5]},
        {"positions": [0, 1, 2, 3, 4, 4]},
        {"input_ids": [3, 1, 4, 1, 5, 8]},
    ):
        assert run(**changes) != run()
