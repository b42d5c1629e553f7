"""The model families that the decoder knows, and how each one's config.json is read."""

from pathlib import Path
from typing import Any

from .errors import ModelError
from .hub import read_json
from .model import ModelConfig
from .rope import ROPE_TYPES

FAMILIES: dict[str, dict[str, bool]] = {
    # Qwen3 norms queries and keys; Qwen2 gives them a bias; Llama's biases, if any, are in its config.
    "Qwen3ForCausalLM": {"qk_norm": True, "mlp_bias": False},
    "Qwen2ForCausalLM": {"qkv_bias": True, "o_bias": False, "mlp_bias": False},
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"qkv_bias": False, "o_bias": False, "mlp_bias": False},
}
"""Architecture -> what is fixed for its family. What is not named here is read from the config."""

SLIDING_WINDOW = {"MistralForCausalLM": 4096}
"""Architecture -> its sliding window where the config does not speak of one (null means none)."""


def load_config(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json). Raises ModelError for what is not supported."""
    raw = read_json(folder / "config.json")
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    if architecture not in FAMILIES:
        raise ModelError(
            f"{folder}: the architecture {architecture} is not supported; supported: {', '.join(FAMILIES)}"
        )
    _refuse_variants(folder, raw, architecture)
    try:
        config = _model_config(folder, raw, architecture)
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'} does not say {error}") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be used: {error}") from error
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise ModelError(
            f"{folder}: {config.num_attention_heads} attention heads must be a multiple of the "
            f"{config.num_key_value_heads} KV heads, and head_dim {config.head_dim} must be even"
        )
    return config


def _model_config(folder: Path, raw: dict[str, Any], architecture: str) -> ModelConfig:
    rope = _rope_parameters(folder, raw)
    generation = folder / "generation_config.json"
    eos = _ids(raw.get("eos_token_id"))
    if generation.exists():
        eos |= _ids(read_json(generation).get("eos_token_id"))
    bias = bool(raw.get("attention_bias", False))
    optional = {
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bool(raw.get("mlp_bias")),
        "qk_norm": False,
    }
    hidden_size, num_heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_hidden_layers=_count(raw, "num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=_count(raw, "num_key_value_heads", num_heads),
        head_dim=_count(raw, "head_dim", hidden_size // num_heads),
        intermediate_size=_count(raw, "intermediate_size"),
        vocab_size=_count(raw, "vocab_size"),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=rope["rope_theta"],
        rope_scaling=rope,
        max_position_embeddings=_count(raw, "max_position_embeddings"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=frozenset(eos),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"),
        **optional | FAMILIES[architecture],
    )


def _refuse_variants(folder: Path, raw: dict[str, Any], architecture: str) -> None:
    """Raise ModelError for variants that would be computed wrongly."""
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(
            f"{folder}: the activation {raw['hidden_act']!r} is not supported, only silu"
        )
    # Qwen's configs carry a window size that counts only with use_sliding_window.
    qwen = architecture.startswith("Qwen")
    window = None if qwen else raw.get("sliding_window", SLIDING_WINDOW.get(architecture))
    if window or raw.get("use_sliding_window"):
        raise ModelError(
            f"{folder}: sliding window attention (sliding_window "
            f"{window or raw.get('sliding_window')}) is not supported"
        )
    if raw.get("quantization_config"):
        raise ModelError(
            f"{folder}: quantized weights are not supported; take the unquantized checkpoint"
        )
    if (raw.get("pretraining_tp") or 1) != 1:
        raise ModelError(
            f"{folder}: pretraining_tp {raw['pretraining_tp']} is not supported, only 1"
        )


def _rope_parameters(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The rope parameters with `rope_type` and `rope_theta`, whatever keys and era they come from."""
    rope = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope["rope_theta"] = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if rope["rope_type"] not in ROPE_TYPES:
        raise ModelError(
            f"{folder}: the rope type {rope['rope_type']!r} is not supported; supported: "
            f"{', '.join(ROPE_TYPES)} (dynamic changes the angles of keys that are already cached)"
        )
    partial = rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ModelError(f"{folder}: partial_rotary_factor {partial} is not supported, only 1")
    original = raw.get("original_max_position_embeddings")
    original = original or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or raw["max_position_embeddings"]
    for name in ROPE_TYPES[rope["rope_type"]]:
        if not isinstance(rope.get(name), int | float):
            raise ModelError(
                f"{folder}: the rope type {rope['rope_type']} needs a number as {name}"
            )
    return rope


def _count(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number from 1; `default` where the config does not say (or says null)."""
    value = default if raw.get(name) is None else raw[name]
    if value is None:
        raise KeyError(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1, not {value!r}")
    return value


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {value}
