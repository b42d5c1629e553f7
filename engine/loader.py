"""From the safetensors of a Hugging Face folder to a decoder. Every tensor is loaded exactly once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..kernels import Backend
from .errors import ModelError
from .hub import read_json
from .model import Decoder, Layer, Linear, ModelConfig

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Progress = Callable[[float], None]
"""Called with the share of the weights that is loaded, 0 to 1."""


def load_decoder(
    folder: Path,
    config: ModelConfig,
    dtype: str,
    device: str,
    backend: Backend,
    progress: Progress | None = None,
) -> Decoder:
    """Load the weights and build the decoder. A missing or unexpected tensor is named (ModelError)."""
    c, weights = config, Weights(folder, device, getattr(torch, dtype))
    embed_tokens = weights.take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    layers = []
    for i in range(c.num_hidden_layers):
        layers.append(_load_layer(weights, f"model.layers.{i}.", c))
        if progress:
            progress((i + 1) / c.num_hidden_layers)
    norm = weights.take("model.norm.weight", c.hidden_size)
    lm_head = Linear(_load_head(weights, embed_tokens, c))
    weights.check_all_taken()
    return Decoder(config, embed_tokens, layers, norm, lm_head, backend)


def _load_head(weights: "Weights", embed_tokens: Tensor, c: ModelConfig) -> Tensor:
    """The matrix that makes logits: stored, or tied to the embedding; some tied checkpoints store it as well."""
    if c.tie_word_embeddings and "lm_head.weight" not in weights:
        return embed_tokens
    stored = weights.take("lm_head.weight", c.vocab_size, c.hidden_size)
    if c.tie_word_embeddings and not torch.equal(stored, embed_tokens):
        raise ModelError(
            f"{weights.folder}: config.json ties lm_head.weight to model.embed_tokens.weight "
            "(tie_word_embeddings), and the files hold another lm_head.weight: one of the two is wrong"
        )
    return embed_tokens if c.tie_word_embeddings else stored


def _load_layer(weights: "Weights", name: str, c: ModelConfig) -> Layer:
    q_rows, kv_rows = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    hidden, inner = c.hidden_size, c.intermediate_size
    attention, mlp = name + "self_attn.", name + "mlp."
    qkv, gate_up = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
    return Layer(
        input_layernorm=weights.take(name + "input_layernorm.weight", hidden),
        qkv_proj=weights.linear(attention, qkv, (q_rows, kv_rows, kv_rows), hidden, c.qkv_bias),
        q_norm=weights.take(attention + "q_norm.weight", c.head_dim) if c.qk_norm else None,
        k_norm=weights.take(attention + "k_norm.weight", c.head_dim) if c.qk_norm else None,
        o_proj=weights.linear(attention, ("o_proj",), (hidden,), q_rows, c.o_bias),
        post_attention_layernorm=weights.take(name + "post_attention_layernorm.weight", hidden),
        gate_up_proj=weights.linear(mlp, gate_up, (inner, inner), hidden, c.mlp_bias),
        down_proj=weights.linear(mlp, ("down_proj",), (hidden,), inner, c.mlp_bias),
    )


class Weights:
    """The tensors of a checkpoint folder, each handed out once."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.folder, self.device, self.dtype = folder, device, dtype
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        for path in self._paths():
            for name in self._open(path).keys():  # noqa: SIM118 (not a dict)
                if name in self._where:
                    raise ModelError(
                        f"{folder}: the tensor {name} is in both {self._where[name].name} and {path.name}"
                    )
                self._where[name] = path
        # Old checkpoints store the angles of the rotary embedding, which the decoder computes.
        self._left = {name for name in self._where if not name.endswith("rotary_emb.inv_freq")}

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have this shape, on the device and in the dtype asked for."""
        if name not in self._where:
            raise ModelError(f"{self.folder}: the tensor {name} is missing")
        try:
            tensor: Tensor = self._open(self._where[name]).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{self._where[name]}: the tensor {name} cannot be read: {error}"
            ) from error
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self.folder}: the tensor {name} has shape {tuple(tensor.shape)}, not {shape}"
            )
        if tensor.dtype not in FLOATS:
            raise ModelError(
                f"{self.folder}: the tensor {name} holds {str(tensor.dtype).removeprefix('torch.')}, and "
                "quantized weights are not supported; take the unquantized checkpoint"
            )
        self._left.discard(name)
        return tensor.to(self.device, self.dtype)

    def linear(
        self, prefix: str, parts: tuple[str, ...], rows: tuple[int, ...], columns: int, bias: bool
    ) -> Linear:
        """Matrices that see the same input, as one: their rows below each other."""
        weight = [
            self.take(f"{prefix}{p}.weight", n, columns) for p, n in zip(parts, rows, strict=True)
        ]
        biases = [
            self.take(f"{prefix}{p}.bias", n) for p, n in zip(parts, rows, strict=True) if bias
        ]
        return Linear(torch.cat(weight), torch.cat(biases) if bias else None)

    def check_all_taken(self) -> None:
        """Raise ModelError if the files hold a tensor that the architecture does not have."""
        if self._left:
            raise ModelError(
                f"{self.folder}: unexpected tensors: {', '.join(sorted(self._left)[:5])}"
            )

    def _paths(self) -> list[Path]:
        """The shards that the index names if there is one, else the single file."""
        index = self.folder / "model.safetensors.index.json"
        if not index.exists():
            return [self.folder / "model.safetensors"]
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index} has no weight_map")
        return [self.folder / Path(name).name for name in sorted(set(weight_map.values()))]

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt", device=self.device)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error
        return self._files[path]
