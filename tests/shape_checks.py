"""Checks the shapes and dtypes that boundary functions and dataclasses declare, with jaxtyping and beartype.

Axis names must agree within one call. The product itself never checks them: a checked function costs tens of microseconds, and
Dynamo cannot trace it. So the tests of torch.compile and torch.export, and those of wrong inputs, run without checks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from beartype import beartype
from jaxtyping import jaxtyped

from tfkit import DecodingState, Model
from tfkit.attention import rendering
from tfkit.builtin.placement.residual_layers import Parallel, Sequential
from tfkit.inspection import Padding
from tfkit.nn.runtime.decoding_state import KeyValueCache
from tfkit.nn.stack import Residual
from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias, Mask
from tfkit.plugin.model_parts import FeedForward, MultiHeadAttention, NodeOutput

METHODS: list[tuple[type, str]] = [
    *((kind, "forward") for kind in (MultiHeadAttention, FeedForward, Residual, Sequential, Parallel)),
    *((Model, name) for name in ("step", "branch")),
    *((kind, "__init__") for kind in (AttentionInputs, AttentionOutput, Mask, DenseBias, LinearBias, DistanceBias)),
    *((kind, "__init__") for kind in (NodeOutput, Padding)),
    (Padding, "as_visible"), (KeyValueCache, "write"), (DecodingState, "remember"),
]  # fmt: skip
FUNCTIONS = ("visible", "queries_that_see", "unmask_empty_rows", "dense_bias", "distances", "expand_heads")
USERS = (
    *(f"attention.{name}" for name in ("eager", "sdpa", "flex", "cudnn")),
    "score.scores",
    *(f"position.{name}" for name in ("entries", "score_biases")),
)
"""Parts, which import the functions by name when first used: imported here, so that none keeps a checked one."""


def checked(function: Any) -> Any:
    return jaxtyped(typechecker=beartype)(function)


def _places() -> Iterator[tuple[Any, str, Any]]:
    for kind, name in METHODS:
        yield kind, name, checked(vars(kind)[name])
    import_module("tfkit.cpu.few_queries")
    for user in USERS:
        import_module(f"tfkit.builtin.{user}")
    for name in FUNCTIONS:
        plain = getattr(rendering, name)
        replacement = checked(plain)
        for path, module in list(sys.modules.items()):
            if path.startswith("tfkit.") and vars(module).get(name) is plain:
                yield module, name, replacement


PLACES = list(_places())


@contextmanager
def shapes_checked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for place, name, replacement in PLACES:
            patch.setattr(place, name, replacement)
        yield
