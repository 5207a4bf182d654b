"""Names for plugins: the hook marker, the entry of every slot, options, capabilities, the contract's types and renderers.

Importing this imports no torch. Names that need torch are imported when first used. Further names for sub-layers, nodes,
placements and initialisers are in `tfkit.plugin.model_parts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..attention.auto_table import AutoTable
from ..attention.backend import AttentionBackend
from ..attention.capabilities import AttentionRequest, Capabilities, Device, Numerics, Range
from ..errors import BackendRefused, BuildError, Diagnostic, InputError
from ..hooks import hookimpl
from ..lazy_names import lazy_names
from ..slots.activation import Activation
from ..slots.beam_top_k import BeamTopK
from ..slots.cell import Cell, CellSite
from ..slots.float32_kernel import Float32Kernel
from ..slots.init import Initialiser
from ..slots.int8_kernel import Int8Kernel
from ..slots.node import NodeKind
from ..slots.norm import Norm
from ..slots.options import Component, NoOptions, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from ..slots.parameter import Parameter, linear
from ..slots.placement import Placement
from ..slots.position import PositionScheme
from ..slots.score import ScoreFunction
from ..slots.sublayer import SublayerKind, SublayerOptions
from ..slots.weight_map import WeightMap

if TYPE_CHECKING:
    from ..attention.dispatch import require_capabilities
    from ..attention.rendering import accumulation, dense_bias, expand_heads, select_rows, shapes_of, unmask_empty_rows, visible
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
    from ..cpu.products import are_plain

_IMPORTS_TORCH = {
    "tfkit.cpu.products": ("are_plain",),
    "tfkit.attention.rendering": (
        "accumulation",
        "dense_bias",
        "expand_heads",
        "select_rows",
        "shapes_of",
        "unmask_empty_rows",
        "visible",
    ),
    "tfkit.attention.dispatch": ("require_capabilities",),
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

__all__ = [
    "Activation",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionOutput",
    "AttentionRequest",
    "AutoTable",
    "BackendRefused",
    "BeamTopK",
    "Bias",
    "BuildError",
    "Capabilities",
    "Cell",
    "CellSite",
    "Component",
    "DenseBias",
    "Device",
    "Diagnostic",
    "DistanceBias",
    "Float32Kernel",
    "Initialiser",
    "InputError",
    "Int8Kernel",
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
    "WeightMap",
    "accumulation",
    "are_plain",
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

__getattr__, __dir__ = lazy_names(__name__, _IMPORTS_TORCH, __all__)
