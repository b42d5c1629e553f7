"""A recorded run: the engine, its probe and the recorder put together. Importing this module loads torch."""

import platform
from bdb import BdbQuit
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

from . import __version__
from .engine.llm_engine import LLMEngine
from .engine.outputs import RequestOutput
from .plan import Plan
from .recording import EngineProbe, initial_state
from .sources import source_texts
from .tour.narrator import Narrator
from .tour.recorder import Recorder, Sink
from .tour.trace import Ask, Event
from .verify import Verifier

Listener = Callable[[Event], None]


class Stopped(BaseException):
    """Raised inside a stop to leave the engine at once (the user quit, or --steps is reached).

    Not an Exception, so that nothing in the engine can take it for an error of its own.
    """


class Run:
    """One run of a plan. `listeners` are called after each event, with the state as `self.state`.

    What the scenario says goes to `narrate`, what it asks to `put`, both before the listeners hear of the event.
    """

    def __init__(
        self,
        plan: Plan,
        sinks: list[Sink],
        verify: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.plan = plan
        self.engine = LLMEngine(plan.model, plan.engine, progress)
        self.recorder = Recorder(_header(plan, self.engine), initial_state(self.engine), sinks)
        self.state = self.recorder.state
        self.listeners: list[Listener] = []
        self.narrate: Callable[[str], None] = lambda say: None
        self.put: Callable[[Ask], None] = lambda ask: None
        self.narrator = Narrator(plan.scenario.tour, self._say, self._ask)
        self.verifier = Verifier(self.engine, self.state) if verify else None
        self.engine.attach(EngineProbe(self.engine, self.recorder, self._after))

    def run(self) -> list[RequestOutput]:
        """Run to the end. However it ends, the trace is closed and says how."""
        outcome = "failed"
        try:
            outputs = self.engine.generate(self.plan.requests)
            outcome = "complete"
            return outputs
        except Stopped as stopped:
            outcome = str(stopped)
            raise
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        except BrokenPipeError:
            outcome = "stopped: nobody reads the output any more"
            raise
        except (BdbQuit, SystemExit):
            outcome = "stopped in the debugger"
            raise
        except Exception as error:
            outcome = f"failed: {type(error).__name__}: {error}"
            raise
        finally:
            self.recorder.close(outcome)

    def _say(self, say: str) -> None:
        self.recorder.note("note", say=say)
        self.narrate(say)

    def _ask(self, ask: Ask) -> None:
        fields = {"ask": ask.ask, "answer": ask.answer, "choices": ask.choices, "say": ask.say}
        self.recorder.note("ask", **fields)
        self.put(ask)

    def _after(self, event: Event) -> None:
        if self.verifier:
            self.verifier(event)
        self.narrator.after(event, self.state)
        if event.stop == "step" and event.facts["when"] == "end":
            self.recorder.flush()
        for listener in self.listeners:
            listener(event)


def _header(plan: Plan, engine: LLMEngine) -> dict[str, Any]:
    model = asdict(engine.model_config)
    model["eos_token_ids"] = sorted(model["eos_token_ids"])
    return {
        "scenario": {
            "name": plan.name,
            "title": plan.scenario.title,
            "about": plan.scenario.about,
            "settings": plan.settings,
            "text": plan.text,
            "breakpoints": plan.scenario.breakpoints,
            "watch": plan.scenario.watch,
        },
        "engine": asdict(plan.engine) | {"max_model_len": engine.max_model_len},
        "model": {"name": plan.scenario.model, **model},
        "platform": {
            "tourvllm": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "machine": platform.machine(),
            "system": platform.system(),
            "device": str(engine.model_runner.device),
            "dtype": str(engine.model_runner.model.dtype).removeprefix("torch."),
            "attention": engine.model_runner.model.backend.name,
            "attention_because": engine.model_runner.model.backend.reason,
            "cuda_graphs": _graphs(engine),
            "threads": torch.get_num_threads(),
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": source_texts(),
    }


def _graphs(engine: LLMEngine) -> str:
    graphs = engine.model_runner.graphs
    if graphs is None:
        return f"off: {engine.model_runner.no_graphs_because}"
    return f"decodes of up to {graphs.sizes[-1]} rows"
