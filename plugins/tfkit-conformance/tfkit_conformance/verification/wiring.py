"""Checks that each tensor goes where the spec says: from node to layer, through norms, sub-layers and residuals.

For every application of a layer, with x the stream, f a sub-layer, a and b the residual's factors as the placement's entry
gives them for this stack:

    post, deepnorm   x = norm(a x + b f(x))                       none       x = a x + b f(x)
    pre              x = a x + b f(norm(x))                       parallel   x = a x + the sum of b f(norm(x)), one x for all
    sandwich         x = a x + b norm_out(f(norm_in(x)))          residual_post   x = a x + b norm(f(x))

Where a tensor is passed on, the value that arrives is equal to the bit. Where it is summed, what arrives is within the
rounding of that sum (`tfkit_conformance.verification.approximate`). Post-norm of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762),
pre-norm of Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tfkit import Graph
from tfkit.inspection import layers_of, sequence

from ..finding import Violation
from .approximate import Approximate, exact, weighted_sum
from .expected import ExpectedLayer, memory_of, node_of, shown_positions
from .recording import Call, LayerCall, Recording
from .row import NotApplicable, close, same
from .tokenwise import added

CHECK = "wiring"


def stack_wiring(graph: Graph, recording: Recording, stack: str) -> float | None:
    """The stream from a stack's input node through its layers and its final norm. Raises Violation."""
    node, output = graph.nodes[stack], recording.nodes[stack].output.tensor
    stream = recording.nodes[node_of(node.edges.reads["input"])].output.tensor
    numbers, layers = zip(*sequence(layers_of(node.options)), strict=True)
    visible = shown_positions(graph, recording.batch).get(stack, stream.new_ones(stream.shape[:2], dtype=torch.bool))
    depth = len(numbers)
    applied = [index for name, index in recording.layers if name == stack]
    if len(applied) != depth:
        raise Violation(CHECK, f"`{stack}` has {depth} layers in the spec, and {len(applied)} were applied")
    for index in range(depth):
        call = recording.layers[stack, index].call
        if call.module is not recording.nodes[stack].module.get_submodule(f"layers.{numbers[index]}"):
            raise Violation(CHECK, f"layer {index} of `{stack}` must be its module `layers.{numbers[index]}`, and is another")
        words, position = f"layer {index} of `{stack}` must read what came before it", layers[index].position
        if position.entry.acts == {"embeddings"}:
            module: Any = recording.nodes[stack].module
            scheme = module.positions[module.added[index]]
            p = added(scheme, position, stream.shape[-1], visible.to("cpu"), stream.dtype)
            want = weighted_sum([(1.0, exact(stream)), (1.0, p)])
            close(CHECK, call.x, want.value, want.bound, f"{words}, plus {position.kind} positions", "its input")
        else:
            same(CHECK, call.x, stream, words, "its input")
        stream = call.output
    final, call_of_final = node.options.final_norm.kind, recording.final_norms.get(stack)
    if final == "none":
        same(CHECK, output, stream, f"`{stack}` ends in no norm, so it gives what its last layer gives", "its output")
    elif call_of_final is None:
        raise Violation(CHECK, f"`{stack}` must end in a {final}, and it was not applied")
    else:
        same(CHECK, call_of_final.x, stream, f"the final norm of `{stack}` must read the last layer", "its input")
        same(CHECK, output, call_of_final.output, f"`{stack}` gives what its final norm gives", "its output")
    return None


def layer_wiring(graph: Graph, recording: Recording, expected: ExpectedLayer) -> float | None:
    """One application of a layer by its placement's equation. Raises Violation, or NotApplicable for an unknown placement."""
    wire = WIRINGS.get(expected.placement.kind)
    if wire is None:
        raise NotApplicable(f"no equation is known for the placement `{expected.placement.kind}`")
    call = recording.layers[expected.stack, expected.index]
    words = f"layer {expected.index} of `{expected.stack}`, placement {expected.placement.kind}"
    parts = _Parts(call, words)
    for name, part in expected.sublayers.items():
        if part.entry.reads == "memory":
            _memory_wiring(graph, recording, parts, expected, name)
    result = wire(expected, parts, exact(call.call.x))
    got = call.call.output
    return max(parts.worst, close(CHECK, got, result.value, result.bound, words, "the layer's output"))


