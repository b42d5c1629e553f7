"""Running a trace's scenario again, with other settings: the trace's header holds all that is needed."""

from importlib.util import find_spec
from typing import Any

from ..errors import UsageError
from ..plain_run import ENGINE_HELP
from ..plan import Plan, make_plan
from ..tour.errors import ScenarioError
from ..tour.scenario import parse_scenario, request_ids
from ..tour.trace import Trace


def scenario_of(trace: Trace) -> tuple[str, str, dict[str, Any]]:
    """Name, text and changed settings of the scenario in a trace. Raises ScenarioError if there is no text."""
    table = trace.table("scenario")
    name, text, settings = table.get("name"), table.get("text"), table.get("settings", {})
    if not isinstance(text, str) or not text.strip() or not isinstance(settings, dict):
        raise ScenarioError("This trace holds no scenario, so it cannot be run again.")
    return str(name or "scenario"), text, settings


def ids_in_scenario(trace: Trace) -> set[str]:
    """The ids of all requests of the scenario, also of those that have not arrived yet."""
    try:
        name, text, settings = scenario_of(trace)
        return set(request_ids(parse_scenario(text, name, settings)[0]))
    except ScenarioError:  # a stranger's trace may hold anything
        return set()


def own_settings(trace: Trace) -> dict[str, Any]:
    """The engine settings that the scenario's text names, by their plain names. Raises ScenarioError."""
    name, text, _ = scenario_of(trace)
    return dict(parse_scenario(text, name)[0].engine)


def plan_again(trace: Trace, changed: dict[str, Any], form: set[str]) -> Plan:
    """The plan of the trace's scenario with the settings `changed`, which replace those that the form has.

    Raises ScenarioError or UsageError, with a sentence.
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UsageError(f"{ENGINE_HELP[0].upper()}{ENGINE_HELP[1:]}")
    name, text, settings = scenario_of(trace)
    kept = {key: value for key, value in settings.items() if key not in form}
    return make_plan(name, text, kept | changed)


def order_of(plan: Plan, record: str, verify: bool = False) -> dict[str, Any]:
    """What the engine's side is told to run."""
    return {
        "name": plan.name,
        "text": plan.text,
        "settings": plan.settings,
        "record": record,
        "verify": verify,
    }
