"""The module behind the recurrent node."""

from __future__ import annotations

from torch import nn

from ...nn.local_attention import LocalCentre
from ...nn.multi_head import AttentionConfig, MultiHeadAttention
from ...nn.readout import InitialState, Readout
from ...nn.recurrent import Recurrent
from ...nn.recurrent_layer import RecurrentLayer
from ...plugin import CellSite
from ...slots.lazy import load
from ...slots.node import NodeContext
from .rnn_entry import (
    cell_of,
    cell_sites,
    context_cell_site,
    context_width,
    initial_width,
    projects_initial,
    readout_parts,
    readout_reads,
    score_site,
)
from .rnn_options import RnnOptions


def rnn(options: RnnOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    attention, take = options.cross_attention, options.initial_state.take
    second = context_cell_site(options, context)
    return Recurrent(
        context.name,
        [
            RecurrentLayer(_cell(options, site), _cell(options, site) if options.bidirectional else None)
            for site in cell_sites(options, context)
        ],
        options.d_state,
        cell_of(options).states,
        attend=attention.attend if attention else "",
        attention=_attention(options, context) if attention else None,
        context_cell=_cell(options, second) if second else None,
        reads_memory=attention is None and context_width(options, context) > 0,
        feeding=attention is not None and attention.input_feeding,
        initial=_initial(options, context) if projects_initial(options) else None,
        copies=take == "states",
        readout=_readout(options, context) if options.readout else None,
        reads_previous=options.readout is not None and options.readout.state == "previous",
        dropout=options.dropout,
    )


def _cell(options: RnnOptions, site: CellSite) -> nn.Module:
    return load(options.cell.entry.build)(options.cell.options, site)  # type: ignore[no-any-return]


def _attention(options: RnnOptions, context: NodeContext) -> MultiHeadAttention:
    """Attention with one head and without projections: states and memory are queries, keys and values."""
    attention = options.cross_attention
    assert attention is not None
    score = attention.score
    projections: dict[str, nn.Module] = {name: nn.Identity() for name in ("query", "key", "value", "output")}
    config = AttentionConfig(
        num_heads=1,
        num_kv_heads=1,
        head_dim=options.d_state,
        scale=attention.scale if isinstance(attention.scale, float) else options.d_state**-0.5,
        dropout=attention.dropout,
        cross=True,
        score="dot" if score.entry.dot else score.kind,
    )
    scorer = load(score.entry.build)(score.options, score_site(options, context)) if score.entry.build else None
    local = LocalCentre(options.d_state, attention.local.half_width) if attention.local else None
    return MultiHeadAttention("cross_attention", projections, config, score=scorer, local=local)


def _initial(options: RnnOptions, context: NodeContext) -> InitialState:
    width = initial_width(options, context)
    features = options.num_layers * cell_of(options).states * options.d_state
    return InitialState(options.initial_state.take, width, nn.Linear(width, features, options.initial_state.bias))


def _readout(options: RnnOptions, context: NodeContext) -> Readout:
    readout = options.readout
    assert readout is not None
    reads, parts = readout_reads(options, context), readout_parts(options, context)
    outer = readout.d_model * (2 if readout.kind == "maxout" else 1)
    return Readout(readout.kind, nn.Linear(sum(parts[name] for name in reads), outer, readout.bias), reads, readout.dropout)
