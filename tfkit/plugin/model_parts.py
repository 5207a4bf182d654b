"""Names for plugins with sub-layers, nodes, placements, position schemes or initialisers, in addition to `tfkit.plugin`.

They are the contexts that an entry's functions get, the declarations of parameters, costs and attention sites, and blocks.
Importing this imports no torch. Names that need torch are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..attention.positions import PositionRange as PositionRange
    from ..nn.layers import FeedForward as FeedForward, Linear as Linear
    from ..nn.multi_head import (
        AttentionConfig as AttentionConfig,
        MultiHeadAttention as MultiHeadAttention,
        PositionConfig as PositionConfig,
    )
    from ..nn.runtime.context import (
        ForwardContext as ForwardContext,
        MethodModule as MethodModule,
        StackContext as StackContext,
    )
    from ..nn.runtime.node_output import BatchwiseNorm as BatchwiseNorm, NodeOutput as NodeOutput, normed as normed
    from ..nn.site_backends import AttentionNode as AttentionNode
    from ..nn.stack import LayerParts as LayerParts, Wiring as Wiring, residuals as residuals
    from ..slots.cost import Cost as Cost, Sizes as Sizes
    from ..slots.init import Distribution as Distribution, InitContext as InitContext
    from ..slots.layer import Layer as Layer
    from ..slots.lazy import load as load
    from ..slots.node import (
        AnyInputRule as AnyInputRule,
        FeatureRule as FeatureRule,
        ImageRule as ImageRule,
        InputRule as InputRule,
        NodeContext as NodeContext,
        Signal as Signal,
    )
    from ..slots.options import NodeRef as NodeRef, SlotListField as SlotListField
    from ..slots.parameter import ParameterGroup as ParameterGroup
    from ..slots.placement import Constants as Constants, PlacementContext as PlacementContext
    from ..slots.position import PositionSite as PositionSite
    from ..slots.score import ScoreSite as ScoreSite
    from ..slots.sublayer import AttentionSite as AttentionSite, SublayerContext as SublayerContext

__getattr__, __dir__, __all__ = lazy_names(__name__)
