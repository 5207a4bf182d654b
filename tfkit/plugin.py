"""The one module a plugin imports: the hook marker, the entry types of every slot, options, parameters, and errors.

Importing this imports no torch. The types that a backend's own code needs (`AttentionInputs`, `Mask`, renderers, blocks) are
handed on lazily, so `from tfkit.plugin import AttentionOutput` in a kernel's module is the first to import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BackendRefused, BuildError, Fault, InputError, PluginError, TfkitError
from .hooks import hookimpl
from .slots.activation import Activation
from .slots.attention import AttentionBackend, AttentionRequest, AutoRow, Capabilities, Device, Numerics, Range
from .slots.cost import Cost, Sizes
from .slots.init import Distribution, InitFacts, Initialiser
from .slots.layer import Layer, LayerRun, applications, depth, leaves, modules_in, sequence
from .slots.lazy import load
from .slots.node import NodeFacts, NodeKind, Rule, Signal
from .slots.norm import Norm
from .slots.options import (
    CONTRACT,
    AsTuple,
    Entry,
    LayersField,
    NodeRef,
    NoOptions,
    OneOf,
    Options,
    Part,
    Positive,
    Probability,
    Size,
    SlotField,
    SlotListField,
    TokenId,
    part_default,
)
from .slots.parameter import Parameter, ParameterGroup, linear
from .slots.placement import Constants, Placement, StackFacts
from .slots.position import PositionScheme, PositionSite
from .slots.score import ScoreFunction, ScoreSite
from .slots.sublayer import AttentionSite, SublayerFacts, SublayerKind, SublayerOptions

if TYPE_CHECKING:
    from .attention import (
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

_TORCH = {
    "tfkit.attention": (
        "AttentionInputs", "AttentionOutput", "Bias", "DenseBias", "DistanceBias", "LinearBias", "Mask", "Prepared", "Shapes",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _TORCH.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CONTRACT", "Activation", "AsTuple", "AttentionBackend", "AttentionInputs", "AttentionOutput", "AttentionRequest",
    "AttentionSite", "AutoRow", "BackendRefused", "Bias", "BuildError", "Capabilities", "Constants", "Cost", "DenseBias",
    "Device", "DistanceBias", "Distribution", "Entry", "Fault", "InitFacts", "Initialiser", "InputError", "Layer", "LayerRun",
    "LayersField", "LinearBias", "Mask", "NoOptions", "NodeFacts", "NodeKind", "NodeRef", "Norm", "Numerics", "OneOf",
    "Options", "Parameter", "ParameterGroup", "Part", "Placement", "PluginError", "PositionScheme", "PositionSite", "Positive",
    "Prepared", "Probability", "Range", "Rule", "ScoreFunction", "ScoreSite", "Shapes", "Signal", "Size", "Sizes", "SlotField",
    "SlotListField", "StackFacts", "SublayerFacts", "SublayerKind", "SublayerOptions", "TfkitError", "TokenId", "applications",
    "depth", "hookimpl", "leaves", "linear", "load", "modules_in", "part_default", "sequence",
]  # fmt: skip
