"""Tensors of other libraries that are stored, although they are computed from the configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .views import Array


def whisper_positions(config: Mapping[str, Any]) -> Array:
    """The sinusoids of Whisper's encoder, (max_source_positions, d_model), in the float32 steps of transformers."""
    import torch

    half = config["d_model"] // 2
    frequencies = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, device="cpu"))
    angles = torch.arange(config["max_source_positions"], device="cpu").view(-1, 1) * frequencies.view(1, -1)
    found: Array = torch.cat([angles.sin(), angles.cos()], dim=1).double().numpy()
    return found


def marian_positions(config: Mapping[str, Any]) -> Array:
    """All sines, then all cosines, (max_position_embeddings, d_model)."""
    width = config["d_model"]
    even = np.arange(0, width, 2)
    angles = np.arange(config["max_position_embeddings"])[:, None] / 10000.0 ** (even / width)
    return np.concatenate([np.sin(angles), np.cos(angles)[:, : width // 2]], axis=1)


CONSTANTS: dict[str, Callable[[Mapping[str, Any]], Array]] = {
    "whisper_positions": whisper_positions,
    "marian_positions": marian_positions,
}
"""Every constant by its name in a map. Values are float64."""
TOLERANCE = 1e-5
"""Stored constants may differ by this much: they were computed in float32, also the angles."""
