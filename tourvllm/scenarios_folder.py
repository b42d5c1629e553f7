"""Finding scenarios: a path, or the name of one that ships with the package."""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from .errors import UsageError
from .tour.scenario import MAX_BYTES


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario's short name, its text, and what to call the file."""

    name: str
    text: str
    where: str


FIRST = (
    "tour",
    "kv_pressure",
    "prefix_sharing",
    "chunked_prefill",
    "policies",
    "scheduler_watch",
    "mixed_lengths",
    "batch_scaling",
    "input_length",
    "generation_length",
    "config_sweep",
)


def bundled_names() -> list[str]:
    """The names of the scenarios that ship with the package, in the order in which to take them."""
    folder = files("tourvllm.scenarios")
    names = [
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    ]
    return sorted(
        names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)
    )


def bundled(name: str) -> ScenarioFile:
    """The bundled scenario called `name`."""
    text = (files("tourvllm.scenarios") / f"{name}.yaml").read_text("utf-8")
    return ScenarioFile(name, text, f"{name}.yaml")


def find_scenario(path_or_name: str) -> ScenarioFile:
    """The file at a path; or, where there is none, the bundled scenario of that name (`kv_pressure`,
    `scenarios/kv_pressure.yaml`). Raises UsageError with the names that there are.
    """
    path = Path(path_or_name)
    # A file's name need not be text; the trace's header must be.
    shown = os.fsencode(path.name).decode("utf-8", "replace")
    name = shown.removesuffix(".yaml").removesuffix(".yml")
    try:
        if path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise UsageError(
                    f"{path} has {path.stat().st_size:,} bytes; a scenario has {MAX_BYTES:,} at most"
                )
            return ScenarioFile(name, path.read_text("utf-8"), str(path))
        if path.is_dir() and name not in bundled_names():  # a clone has a folder called tour
            raise UsageError(f"{path} is a folder: name a scenario file in it")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path_or_name} cannot be read: {error}") from error
    if name in bundled_names():
        return bundled(name)
    raise UsageError(
        f"there is no scenario {path_or_name}: give the path of a YAML file, or one of "
        f"{', '.join(bundled_names())}"
    )
