"""Modules of torch.nn as specs and models with equal outputs and gradients.

    model = tfkit.interop.from_torch(torch.nn.Transformer(512, 8, batch_first=True))
    model(source=x, target=y, masks={"source": ~padding}).decoder

Their inputs are vectors, so the spec starts from `features` nodes. All masks are a matter of the call, as in torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..builder import build
from ..catalogue import load_catalogue
from ..errors import Diagnostic, InputError
from ..nn.model import Model
from ..nn.torch_recurrent import load_torch
from ..spec import parse_spec

Node = dict[str, Any]

FUNCTIONS: dict[Any, str] = {
    functional.relu: "relu", torch.relu: "relu", functional.gelu: "gelu", functional.silu: "silu", functional.tanh: "tanh",
    torch.tanh: "tanh",
}  # fmt: skip
MODULES = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh", nn.Identity: "identity"}
CELLS: dict[str, Any] = {
    "GRU": {"kind": "gru", "reset": "after"}, "LSTM": {"kind": "lstm"}, "RNN_TANH": {"kind": "rnn_tanh"},
    "RNN_RELU": {"kind": "rnn_relu"},
}  # fmt: skip
"""The cells by `mode` of torch's recurrent modules."""
PROJECTIONS = ("query", "key", "value")


class Refusals:
    """The reasons against a module, collected so that all are reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def unless(self, correct: object, reason: str) -> None:
        if not correct and reason not in self.found:
            self.found.append(reason)


def from_torch(module: nn.Module, *, causal: bool | None = None, cross: bool = False) -> Model:
    """A model that computes what a module of torch.nn computes, with copies of its weights. Its spec is `model.spec`.

    | module | inputs | output |
    | --- | --- | --- |
    | `Transformer` | `source`, `target` | `decoder` |
    | `TransformerEncoder`, `TransformerEncoderLayer` | `source` | `encoder` |
    | `TransformerDecoder`, `TransformerDecoderLayer` | `memory`, `target` | `decoder` |
    | `GRU`, `LSTM`, `RNN` | `source` | `encoder` |
    | `MultiheadAttention` | `source`, with `cross` also `memory` | `attention` |

    In a spec an attention is part of a layer with a residual: the output for `MultiheadAttention` is source + attention. All
    tensors are (B, L, M), as with `batch_first=True`.

    Args:
        module: the module. A subclass is refused, since it may compute anything.
        causal: whether each position sees only those up to itself; by default only in a decoder. torch takes this as a mask.
        cross: of `MultiheadAttention`: whether keys and values come from `memory`.

    Returns:
        The model, in the dtype, on the device and in the mode (training or not) of the module.

    Raises:
        InputError: tfkit has no equal of the module. All reasons are given.
    """
    refusals = Refusals()
    nodes = _nodes(module, causal, cross, refusals)
    if refusals.found:
        name = type(module).__name__
        raise InputError([Diagnostic("TFK128", f"no spec equals this {name}: {reason}") for reason in refusals.found])
    stacks = [name for name, node in nodes.items() if node["kind"] != "features"]
    data = {"tfkit": 1, "name": f"torch-{type(module).__name__}", "nodes": nodes, "outputs": stacks[-1:]}
    catalogue = load_catalogue()
    spec = parse_spec(json.dumps(data, allow_nan=False), catalogue, file=f"the spec of this {type(module).__name__}")
    weight = next(module.parameters())
    model = build(spec, catalogue, dtype=weight.dtype, device=weight.device)
    if isinstance(module, nn.RNNBase):
        load_torch(model.nodes["encoder"], module)  # type: ignore[arg-type]
    else:
        weights = {name: tensor.detach() for name, tensor in _weights(module, stacks, "memory" in nodes)}
        model.load_state_dict(weights, strict=True)
    return model.train(module.training)


def _features(size: int) -> Node:
    return {"kind": "features", "size": size}


def _nodes(module: nn.Module, causal: bool | None, cross: bool, refusals: Refusals) -> dict[str, Node]:
    """The nodes of the spec. Sizes are read from layers that are of torch's own classes only."""
    kind = type(module)
    untyped: Any = module
    if cross and kind is not nn.MultiheadAttention:
        refusals.unless(False, "`cross` belongs to MultiheadAttention")
    if kind is nn.Transformer:
        parts = (type(untyped.encoder), type(untyped.decoder))
        refusals.unless(parts == (nn.TransformerEncoder, nn.TransformerDecoder), f"its parts are {_names(parts)}")
        if refusals.found:
            return {}
        encoder = _stack(untyped.encoder, "source", None, False, refusals)
        decoder = _stack(untyped.decoder, "target", "encoder", causal is not False, refusals)
        size = untyped.d_model
        return {"source": _features(size), "target": _features(size), "encoder": encoder, "decoder": decoder}
    if kind in (nn.TransformerEncoder, nn.TransformerEncoderLayer):
        stack = _stack(untyped, "source", None, bool(causal), refusals)
        return {"source": _features(_width(untyped)), "encoder": stack}
    if kind in (nn.TransformerDecoder, nn.TransformerDecoderLayer):
        stack = _stack(untyped, "target", "memory", causal is not False, refusals)
        size = _width(untyped)
        return {"memory": _features(size), "target": _features(size), "decoder": stack}
    if kind in (nn.GRU, nn.LSTM, nn.RNN):
        refusals.unless(not causal, "a recurrent module is causal only if it is not bidirectional; leave `causal` out")
        return _recurrent(untyped, refusals)
    if kind is nn.MultiheadAttention:
        return _attention_nodes(untyped, bool(causal), cross, refusals)
    known = "Transformer, TransformerEncoder, TransformerDecoder, their layers, MultiheadAttention, GRU, LSTM, RNN"
    refusals.unless(False, f"known are torch.nn's own classes {known}")
    return {}


