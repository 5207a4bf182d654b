"""From a spec to a model: build on the meta device, compare the modules with the graph, allocate, initialise.

On the meta device modules have no storage. They get it once, on their device, so that nothing is allocated twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..attention.choice import bind
from ..catalogue import Catalogue, load_catalogue
from ..errors import BuildError, Diagnostic, InputError
from ..errors.arguments import check_whole
from ..graph import Graph, Node, graph_of, max_input_lengths
from ..graph.input_lengths import counting_padding
from ..graph.model_graph import base
from ..graph.refused_arguments import followers as nodes_after, refused_arguments
from ..nn.device_moves import device_here
from ..nn.heads import Classify, Probabilities, SpanLogits
from ..nn.labels import label_rule
from ..nn.model import Model
from ..nn.model_plan import LabelRule, ModelPlan, Wire
from ..nn.multi_head import MultiHeadAttention
from ..nn.tokens import TokenLogits
from ..slots.lazy import load
from ..slots.node import AnyInputRule, InputRule
from ..spec import load_spec, parse_spec
from ..spec.model import ModelSpec
from .backends import BackendResolver
from .initialisation import check_fits, initialise, materialise


def build(
    spec: ModelSpec | Mapping[str, Any] | str | os.PathLike[str],
    catalogue: Catalogue | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    backend: Any = None,
) -> Model:
    """Build a model from a spec and initialise it.

    The same seed gives the same weights on every device. Each parameter is drawn from its own generator, seeded by `seed` and
    the parameter's name, so that a change of one part of a spec does not change the weights of the others.

    Args:
        spec: a spec, the path of one, or its content as a mapping.
        catalogue: the entries that names refer to; those of the installed plugins by default.
        device: where the model is allocated, by default torch's default device: the CPU, unless `torch.set_default_device` or
            `with torch.device(...)` chose another. On "meta" nothing is allocated or initialised.
        dtype: a floating dtype.
        seed: seed of the weights, a whole number from 0 to 2^64 - 1.
        backend: the attention backend of every site, instead of those of the spec: a name, `{"kind": ..., options}`, "auto", or
            a list of these.

    Returns:
        The model, in training mode.

    Raises:
        SpecError: the spec is wrong.
        InputError: `spec` is no spec, or `dtype` no floating dtype.
        BackendRefused: a site has no backend on any device. Whether it has one on the device of a call is known at the call, so
            that a model for CUDA may be built on a CPU and moved.
        InputError: dtype or seed is wrong.
        BuildError: the model does not fit in memory, or a plugin's module has other parameters or attention sites than its
        entry.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            Diagnostic("TFK071", f"dtype {dtype!r} is no floating torch.dtype", "pass torch.float32, torch.bfloat16, ...")
        )
    check_whole("seed", seed, 0, 2**64 - 1, "TFK008")
    if not isinstance(spec, (ModelSpec, Mapping, str, os.PathLike)):
        message = f"a spec is a path, a mapping or a ModelSpec, not a {type(spec).__name__}"
        raise InputError(Diagnostic("TFK073", message, "tfkit.parse_spec reads text, tfkit.load_spec a file"))
    catalogue = catalogue or load_catalogue()
    if not isinstance(spec, ModelSpec):
        spec = parse_spec(spec, catalogue) if isinstance(spec, Mapping) else load_spec(spec, catalogue)
    graph = graph_of(spec)
    device = device_here(torch.get_default_device() if device is None else device)
    check_fits(spec, graph, device, dtype)
    resolver = BackendResolver(dict(graph.sites()), catalogue)
    model = _modules(graph, resolver)
    _check_sites(resolver, model)
    wanted = {site: list(declared.backend) if backend is None else backend for site, declared in resolver.sites.items()}
    model.backends.set(wanted, device if device.type == "meta" else None)  # the model may move before its first call
    _check_parameters(graph, model)
    model.spec, model.beam_top_k = spec, catalogue.entries("beam_top_k")
    model.float32_kernels, model.step_recorders = catalogue.entries("float32_kernel"), catalogue.entries("step_recorder")
    materialise(model, device, dtype)
    if device.type != "meta":
        initialise(model, graph, catalogue, seed)
    return model


def _modules(graph: Graph, resolver: BackendResolver) -> Model:
    read = [*graph.outputs, *(ref for node in graph.nodes.values() for ref in node.edges.reads.values())]
    read_layers = {base(ref) for ref in read if ref.endswith(".layers")}
    with torch.device("meta"):
        nodes = {name: _module(node, name in read_layers) for name, node in graph.nodes.items()}
        eager = resolver.catalogue.find("backend", "eager")
        return Model(plan_of(graph, nodes), nodes, resolver, bind(eager, eager.options()))


def _module(node: Node, keep_layers: bool) -> nn.Module:
    return load(node.kind.build)(node.options, node.context, keep_layers)  # type: ignore[no-any-return]


