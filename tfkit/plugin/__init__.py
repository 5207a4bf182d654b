"""What a plugin imports: the hook marker, the entry of every slot, options, capabilities, the contract's types and renderers.

Importing this imports no torch. Names that need torch are imported when first used. Authors of sub-layers, nodes, placements
and initialisers find what else they need in `tfkit.plugin.model_parts`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..attention.auto_table import AutoTable
from ..attention.backend import AttentionBackend
from ..attention.capabilities import AttentionRequest, Capabilities, Device, Numerics, Range
from ..errors import BackendRefused, BuildError, Diagnostic, InputError
from ..hooks import hookimpl
from ..slots.activation import Activation
from ..slots.init import Initialiser
from ..slots.node import NodeKind
from ..slots.norm import Norm
from ..slots.options import Component, NoOptions, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from ..slots.parameter import Parameter, linear
from ..slots.placement import Placement
from ..slots.position import PositionScheme
from ..slots.score import ScoreFunction
from ..slots.sublayer import SublayerKind, SublayerOptions

if TYPE_CHECKING:
    from ..attention.rendering import accumulation, dense_bias, expand_heads, select_rows, shapes_of, unmask_empty_rows, visible
    from ..attention.required import require_capabilities
    from ..attention.types import (
        AttentionInputs,
        AttentionOutput,
        Bias,
        DenseBias,
        DistanceBias,
        LinearBias,
        Mask,
        Prepared,
        Shapes,
    )

_IMPORTS_TORCH = {
    "tfkit.attention.rendering": (
        "accumulation",
        "dense_bias",
        "expand_heads",
        "select_rows",
        "shapes_of",
        "unmask_empty_rows",
        "visible",
    ),
    "tfkit.attention.required": ("require_capabilities",),
    "tfkit.attention.types": (
        "AttentionInputs",
        "AttentionOutput",
        "Bias",
        "DenseBias",
        "DistanceBias",
        "LinearBias",
        "Mask",
        "Prepared",
        "Shapes",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _IMPORTS_TORCH.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "Activation",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionOutput",
    "AttentionRequest",
    "AutoTable",
    "BackendRefused",
    "Bias",
    "BuildError",
    "Capabilities",
    "Component",
    "DenseBias",
    "Device",
    "Diagnostic",
    "DistanceBias",
    "Initialiser",
    "InputError",
    "LinearBias",
    "Mask",
    "NoOptions",
    "NodeKind",
    "Norm",
    "Numerics",
    "OneOf",
    "Options",
    "Parameter",
    "Placement",
    "PositionScheme",
    "Positive",
    "Prepared",
    "Probability",
    "Range",
    "ScoreFunction",
    "Shapes",
    "Size",
    "SlotField",
    "SublayerKind",
    "SublayerOptions",
    "accumulation",
    "component_default",
    "dense_bias",
    "expand_heads",
    "hookimpl",
    "linear",
    "require_capabilities",
    "select_rows",
    "shapes_of",
    "unmask_empty_rows",
    "visible",
]
