"""The built-in plugin: registered by entry point, like a third party's. Importing it imports no torch."""

from __future__ import annotations

from ..cpu.int8_kernels.entries import ENTRIES as INT8_KERNELS
from ..plugin import (
    Activation,
    AttentionBackend,
    BeamTopK,
    Cell,
    Initialiser,
    Int8Kernel,
    NodeKind,
    Norm,
    Placement,
    PositionScheme,
    ScoreFunction,
    SublayerKind,
    WeightMap,
    hookimpl,
)
from .activation.entries import ENTRIES as ACTIVATIONS
from .attention.entries import ENTRIES as BACKENDS
from .beam_top_k import ENTRIES as BEAM_TOP_K
from .cell.entries import ENTRIES as CELLS
from .init.entries import ENTRIES as INITIALISERS
from .node.entries import ENTRIES as NODES
from .norm.entries import ENTRIES as NORMS
from .placement.entries import ENTRIES as PLACEMENTS
from .position.entries import ENTRIES as POSITIONS
from .score.entries import ENTRIES as SCORES
from .sublayer.entries import ENTRIES as SUBLAYERS
from .weight_maps import ENTRIES as WEIGHT_MAPS


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return BACKENDS


@hookimpl
def tfkit_score_functions() -> list[ScoreFunction]:
    return SCORES


@hookimpl
def tfkit_position_schemes() -> list[PositionScheme]:
    return POSITIONS


@hookimpl
def tfkit_norms() -> list[Norm]:
    return NORMS


@hookimpl
def tfkit_placements() -> list[Placement]:
    return PLACEMENTS


@hookimpl
def tfkit_activations() -> list[Activation]:
    return ACTIVATIONS


@hookimpl
def tfkit_cells() -> list[Cell]:
    return CELLS


@hookimpl
def tfkit_sublayer_kinds() -> list[SublayerKind]:
    return SUBLAYERS


@hookimpl
def tfkit_node_kinds() -> list[NodeKind]:
    return NODES


@hookimpl
def tfkit_initialisers() -> list[Initialiser]:
    return INITIALISERS


@hookimpl
def tfkit_weight_maps() -> list[WeightMap]:
    return WEIGHT_MAPS


@hookimpl
def tfkit_int8_kernels() -> list[Int8Kernel]:
    return INT8_KERNELS


@hookimpl
def tfkit_beam_top_k() -> list[BeamTopK]:
    return BEAM_TOP_K
