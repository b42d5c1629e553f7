"""The decoder: a Qwen3 transformer as plain functions over its weights.

x is the flat batch, [num_tokens, hidden_size]: tokens of all requests in one row, no padding.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import Backend
from .probe import Probe


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of a checkpoint that the decoder needs (names as in its config.json)."""

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
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]


@dataclass
class Layer:
    """The weights of one layer. Query, key and value share a matrix, and so do gate and up."""

    input_layernorm: Tensor
    qkv_proj: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o_proj: Tensor
    post_attention_layernorm: Tensor
    gate_up_proj: Tensor
    down_proj: Tensor


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

    @property
    def max_seqlen_q(self) -> int:
        """The most rows of one sequence."""
        return max(b - a for a, b in zip(self.cu_seqlens_q, self.cu_seqlens_q[1:], strict=False))

    @property
    def max_seqlen_k(self) -> int:
        """The longest context."""
        return max(self.context_lens)


class Decoder:
    """Runs a flat batch through all layers. Holds weights, no state of requests."""

    def __init__(
        self, config: ModelConfig, embed_tokens: Tensor, layers: list[Layer], norm: Tensor, lm_head: Tensor,
        backend: Backend,
    ) -> None:
        self.config = config
        self.embed_tokens = embed_tokens
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head
        self.backend = backend
        self.probe: Probe | None = None
        self._cos, self._sin = _rope_table(config, embed_tokens.device, embed_tokens.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the KV cache."""
        return self.embed_tokens.dtype

    def forward(self, batch: Batch, kv_cache: Tensor) -> Tensor:
        """Logits of the wanted rows, [len(batch.logits_rows), vocab_size], in float32.

        kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], written and read.
        """
        device = self.embed_tokens.device
        positions = torch.tensor(batch.positions, device=device)
        slots = torch.tensor(batch.slot_mapping, device=device)
        tables = [torch.tensor(table, device=device) for table in batch.block_tables]
        cos, sin = self._cos[positions], self._sin[positions]
        x = F.embedding(torch.tensor(batch.input_ids, device=device), self.embed_tokens)
        for i, layer in enumerate(self.layers):
            x = x + self._attention(i, layer, x, cos, sin, batch, slots, tables, kv_cache[i])
            x = x + self._mlp(layer, x)
        x = self._norm(x[torch.tensor(batch.logits_rows, dtype=torch.long, device=device)], self.norm)
        return F.linear(x, self.lm_head).float()

    def _attention(
        self, i: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch, slots: Tensor,
        tables: list[Tensor], kv_cache: Tensor,
    ) -> Tensor:
        c = self.config
        num_q, num_kv = c.num_attention_heads, c.num_key_value_heads
        qkv = F.linear(self._norm(x, layer.input_layernorm), layer.qkv_proj)
        qkv = qkv.view(-1, num_q + 2 * num_kv, c.head_dim)
        q, k, v = qkv.split([num_q, num_kv, num_kv], dim=1)
        q = _rotate(self._norm(q, layer.q_norm), cos, sin)
        k = _rotate(self._norm(k, layer.k_norm), cos, sin)
        k_cache, v_cache = kv_cache
        self.backend.store_kvcache(k, v, k_cache, v_cache, slots)
        if self.probe:
            self.probe("store_kvcache", layer=i, num_layers=c.num_hidden_layers, batch=batch)
        out = self.backend.paged_attention(
            q, k_cache, v_cache, tables, batch.cu_seqlens_q, batch.context_lens, c.head_dim**-0.5
        )
        if self.probe:
            self.probe("attention", layer=i, num_layers=c.num_hidden_layers, batch=batch)
        return F.linear(out.flatten(1), layer.o_proj)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = F.linear(self._norm(x, layer.post_attention_layernorm), layer.gate_up_proj).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down_proj)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), eps=self.config.rms_norm_eps).to(x.dtype) * weight


def _rope_table(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding for every position, [max_positions, 1, head_dim // 2]."""
    powers = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32, device=device)
    angles = torch.outer(positions, 1.0 / config.rope_theta**powers).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x, [num_tokens, num_heads, head_dim]: halves turned against each other."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
