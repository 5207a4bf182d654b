"""Names for plugins with sub-layers, nodes, placements, position schemes or initialisers, in addition to `tfkit.plugin`.

They are the contexts that an entry's functions get, the declarations of parameters, costs and attention sites, and blocks.
Importing this imports no torch. Names that need torch are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names
from ..slots.cost import Cost, Sizes
from ..slots.init import Distribution, InitContext
from ..slots.layer import Layer
from ..slots.lazy import load
from ..slots.node import AnyInputRule, FeatureRule, ImageRule, InputRule, NodeContext, Signal
from ..slots.options import NodeRef, SlotListField
from ..slots.parameter import ParameterGroup
from ..slots.placement import Constants, PlacementContext
from ..slots.position import PositionSite
from ..slots.score import ScoreSite
from ..slots.sublayer import AttentionSite, SublayerContext

if TYPE_CHECKING:
    from ..attention.positions import PositionRange
    from ..nn.layers import FeedForward, Linear
    from ..nn.multi_head import AttentionConfig, MultiHeadAttention, PositionConfig
    from ..nn.runtime.context import ForwardContext, MethodModule, StackContext
    from ..nn.runtime.node_output import NodeOutput
    from ..nn.site_backends import AttentionNode
    from ..nn.stack import LayerParts, Wiring, residuals

_IMPORTS_TORCH = {
    "tfkit.attention.positions": ("PositionRange",),
    "tfkit.nn.layers": ("FeedForward", "Linear"),
    "tfkit.nn.multi_head": ("AttentionConfig", "MultiHeadAttention", "PositionConfig"),
    "tfkit.nn.runtime.context": ("ForwardContext", "MethodModule", "StackContext"),
    "tfkit.nn.runtime.node_output": ("NodeOutput",),
    "tfkit.nn.site_backends": ("AttentionNode",),
    "tfkit.nn.stack": ("LayerParts", "Wiring", "residuals"),
}

__all__ = [
    "AnyInputRule",
    "AttentionConfig",
    "AttentionNode",
    "AttentionSite",
    "Constants",
    "Cost",
    "Distribution",
    "FeatureRule",
    "FeedForward",
    "ForwardContext",
    "ImageRule",
    "InitContext",
    "InputRule",
    "Layer",
    "LayerParts",
    "Linear",
    "MethodModule",
    "MultiHeadAttention",
    "NodeContext",
    "NodeOutput",
    "NodeRef",
    "ParameterGroup",
    "PlacementContext",
    "PositionConfig",
    "PositionRange",
    "PositionSite",
    "ScoreSite",
    "Signal",
    "Sizes",
    "SlotListField",
    "StackContext",
    "SublayerContext",
    "Wiring",
    "load",
    "residuals",
]

__getattr__, __dir__ = lazy_names(__name__, _IMPORTS_TORCH, __all__)
