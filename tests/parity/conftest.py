"""Our side of every comparison: a shipped spec made small, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit import build, load_spec

SPECS = Path(__file__).parents[2] / "specs"
WIDTHS = {"d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff", "dims"}
LENGTHS = {"num_layers", "repeat", "max_len", "window", "trained_len"}
IMAGES = {"size", "patch", "channels", "classes"}
SIZES = WIDTHS | LENGTHS | IMAGES | {"vocab_size", "pad_id", "start_id", "end_id"}
"""All that a comparison may change: everything else that a spec says is what is being proven."""


@pytest.fixture(scope="session")
def shrunk(catalogue) -> Callable[..., Any]:
    """`shrunk("gpt2", "defaults.d_model=24", ...)`: the model of a shipped spec, of another size."""

    def make(name: str, *sizes: str, wrong: tuple[str, ...] = ()) -> Any:
        assert {size.partition("=")[0].rpartition(".")[2] for size in sizes} <= SIZES
        spec = load_spec(SPECS / f"{name}.yaml", catalogue, overrides=["expect=null", *sizes, *wrong])
        return build(spec, catalogue, dtype=torch.float64).eval()

    return make


@pytest.fixture(scope="session")
def padded() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """`padded((7, 3), 61, pad=0)`: random ids (B, L) with `pad` on the right, and which of them are real, (B, L) bool."""

    def make(
        lengths: tuple[int, ...], vocabulary: int, pad: int = 0, start: int | None = None, end: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(0, vocabulary - 3, (len(lengths), max(lengths)), generator=generator)
        for special in sorted(item for item in {pad, start, end} if item is not None):
            ids += ids >= special
        if start is not None:
            ids[:, 0] = start
        if end is not None:
            ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = end
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return ids.where(real, pad), real

    return make
