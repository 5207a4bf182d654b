"""The variables of the templates of nodes, and the lines of the model's forward pass."""

from __future__ import annotations

import builtins
import keyword
import re
from typing import Any

from ...graph import Graph
from ...graph.model_graph import Node, base
from ...slots.node import ImageRule, InputRule, NodeContext
from ...slots.position import PositionSite
from .source_file import BoundPart, SourceFile

TAKEN = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "torch", "nn", "math", "json", "F", "Tensor", "argparse",
         "main", "greedy", "load_safetensors", "ended", "token"}  # fmt: skip
"""What no variable of a node may be called: words of Python, and names of the program that its functions read."""
FORMED = re.compile(r"(.*_)?(visible|segments)_*|.+_(embedded|layers|states|mask)_*")
"""Names that the program forms from those of nodes."""


def variable(name: str) -> str:
    """The variable of a node: its name, unless Python or the program uses that. So that no two nodes have one variable, a name
    that ends with underscores gets one more where the name without them does."""
    return f"{name}_" if name.rstrip("_") in TAKEN or FORMED.fullmatch(name) else name


LOCAL = re.compile(r"x|y|layer|outputs|mask|full|position|distance|visible|memory|(rotation|bias|added|window)\w*")
"""Names of the forward pass of a stack or a layer."""


def memory_variable(node: str) -> str:
    """The variable of another memory than `memory`."""
    return f"{node}_" if LOCAL.fullmatch(node.rstrip("_")) else variable(node)


class Forward:
    """The forward pass of the model, node after node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[str, str] = {}
        """The expression of each node's output."""
        self.layers: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.lines: list[str] = []
        self.visible: dict[str, str] = {}
        """The variable that marks what is not padding, by tokens node."""
        inputs = graph.inputs()
        self.signature: list[str] = [f"{variable(node.name)}: Tensor" for node in inputs]
        rules = {node.name: node.kind.input_rule(node.options, node.context) for node in inputs if node.kind.input_rule}
        self.rules: dict[str, Any] = rules
        self.segments: dict[str, str] = {}
        for name, rule in rules.items():
            if isinstance(rule, InputRule) and rule.segments:
                segments = "segments" if len(inputs) == 1 else f"{name}_segments"
                self.segments[name] = segments
                self.signature.append(f"{segments}: Tensor | None = None")
        self._prepare()

    def _prepare(self) -> None:
        for name, rule in self.rules.items():
            if isinstance(rule, InputRule) and rule.pad_id is not None and self._reads_padding(name):
                self.visible[name] = "visible" if len(self.rules) == 1 else f"{variable(name)}_visible"
        for name, segments in self.segments.items():
            self.lines += [f"if {segments} is None:", f"    {segments} = torch.zeros_like({variable(name)})"]

    def _reads_padding(self, name: str) -> bool:
        return any(node.signal.tokens == name for node in self.graph.nodes.values() if node.name != name)

    def uses(self, name: str) -> int:
        """How often the output of a node is read."""
        read = [base(ref) for node in self.graph.nodes.values() for field, ref in node.edges.reads.items() if field != "tokens"]
        memories = [base(ref) for node in self.graph.nodes.values() for ref in node.edges.memories]
        return [*read, *memories, *(base(output) for output in self.graph.outputs)].count(name)

    def keeps_layers(self, name: str) -> bool:
        """Whether the outputs of all layers of a node are read."""
        refs = [ref for node in self.graph.nodes.values() for ref in node.edges.reads.values()]
        return f"{name}.layers" in (*refs, *self.graph.outputs)


class NodeView:
    """One node, after the forward pass so far."""

    def __init__(self, forward: Forward, node: Node) -> None:
        self.forward, self.node = forward, node
        self.name = variable(node.name)

    def value(self, ref: str) -> str:
        """The expression of the output of a node, or of its port."""
        if ref != base(ref):
            return self.forward.layers[base(ref)]
        return self.forward.values[ref]

    def visible_of(self, ref: str) -> str:
        """The variable that marks what is not padding in the output of a node."""
        signal = self.forward.graph.nodes[base(ref)].signal
        return self.forward.visible[signal.tokens] if signal.padded and signal.tokens else ""

    @property
    def input(self) -> str:
        return self.value(self.node.edges.reads["input"])

    @property
    def inputs(self) -> list[str]:
        return [self.value(ref) for field, ref in self.node.edges.reads.items() if field.startswith("inputs.")]

    @property
    def visible(self) -> str:
        return self.visible_of(self.node.edges.reads["input"]) if self.node.context.signals["input"].length is not None else ""

    @property
    def memory(self) -> str:
        ref = self.node.edges.reads.get("memory")
        return self.value(ref) if ref else ""

    @property
    def memory_visible(self) -> str:
        return self.visible_of(self.node.edges.reads["memory"])

    @property
    def memory_states(self) -> str:
        return self.forward.states[base(self.node.edges.reads["memory"])]

    @property
    def table(self) -> str:
        assert self.node.edges.owner is not None
        return f'self.nodes["{self.node.edges.owner}"].embedding.weight'

    @property
    def segments(self) -> str:
        return self.forward.segments[self.node.name]

    @property
    def vocab_size(self) -> int:
        from ...builtin.node.entries import vocab_size

        return vocab_size(self.node.options, self.node.context)

    @property
    def end_id(self) -> int | None:
        return getattr(self.node.context.targets.get("tokens"), "end_id", None)

    @property
    def ids(self) -> str:
        return variable(base(self.node.edges.reads.get("tokens", "")))

    @property
    def convolutions(self) -> list[Any]:
        from ...builtin.node.image_audio_entries import widths

        return list(widths(self.node.options, self.node.context))

    @staticmethod
    def site(width: int) -> PositionSite:
        return PositionSite(width)


def input_shape(rule: Any) -> str:
    """The shape of an input, for a docstring."""
    if isinstance(rule, InputRule):
        return "ids (B, L)"
    if isinstance(rule, ImageRule):
        return f"images (B, {rule.channels}, {rule.size}, {rule.size})"
    return f"frames (B, L, {rule.size})"


READS = {"state": "state", "input": "x[:, t]", "context": "context"}


class RecurrentView:
    """One recurrent network. The outputs of all layers are read (`returns_layers`), or a decoder starts from its last states
    (`returns_states`)."""

    def __init__(self, file: SourceFile, o: Any, c: NodeContext, returns_layers: bool, returns_states: bool) -> None:
        from ...builtin.node import rnn_entry as entry

        self.returns_layers, self.returns_states = returns_layers, returns_states
        kinds = ["Tensor", *(["list[Tensor]"] * (returns_layers + returns_states))]
        self.returns = kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"
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
