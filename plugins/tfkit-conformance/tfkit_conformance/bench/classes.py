"""The classes of calls that `auto` distinguishes, and the cells that represent each: `tfkit bench auto` measures these.

A class is a dtype, a range of lengths and conditions (`tfkit.attention.auto_table.AutoRow`); the conditions exclude each other.
Padding here is even: a row's length is anything from half the longest up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cells import Cell, Scale

LENGTHS = {"cpu": (32, 64, 128, 256, 512), "cuda": (128, 512, 2048, 8192)}
CACHES = {"cpu": (32, 128, 512, 2048), "cuda": (512, 4096, 32768, 131072)}
HEAD_DIMS = {"cpu": (64,), "cuda": (64, 128)}
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("bfloat16", "float16", "float32")}
SCALES = {"cpu": Scale(1024, 512, 2048), "cuda": Scale(16384, 2048, 131072)}

DENSE: Mapping[str, Any] = {}
CAUSAL: Mapping[str, Any] = {"causal": True}
ENCODER: Mapping[str, Any] = {"text": "even"}
DECODER: Mapping[str, Any] = {"text": "even", "side": "decoder", "causal": True}
T5: Mapping[str, Any] = {"bias": "distance"}
ALIBI: Mapping[str, Any] = {"bias": "linear", "causal": True}

PLAIN = {"dropout": False, "biased": False, "bias_gradient": False}
KINDS: tuple[tuple[str, dict[str, bool], tuple[Mapping[str, Any], ...]], ...] = (
    ("plain", {**PLAIN, "gradients": False, "masked": False, "decoding": False}, (DENSE, CAUSAL)),
    ("plain", {**PLAIN, "gradients": True, "masked": False}, (DENSE, CAUSAL)),
    ("masked", {**PLAIN, "gradients": False, "masked": True, "decoding": False}, (ENCODER, DECODER)),
    ("masked", {**PLAIN, "gradients": True, "masked": True}, (ENCODER, DECODER)),
    ("biased", {"dropout": False, "biased": True, "gradients": False, "decoding": False}, (T5, ALIBI)),
    ("biased", {"dropout": False, "biased": True, "gradients": True, "bias_gradient": False}, (ALIBI,)),
    ("learnt_bias", {"dropout": False, "gradients": True, "bias_gradient": True}, (T5,)),
    ("dropout", {"dropout": True}, (CAUSAL, DECODER)),
)
DECODING = {"dropout": False, "gradients": False, "decoding": True}
"""A single query is bound by reading the keys, with any mask and bias."""


@dataclass(frozen=True)
class CallClass:
    """Conditions at one measured length, and the cells whose geometric mean stands for them."""

    conditions: tuple[tuple[str, bool], ...]
    length: int
    cells: tuple[Cell, ...]


def classes(kind: str, lengths: Sequence[int] | None = None) -> Iterator[CallClass]:
    """The classes of a kind of device, at the usual lengths or those given."""
    for name, conditions, shapes in KINDS:
        training = conditions.get("gradients", True)
        way = "training" if training else "forward"
        for length in lengths or LENGTHS[kind]:
            cells = tuple(
                Cell(f"{name}-{number}-d{head_dim}-{length}/{way}", name, head_dim, length, training=training,
                     dropout=0.1 if conditions["dropout"] else 0.0, **shape)
                for head_dim in HEAD_DIMS[kind] for number, shape in enumerate(shapes)
            )  # fmt: skip
            yield CallClass(tuple(conditions.items()), length, cells)
    for length in lengths or CACHES[kind]:
        cells = tuple(
            Cell(f"decode-g{groups}-d{head_dim}-{length}/forward", "decode", head_dim, length, causal=True, decode=True,
                 groups=groups)
            for head_dim in HEAD_DIMS[kind] for groups in (1, 4)
        )  # fmt: skip
        yield CallClass(tuple(DECODING.items()), length, cells)
