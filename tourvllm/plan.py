"""What is to be run: a scenario with the command's changes, checked as far as that goes without torch."""

from dataclasses import dataclass
from importlib.resources import files
from os.path import exists, expanduser, isfile, join
from typing import Any

from .engine.config import EngineConfig
from .engine.errors import ConfigError, RequestError
from .engine.hub import HUB_ID
from .engine.request import Prompt, Request
from .engine.sampling_params import SamplingParams
from .errors import UsageError
from .tour.scenario import Narration, Scenario, Source, parse_scenario, request_ids
from .tour.scenario import Request as ScenarioRequest

TINY = "tiny"


@dataclass(frozen=True)
class Plan:
    """A checked scenario, ready to run. `settings` are the command's changes to it."""

    name: str
    text: str
    settings: dict[str, Any]
    scenario: Scenario
    engine: EngineConfig
    requests: list[Request]
    model: str


SAME_STORY = {"engine.device", "engine.attention", "engine.cuda_graphs"}
"""Settings that change nothing of what happens, so that a scenario's narration stays true."""


def make_plan(
    name: str, text: str, settings: dict[str, Any] | None = None, where: str | None = None
) -> Plan:
    """Check a scenario's text and lay out its requests. Raises ScenarioError or UsageError.

    `where` is what errors call the file. Changed settings make another story than the one that the scenario's
    narration tells, so they take its place.
    """
    settings = settings or {}
    scenario, source = parse_scenario(text, where or name, settings)
    changes = [f"{key}={value}" for key, value in settings.items() if key not in SAME_STORY]
    if changes and scenario.tour:
        say = (
            f"This run has other settings ({', '.join(changes)}). The lesson's notes are left out: they tell what "
            "happens with its own settings, and here other things may happen."
        )
        scenario.tour = [Narration(at="generate", say=say)]
    try:
        engine = EngineConfig.from_dict(scenario.engine)
    except ConfigError as error:
        message = str(error).partition(": ")[2]
        raise source.error(f"engine.{error.field}", message) from error
    return Plan(
        name,
        text,
        settings,
        scenario,
        engine,
        _requests(scenario, source),
        find_model(scenario.model),
    )


def find_model(model: str) -> str:
    """A model's folder or hub id: `tiny` is the one that ships with the package.

    A path that holds no model is refused here, before torch is loaded; a hub id is left to the engine.
    """
    if model == TINY:
        return str(files("tourvllm.models") / TINY)
    folder = expanduser(model)  # unlike pathlib's, these never raise
    if isfile(join(folder, "config.json")):
        return folder
    if exists(folder) or not HUB_ID.match(model):
        raise UsageError(
            f"there is no model at {model}: name a folder with a config.json, a hub id such as "
            f"Qwen/Qwen3-0.6B, or {TINY}"
        )
    return model


def _requests(scenario: Scenario, source: Source) -> list[Request]:
    wanted = [
        (i, request) for i, request in enumerate(scenario.requests) for _ in range(request.count)
    ]
    ids = request_ids(scenario)
    return [
        Request(
            prompt=_prompt(request),
            sampling_params=_sampling(scenario, source, i, request),
            request_id=request_id,
            arrival=request.arrival,
            priority=request.priority,
        )
        for (i, request), request_id in zip(wanted, ids, strict=True)
    ]


def _prompt(request: ScenarioRequest) -> Prompt:
    """The one of prompt, token_ids and messages that was given."""
    if request.messages is not None:
        return [{"role": message.role, "content": message.content} for message in request.messages]
    return request.prompt if request.prompt is not None else list(request.token_ids or ())


def _sampling(
    scenario: Scenario, source: Source, i: int, request: ScenarioRequest
) -> SamplingParams:
    path = f"requests[{i}].sampling" if request.sampling else "sampling"
    known = SamplingParams.__dataclass_fields__
    for where, table in (
        ("sampling", scenario.sampling),
        (f"requests[{i}].sampling", request.sampling),
    ):
        for key in table:
            if key not in known:
                raise source.error(
                    f"{where}.{key}", f"there is no such field; there are {', '.join(known)}"
                )
    try:
        return SamplingParams(**{**scenario.sampling, **request.sampling})
    except RequestError as error:
        field = str(error).split(" ")[0]
        raise source.error(f"{path}.{field}", str(error)) from error
