"""Every model family gives transformers' logits and tokens; what it cannot compute is refused."""

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import POLICIES, compare, generate, reference_greedy, reference_logits
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import greedy, make_engine, random_tokenizer
from tourvllm.engine import loader
from tourvllm.engine.config import EngineConfig
from tourvllm.engine.errors import ModelError
from tourvllm.engine.families import load_config
from tourvllm.engine.hub import model_folder
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.engine.model import Linear
from tourvllm.engine.rope import rope_table
from tourvllm.kernels import get_backend

VOCAB = 160

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3", {"head_dim": 32}),
    "Qwen3, tied, MHA, biases": (
        "Qwen3",
        {
            "head_dim": 16,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "attention_bias": True,
        },
    ),
    "Qwen2": ("Qwen2", {"sliding_window": 8, "use_sliding_window": False}),
    "Qwen2, tied, MHA": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "Llama": ("Llama", {}),
    "Llama, tied, MHA": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": None}),
    "Llama, head_dim, one KV head": ("Llama", {"head_dim": 24, "num_key_value_heads": 1}),
    "Llama, attention_bias": ("Llama", {"attention_bias": True}),
    "Llama, mlp_bias": ("Llama", {"mlp_bias": True, "head_dim": 8}),
    "Mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "Mistral, tied": ("Mistral", {"sliding_window": None, "tie_word_embeddings": True}),
}
"""What is tested: a name, the family, and what its config says beyond SHAPE."""

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn, all": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn, attention_factor": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.8},
}

GONE = object()

LLAMA3_2 = {**ROPES["llama3"], "factor": 32.0}
LLAMA3_2["original_max_position_embeddings"] = 8192

ERAS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rope_scaling, type": lambda rope: {
        "rope_parameters": GONE,
        "rope_theta": 5000.0,
        "rope_scaling": renamed(rope, "type"),
    },
    "rope_scaling, rope_type": lambda rope: {
        "rope_parameters": GONE,
        "rope_theta": 5000.0,
        "rope_scaling": rope,
    },
    "rope_parameters": lambda rope: {"rope_parameters": {**rope, "rope_theta": 5000.0}},
    "both": lambda rope: {
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "rope_theta": 100.0,
        "rope_scaling": {**rope, "rope_theta": 5000.0},
    },
}
"""How checkpoints of different years write the same rope parameters."""

Weights = dict[str, torch.Tensor]
INDEX = "model.safetensors.index.json"
SHARD, OTHER_SHARD = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"


