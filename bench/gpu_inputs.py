"""What the GPU check works on: batches over a paged cache with known answers, and a model of random weights."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from tourvllm.kernels.paged_batch import PagedBatch
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Shape:
    """A batch over a paged cache: (new tokens, cached tokens) of each sequence; new 0 is a row of padding."""

    name: str
    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sequences: tuple[tuple[int, int], ...]


@dataclass
class Case:
    """A batch, its cache (NaN where nothing is stored), and the answers in float64; padding rows answer 0."""

    query: Tensor
    key: Tensor
    value: Tensor
    k_cache: Tensor
    v_cache: Tensor
    batch: PagedBatch
    expected: Tensor


def make_case(shape: Shape, dtype: torch.dtype, device: str) -> Case:
    """Random keys in shuffled blocks."""
    torch.manual_seed(0)
    size, lens = shape.block_size, [new + cached for new, cached in shape.sequences]
    needs = [-(-length // size) for length in lens]
    free = list(range(sum(needs) + 2))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needs]
    pool = (sum(needs) + 2, size, shape.num_kv_heads, shape.head_dim)
    k_cache, v_cache = torch.full(pool, torch.nan), torch.full(pool, torch.nan)
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    slots: list[int] = []
    for (new, cached), table in zip(shape.sequences, tables, strict=True):
        where = [table[p // size] * size + p % size for p in range(new + cached)]
        q = torch.randn(max(new, 1), shape.num_heads, shape.head_dim).to(dtype)
        k, v = torch.randn(2, max(new + cached, 1), *pool[2:]).to(dtype)
        if cached:
            k_cache.flatten(0, 1)[where[:cached]] = k[:cached].float()
            v_cache.flatten(0, 1)[where[:cached]] = v[:cached].float()
        answer = attention_in_float64(q, k, v) if new else torch.zeros(q.shape).double()
        rows.append((q, k[cached:], v[cached:], answer))
        slots += where[cached:] or [-1]
    query, key, value, expected = (torch.cat(part) for part in zip(*rows, strict=True))
    starts = [0]
    for q, *_ in rows:
        starts.append(starts[-1] + len(q))
    return Case(
        *(x.to(device) for x in (query, key, value)),
        *(x.to(device, dtype) for x in (k_cache, v_cache)),
        PagedBatch.from_lists(slots, starts, lens, tables, device),
        expected,
    )


def attention_in_float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last len(q) positions over all keys, each [tokens, heads, head_dim]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    positions = torch.arange(len(k))
    scores = scores.masked_fill(positions[None] > positions[-len(q) :, None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def save_random_qwen3(folder: Path, config: dict[str, Any], device: str) -> Path:
    """A Qwen3 checkpoint of random bfloat16 weights, tied, with a tokenizer that names the tokens w0, w1, .."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)
    weights = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else (torch.randn(shape, generator=generator, device=device) * 0.02).bfloat16().cpu()
        for name, shape in qwen3_shapes(config).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    fixed = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(fixed | config))
    words = {f"w{i}": i for i in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def qwen3_shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a tied Qwen3."""
    hidden, inner, head_dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q_rows, kv_rows = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_rows, hidden),
        "self_attn.k_proj": (kv_rows, hidden),
        "self_attn.v_proj": (kv_rows, hidden),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "self_attn.o_proj": (hidden, q_rows),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(c["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes
