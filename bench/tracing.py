"""What tracing costs: decode steps with and without a listener, alternating step by step.

All engines share one set of weights. A run that nobody listens to is there twice: how far
the two are apart is noise.
"""

import statistics
import tempfile
from pathlib import Path

from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.probe import Probe
from tourvllm.tour.recorder import FileSink, Recorder
from tourvllm.tour.trace import Event

from tourvllm.recording import EngineProbe, initial_state

from . import ours, workloads
from .options import Options
from .turns import Candidate, print_table, ratio, take_turns

BATCH = 16
PROMPT = 64
WARM_UP = 5


def main(options: Options) -> None:
    """Compare no listener, a recorder that writes nowhere, and one that writes a file."""
    turns = options.turns or 200
    room = PROMPT + turns + WARM_UP + 2
    args = (options.model, options.dtype, room, BATCH, BATCH * PROMPT)
    first, *others = engines = [ours.make_engine(*args) for _ in range(4)]
    for engine in others:
        engine.model_runner.model = first.model_runner.model
    workload = workloads.equal(BATCH, PROMPT, room - PROMPT, options.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.tvllm.jsonl.gz"
        sink = FileSink(path)
        probes = {
            "nobody listens": None,
            "nobody listens, again": None,
            "all stops recorded, written nowhere": _recorded(engines[2], None),
            "all stops recorded into a .gz file": _recorded(engines[3], sink),
        }
        steps = {
            name: _steps(engine, probe, workload)
            for engine, (name, probe) in zip(engines, probes.items(), strict=True)
        }
        times = take_turns(steps, turns, WARM_UP)
        sink.close()
        size = path.stat().st_size
    print(
        f"Tracing: {options.name}, {options.dtype}, {BATCH} requests decode from {PROMPT} tokens on, "
        f"{turns} turns; {size / (turns + WARM_UP + 1) / 1024:.1f} KiB a step in the file\n"
    )
    base = times["nobody listens"]
    rows = []
    for name, seconds in times.items():
        rows.append(
            [
                name,
                f"{statistics.median(seconds) * 1000:.2f}",
                f"{(ratio(seconds, base) - 1) * 100:+.1f} %",
                f"{(sum(seconds) / sum(base) - 1) * 100:+.1f} %",
            ]
        )
    print_table(["", "median ms a step", "median of turns", "all steps together"], rows)


def _recorded(engine: LLMEngine, sink: FileSink | None) -> Probe:
    """The probe of a recorded run; a file is flushed after each step, as tourvllm does."""
    recorder = Recorder({}, initial_state(engine), [sink] if sink else [])

    def flush(event: Event) -> None:
        if event.stop == "step" and event.facts["when"] == "end":
            recorder.flush()

    return EngineProbe(engine, recorder, flush)


def _steps(engine: LLMEngine, probe: Probe | None, workload: workloads.Workload) -> Candidate:
    """Steps of one engine, which hands the shared model its own probe first."""
    steps = ours.OurSteps(engine)
    engine.attach(probe)
    steps.begin(workload)

    def step() -> float:
        engine.attach(probe)
        return steps.step()

    return step
