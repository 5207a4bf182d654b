"""Checks of the parts of a model, each on its inputs in a run of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tfkit import Graph, Model
from tfkit.inspection import SCORE_SETTINGS
from tfkit.plugin import Component, DenseBias, LinearBias, Mask

from ..attention.reference import visible_pairs
from ..finding import Violation
from .expected import ExpectedSite, expected_layers, expected_sites, stacks
from .recording import Call, Recording, SiteCall
from .row import PartCheck, same
from .tokenwise import feed_forward, norm, projections, tokenwise_nodes
from .wiring import layer_wiring, stack_wiring

CHECK = "request"


def request(recording: Recording, expected: ExpectedSite) -> float | None:
    """What one site asked for against the spec. Raises Violation."""
    if expected.name not in recording.sites:
        raise Violation(CHECK, f"{expected.name} never called its backend")
    call = recording.sites[expected.name][0]  # of a layer, which is called once
    if expected.options.sink:
        call = _without_sink(call, expected)
    _sizes(call, expected)
    _visible(recording, call, expected)
    _tensors(recording, call, expected)
    _bias(call, expected)
    return None


def _without_sink(call: SiteCall, expected: ExpectedSite) -> SiteCall:
    """The call without its last key. Raises Violation where that key is not the sink."""
    inputs, bias = call.inputs, call.inputs.bias
    K = inputs.key.shape[2] - 1
    sink = call.attention.sink
    if sink is None or not isinstance(bias, DenseBias) or bias.values.shape[3] != K + 1:
        raise Violation(CHECK, f"{expected.name}: the spec has a sink, and the call has no bias for it")
    if bool(inputs.key[:, :, K].any()) or bool(inputs.value[:, :, K].any()):
        raise Violation(CHECK, f"{expected.name}: the key and the value of the sink must be zero")
    column = bias.values[..., K].to(sink.dtype)
    same(CHECK, column, sink[:, None].expand_as(column), f"{expected.name}: the bias of the sink must be its logit", "bias")
    visible = inputs.mask.visible
    if inputs.mask.terms() != ({"visible"} if visible is not None else set()) or not (
        visible is None or bool(visible[..., K].all())
    ):
        raise Violation(CHECK, f"{expected.name}: every query must see the sink", tensor="mask")
    acts = expected.scheme is not None and "scores" in expected.scheme.entry.acts
    if not acts and bool(bias.values[..., :K].any()):
        raise Violation(CHECK, f"{expected.name}: its scores have a bias beside the sink, and no position scheme acts on them")
    plain = replace(
        inputs,
        key=inputs.key[:, :, :K],
        value=inputs.value[:, :, :K],
        mask=Mask(visible=None if visible is None else visible[..., :K]),
        bias=DenseBias(bias.values[..., :K]) if acts else None,
    )
    return replace(call, inputs=plain)


def _sizes(call: SiteCall, expected: ExpectedSite) -> None:
    inputs, site = call.inputs, expected.site
    wanted = (
        ("scale", inputs.scale, expected.scale),
        *((setting.name, getattr(inputs, setting.name), getattr(site, setting.name)) for setting in SCORE_SETTINGS),
        ("dropout", inputs.dropout, 0.0),
        ("number of query heads", inputs.query.shape[1], site.heads),
        ("number of key heads", inputs.key.shape[1], site.kv_heads),
        ("head dim", inputs.query.shape[3], site.head_dim),
        ("score function", call.attention.config.score, site.score),
    )  # fmt: skip
    for name, got, want in wanted:
        if got != want:
            raise Violation(CHECK, f"{expected.name}: the {name} is {got}, the spec says {want}")


def _visible(recording: Recording, call: SiteCall, expected: ExpectedSite) -> None:
    inputs = call.inputs
    B, H, Q, K = *inputs.query.shape[:3], inputs.key.shape[2]
    got = visible_pairs(inputs.mask, B, H, Q, K)
    query_visible = recording.nodes[expected.name.split(".")[0]].output.padding.as_visible(Q)
    key_visible = query_visible if expected.memory is None else recording.nodes[expected.memory].output.padding.as_visible(K)
    real = torch.ones(B, K, dtype=torch.bool) if key_visible is None else key_visible.cpu()
    asking = torch.ones(B, Q, dtype=torch.bool) if query_visible is None else query_visible.cpu()
    left, right = expected.window or (None, None)
    for b in range(B):
        for i in range(Q):
            if not asking[b, i]:
                continue
            for j in range(K):
                near = (left is None or j >= i - left) and (right is None or j <= i + right)
                want = bool(real[b, j]) and near and not (expected.causal and j > i)
                if bool((got[b, :, i, j] != want).any()):
                    does = "does not see" if want else "sees"
                    must = "it must" if want else "it must not"
                    message = f"{expected.name}: query {i} of batch row {b} {does} key {j}; {must}"
                    raise Violation(CHECK, message, tensor="mask", index=(b, 0, i, j))


def _tensors(recording: Recording, call: SiteCall, expected: ExpectedSite) -> None:
    stack, index, name = expected.name.split(".", 2)
    parts = recording.layers[stack, int(index)].parts
    rotates = expected.scheme is not None and "queries_keys" in expected.scheme.entry.acts
    plain = expected.options.query_key_norm.kind == "none"
    for tensor, actual in (("query", call.inputs.query), ("key", call.inputs.key), ("value", call.inputs.value)):
        projected = _projected(parts, name, expected, tensor)
        heads = expected.site.heads if tensor == "query" else expected.site.kv_heads
        split = _split(projected, heads)
        if tensor == "value" and expected.options.value_residual != "none":
            first = _first_values(recording, call, stack, f"branches.{name}.{expected.options.matrix(tensor)}", name)
            split = _mixed(split, _split(first, heads), call)
        if tensor == "key" and call.attention.score is not None:
            split = call.attention.score.map_keys(split)  # type: ignore[operator]
        if tensor == "value" or (plain and not rotates):
            same(CHECK, actual, split, f"{expected.name}: the {tensor} must be its projection, split into heads", tensor)
        elif plain and torch.equal(actual, split):
            assert expected.scheme is not None
            raise Violation(
                CHECK, f"{expected.name}: `{expected.scheme.kind}` must turn the {tensor}, and it is as it was projected"
            )
    merged = call.output.transpose(1, 2).flatten(2)
    if expected.options.output_gate != "none":
        gate = torch.sigmoid(parts[f"branches.{name}.gate"][0].output)
        gate, by_head = (tensor.view(*merged.shape[:2], expected.site.heads, -1) for tensor in (gate, merged))
        merged = (by_head * gate).flatten(2)
    read = parts[f"branches.{name}.output"][0].x
    same(CHECK, read, merged, f"{expected.name}: the output projection must read the heads, one after the other", "its input")


def _split(projected: Tensor, heads: int) -> Tensor:
    return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)


def _projected(parts: dict[str, list[Call]], name: str, expected: ExpectedSite, tensor: str) -> Tensor:
    """What the matrix of queries, keys or values gave. One that reads the sequence and a memory is called twice."""
    calls = parts[f"branches.{name}.{expected.options.matrix(tensor)}"]
    return calls[0 if tensor == "query" else -1].output  # type: ignore[no-any-return]


def _first_values(recording: Recording, call: SiteCall, stack: str, part: str, name: str) -> Tensor:
    """The projected values of the first layer with a sub-layer of this name that reads the same sequence."""
    memory = call.attention.config.memory
    calls: Iterator[Tensor] = (
        recording.layers[stack, index].parts[part][-1].output
        for _, index in sorted(key for key in recording.layers if key[0] == stack)
        if part in recording.layers[stack, index].parts
        and recording.sites[f"{stack}.{index}.{name}"][0].attention.config.memory == memory
    )
    return next(calls)


def _mixed(values: Tensor, first: Tensor, call: SiteCall) -> Tensor:
    weight = getattr(call.attention.value_residual, "weight", None)
    return 0.5 * (first + values) if weight is None else weight[0] * first + weight[1] * values


def _bias(call: SiteCall, expected: ExpectedSite) -> None:
    bias = call.inputs.bias
    acts = expected.scheme is not None and "scores" in expected.scheme.entry.acts
    if not acts and bias is not None:
        raise Violation(CHECK, f"{expected.name}: its scores have a bias, and no position scheme acts on them")
    if not acts or expected.scheme is None:
        return
    if bias is None:
        raise Violation(CHECK, f"{expected.name}: `{expected.scheme.kind}` acts on scores, and they have no bias")
    values: Tensor = bias.slopes if isinstance(bias, LinearBias) else bias.values
    if not bool(values.isfinite().all()):
        raise Violation(CHECK, f"{expected.name}: the bias of `{expected.scheme.kind}` is not finite")
    if not bool(values.any()):
        raise Violation(CHECK, f"{expected.name}: the bias of `{expected.scheme.kind}` is zero everywhere")


def local_checks(model: Model, graph: Graph, recording: Recording) -> Iterator[PartCheck]:
    """The checks that do not depend on backends; they are made once per run."""
    for node in stacks(graph):
        yield PartCheck("wiring of the stack", "", node.name, partial(stack_wiring, graph, recording, node.name))
    sites = expected_sites(graph)
    for expected in expected_layers(graph):
        where = f"{expected.stack}.{expected.index}"
        yield PartCheck("wiring of the layer", "", where, partial(layer_wiring, graph, recording, expected))
        for name in expected.sublayers:
            full = f"{where}.{name}"
            if full in sites:
                yield PartCheck("request", "A4", full, partial(request, recording, sites[full]))
                yield PartCheck("projections", "", full, partial(projections, recording, sites[full]))
            else:
                yield PartCheck("feed-forward", "R37", full, partial(feed_forward, recording, expected, name))
        applied = recording.layers.get((expected.stack, expected.index))
        for part, calls in applied.parts.items() if applied else ():
            if part.startswith("norms.") and expected.layer.norm.kind != "none":
                yield _norms(recording, f"{where}.{part.removeprefix('norms.')}", expected.layer.norm, calls)
    for name, call in recording.final_norms.items():
        if graph.nodes[name].options.final_norm.kind != "none":
            yield _norms(recording, f"{name}.final_norm", graph.nodes[name].options.final_norm, [call])
    for name, node in graph.nodes.items():
        for below in ("embedding_norm", "output_norm"):
            asked = getattr(node.options, below, None)
            if isinstance(asked, Component) and asked.kind != "none":
                yield _norms(recording, f"{name}.{below}", asked, recording.inner.get((name, below), []))
    for name, check in tokenwise_nodes(graph).items():
        node = graph.nodes[name]
        yield PartCheck(node.part.kind, "", name, partial(check, model, recording, node))


def _norms(recording: Recording, where: str, part: Component, calls: list[Call]) -> PartCheck:
    def check() -> float:
        if not calls:
            raise Violation("norm", f"the norm {where} was not applied")
        return max(norm(call, part, f"{where}: {recording.weight_of(call.module)}") for call in calls)

    return PartCheck("norm", "R36", where, check)
