"""What the template of a recurrent network asks: its cells, attention, first states and read-out."""

from __future__ import annotations

from typing import Any

from ...slots.node import NodeContext
from .source_file import BoundPart, SourceFile

READS = {"state": "state", "input": "x[:, t]", "context": "context"}


class RecurrentView:
    """One recurrent network.

    Args:
        file: the file that is written.
        o: the options of the node.
        c: its context.
        returns_states: whether a decoder starts from its last states.
    """

    def __init__(self, file: SourceFile, o: Any, c: NodeContext, returns_states: bool) -> None:
        from ...builtin.node import rnn_entry as entry

        self.returns_states = returns_states
        memory = entry.memory_signal(c)
        self.padded = c.signals["input"].padded
        self.encoder = memory is None and o.readout is None
        self.title = "Decoder" if memory is not None else "Encoder" if o.bidirectional or returns_states else "RecurrentLayers"
        self.states = entry.cell_of(o).states
        self.vector = memory is not None and memory.length is None
        attention = o.cross_attention
        reads = attention is not None or (not self.vector and o.initial_state.take in ("last", "mean"))
        self.memory_padded = memory is not None and memory.length is not None and memory.padded and reads
        sites = list(entry.cell_sites(o, c))
        sides = ("cell", "backward_cell") if o.bidirectional else ("cell",)
        feeds = attention is not None and attention.input_feeding
        self.modules = []
        for number, site in enumerate(sites):
            cell = self._cell(file, o, site, "D_MODEL" if number == 0 else "D_STATE", "D_READOUT" if feeds else "D_MEMORY")
            cells = ", ".join(f'"{side}": {cell}' for side in sides)
            self.modules.append(f"nn.ModuleDict({{{cells}}})")
        second = entry.context_cell_site(o, c)
        self.context_cell = self._cell(file, o, second, "D_MEMORY", "") if second is not None else ""
        self.score = ""
        if attention is not None and attention.score.entry.build is not None:
            self.score = BoundPart(file, attention.score, entry.score_site(o, c)).new()
        self.initial_width = file.const("D_INITIAL", entry.initial_width(o, c)) if entry.projects_initial(o) else ""
        if o.readout is not None:
            parts, names = entry.readout_parts(o, c), entry.readout_reads(o, c)
            self.reads = [("memory" if name == "context" and self.vector else READS[name]) for name in names]
            self.readout_in = " + ".join(self._width(file, name, parts[name], o) for name in names)
            width = file.const("D_READOUT", o.readout.d_model)
            self.readout_width = width
            self.readout_out = f"2 * {width}" if o.readout.kind == "maxout" else width
        arguments = ["x", *(["visible"] if self.padded else []), *(["memory"] if memory is not None else [])]
        arguments += ["memory_visible"] if self.memory_padded else []
        typed = [f"{name}: Tensor" for name in arguments]
        typed += ["memory_states: list[Tensor]"] if o.initial_state.take == "states" else []
        self.signature = ", ".join(["self", *typed])
        self.doc = self._doc(o)
        shape = "(B, C)" if self.vector else "(B, K, C)"
        self.forward_doc = f"(B, L, M) and the memory {shape} -> (B, L, outputs), step by step."

    @staticmethod
    def _width(file: SourceFile, name: str, value: int, o: Any) -> str:
        return file.const({"state": "D_STATE", "input": "D_MODEL", "context": "D_MEMORY"}[name], value)

    @staticmethod
    def _cell(file: SourceFile, o: Any, site: Any, *names: str) -> str:
        part: Any = file.template(o.cell, site=site)
        name, _ = file.define(part)
        return str(part.new(name, [file.const(names[i], width) for i, width in enumerate(site.inputs)])).strip()

    def _doc(self, o: Any) -> str:
        if o.cross_attention is None:
            return "A recurrent decoder that reads the memory at every step, Cho et al. 2014, section 2.2."
        return {
            "before_cell": "The attention of the state before a step gives its context, Bahdanau et al. 2015, section 3.1.",
            "between_cells": "The conditional GRU: attention between the two cells of a step, Sennrich et al. 2017.",
            "after_cell": "The state after a step asks for its context, Luong et al. 2015, section 3.",
        }[o.cross_attention.attend]
