"""Qwen3 in plain PyTorch, for training.

Parameters carry the names of transformers' Qwen3ForCausalLM, so a state dict is a checkpoint as it
is. Written out here because a short model compiles faster and is easier to read than the general
one; `sample.py --check-logits` compares the two.
"""

import torch
import torch.nn.functional as F
from torch import nn


def make_config(
    hidden_size=256,
    num_layers=5,
    num_heads=8,
    num_kv_heads=4,
    intermediate_size=640,
    vocabulary_size=2048,
    head_dim=32,
    max_positions=1024,
):
    """The architecture as transformers writes it into config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate_size,
        "vocab_size": vocabulary_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    }


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias=False)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the input type."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, inputs):
        values = inputs.float()
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps)
        return (values * self.weight).to(inputs.dtype)


def rotary_tables(length, head_dim, theta):
    """Cosines and sines of the rotary position embedding, shaped [length, 1, head_dim / 2]."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(length).float()[:, None] * frequencies
    return angles.cos()[:, None], angles.sin()[:, None]


def rotate(heads, cos, sin):
    """Turn each pair (i, i + head_dim / 2) of a head by the angle of its position."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    """Causal grouped-query attention with normalised queries and keys."""

    def __init__(self, config):
        super().__init__()
        hidden_size, head_dim = config["hidden_size"], config["head_dim"]
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config["num_key_value_heads"]
        self.head_dim = head_dim
        self.q_proj = linear(hidden_size, self.num_heads * head_dim)
        self.k_proj = linear(hidden_size, self.num_kv_heads * head_dim)
        self.v_proj = linear(hidden_size, self.num_kv_heads * head_dim)
        self.o_proj = linear(self.num_heads * head_dim, hidden_size)
        self.q_norm = RMSNorm(head_dim, config["rms_norm_eps"])
        self.k_norm = RMSNorm(head_dim, config["rms_norm_eps"])

    def forward(self, hidden, cos, sin):
        batch, length, _ = hidden.shape
        queries = self.q_proj(hidden).view(batch, length, self.num_heads, self.head_dim)
        keys = self.k_proj(hidden).view(batch, length, self.num_kv_heads, self.head_dim)
        values = self.v_proj(hidden).view(batch, length, self.num_kv_heads, self.head_dim)
        queries = rotate(self.q_norm(queries), cos, sin).transpose(1, 2)
        keys = rotate(self.k_norm(keys), cos, sin).transpose(1, 2)
        values = values.transpose(1, 2)
        group = self.num_heads // self.num_kv_heads
        keys = keys.repeat_interleave(group, 1)
        values = values.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """The gated SiLU network of each layer."""

    def __init__(self, config):
        super().__init__()
        hidden_size, inner_size = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = linear(hidden_size, inner_size)
        self.up_proj = linear(hidden_size, inner_size)
        self.down_proj = linear(inner_size, hidden_size)

    def forward(self, hidden):
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden_size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)

    def forward(self, hidden, cos, sin):
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Holds what transformers keeps under the prefix `model.`."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(
            DecoderLayer(config) for _ in range(config["num_hidden_layers"])
        )
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class LanguageModel(nn.Module):
    """The decoder with its embedding as output head (tied weights)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.initialise()

    def initialise(self):
        """Scale by fan-in; layers that write to the residual stream start smaller when deep."""
        residual_std = 0.02 / (2 * self.config["num_hidden_layers"]) ** 0.5 * 2
        for name, parameter in self.named_parameters():
            if parameter.dim() != 2:
                continue
            if "embed" in name:
                std = 0.02
            elif "o_proj" in name or "down_proj" in name:
                std = residual_std
            else:
                std = parameter.shape[1] ** -0.5 * 0.6
            nn.init.normal_(parameter, std=std)

    def forward(self, token_ids, targets=None):
        """Return the logits, or the mean cross-entropy when targets are given."""
        length = token_ids.shape[1]
        cos, sin = rotary_tables(length, self.config["head_dim"], self.config["rope_theta"])
        hidden = self.model.embed_tokens(token_ids)
        if torch.is_autocast_enabled("cpu"):
            # autocast leaves embeddings and sums alone: keep the residual stream in bfloat16 too
            hidden, cos, sin = hidden.bfloat16(), cos.bfloat16(), sin.bfloat16()
        for layer in self.model.layers:
            hidden = layer(hidden, cos, sin)
        logits = F.linear(self.model.norm(hidden), self.model.embed_tokens.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))
