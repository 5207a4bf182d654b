"""Which of their parameters is which of ours.

A map holds, by our name, their name; `{i}` is the number of a layer, unless the map names the layer itself, and a name that
ends in neither `weight`, `bias` nor `table` stands for the whole module. A pair (name, view) says how ours is seen in theirs:
one third of a fused projection, a transposed matrix. The same map carries values and gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from tfkit import load_catalogue
from tfkit.interop.weight_map import MapFile, Rule, rules_of, shipped_maps

View = Callable[[Tensor], Tensor]
NameMap = Mapping[str, Any]


def translated(names: Iterable[str], theirs: Mapping[str, Tensor], name_map: NameMap) -> dict[str, Tensor]:
    """Their tensors by our names. Fails where one of ours has none, or one of theirs has no place with us."""
    found, used = {}, set()
    for name in names:
        number = re.search(r"layers\.(\d+)", name)
        key = name if name.rpartition(".")[0] in name_map else re.sub(r"layers\.\d+", "layers.{i}", name)
        module, _, leaf = key.rpartition(".")
        there = name_map[key] if key in name_map else name_map[module]
        their_name, view = there if isinstance(there, tuple) else (there, None)
        their_name += "" if key in name_map else f".{leaf}"
        their_name = their_name.replace("{i}", number[1] if number else "")
        used.add(their_name)
        found[name] = theirs[their_name] if view is None else view(theirs[their_name])
    assert used == set(theirs), f"theirs alone: {sorted(set(theirs) - used)}"
    return found


def third(number: int) -> View:
    return lambda tensor: tensor.chunk(3)[number]


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.t() if tensor.dim() == 2 else tensor


def _row(tensor: Tensor) -> Tensor:
    return tensor[0]


def shipped(architecture: str, **config: Any) -> NameMap:
    """The weight map of a class of transformers as it comes in, for the rules that hold with `config`."""
    map_file = next(each for each in _maps() if architecture in each.architectures)
    entry = map_file.architectures[architecture]
    rules = [*rules_of(entry.weights), *rules_of(map_file.weights, entry.prefix)]
    return {
        ours: (rule.theirs, _inverse(rule, number))
        for rule in rules
        if rule.holds(config)
        for number, ours in enumerate(rule.ours)
    }


@cache
def _maps() -> list[MapFile]:
    return [*shipped_maps(load_catalogue()).values()]


def _inverse(rule: Rule, number: int) -> View:
    """From their tensor to ours, of which the rule has several of equal size."""
    inverses: dict[str, Callable[[Tensor, Any], Tensor]] = {
        "transpose": lambda tensor, _: _transposed(tensor),
        "unsqueeze": lambda tensor, count: tensor[(0,) * count],
        "scalar": lambda tensor, _: tensor.reshape(1),
        "concat": lambda tensor, _: tensor.chunk(len(rule.ours))[number],
    }
    views = [next(iter(view.items())) if isinstance(view, dict) else (view, None) for view in rule.views]

    def inverse(tensor: Tensor) -> Tensor:
        for name, argument in reversed(views):
            tensor = inverses[name](tensor, argument)
        return tensor

    return inverse


def under(prefix: str, other: str, parts: NameMap) -> dict[str, Any]:
    """The map of `parts`, ours below `prefix`, theirs below `other`."""
    below = {}
    for name, there in parts.items():
        their_name, view = there if isinstance(there, tuple) else (there, None)
        below[f"{prefix}.{name}"] = f"{other}.{their_name}" if view is None else (f"{other}.{their_name}", view)
    return below


def attention_map(name: str, query: str, key: str, value: str, output: str) -> dict[str, str]:
    """The four projections of one attention."""
    parts = {"query": query, "key": key, "value": value, "output": output}
    return {f"branches.{name}.{ours}": theirs for ours, theirs in parts.items()}


LLAMA_BRANCHES = {
    **attention_map("self_attention", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    "branches.ffn.input": "mlp.up_proj",
    "branches.ffn.gate": "mlp.gate_proj",
    "branches.ffn.output": "mlp.down_proj",
}


def _torch_attention(name: str, other: str) -> dict[str, Any]:
    """torch.nn.MultiheadAttention, whose three input projections are one matrix."""
    parts = {
        f"branches.{name}.{projection}.{leaf}": (f"{other}.in_proj_{leaf}", third(number))
        for number, projection in enumerate(("query", "key", "value"))
        for leaf in ("weight", "bias")
    }
    return {**parts, f"branches.{name}.output": f"{other}.out_proj"}


_TORCH_FFN = {"branches.ffn.input": "linear1", "branches.ffn.output": "linear2"}
TORCH = {
    "nodes.source.embedding": "embedding",
    "nodes.source.position.table": "source_positions",
    "nodes.target.position.table": "target_positions",
    **under(
        "nodes.encoder.layers.{i}",
        "encoder.layers.{i}",
        {
            **_torch_attention("self_attention", "self_attn"),
            **_TORCH_FFN,
            "norms.self_attention": "norm1",
            "norms.ffn": "norm2",
        },
    ),
    **under(
        "nodes.decoder.layers.{i}",
        "decoder.layers.{i}",
        {
            **_torch_attention("self_attention", "self_attn"),
            **_torch_attention("cross_attention", "multihead_attn"),
            **_TORCH_FFN,
            "norms.self_attention": "norm1",
            "norms.cross_attention": "norm2",
            "norms.ffn": "norm3",
        },
    ),
    "nodes.encoder.final_norm": "encoder.norm",
    "nodes.decoder.final_norm": "decoder.norm",
}


def _first(tensor: Tensor) -> Tensor:
    return tensor[0, 0]


VIT = {
    "nodes.image.projection": "vit.embeddings.patch_embeddings.projection",
    "nodes.image.class_token": ("vit.embeddings.cls_token", _first),
    "nodes.image.position.table": ("vit.embeddings.position_embeddings", _row),
    **under(
        "nodes.encoder.layers.{i}",
        "vit.layers.{i}",
        {
            **attention_map("self_attention", *(f"attention.{name}_proj" for name in "qkvo")),
            "branches.ffn.input": "mlp.fc1",
            "branches.ffn.output": "mlp.fc2",
            "norms.self_attention": "layernorm_before",
            "norms.ffn": "layernorm_after",
        },
    ),
    "nodes.encoder.final_norm": "vit.layernorm",
    "nodes.label.linear": "classifier",
}