def _names(types: Sequence[type]) -> str:
    return " and ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in types)


def _layers_of(module: Any) -> list[Any]:
    return list(module.layers) if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)) else [module]


def _width(module: Any) -> int:
    attention = getattr(_layers_of(module)[0], "self_attn", None)
    return attention.embed_dim if isinstance(attention, nn.MultiheadAttention) else 1


def _stack(module: Any, source: str, memory: str | None, causal: bool, refusals: Refusals) -> Node:
    layers, wanted = _layers_of(module), nn.TransformerEncoderLayer if memory is None else nn.TransformerDecoderLayer
    foreign = {type(layer) for layer in layers} - {wanted}
    refusals.unless(not foreign, f"a layer is {_names(sorted(foreign, key=str))}, not torch.nn.{wanted.__name__}")
    shared = len(layers) > 1 and len({id(layer) for layer in layers}) == 1
    refusals.unless(shared or len({id(layer) for layer in layers}) == len(layers), "some of its layers are one and the same")
    if foreign:
        return {}
    described = [_layer(layer, memory is not None, refusals) for layer in layers]
    node: Node = {"kind": "stack", "input": source, "causal": causal, "position": "none"}
    node["final_norm"] = _norm(getattr(module, "norm", None), refusals)
    if memory is not None:
        node["memory"] = memory
    if all(layer == described[0] for layer in described):
        node |= {**described[0], "layers": [{"repeat": len(layers), "shared": shared}]}
    else:
        node["layers"] = described
    return node


def _layer(layer: Any, decodes: bool, refusals: Refusals) -> Node:
    norms = [layer.norm1, layer.norm2, *([layer.norm3] if decodes else [])]
    dropouts = {dropout.p for dropout in (layer.dropout1, layer.dropout2, *([layer.dropout3] if decodes else []))}
    refusals.unless(len(dropouts) == 1, f"the dropouts after its sub-layers differ: {sorted(dropouts)}")
    written = [_norm(norm, refusals) for norm in norms]
    refusals.unless(all(norm == written[0] for norm in written), "the norms of a layer differ")
    biases = {layer.linear1.bias is not None, layer.linear2.bias is not None}
    refusals.unless(len(biases) == 1, "only one of its linear maps has a bias")
    node: Node = {
        "placement": "pre" if layer.norm_first else "post",
        "norm": written[0],
        "dropout": dropouts.pop(),
        "self_attention": _attention(layer.self_attn, refusals),
        "ffn": {
            "d_ff": layer.linear1.out_features,
            "activation": _activation(layer.activation, refusals),
            "bias": biases.pop(),
            "dropout": layer.dropout.p,
        },
    }
    if decodes:
        node["cross_attention"] = _attention(layer.multihead_attn, refusals)
    return node


def _attention(attention: nn.MultiheadAttention, refusals: Refusals) -> Node:
    refusals.unless(type(attention) is nn.MultiheadAttention, f"an attention is {_names([type(attention)])}")
    refusals.unless(attention.bias_k is None, "`add_bias_kv` adds a learned key and value")
    refusals.unless(not attention.add_zero_attn, "`add_zero_attn` adds a key and value of zeros")
    dims = (attention.kdim, attention.vdim)
    refusals.unless(dims[0] == dims[1], f"keys have {dims[0]} features (kdim) and values {dims[1]} (vdim): a memory is both")
    bias = attention.in_proj_bias is not None
    return {
        "num_heads": attention.num_heads,
        "dropout": float(attention.dropout),
        "bias": dict.fromkeys(PROJECTIONS, bias) | {"output": attention.out_proj.bias is not None},
    }


