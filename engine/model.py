"""The decoder: one transformer for all supported families. Their differences are data: a weight is there or not.

x is the flat batch, [num_tokens, hidden_size]: tokens of all requests in one row, no padding.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import Backend
from ..kernels.cpu_linear import prepared
from ..kernels.ops import rms_norm, rotate, silu_and_mul
from ..kernels.paged_batch import PagedBatch
from .probe import Probe
from .rope import rope_table


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of a checkpoint that the decoder needs (names as in its config.json).

    qkv_bias, o_bias, mlp_bias, qk_norm: which of the optional weights its family has.
    """

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any]
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: frozenset[int]
    dtype: str


class Linear:
    """A matrix and, in some families, a bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self._product = prepared(weight)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias."""
        return self._product(x, self.weight, self.bias)


@dataclass
class Layer:
    """The weights of one layer. Query, key and value share a matrix, and so do gate and up."""

    input_layernorm: Tensor
    qkv_proj: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_proj: Linear
    post_attention_layernorm: Tensor
    gate_up_proj: Linear
    down_proj: Linear


@dataclass
class Batch:
    """What one forward pass needs, as host lists (for the probe and the kernels) and as tensors.

    cu_seqlens_q[i]:cu_seqlens_q[i + 1] are the rows of sequence i; context_lens[i] its keys; slot_mapping[t]
    the KV slot of token t; logits_rows the rows whose logits are wanted: the last one of each finished prompt.
    """

    input_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    cu_seqlens_q: list[int]
    cu_seqlens_k: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    logits_rows: list[int]

    def to(self, device: torch.device) -> "Inputs":
        """Lay the step out on the device with a single copy."""
        lists = (self.input_ids, self.positions, self.logits_rows)
        paged, rest = PagedBatch.with_extras(
            self.slot_mapping,
            self.cu_seqlens_q,
            self.context_lens,
            self.block_tables,
            device,
            lists,
        )
        input_ids, positions, logits_rows = rest
        return Inputs(input_ids, positions, logits_rows, paged)

    @property
    def max_seqlen_q(self) -> int:
        """The most rows of one sequence."""
        return max(b - a for a, b in zip(self.cu_seqlens_q, self.cu_seqlens_q[1:], strict=False))

    @property
    def max_seqlen_k(self) -> int:
        """The longest context."""
        return max(self.context_lens)


@dataclass
class Inputs:
    """A batch on the device: input_ids, positions [num_tokens], logits_rows [num_wanted], all int64."""

    input_ids: Tensor
    positions: Tensor
    logits_rows: Tensor
    paged: PagedBatch


class Decoder:
    """Runs a flat batch through all layers. Holds weights, no state of requests."""

    def __init__(
        self,
        config: ModelConfig,
        embed_tokens: Tensor,
        layers: list[Layer],
        norm: Tensor,
        lm_head: Linear,
        backend: Backend,
    ) -> None:
        self.config = config
        self.embed_tokens = embed_tokens
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head
        self.backend = backend
        self.probe: Probe | None = None
        self._scale = config.head_dim**-0.5
        # The first layer has stops of its own, all others share those of the last: 30 layers were 60 stops.
        self._told_layers = {0, len(layers) - 1}
        cos, sin = rope_table(
            config.rope_theta, config.head_dim, config.max_position_embeddings, config.rope_scaling
        )
        self._cos, self._sin = cos.to(embed_tokens), sin.to(embed_tokens)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the KV cache."""
        return self.embed_tokens.dtype

    def forward(self, batch: Batch, kv_cache: Tensor) -> Tensor:
        """Logits of the wanted rows, [len(batch.logits_rows), vocab_size], in float32 or wider.

        kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], written and read.
        """
        return self.compute(batch.to(self.embed_tokens.device), kv_cache, batch)

    def compute(self, inputs: Inputs, kv_cache: Tensor, batch: Batch | None = None) -> Tensor:
        """The same from tensors alone: equal shapes are equal work. With a `batch` the probe is told of layers."""
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        x = F.embedding(inputs.input_ids, self.embed_tokens)
        for i, layer in enumerate(self.layers):
            h = self._norm(x, layer.input_layernorm)
            q, k, v = self._qkv(layer, h, cos, sin)
            h = self._attend(i, q, k, v, inputs.paged, kv_cache[i], batch)
            x = x + layer.o_proj(h)
            h = self._norm(x, layer.post_attention_layernorm)
            x = x + layer.down_proj(silu_and_mul(layer.gate_up_proj(h)))
        logits = self.lm_head(self._norm(x[inputs.logits_rows], self.norm))
        return logits if logits.dtype == torch.float64 else logits.float()

    def tell_layers(self, batch: Batch) -> None:
        """Tell the probe of the layers after a pass that could not be listened to."""
        for i in self._told_layers:
            if self.probe:
                self.probe("store_kvcache", layer=i, num_layers=len(self.layers), batch=batch)
            if self.probe:
                self.probe("attention", layer=i, num_layers=len(self.layers), batch=batch)

    def _qkv(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [num_tokens, heads, head_dim] each, turned to their positions."""
        c = self.config
        num_q, num_kv = c.num_attention_heads, c.num_key_value_heads
        qkv = layer.qkv_proj(x).view(-1, num_q + 2 * num_kv, c.head_dim)
        qk, v = qkv.split([num_q + num_kv, num_kv], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([num_q, num_kv], dim=1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
        q, k = rotate(qk, cos, sin).split([num_q, num_kv], dim=1)
        return q, k, v

    def _attend(
        self,
        i: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        paged: PagedBatch,
        kv_cache: Tensor,
        batch: Batch | None,
    ) -> Tensor:
        """Write this layer's keys and values to their slots, then attend over the paged cache."""
        k_cache, v_cache = kv_cache
        told = batch is not None and i in self._told_layers
        self.backend.store_kvcache(k, v, k_cache, v_cache, paged)
        if self.probe and told:
            self.probe("store_kvcache", layer=i, num_layers=len(self.layers), batch=batch)
        out: Tensor = self.backend.paged_attention(q, k_cache, v_cache, paged, self._scale)
        if self.probe and told:
            self.probe("attention", layer=i, num_layers=len(self.layers), batch=batch)
        return out.flatten(1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)