def _check_sites(resolver: BackendResolver, model: Model) -> None:
    """Checks that the modules have exactly the attention sites that the graph declares, and no attention outside of a site."""
    uses = model.attention_sites()
    built = [use.site for use in uses]
    fix = "the `site` or `sites` of an entry and the `attention_sites()` of its module must agree"
    diagnostics = []
    for site in sorted({*built, *resolver.sites}):
        if built.count(site) != (site in resolver.sites):
            where = (
                "is not in its entry" if site not in resolver.sites else "has two modules" if site in built else "has no module"
            )
            diagnostics.append(Diagnostic("TFK054", f"the attention site `{site}` {where}", fix))
    at_sites = {id(use.attention) for use in uses}
    for name, module in model.nodes.named_modules():
        if isinstance(module, MultiHeadAttention) and id(module) not in at_sites:
            message = f"`nodes.{name}` is a multi-head attention, but no attention site"
            diagnostics.append(Diagnostic("TFK054", message, "its node's module must return it from `attention_sites()`"))
    if diagnostics:
        raise BuildError(diagnostics)


def _check_parameters(graph: Graph, model: Model) -> None:
    """Checks that the modules have exactly the parameters and buffers that the graph lists, with the same shapes."""
    built = {name: _described(p.shape, p.requires_grad) for name, p in model.named_parameters()}
    built |= {name: _described(buffer.shape, False, True) for name, buffer in model.named_buffers()}
    listed = {
        f"nodes.{node.name}.{p.name}": _described(p.shape, p.trainable, p.buffer)
        for node in graph.nodes.values()
        for p in node.parameters()
    }
    if buffers := [name for name, _ in model.named_buffers() if name not in listed]:
        message = f"`{buffers[0]}` is a buffer; modules are built without storage, so its numbers are lost"
        fix = "compute it in `forward`, or list it in `parameters` of the entry with `buffer=True`"
        raise BuildError(Diagnostic("TFK054", message, fix))
    differing = sorted(name for name in set(built) | set(listed) if built.get(name) != listed.get(name))
    fix = "the entry's `parameters` and the module that its `build` gives must agree"
    diagnostics = [
        Diagnostic(
            "TFK054", f"`{name}` is {built.get(name, 'missing')} in the module, {listed.get(name, 'missing')} in its entry", fix
        )
        for name in differing
    ]
    if diagnostics:
        raise BuildError(diagnostics)


def _described(shape: Iterable[int], trainable: bool, buffer: bool = False) -> str:
    return f"{tuple(shape)}{' buffer' if buffer else '' if trainable else ' frozen'}"


def plan_of(graph: Graph, modules: Mapping[str, nn.Module]) -> ModelPlan:
    wires = {name: Wire(node.edges.reads, node.edges.memories, node.edges.owner) for name, node in graph.nodes.items()}
    inputs = {
        node.name: node.kind.input_rule(node.options, node.context)
        for node in graph.inputs()
        if node.kind.input_rule is not None
    }
    for name in counting_padding(graph):
        if isinstance(rule := inputs.get(name), InputRule):
            inputs[name] = replace(rule, counts_padding=True)
    followers = {name: nodes_after(graph, name) for name in inputs}
    undecodable = {}
    for name, following in followers.items():
        reason = _undecodable(graph, following) if isinstance(inputs[name], InputRule) else "it has no token ids"
        if reason:
            undecodable[name] = reason
    signals = {name: graph.nodes[name].signal for name in graph.outputs if name in graph.nodes}
    widths = {
        name: signal.width
        for name, signal in signals.items()
        if signal.has_width and not isinstance(modules[name], Probabilities)  # no logits, though as wide
    }
    limits = {name: limit for name, limit in max_input_lengths(graph).items() if limit is not None}
    labels = {
        name: _labels(graph, name, module, inputs, undecodable)
        for name, module in modules.items()
        if name in graph.outputs and isinstance(module, (TokenLogits, Classify, SpanLogits))
    }
    sequences = frozenset(name for name, signal in signals.items() if signal.length is not None)
    return ModelPlan(
        graph.name,
        wires,
        inputs,
        graph.outputs,
        widths,
        followers,
        undecodable,
        limits,
        labels,
        sequences,
        refused_arguments(graph),
    )


def _labels(
    graph: Graph, name: str, module: nn.Module, inputs: Mapping[str, AnyInputRule], undecodable: Mapping[str, str]
) -> LabelRule:
    """The meaning of the labels of an output of logits. Classes have no vocabulary, even if the node follows tokens."""
    if isinstance(module, SpanLogits):
        return LabelRule("span")
    tokens = graph.nodes[name].signal.tokens if isinstance(module, TokenLogits) else None
    rule = inputs.get(tokens or "")
    assert rule is None or isinstance(rule, InputRule), "logits follow token ids"
    return label_rule(rule, tokens, tokens not in undecodable, len(inputs) == 1)


def _undecodable(graph: Graph, following: frozenset[str]) -> str | None:
    for name in following:
        node = graph.nodes[name]
        if not node.kind.stepwise(node.options):
            return f"`{name}` ({node.part.kind}) needs the whole sequence"
        for ref in (node.edges.reads.get("memory"), *node.edges.memories):
            if ref is not None and base(ref) in following:
                return f"`{name}` reads `{ref}` as a memory, which would grow"
    return None