def _attention_nodes(module: nn.MultiheadAttention, causal: bool, cross: bool, refusals: Refusals) -> dict[str, Node]:
    sublayer = "cross_attention" if cross else "self_attention"
    refusals.unless(cross or module.kdim == module.embed_dim, "keys have a width of their own: write cross=True")
    refusals.unless(not (cross and causal), "positions of two sequences have no order: leave `causal` out")
    stack: Node = {
        "kind": "stack", "input": "source", "causal": causal, "position": "none", "placement": "none", "norm": "none",
        "final_norm": "none", "dropout": 0.0, "layers": [{"sublayers": [sublayer]}], sublayer: _attention(module, refusals),
    }  # fmt: skip
    memory = {"memory": _features(module.kdim)} if cross else {}
    return {"source": _features(module.embed_dim), **memory, "attention": stack | ({"memory": "memory"} if cross else {})}


def _recurrent(module: Any, refusals: Refusals) -> dict[str, Node]:
    refusals.unless(not module.proj_size, f"its states are projected to {module.proj_size} features (proj_size)")
    dropped = module.dropout > 0.0 and module.num_layers > 1
    refusals.unless(not dropped, f"its dropout is {module.dropout:g}: tfkit drops outputs of the last layer too")
    node = {
        "kind": "rnn", "input": "source", "d_state": module.hidden_size, "num_layers": module.num_layers,
        "bidirectional": module.bidirectional, "cell": CELLS[module.mode] | {"bias": module.bias}, "dropout": 0.0,
    }  # fmt: skip
    return {"source": _features(module.input_size), "encoder": node}


def _activation(function: Callable[[Tensor], Tensor], refusals: Refusals) -> str:
    if type(function) is nn.GELU:
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    activation = MODULES.get(type(function)) if isinstance(function, nn.Module) else FUNCTIONS.get(function)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    known = "relu, gelu, silu, tanh and their modules"
    refusals.unless(activation, f"its activation is `{getattr(function, '__module__', '')}.{name}`, and known are {known}")
    return activation or "identity"


def _norm(norm: Any, refusals: Refusals) -> Any:
    if norm is None:
        return "none"
    if type(norm) is nn.RMSNorm and norm.eps is not None:
        return {"kind": "rms_norm", "eps": norm.eps, "affine": norm.weight is not None}
    refusals.unless(type(norm) is nn.LayerNorm, f"a norm is {_names([type(norm)])}; known are LayerNorm, and RMSNorm with eps")
    if type(norm) is not nn.LayerNorm:
        return "none"
    return {"kind": "layer_norm", "eps": norm.eps, "bias": norm.bias is not None, "affine": norm.weight is not None}


def _weights(module: Any, stacks: list[str], cross: bool) -> Iterator[tuple[str, Tensor]]:
    """The weights by our names."""
    if isinstance(module, nn.MultiheadAttention):
        name = "cross_attention" if cross else "self_attention"
        yield from _projections(module, f"nodes.attention.layers.0.branches.{name}")
        return
    torch_stacks = [module] if not isinstance(module, nn.Transformer) else [module.encoder, module.decoder]
    for name, stack in zip(stacks, torch_stacks, strict=True):
        layers = list({id(layer): layer for layer in _layers_of(stack)}.values())
        for number, layer in enumerate(layers):
            yield from _layer_weights(layer, f"nodes.{name}.layers.{number}")
        yield from _named(getattr(stack, "norm", None), f"nodes.{name}.final_norm")


def _layer_weights(layer: Any, at: str) -> Iterator[tuple[str, Tensor]]:
    attentions: Mapping[str, Any] = {"self_attention": layer.self_attn}
    if isinstance(layer, nn.TransformerDecoderLayer):
        attentions = {**attentions, "cross_attention": layer.multihead_attn}
    for name, attention in attentions.items():
        yield from _projections(attention, f"{at}.branches.{name}")
    yield from _named(layer.linear1, f"{at}.branches.ffn.input")
    yield from _named(layer.linear2, f"{at}.branches.ffn.output")
    for number, name in enumerate((*attentions, "ffn"), start=1):
        yield from _named(getattr(layer, f"norm{number}"), f"{at}.norms.{name}")


def _projections(attention: Any, at: str) -> Iterator[tuple[str, Tensor]]:
    """torch keeps the three input projections in one matrix if they read the same width."""
    separate = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
    matrices = separate if attention.in_proj_weight is None else attention.in_proj_weight.chunk(3)
    for name, matrix in zip(PROJECTIONS, matrices, strict=True):
        yield f"{at}.{name}.weight", matrix
    if attention.in_proj_bias is not None:
        for name, bias in zip(PROJECTIONS, attention.in_proj_bias.chunk(3), strict=True):
            yield f"{at}.{name}.bias", bias
    yield from _named(attention.out_proj, f"{at}.output")


def _named(module: nn.Module | None, at: str) -> Iterator[tuple[str, Tensor]]:
    if module is not None:
        yield from ((f"{at}.{name}", tensor) for name, tensor in module.named_parameters())