def renamed(rope: dict[str, Any], key: str) -> dict[str, Any]:
    return {key if name == "rope_type" else name: value for name, value in rope.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a name of MODELS to its folder, made when it is first asked for."""
    return functools.cache(
        lambda name: save_random(tmp_path_factory.mktemp("model"), *MODELS[name])
    )


def save_random(
    folder: Path, family: str, config: dict[str, Any], max_shard_size: str = "1GB"
) -> Path:
    """Save a random model of a family as transformers does, with every weight away from its default."""
    import transformers

    torch.manual_seed(8)
    settings = getattr(transformers, f"{family}Config")(**{**SHAPE, **config})
    model = getattr(transformers, f"{family}ForCausalLM")(settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    random_tokenizer(VOCAB).save_pretrained(folder)
    return folder


def token_ids(seed: int, count: int) -> list[int]:
    return torch.randint(1, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


BASE = token_ids(1, 60)
PROMPTS = [
    BASE[:41],
    BASE[:41] + token_ids(2, 9),
    token_ids(3, 5),
    BASE[:20] + token_ids(4, 3),
    [9],
]
ARRIVALS = [1, 1, 1, 14, 16]
TIGHT = {"block_size": 4, "num_blocks": 18, "max_num_batched_tokens": 9}
"""Too little of everything: prompts are cut, and running requests lose their places."""


def family(name: str) -> str:
    return name.partition(",")[0]


# The same logits and tokens


@pytest.mark.parametrize("name", MODELS)
def test_one_request(models, name):
    compare(family(name), models(name), [BASE], 16, block_size=5)
    (output,) = generate(make_engine(models(name)), [BASE], greedy(16))
    assert output.token_ids == reference_greedy(models(name), tuple(BASE), 16)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_batches(models, name, dtype, policy):
    """Prefix hits, chunks and preemptions, all in one run."""
    watched = compare(
        family(name), models(name), PROMPTS, 12, dtype, policy=policy, arrivals=ARRIVALS, **TIGHT
    )
    assert watched.facts("chunk")
    assert watched.facts("preempt")
    assert any(facts["hits"] for facts in watched.facts("can_allocate"))


@pytest.mark.parametrize("name", ["Qwen3", "Qwen2", "Llama", "Mistral"])
def test_plain_kernels(models, name):
    compare(name, models(name), PROMPTS, 12, arrivals=ARRIVALS, attention="torch", **TIGHT)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("era", ERAS)
def test_rope_keys_of_every_era(models, tmp_path, rope, era):
    folder = altered(models("Llama"), tmp_path / "m", **ERAS[era](ROPES[rope]))
    compare("Llama", folder, [BASE], 8)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", ["Qwen3", "Qwen2", "Llama, attention_bias", "Mistral"])
def test_ropes(models, tmp_path, name, rope, policy):
    changes = ERAS["rope_parameters"](ROPES[rope])
    folder = altered(models(name), tmp_path / "m", **changes)
    compare(family(name), folder, PROMPTS, 8, policy=policy, arrivals=ARRIVALS, **TIGHT)
    plain = reference_logits(models(name), BASE, "float32")
    assert (reference_logits(folder, BASE, "float32") - plain).abs().max() > 0.1


@pytest.mark.parametrize(
    ("head_dim", "positions", "theta", "rope"),
    [
        (64, 8192, 1e5, {"rope_type": "default"}),
        (128, 16384, 1e4, {"rope_type": "linear", "factor": 2.5}),
        (64, 131072, 5e5, LLAMA3_2),
        (
            128,
            131072,
            1e6,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        ),
    ],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else "",
)
def test_rope_at_every_position_of_long_models(head_dim, positions, theta, rope):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=positions,
        rope_parameters={**rope, "rope_theta": theta},
    )
    wanted = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(positions)[None])
    found = rope_table(theta, head_dim, positions, rope)
    for mine, theirs in zip(found, wanted, strict=True):
        # One rounding of a frequency in float32, times the position, is 1e-2 at the worst; these are far below.
        torch.testing.assert_close(mine[:, 0], theirs[0, :, : head_dim // 2], rtol=0, atol=3e-5)


# Reading the files


@pytest.mark.parametrize("name", ["Qwen3", "Llama, tied, MHA", "Qwen2"])
def test_sharded_files(models, tmp_path, name):
    folder = save_random(tmp_path, *MODELS[name], max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    compare(family(name), folder, PROMPTS, 8)
    single, sharded = (make_engine(f).model_runner.model for f in (models(name), folder))
    for one, other in zip(tensors(single), tensors(sharded), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_loaded_once(models, monkeypatch, name):
    loads: Counter[str] = Counter()

    class Counted:
        def __init__(self, *args: Any, **settings: Any) -> None:
            self.file = safe_open(*args, **settings)
            self.keys = self.file.keys

        def get_tensor(self, name: str) -> torch.Tensor:
            loads[name] += 1
            return self.file.get_tensor(name)

    monkeypatch.setattr(loader, "safe_open", Counted)
    folder = models(name)
    decoder = load(folder)
    stored = load_file(folder / "model.safetensors")
    assert loads == Counter(list(stored))
    assert sum(t.numel() for t in tensors(decoder)) == sum(t.numel() for t in stored.values())
    tied = MODELS[name][1].get("tie_word_embeddings", False)
    assert (decoder.lm_head.weight is decoder.embed_tokens) == tied
    assert ("lm_head.weight" in stored) != tied


def load(folder: Path, progress: loader.Progress | None = None) -> Any:
    backend = get_backend("torch", "cpu")
    return loader.load_decoder(folder, load_config(folder), "float32", "cpu", backend, progress)


def tensors(decoder: Any) -> list[torch.Tensor]:
    """All weights of a decoder, a tied one once."""
    found = [decoder.embed_tokens, decoder.norm, decoder.lm_head.weight]
    for layer in decoder.layers:
        for part in vars(layer).values():
            found += [part.weight, part.bias] if isinstance(part, Linear) else [part]
    return list({id(tensor): tensor for tensor in found if tensor is not None}.values())


def test_progress_is_told_after_each_layer(models, tmp_path):
    folder, seen = models("Llama"), []
    load(folder, seen.append)
    assert seen == [1 / 3, 2 / 3, 1.0]
    seen.clear()
    LLMEngine(altered(folder, tmp_path / "m"), EngineConfig(device="cpu"), seen.append)
    assert seen == [1 / 3, 2 / 3, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtype_is_that_of_weights_and_cache(models, dtype):
    runner = make_engine(models("Qwen3"), dtype=dtype).model_runner
    wanted = getattr(torch, dtype)
    assert {tensor.dtype for tensor in tensors(runner.model)} == {wanted}
    assert runner.kv_cache.dtype == wanted


def test_auto_is_float32_on_a_cpu(models, tmp_path):
    folder = altered(models("Qwen3"), tmp_path / "m", dtype="bfloat16")
    assert make_engine(folder).model_runner.model.dtype == torch.float32


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(models, tmp_path):
    folder = models("Llama, tied, MHA")

    def stored(weights: Weights, factor: float) -> Weights:
        return weights | {"lm_head.weight": weights["model.embed_tokens.weight"] * factor}

    same = rewrite(folder, tmp_path / "same", lambda weights: stored(weights, 1.0))
    compare("Llama", same, [BASE], 8)
    model = make_engine(same).model_runner.model
    assert model.lm_head.weight is model.embed_tokens
    # Transformers would not tie these, other engines would: it is for the user to say.
    other = rewrite(folder, tmp_path / "other", lambda weights: stored(weights, 1.5))
    with pytest.raises(ModelError, match=r"ties lm_head.weight to model.embed_tokens.weight"):
        make_engine(other)


def test_old_rotary_buffers_are_ignored(models, tmp_path):
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(3)}
    compare("Llama", rewrite(models("Llama"), tmp_path / "m", lambda w: w | buffers), [BASE], 8)


# Refusals


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Llama", {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; .*"),
        ("Llama", {"architectures": GONE}, "the architecture .none named. is not supported; .*"),
        ("Llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supp"),
        ("Qwen2", {"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not"),
        ("Qwen3", {"rope_scaling": {"rope_type": "yarn"}}, "rope type yarn needs a number as fact"),
        (
            "Llama",
            {"rope_scaling": {**ROPES["llama3"], "low_freq_factor": "x"}},
            "rope type llama3 needs a number as low_freq_factor",
        ),
        ("Llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ("Mistral", {"sliding_window": 64}, "sliding_window 64"),
        ("Qwen2", {"use_sliding_window": True}, "sliding window"),
        ("Qwen3", {"quantization_config": {"quant_method": "gptq"}}, "quantized weights"),
        ("Qwen3", {"hidden_act": "gelu"}, "'gelu' is not supported"),
        ("Llama", {"pretraining_tp": 2}, "pretraining_tp 2"),
        ("Llama", {"hidden_size": GONE}, "does not say 'hidden_size'"),
        ("Llama", {"num_attention_heads": "four", "head_dim": 16}, "num_attention_heads must be"),
        ("Llama", {"rope_scaling": "linear"}, "cannot be used"),
        ("Llama", {"num_key_value_heads": 3}, "must be a multiple of the 3 KV heads"),
        ("Llama", {"head_dim": 15}, "head_dim 15 must be even"),
        ("Llama", {"tie_word_embeddings": True}, "ties lm_head"),
        ("Llama", {"attention_bias": True}, "self_attn.q_proj.bias is missing"),
        ("Llama, mlp_bias", {"mlp_bias": False}, "unexpected tensors: model.layers.0.mlp.down_pro"),
        ("Qwen2", {"head_dim": 8}, r"q_proj.weight has shape \(64, 64\), not \(32, 64\)"),
        ("Llama", {"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight is missing"),
        ("Llama", {"num_hidden_layers": 2}, "unexpected tensors: model.layers.2."),
    ],
)
def test_what_the_config_says_is_refused_by_name(models, tmp_path, name, changes, words):
    with pytest.raises(ModelError, match=words) as raised:
        make_engine(altered(models(name), tmp_path / "m", **changes))
    if words.endswith("; .*"):
        for architecture in ("Qwen3", "Qwen2", "Llama", "Mistral"):
            assert f"{architecture}ForCausalLM" in str(raised.value)


def test_mistral_has_a_window_unless_its_config_says_otherwise(models, tmp_path):
    """transformers takes 4096 where the key is missing, and so the full attention would be wrong."""
    folder = altered(models("Mistral"), tmp_path / "m", sliding_window=GONE)
    assert "sliding_window" not in json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="sliding_window 4096"):
        make_engine(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "Llama",
            lambda w: without(w, "lm_head.weight"),
            "the tensor lm_head.weight is missing",
        ),
        (
            "Llama, tied, MHA",
            lambda w: without(w, "model.embed_tokens.weight"),
            "the tensor model.embed_tokens.weight is missing",
        ),
        (
            "Qwen3",
            lambda w: without(w, "model.layers.1.self_attn.q_norm.weight"),
            "the tensor model.layers.1.self_attn.q_norm.weight is missing",
        ),
        (
            "Qwen2",
            lambda w: without(w, "model.layers.2.self_attn.v_proj.bias"),
            "the tensor model.layers.2.self_attn.v_proj.bias is missing",
        ),
        (
            "Qwen3",
            lambda w: w | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(128)},
            "unexpected tensors: model.layers.0.self_attn.q_proj.bias",
        ),
        (
            "Mistral",
            lambda w: w | {"model.layers.0.mlp.experts.gate": torch.zeros(1)},
            "unexpected tensors: model.layers.0.mlp.experts.gate",
        ),
        (
            "Llama",
            lambda w: w | {"model.norm.weight": torch.ones(65)},
            r"model.norm.weight has shape \(65,\), not \(64,\)",
        ),
        (
            "Llama",
            lambda w: w | {"model.norm.weight": torch.ones(64, dtype=torch.int8)},
            "model.norm.weight holds int8, and quantized weights are not supported",
        ),
    ],
)
def test_what_the_files_hold_is_refused_by_name(models, tmp_path, name, change, words):
    with pytest.raises(ModelError, match=words):
        make_engine(rewrite(models(name), tmp_path / "m", change))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
        (lambda folder: write(folder / "config.json", "["), "config.json cannot be read"),
        (lambda folder: write(folder / "config.json", "[]"), "does not hold a JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "the tokenizer cannot be loaded"),
        (lambda folder: write(folder / SHARD, "{}"), f"{SHARD} cannot be read"),
        (lambda folder: cut(folder / SHARD), f"{SHARD} cannot be read"),
        (lambda folder: (folder / SHARD).unlink(), f"{SHARD} cannot be read"),
        (lambda folder: (folder / INDEX).unlink(), "model.safetensors cannot be read"),
        (lambda folder: write(folder / INDEX, "{"), f"{INDEX} cannot be read"),
        (lambda folder: write(folder / INDEX, "{}"), "has no weight_map"),
        (
            lambda folder: write(folder / INDEX, json.dumps({"weight_map": {"x": SHARD}})),
            "the tensor .* is missing",
        ),
        (
            lambda folder: shutil.copy(folder / SHARD, folder / OTHER_SHARD),
            f"is in both {SHARD} and {OTHER_SHARD}",
        ),
    ],
)
def test_a_damaged_folder_is_a_sentence(sharded, tmp_path, damage, words):
    folder = Path(shutil.copytree(sharded, tmp_path / "m"))
    damage(folder)
    with pytest.raises(ModelError, match=words) as raised:
        make_engine(folder)
    assert str(folder) in str(raised.value)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    return save_random(folder, *MODELS["Llama"], max_shard_size="200KB")


def write(path: Path, text: str) -> None:
    path.write_text(text)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def without(weights: Weights, name: str) -> Weights:
    return {key: value for key, value in weights.items() if key != name}


def rewrite(folder: Path, target: Path, change: Callable[[Weights], Weights]) -> Path:
    """A copy of a model folder whose tensors went through `change`."""
    copy = Path(shutil.copytree(folder, target))
    weights = change(load_file(folder / "model.safetensors"))
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, copy / "model.safetensors")
    return copy


def altered(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a model folder with other values in its config; GONE takes a key out."""
    copy = Path(shutil.copytree(folder, target))
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not GONE}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


