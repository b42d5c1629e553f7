"""From a model's name to a folder: a path as it is, or a repository of the Hugging Face hub."""

import json
import re
from os.path import expanduser, isdir
from pathlib import Path
from typing import Any

from .errors import ModelError

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
NOT_THESE = ["*/*", "consolidated*"]
"""The same weights once more, in other layouts."""


def model_folder(model: str | Path) -> Path:
    """The folder of a model given as a path or as a hub id such as `Qwen/Qwen3-0.6B`.

    A hub id is looked for in the local cache first, then downloaded. Raises ModelError with what to do.
    """
    folder = expanduser(model)  # unlike pathlib's, these never raise
    if isdir(folder):
        return Path(folder)
    if not HUB_ID.match(str(model)):
        raise ModelError(
            f"there is no model folder {model}, and it is no hub id such as Qwen/Qwen3-0.6B"
        )
    try:
        found = _cached(str(model)) or _snapshot(str(model))
    except Exception as error:  # the hub's client raises many kinds, and those of its HTTP library
        reason = (
            str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        )
        raise ModelError(
            f"{model} is neither a folder here nor in the hub's cache, and cannot be downloaded ({reason}). "
            "Offline? Copy the model's folder to this machine and name that"
        ) from error
    if not any(found.glob("*.safetensors")):
        raise ModelError(f"{model} holds no safetensors weights: choose a checkpoint that does")
    return found


def _cached(model: str) -> Path | None:
    """The model in the hub's cache, if all weights are there: a download may have been cut short."""
    try:
        found = _snapshot(model, local_files_only=True)
    except FileNotFoundError:
        return None
    index, names = found / "model.safetensors.index.json", ["model.safetensors"]
    if index.exists():
        names = list(read_json(index).get("weight_map", {}).values())
    return found if all((found / name).exists() for name in names) else None


def _snapshot(model: str, local_files_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model,
            allow_patterns=FILES,
            ignore_patterns=NOT_THESE,
            local_files_only=local_files_only,
        )
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint. Raises ModelError."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return data
