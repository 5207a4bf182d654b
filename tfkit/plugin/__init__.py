"""Names for plugins: the hook marker, the entry of every slot, options, capabilities, the contract's types and renderers.

Importing this imports no torch. Names that need torch are imported when first used. Further names for sub-layers, nodes,
placements and initialisers are in `tfkit.plugin.model_parts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..attention.auto_table import AutoTable as AutoTable
    from ..attention.backend import AttentionBackend as AttentionBackend
    from ..attention.capabilities import (
        AttentionRequest as AttentionRequest,
        Capabilities as Capabilities,
        Device as Device,
        Numerics as Numerics,
        Range as Range,
    )
    from ..attention.choice import recording_attention as recording_attention
    from ..attention.dispatch import require_capabilities as require_capabilities
    from ..attention.rendering import (
        accumulation as accumulation,
        dense_bias as dense_bias,
        expand_heads as expand_heads,
        select_rows as select_rows,
        shapes_of as shapes_of,
        unmask_empty_rows as unmask_empty_rows,
        visible as visible,
    )
    from ..attention.types import (
        AttentionInputs as AttentionInputs,
        AttentionOutput as AttentionOutput,
        Bias as Bias,
        DenseBias as DenseBias,
        DistanceBias as DistanceBias,
        LinearBias as LinearBias,
        Mask as Mask,
        Prepared as Prepared,
        Shapes as Shapes,
    )
    from ..cpu.low_precision import recording_heads as recording_heads
    from ..cpu.products import are_plain as are_plain
    from ..errors import (
        BackendRefused as BackendRefused,
        BuildError as BuildError,
        Diagnostic as Diagnostic,
        InputError as InputError,
    )
    from ..hooks import hookimpl as hookimpl
    from ..nn.prefix import Prefix as Prefix
    from ..slots.activation import Activation as Activation
    from ..slots.cell import Cell as Cell, CellSite as CellSite
    from ..slots.init import Initialiser as Initialiser
    from ..slots.node import NodeKind as NodeKind
    from ..slots.norm import Norm as Norm
    from ..slots.options import (
        Component as Component,
        NoOptions as NoOptions,
        OneOf as OneOf,
        Options as Options,
        Positive as Positive,
        Probability as Probability,
        Size as Size,
        SlotField as SlotField,
        component_default as component_default,
    )
    from ..slots.parameter import Parameter as Parameter, linear as linear
    from ..slots.placement import Placement as Placement
    from ..slots.position import PositionScheme as PositionScheme
    from ..slots.processor_kernels import (
        BeamTopK as BeamTopK,
        CannotRecord as CannotRecord,
        Float32Kernel as Float32Kernel,
        Int8Kernel as Int8Kernel,
        RecordedBeams as RecordedBeams,
        StepRecorder as StepRecorder,
    )
    from ..slots.score import ScoreFunction as ScoreFunction
    from ..slots.score_filter import ScoreFilter as ScoreFilter
    from ..slots.sublayer import SublayerKind as SublayerKind, SublayerOptions as SublayerOptions
    from ..slots.weight_map import WeightMap as WeightMap

__getattr__, __dir__, __all__ = lazy_names(__name__)
