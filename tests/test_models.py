"""The tiny model that ships is the one in its card, and the training scripts still make such a folder."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "models" / "tiny"
TRAIN = ROOT / "models" / "train"


def test_weights_are_those_of_the_model_card():
    digest = hashlib.sha256((TINY / "model.safetensors").read_bytes()).hexdigest()
    assert re.findall(r"[0-9a-f]{64}", (TINY / "README.md").read_text("utf-8")) == [digest]


def test_training_yields_a_folder_that_transformers_loads(tmp_path: Path):
    data, output = tmp_path / "data", tmp_path / "model"
    train("generate_corpus.py", data, "--documents", 400, "--validation-documents", 100)
    train("train_tokenizer.py", data, "--vocabulary-size", 512)
    train("pack_tokens.py", data)
    told = train(
        "train.py",
        data,
        output,
        "--steps",
        3,
        "--no-compile",
        "--batch-size",
        2,
        "--length",
        64,
        "--hidden-size",
        64,
        "--layers",
        2,
        "--heads",
        4,
        "--kv-heads",
        2,
        "--head-dim",
        16,
        "--intermediate-size",
        128,
        "--max-positions",
        256,
    )
    assert "3 steps, 384 tokens" in told

    assert {path.name for path in output.iterdir()} == {path.name for path in TINY.iterdir()} - {
        "README.md"
    }
    tokenizer = AutoTokenizer.from_pretrained(output, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(output, local_files_only=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    token_ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    with torch.inference_mode():
        logits = model(token_ids).logits
    assert logits.shape == (1, token_ids.shape[1], len(tokenizer))
    assert torch.isfinite(logits).all()


def train(script: str, *arguments: object) -> str:
    """Run one of the scripts and return what it printed."""
    done = subprocess.run(
        [sys.executable, TRAIN / script, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