# Hub ids


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub on a machine that is offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put(folder: Path, hub: Path) -> Path:
    """Lay a model out as the hub's client keeps it."""
    repository = hub / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return Path(shutil.copytree(folder, repository / "snapshots" / ("0" * 40)))


def test_a_hub_id_is_found_in_the_cache_without_a_network(hub, models):
    folder = put(models("Qwen3"), hub)
    assert model_folder("some/model") == folder
    (output,) = generate(make_engine("some/model"), [BASE], greedy(4))
    assert output.token_ids == reference_greedy(models("Qwen3"), tuple(BASE), 4)


def test_a_download_that_was_cut_short_goes_on(hub, sharded, monkeypatch):
    folder = put(sharded, hub)
    assert model_folder("some/model") == folder
    (folder / SHARD).unlink()
    with pytest.raises(ModelError, match=f"{SHARD} cannot be read"):
        make_engine("some/model")
    calls = []

    def finish(model: str, local_files_only: bool = False, **patterns: Any) -> str:
        calls.append(local_files_only)
        if not local_files_only:
            shutil.copy(sharded / SHARD, folder)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", finish)
    assert model_folder("some/model") == folder
    assert model_folder("some/model") == folder
    assert calls == [True, False, True]


@pytest.mark.parametrize("model", ["some/model", "no-such-folder", "a/b/c"])
def test_a_model_that_cannot_be_had_is_a_sentence(hub, model):
    with pytest.raises(ModelError, match=r"Offline\? Copy|no model folder"):
        model_folder(model)
