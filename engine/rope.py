"""Rotary position embeddings (Su et al. 2021) and their extensions to longer contexts.

A pair of halves of each head is turned by an angle that grows with the position, at one frequency a pair. The
extensions only change the frequencies: linear (Chen et al. 2023), yarn (Peng et al. 2023), llama3 (Meta 2024).
`dynamic` is not here: it changes the frequencies as a text grows, and keys that are in the cache cannot be turned
again.
"""

import math
from typing import Any

import torch
from torch import Tensor

ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Rope type -> the parameters that it cannot do without."""


def rope_table(
    theta: float, head_dim: int, num_positions: int, scaling: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for every position, each [num_positions, 1, head_dim // 2] in float32.

    scaling: the checkpoint's rope parameters, with `rope_type` one of ROPE_TYPES and what that type needs.
    """
    powers = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**powers
    amplitude = 1.0
    rope_type = scaling.get("rope_type", "default")
    if rope_type == "linear":
        frequencies = frequencies / scaling["factor"]
    elif rope_type == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif rope_type == "yarn":
        frequencies = _yarn(frequencies, theta, head_dim, scaling)
        amplitude = _yarn_amplitude(scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies).unsqueeze(1)
    return angles.cos() * amplitude, angles.sin() * amplitude


def _llama3(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Slow waves are stretched by the factor, fast ones kept, those between blended."""
    factor, low, high = (
        scaling["factor"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
    )
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequencies / factor, frequencies, blend)


def _yarn(frequencies: Tensor, theta: float, head_dim: int, scaling: dict[str, Any]) -> Tensor:
    """As llama3, with the blend a ramp over the dimensions."""
    original = scaling["original_max_position_embeddings"]

    def dimension_of(num_turns: float) -> float:
        return head_dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (
        dimension_of(scaling.get("beta_fast") or 32),
        dimension_of(scaling.get("beta_slow") or 1),
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    blend = 1 - ramp.clamp(0, 1)
    return torch.lerp(frequencies / scaling["factor"], frequencies, blend)


def _yarn_amplitude(scaling: dict[str, Any]) -> float:
    """Yarn also scales the attention's logits, through the length of queries and keys."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = scaling["factor"]

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grown(scaling["mscale"]) / grown(scaling["mscale_all_dim"])
    return grown(1.0)
