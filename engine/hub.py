"""From a model's name to a folder: a path as it is, or a repository of the Hugging Face hub."""

import re
from pathlib import Path

from .errors import ModelError

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def model_folder(model: str | Path) -> Path:
    """The folder of a model given as a path or as a hub id such as `Qwen/Qwen3-0.6B`.

    A hub id is looked for in the local cache first, then downloaded. Raises ModelError with what to do.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not HUB_ID.match(str(model)):
        raise ModelError(
            f"there is no model folder {model}, and it is no hub id such as Qwen/Qwen3-0.6B"
        )
    from huggingface_hub import snapshot_download

    try:
        try:
            found = snapshot_download(str(model), allow_patterns=FILES, local_files_only=True)
        except FileNotFoundError:  # not in the cache
            found = snapshot_download(str(model), allow_patterns=FILES)
    except Exception as error:  # the hub's client raises many kinds, and those of its HTTP library
        reason = (
            str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        )
        raise ModelError(
            f"{model} is neither a folder here nor in the hub's cache, and cannot be downloaded ({reason}). "
            "Offline? Copy the model's folder to this machine and name that"
        ) from error
    if not any(Path(found).glob("*.safetensors")):
        raise ModelError(f"{model} holds no safetensors weights: choose a checkpoint that does")
    return Path(found)
