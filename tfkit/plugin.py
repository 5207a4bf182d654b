"""The one module a plugin imports: the hook marker, the entry types of every slot, options, parameters, and errors.

Importing this imports no torch. The types that a backend's own code needs (`AttentionInputs`, `Mask`, renderers, blocks) are
handed on lazily, so `from tfkit.plugin import AttentionOutput` in a kernel's module is the first to import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .attention.auto_table import AutoRow, AutoTable
from .attention.backend import AttentionBackend, KnownFailure
from .attention.capabilities import BIAS_KINDS, MASK_TERMS, AttentionRequest, Capabilities, Device, Numerics, Range
from .errors import BackendRefused, BuildError, Diagnostic, InputError, PluginError, TfkitError
from .hooks import hookimpl
from .slots.activation import Activation
from .slots.cost import Cost, Sizes
from .slots.init import Distribution, InitContext, Initialiser
from .slots.layer import Layer, LayerRun, applications, depth, layer_paths, leaves, modules_in, sequence
from .slots.lazy import load
from .slots.node import InputRule, NodeContext, NodeKind, Rule, Signal
from .slots.norm import Norm
from .slots.options import (
    CONTRACT,
    AsTuple,
    Component,
    Entry,
    LayersField,
    NodeRef,
    NoOptions,
    OneOf,
    Options,
    Positive,
    Probability,
    Size,
    SlotField,
    SlotListField,
    TokenId,
    component_default,
)
from .slots.parameter import Parameter, ParameterGroup, linear
from .slots.placement import Constants, Placement, StackFacts
from .slots.position import PositionScheme, PositionSite
from .slots.score import ScoreFunction, ScoreSite
from .slots.sublayer import AttentionSite, SublayerContext, SublayerKind, SublayerOptions

if TYPE_CHECKING:
    from .attention.positions import PositionRange
    from .attention.rendering import (
        accumulation,
        always,
        dense_bias,
        distances,
        expand_heads,
        no_fully_masked_row,
        queries_that_see,
        select_rows,
        shapes_of,
        unmask_empty_rows,
        visible,
    )
    from .attention.types import (
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
    from .nn.feed_forward import FeedForward
    from .nn.heads import Classify, Dense, LayerMix, Pool
    from .nn.layer import LayerParts, residuals
    from .nn.multi_head import AttentionRule, HeadShape, MultiHeadAttention, PositionUse
    from .nn.runtime.context import ForwardContext, StackContext
    from .nn.runtime.node_output import NodeOutput
    from .nn.stack import Stack, Wiring
    from .nn.tokens import TokenLogits, Tokens

_TORCH = {
    "tfkit.attention.types": (
        "AttentionInputs", "AttentionOutput", "Bias", "DenseBias", "DistanceBias", "LinearBias", "Mask", "Prepared", "Shapes",
    ),
    "tfkit.attention.required": ("guard",),
    "tfkit.nn.feed_forward": ("FeedForward",),
    "tfkit.nn.heads": ("Classify", "Dense", "LayerMix", "Pool"),
    "tfkit.nn.layer": ("LayerParts", "residuals"),
    "tfkit.nn.multi_head": ("AttentionRule", "HeadShape", "MultiHeadAttention", "PositionUse"),
    "tfkit.nn.runtime.context": ("ForwardContext", "StackContext"),
    "tfkit.nn.stack": ("Stack", "Wiring"),
    "tfkit.nn.runtime.node_output": ("NodeOutput",),
    "tfkit.nn.tokens": ("TokenLogits", "Tokens"),
    "tfkit.attention.positions": ("PositionRange",),
    "tfkit.attention.rendering": (
        "accumulation", "always", "dense_bias", "distances", "no_fully_masked_row", "expand_heads", "queries_that_see",
        "unmask_empty_rows", "select_rows", "shapes_of", "visible",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _TORCH.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "Activation", "AsTuple", "AttentionBackend", "AttentionInputs", "AttentionOutput", "AttentionRequest", "AttentionRule",
    "AttentionSite", "AutoRow", "AutoTable", "BIAS_KINDS", "BackendRefused", "Bias", "BuildError", "CONTRACT", "Capabilities",
    "Classify", "Constants", "Cost", "Dense", "DenseBias", "Device", "DistanceBias", "Distribution", "Entry", "Diagnostic",
    "FeedForward", "HeadShape", "InitContext", "Initialiser", "InputError", "InputRule", "KnownFailure", "Layer", "LayerMix",
    "LayerParts", "LayerRun", "LayersField", "LinearBias", "MASK_TERMS", "Mask", "ForwardContext", "MultiHeadAttention",
    "NoOptions", "NodeContext", "NodeKind", "NodeRef", "Norm", "Numerics", "OneOf", "Options", "Parameter", "ParameterGroup",
    "Component", "Placement", "PluginError", "Pool", "PositionScheme", "PositionSite", "PositionUse", "Positive", "Prepared",
    "Probability", "Range", "Rule", "ScoreFunction", "ScoreSite", "Shapes", "Signal", "Size", "Sizes", "SlotField",
    "SlotListField", "PositionRange", "Stack", "StackFacts", "StackContext", "NodeOutput", "SublayerContext", "SublayerKind", "SublayerOptions",
    "TfkitError", "TokenId", "TokenLogits", "Tokens", "Wiring", "accumulation", "always", "applications", "dense_bias",
    "depth", "distances", "no_fully_masked_row", "expand_heads", "require_capabilities", "hookimpl", "layer_paths", "leaves", "linear",
    "queries_that_see", "load", "field_annotations", "modules_in", "unmask_empty_rows", "component_default", "residuals", "select_rows", "sequence",
    "shapes_of", "visible",
]  # fmt: skip