class _Parts:
    """The parts of one application of a layer, each call found once; what flows between them is compared on the way."""

    def __init__(self, call: LayerCall, words: str) -> None:
        self.call, self.words, self.worst = call, words, 0.0

    def find(self, name: str) -> Call:
        calls = self.call.parts.get(name, [])
        if len(calls) != 1:
            raise Violation(CHECK, f"{self.words}: `{name}` was applied {len(calls)} times, not once")
        return calls[0]

    def apply(self, name: str, x: Approximate | Tensor) -> Tensor:
        """What a part gave, having been given x: to the bit where x is a tensor, within its bound where it is a sum."""
        call = self.find(name)
        words = f"{self.words}: what `{name}` reads"
        if isinstance(x, Approximate):
            self.worst = max(self.worst, close(CHECK, call.x, x.value, x.bound, words, "its input"))
        else:
            same(CHECK, call.x, x, words, "its input")
        return call.output  # type: ignore[no-any-return]


def _memory_wiring(graph: Graph, recording: Recording, parts: _Parts, expected: ExpectedLayer, name: str) -> None:
    """Keys and values of a cross-attention are made from the memory that the spec names."""
    memory = memory_of(graph.nodes[expected.stack], expected.sublayers[name])
    assert memory is not None
    want = recording.nodes[memory].output.tensor
    for projection in ("key", "value"):
        matrix = expected.sublayers[name].options.matrix(projection)
        calls = parts.call.parts.get(f"branches.{name}.{matrix}", [])
        words = f"{parts.words}: the {projection} of `{name}` must be made from `{memory}`"
        if len(calls) != 1 + (matrix == "query"):  # one that is shared with the queries reads the sequence first
            raise Violation(CHECK, f"{words}, and its projection was applied {len(calls)} times")
        same(CHECK, calls[-1].x, want, words, "what its projection reads")


def _norm(parts: _Parts, expected: ExpectedLayer, site: str, x: Approximate | Tensor) -> Tensor | Approximate:
    """The output of a norm; its input if there is no norm."""
    return x if expected.layer.norm.kind == "none" else parts.apply(f"norms.{site}", x)


def _sum(expected: ExpectedLayer, name: str, x: Approximate, branch: Tensor | Approximate) -> Approximate:
    added = branch if isinstance(branch, Approximate) else exact(branch)
    return weighted_sum([(expected.skip, x), (expected.branch[name], added)])


def _settled(x: Approximate | Tensor) -> Approximate:
    return x if isinstance(x, Approximate) else exact(x)


def _post(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    node_output: Approximate | Tensor = x
    for name in expected.sublayers:
        here = _settled(node_output)
        node_output = _norm(parts, expected, name, _sum(expected, name, here, parts.apply(f"branches.{name}", node_output)))
    return _settled(node_output)


def _pre(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    for name in expected.sublayers:
        x = _sum(expected, name, x, parts.apply(f"branches.{name}", _norm(parts, expected, name, x)))
    return x


def _sandwich(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    for name in expected.sublayers:
        inner = parts.apply(f"branches.{name}", _norm(parts, expected, f"{name}_in", x))
        x = _sum(expected, name, x, _norm(parts, expected, f"{name}_out", inner))
    return x


def _residual_post(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    for name in expected.sublayers:
        x = _sum(expected, name, x, _norm(parts, expected, name, parts.apply(f"branches.{name}", x)))
    return x


def _parallel(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    shared = expected.placement.options.norms == "shared"
    total = x
    for name in expected.sublayers:
        normed = _norm(parts, expected, "shared" if shared else name, x)
        total = _sum(expected, name, total, parts.apply(f"branches.{name}", normed))
    return total


def _bare(expected: ExpectedLayer, parts: _Parts, x: Approximate) -> Approximate:
    for name in expected.sublayers:
        x = _sum(expected, name, x, parts.apply(f"branches.{name}", x))
    return x


WIRINGS: dict[str, Callable[[ExpectedLayer, _Parts, Approximate], Approximate]] = {
    "post": _post,
    "deepnorm": _post,
    "pre": _pre,
    "sandwich": _sandwich,
    "residual_post": _residual_post,
    "parallel": _parallel,
    "none": _bare,
}
