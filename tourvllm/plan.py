"""What is to be run: a scenario with the command's changes, checked as far as that goes without torch."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .engine.config import EngineConfig
from .engine.errors import ConfigError, RequestError
from .engine.sampling_params import SamplingParams
from .errors import UsageError
from .tour.scenario import Request, Scenario, Source, letters, parse_scenario

TINY = "tiny"


@dataclass(frozen=True)
class PlannedRequest:
    """One request as the engine gets it."""

    id: str
    prompt: str | list[int]
    arrival: int
    sampling: SamplingParams


@dataclass(frozen=True)
class Plan:
    """A checked scenario, ready to run. `settings` are the command's changes to it."""

    name: str
    text: str
    settings: dict[str, Any]
    scenario: Scenario
    engine: EngineConfig
    requests: list[PlannedRequest]
    model: Path


def make_plan(name: str, text: str, settings: dict[str, Any] | None = None) -> Plan:
    """Check a scenario's text and lay out its requests. Raises ScenarioError or UsageError."""
    settings = settings or {}
    scenario, source = parse_scenario(text, name, settings)
    try:
        engine = EngineConfig.from_dict(scenario.engine)
    except ConfigError as error:
        message = str(error).partition(": ")[2]
        raise source.error(f"engine.{error.field}", message) from error
    return Plan(name, text, settings, scenario, engine, _requests(scenario, source), find_model(scenario.model))


def find_model(model: str) -> Path:
    """The folder of a model: `tiny` is the one that ships with the package, anything else is a path."""
    if model == TINY:
        return Path(str(files("tourvllm.models") / TINY))
    try:
        folder = Path(model).expanduser()
        if (folder / "config.json").is_file():
            return folder
    except (OSError, RuntimeError, ValueError):
        pass  # no such user, a NUL byte, a name that is too long
    raise UsageError(f"there is no model at {model}: name a folder with a config.json, or {TINY}")


def _requests(scenario: Scenario, source: Source) -> list[PlannedRequest]:
    wanted = [(i, request) for i, request in enumerate(scenario.requests) for _ in range(request.count)]
    taken = {request.id for request in scenario.requests if request.id}
    free = iter(letters(len(wanted), taken))
    return [
        PlannedRequest(
            id=request.id or next(free),
            prompt=request.prompt if request.prompt is not None else list(request.token_ids or ()),
            arrival=request.arrival,
            sampling=_sampling(scenario, source, i, request),
        )
        for i, request in wanted
    ]


def _sampling(scenario: Scenario, source: Source, i: int, request: Request) -> SamplingParams:
    path = f"requests[{i}].sampling" if request.sampling else "sampling"
    known = SamplingParams.__dataclass_fields__
    for where, table in (("sampling", scenario.sampling), (f"requests[{i}].sampling", request.sampling)):
        for key in table:
            if key not in known:
                raise source.error(f"{where}.{key}", f"there is no such field; there are {', '.join(known)}")
    try:
        return SamplingParams(**{**scenario.sampling, **request.sampling})
    except RequestError as error:
        field = str(error).split(" ")[0]
        raise source.error(f"{path}.{field}", str(error)) from error
