"""Random workloads: every stop agrees with the engine and keeps the invariants, and every output is
what the request would get alone.

The model is random, tiny and in double precision: no near-tie falls the other way in another batch.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import POLICIES, P, Watched, generate, make_engine, random_qwen3, tokens
from tourvllm.engine.errors import RequestError
from tourvllm.engine.sampling_params import SamplingParams
from tourvllm.tour.cursor import Cursor
from tourvllm.tour.invariants import check_idle
from tourvllm.tour.stops import STOPS

VOCAB = 64


@dataclass(frozen=True)
class Job:
    """One request. `aborted` is the step before which it is aborted, if it still lives."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int
    aborted: int | None
    priority: int = 0


@dataclass
class Workload:
    """Settings and requests; `repr` is what hypothesis shows of a failure."""

    settings: dict
    jobs: list[Job] = field(default_factory=list)


EXTRAS = [
    {},
    {},
    {},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"min_tokens": 5},
    {"stop": ["w1", "3 w"], "min_tokens": 2},
    {"stop_token_ids": [*range(8)]},
    {"logprobs": 2},
]
"""What some requests ask for besides."""

Pick = Callable[[list], Any]


def make_workload(pick: Pick) -> Workload:
    """A workload whose every choice is made by `pick`, from a list of options."""
    block_size = pick([*range(1, 17)])
    prefix = [pick([*range(VOCAB)]) for _ in range(20)]
    jobs = []
    for _ in range(pick([1, 2, 3, 4, 5, 6, 7])):
        shared = pick([0, 0, 3, 8, block_size, 2 * block_size, 20])
        own = [pick([*range(VOCAB)]) for _ in range(pick([*range(13)]))]
        prompt = (*prefix[:shared], *own) or (pick([*range(VOCAB)]),)
        max_tokens, extra = pick([*range(1, 20)]), {**pick(EXTRAS)}
        extra["min_tokens"] = min(extra.get("min_tokens", 0), max_tokens)
        params = SamplingParams(
            temperature=pick([0.0, 0.0, 0.7, 1.5]),
            top_k=pick([0, 0, 5]),
            top_p=pick([1.0, 1.0, 0.8]),
            seed=pick([*range(6)]),
            max_tokens=max_tokens,
            ignore_eos=pick([False, True]),
            **extra,
        )
        jobs.append(
            Job(
                prompt,
                params,
                pick([1, 1, 1, 2, 4, 9]),
                pick([None, None, None, *range(2, 16, 3)]),
                pick([0, 0, 1, -1]),
            )
        )
    longest = max(needed(job, block_size) for job in jobs)
    return Workload(
        {
            "block_size": block_size,
            "num_blocks": max(1, longest + pick([-1, 0, 0, 1, 2, longest, 6 * longest])),
            "max_num_batched_tokens": pick([1, 2, 3, 5, 8, 13, 32, 1000]),
            "max_num_seqs": pick([1, 2, 3, 4, 5, 6]),
            "prefix_caching": pick([True, False]),
            "policy": pick([*POLICIES]),
            "order": pick(["fcfs", "fcfs", "priority"]),
        },
        jobs,
    )


workloads = st.composite(lambda draw: make_workload(lambda options: draw(st.sampled_from(options))))


def needed(job: Job, block_size: int) -> int:
    """Blocks that a request has at its longest: the last token is never stored."""
    return -(-(len(job.prompt) + job.params.max_tokens - 1) // block_size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_qwen3(
        tmp_path_factory.mktemp("properties"),
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.4,
    )


@pytest.fixture(scope="module")
def alone(folder):
    """What a request gets when it has an ample engine without a prefix cache to itself."""
    settings = {"block_size": 16, "num_blocks": 8, "prefix_caching": False, "dtype": "float64"}
    engine, known = make_engine(folder, **settings), {}

    def run(job: Job) -> tuple[list[int], str, str]:
        key = (job.prompt, repr(job.params))
        if key not in known:
            (output,) = generate(engine, [list(job.prompt)], job.params)
            known[key] = (output.token_ids, output.finish_reason, output.text)
        return known[key]

    return run


def drive(watched: Watched, jobs: list[Job]) -> tuple[dict, set[str], set[str]]:
    """Add, abort and step until nobody is left. Returns outputs, the rejected and the aborted."""
    outputs, rejected, aborted, step = {}, set(), set(), 0
    while step < max(job.arrival for job in jobs) or not watched.engine.is_finished():
        step += 1
        assert step < 3000, "the loop does not end"
        for i, job in enumerate(jobs):
            name = f"R{i}"
            if job.arrival == step:
                try:
                    watched.engine.add_request(list(job.prompt), job.params, name, job.priority)
                except RequestError:
                    rejected.add(name)
            if job.aborted == step:
                alive = name in watched.state["waiting"] + watched.state["running"]
                watched.engine.abort(name)
                aborted |= {name} if alive else set()
        outputs |= {output.request_id: output for output in watched.step()}
    return outputs, rejected, aborted


@settings(max_examples=100)
@given(work=workloads())
def test_a_small_workload(folder, alone, work):
    """Hypothesis begins with the smallest cases and finds the smallest that fails."""
    check_workload(folder, alone, work)


SEEDS = 240


