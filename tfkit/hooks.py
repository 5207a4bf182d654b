"""The hooks that a plugin may implement: one per slot. Each returns a list of entries."""

from __future__ import annotations

import pluggy

from .attention.backend import AttentionBackend
from .slots.activation import Activation
from .slots.cell import Cell
from .slots.init import Initialiser
from .slots.node import NodeKind
from .slots.norm import Norm
from .slots.options import Entry
from .slots.placement import Placement
from .slots.position import PositionScheme
from .slots.processor_kernels import BeamTopK, Float32Kernel, Int8Kernel, StepRecorder
from .slots.score import ScoreFunction
from .slots.score_filter import ScoreFilter
from .slots.sublayer import SublayerKind
from .slots.weight_map import WeightMap

hookspec = pluggy.HookspecMarker("tfkit")
hookimpl = pluggy.HookimplMarker("tfkit")


@hookspec
def tfkit_attention_backends() -> list[AttentionBackend]:
    """Attention backends: implementations of the same equation. Swapping them does not change a model."""
    return []


@hookspec
def tfkit_score_functions() -> list[ScoreFunction]:
    """Score functions of a query and a key."""
    return []


@hookspec
def tfkit_position_schemes() -> list[PositionScheme]:
    """Position schemes: how a model represents the order of its tokens."""
    return []


@hookspec
def tfkit_norms() -> list[Norm]:
    """Norms: functions that normalise the last axis."""
    return []


@hookspec
def tfkit_placements() -> list[Placement]:
    """Norm placements: how a layer connects sub-layers, norms and the residual."""
    return []


@hookspec
def tfkit_activations() -> list[Activation]:
    """Activations of the feed-forward layer and of dense nodes, plain and gated."""
    return []


@hookspec
def tfkit_cells() -> list[Cell]:
    """Recurrent cells: one step of a recurrent network."""
    return []


@hookspec
def tfkit_sublayer_kinds() -> list[SublayerKind]:
    """Sublayer kinds: the building blocks of a layer."""
    return []


@hookspec
def tfkit_node_kinds() -> list[NodeKind]:
    """Node kinds: the nodes of a model graph."""
    return []


@hookspec
def tfkit_initialisers() -> list[Initialiser]:
    """Initialisers: the distribution of each initial parameter, by its role."""
    return []


@hookspec
def tfkit_weight_maps() -> list[WeightMap]:
    """Weight maps: how the models of Hugging Face transformers are stored, as data."""
    return []


@hookspec
def tfkit_float32_kernels() -> list[Float32Kernel]:
    """Float32 kernels: products of float32 activations and packed weights on a CPU, while decoding."""
    return []


@hookspec
def tfkit_int8_kernels() -> list[Int8Kernel]:
    """Int8 kernels: products of int8 weights and activations on a CPU."""
    return []


@hookspec
def tfkit_score_filters() -> list[ScoreFilter]:
    """Score filters: what changes the scores of the next token before a search selects one."""
    return []


@hookspec
def tfkit_beam_top_k() -> list[BeamTopK]:
    """Beam top-k: how a beam search on a CPU selects the best continuations of a step."""
    return []


@hookspec
def tfkit_step_recorders() -> list[StepRecorder]:
    """Step recorders: how decoding steps of small models run on a CPU without Python."""
    return []


SLOTS: dict[str, tuple[str, type[Entry]]] = {
    "backend": ("tfkit_attention_backends", AttentionBackend),
    "score": ("tfkit_score_functions", ScoreFunction),
    "position": ("tfkit_position_schemes", PositionScheme),
    "norm": ("tfkit_norms", Norm),
    "placement": ("tfkit_placements", Placement),
    "activation": ("tfkit_activations", Activation),
    "cell": ("tfkit_cells", Cell),
    "sublayer": ("tfkit_sublayer_kinds", SublayerKind),
    "node": ("tfkit_node_kinds", NodeKind),
    "init": ("tfkit_initialisers", Initialiser),
    "weight_map": ("tfkit_weight_maps", WeightMap),
    "score_filter": ("tfkit_score_filters", ScoreFilter),
    "float32_kernel": ("tfkit_float32_kernels", Float32Kernel),
    "int8_kernel": ("tfkit_int8_kernels", Int8Kernel),
    "beam_top_k": ("tfkit_beam_top_k", BeamTopK),
    "step_recorder": ("tfkit_step_recorders", StepRecorder),
}
"""Every slot by its name (in a spec, where a spec names its entries): its hook and the type of its entries."""
