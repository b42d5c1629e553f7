"""From a Hugging Face folder to a decoder: config.json, safetensors (one file or sharded), tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..kernels import get_backend
from .errors import ModelError
from .model import Decoder, Layer, ModelConfig

ARCHITECTURES = ("Qwen3ForCausalLM",)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_config(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json). Raises ModelError for what is not supported."""
    raw = _read_json(folder / "config.json")
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{folder}: the architecture {architecture} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if (rope.get("rope_type") or rope.get("type") or "default") != "default":
        raise ModelError(f"{folder}: rope_scaling {rope!r} is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{folder}: the activation {raw['hidden_act']!r} is not supported")
    if raw.get("attention_bias"):
        raise ModelError(f"{folder}: attention_bias is not supported for {architecture}")
    if raw.get("use_sliding_window"):
        raise ModelError(f"{folder}: sliding window attention is not supported")
    generation = folder / "generation_config.json"
    eos = _ids(raw.get("eos_token_id")) | _ids(_read_json(generation).get("eos_token_id") if generation.exists() else None)
    try:
        return ModelConfig(
            architecture=architecture,
            hidden_size=raw["hidden_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=raw["num_attention_heads"],
            num_key_value_heads=raw["num_key_value_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            intermediate_size=raw["intermediate_size"],
            vocab_size=raw["vocab_size"],
            rms_norm_eps=raw["rms_norm_eps"],
            rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            max_position_embeddings=raw["max_position_embeddings"],
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=frozenset(eos),
        )
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'} does not say {error}") from error


def load_decoder(folder: Path, config: ModelConfig, dtype: str, device: str) -> Decoder:
    """Load every weight once and build the decoder. A missing or unexpected tensor is named (ModelError)."""
    on_cpu = device == "cpu"
    weights = Weights(folder, device, torch.float32 if dtype == "auto" and on_cpu else DTYPES.get(dtype))
    c = config
    q_rows, kv_rows = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    embed_tokens = weights.take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    layers = []
    for i in range(c.num_hidden_layers):
        name = f"model.layers.{i}."
        qkv = [
            weights.take(f"{name}self_attn.{part}_proj.weight", rows, c.hidden_size)
            for part, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows))
        ]
        gate_up = [
            weights.take(f"{name}mlp.{part}_proj.weight", c.intermediate_size, c.hidden_size)
            for part in ("gate", "up")
        ]
        layers.append(Layer(
            input_layernorm=weights.take(name + "input_layernorm.weight", c.hidden_size),
            qkv_proj=torch.cat(qkv),
            q_norm=weights.take(name + "self_attn.q_norm.weight", c.head_dim),
            k_norm=weights.take(name + "self_attn.k_norm.weight", c.head_dim),
            o_proj=weights.take(name + "self_attn.o_proj.weight", c.hidden_size, q_rows),
            post_attention_layernorm=weights.take(name + "post_attention_layernorm.weight", c.hidden_size),
            gate_up_proj=torch.cat(gate_up),
            down_proj=weights.take(name + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size),
        ))
    norm = weights.take("model.norm.weight", c.hidden_size)
    if c.tie_word_embeddings:
        lm_head = embed_tokens
        weights.ignore("lm_head.weight")  # some tied checkpoints store it all the same
    else:
        lm_head = weights.take("lm_head.weight", c.vocab_size, c.hidden_size)
    weights.check_all_taken()
    return Decoder(config, embed_tokens, layers, norm, lm_head, get_backend("torch"))


class Weights:
    """The tensors of a checkpoint folder, each handed out once."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype | None) -> None:
        self.folder, self.device, self.dtype = folder, device, dtype
        self._files: dict[Path, Any] = {}
        self._where = self._index()
        self._left = set(self._where)

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have this shape, on the device and in the dtype asked for."""
        if name not in self._where:
            raise ModelError(f"{self.folder}: the tensor {name} is missing")
        try:
            tensor: Tensor = self._open(self._where[name]).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self._where[name]}: the tensor {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self.folder}: the tensor {name} has shape {tuple(tensor.shape)}, not {shape}")
        self._left.discard(name)
        return tensor.to(self.device, self.dtype)

    def ignore(self, name: str) -> None:
        """Say that `name` may be in the files and is not needed."""
        self._left.discard(name)

    def check_all_taken(self) -> None:
        """Raise ModelError if the files hold a tensor that the architecture does not have."""
        if self._left:
            raise ModelError(f"{self.folder}: unexpected tensors: {', '.join(sorted(self._left)[:5])}")

    def _index(self) -> dict[str, Path]:
        """Tensor name -> file, from the shard index if there is one, else from the single file."""
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            weight_map = _read_json(index).get("weight_map", {})
            return {name: self.folder / Path(file).name for name, file in weight_map.items()}
        path = self.folder / "model.safetensors"
        return {name: path for name in self._open(path).keys()}  # noqa: SIM118 (not a dict)

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt", device=self.device)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error
        return self._files[path]


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises ModelError with transformers' own words when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds
        raise ModelError(f"{folder}: the tokenizer cannot be loaded: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return data


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {value}