def test_large_workloads(folder, alone):
    """Plain random choices make larger ones; together they must reach what can go wrong."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        work = make_workload(Random(seed).choice)
        watched = check_workload(folder, alone, work)
        reached += Counter({event.stop for event in watched.events})
        reached["hit"] += any(facts["hits"] for facts in watched.facts("can_allocate"))
        reached["abort"] += any(facts["reason"] == "abort" for facts in watched.facts("finish"))
        reached["charged"] += any(f["needs"] > f["num_new"] for f in watched.facts("can_allocate"))
        reached["hit after a preemption"] += any(
            f["recompute"] and f["hits"] for f in watched.facts("can_allocate")
        )
        reached += Counter({facts["cause"] for facts in watched.facts("wait")})
        reached += Counter({facts.get("phase") for facts in watched.facts("schedule")})
        stopped = [facts["stop_reason"] for facts in watched.facts("finish")]
        reached["stop string"] += any(isinstance(reason, str) for reason in stopped)
    for what in (
        *STOPS,
        "hit",
        "abort",
        "charged",
        "hit after a preemption",
        "no_free_blocks",
        "token_budget",
        "max_num_seqs",
        "behind_chunk",
        "behind_head",
        "after_preemption",
        "prefill",
        "decode",
        "mixed",
        "stop string",
    ):
        least = 0 if what == "generate" else SEEDS // 20
        assert reached[what] >= least, f"{what} was reached by {reached[what]} workloads"


def check_workload(folder, alone, work: Workload) -> Watched:
    watched = Watched(make_engine(folder, dtype="float64", **work.settings))
    outputs, rejected, aborted = drive(watched, work.jobs)
    size, num_blocks = work.settings["block_size"], work.settings["num_blocks"]
    assert rejected == {
        f"R{i}" for i, job in enumerate(work.jobs) if needed(job, size) > num_blocks
    }
    assert set(outputs) | rejected | aborted == {f"R{i}" for i in range(len(work.jobs))}
    assert not set(outputs) & (rejected | aborted)
    for i, job in enumerate(work.jobs):
        if f"R{i}" in outputs:
            output = outputs[f"R{i}"]
            assert (output.token_ids, output.finish_reason, output.text) == alone(job)
            assert output.text == "".join(watched.state["seqs"][f"R{i}"]["text"])
            if not job.params.stop:
                assert output.text.split() == [f"w{token_id}" for token_id in output.token_ids]
    check_idle(watched.state)
    assert not watched.engine._seqs
    assert all(
        len(facts["seqs"]) <= work.settings["max_num_seqs"]
        for facts in watched.facts("schedule")
        if "seqs" in facts
    )
    assert (
        max(facts["running"] for facts in watched.facts("step") if "running" in facts)
        <= work.settings["max_num_seqs"]
    )
    check_the_kv_slots(watched)
    return watched


def check_the_kv_slots(watched: Watched) -> None:
    """In every batch each token goes to the slot of its position, and no two to the same."""
    cursor = Cursor(watched.trace())
    for index, recorded in enumerate(watched.events):
        if not recorded.stop.startswith("prepare"):
            continue
        cursor.seek(index + 1)
        batch, size = cursor.state["batch"], cursor.state["blocks"]["size"]
        assert len(set(batch["slot_mapping"])) == len(batch["slot_mapping"])
        starts = batch["cu_seqlens_q"]
        for i, name in enumerate(batch["seqs"]):
            table = cursor.state["seqs"][name]["block_table"]
            for row in range(starts[i], starts[i + 1]):
                position, slot = batch["positions"][row], batch["slot_mapping"][row]
                assert (table[position // size], position % size) == divmod(slot, size)
                assert batch["input_ids"][row] == cursor.state["seqs"][name]["token_ids"][position]
            assert batch["context_lens"][i] == batch["positions"][starts[i + 1] - 1] + 1
    cursor.seek(len(watched.events))
    assert cursor.state == watched.state


@settings(max_examples=40)
@given(work=workloads(), again=st.integers(2, 3))
def test_a_warm_engine_gives_the_same_answers(folder, work, again):
    """Whatever earlier runs left in the prefix cache."""
    engine = make_engine(folder, dtype="float64", **work.settings)
    prompts, params = [list(job.prompt) for job in work.jobs], [job.params for job in work.jobs]
    ranks = [job.priority for job in work.jobs]
    first = tokens(generate(engine, prompts, params, priority=ranks))
    for _ in range(again - 1):
        watched = Watched(engine)
        assert tokens(watched.generate(prompts, params, priority=ranks)) == first
        check_idle(watched.state)


def test_the_random_model_is_worth_comparing(alone):
    """Its outputs depend on the prompt and on the seed, and end-of-sequence does occur."""
    jobs = [
        Job(tuple(P(i, i + 5)), SamplingParams(temperature=1.0, seed=seed, max_tokens=30), 1, None)
        for i in range(0, 50, 5)
        for seed in range(4)
    ]
    results = [alone(job) for job in jobs]
    assert len({tuple(ids) for ids, *_ in results}) > 35
    assert {reason for _, reason, _ in results} == {"stop", "length"}
    assert (
        len(
            {
                tuple(
                    alone(
                        Job(
                            tuple(P(i, i + 5)),
                            SamplingParams(temperature=0, ignore_eos=True, max_tokens=9),
                            1,
                            None,
                        )
                    )[0]
                )
                for i in range(0, 50, 5)
            }
        )
        > 5
    )
