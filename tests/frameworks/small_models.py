"""Small models for tools of other libraries: encoder-decoders with a tied and an untied head, a decoder, recurrent ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tfkit

DEFAULTS: dict[str, Any] = {
    "d_model": 16,
    "vocab_size": 53,
    "pad_id": 0,
    "position": "sinusoidal",
    "placement": "pre",
    "norm": "layer_norm",
    "attention": {"num_heads": 2},
    "ffn": {"d_ff": 24, "activation": "swiglu"},
}
RECURRENT = {
    "encoder": {"kind": "rnn", "input": "source", "d_state": 12, "cell": "gru", "bidirectional": True},
    "decoder": {
        "kind": "rnn",
        "input": "target",
        "memory": "encoder",
        "d_state": 12,
        "cell": "gru",
        "cross_attention": {"attend": "before_cell", "score": {"kind": "additive", "d_score": 10}},
        "initial_state": {"take": "first_backward"},
        "readout": {"kind": "maxout", "d_model": 14, "state": "previous"},
    },
}
STACKS = {
    "encoder": {"kind": "stack", "input": "source"},
    "decoder": {"kind": "stack", "input": "target", "memory": "encoder", "causal": True},
}
SOURCE = {"source": {"kind": "tokens", "scale": "sqrt_d_model"}}


def spec(kind: str, layers: int = 2) -> dict[str, Any]:
    """`tied`, `untied`: encoder-decoders by their head; `decoder`; `positions`: one with learned positions and T5's biases;
    `recurrent`, with additive attention and an untied head."""
    special = {"start_id": 2, "end_id": 3}
    head: dict[str, Any] = {"kind": "token_logits", "bias": True}
    defaults = DEFAULTS
    if kind in ("decoder", "positions"):
        learned = {"position": {"kind": "learned", "max_len": 40}} if kind == "positions" else {}
        biased = {"position": {"kind": "relative_t5", "buckets": 8, "max_distance": 16}} if kind == "positions" else {}
        defaults = {key: value for key, value in DEFAULTS.items() if key != "position" or kind == "decoder"}
        nodes = {
            "target": {"kind": "tokens", **special, **learned},
            "decoder": {"kind": "stack", "input": "target", "causal": True, **biased},
            "logits": {**head, "input": "decoder", "share": "target"},
        }
    elif kind == "recurrent":
        defaults = {key: DEFAULTS[key] for key in ("d_model", "vocab_size", "pad_id")}
        nodes = {"source": {"kind": "tokens"}, "target": {"kind": "tokens", **special}, **RECURRENT}
        nodes["logits"] = {**head, "input": "decoder"}
    else:
        nodes = {**SOURCE, "target": {"kind": "tokens", "share": "source", **special}, **STACKS}
        nodes["logits"] = {**head, "input": "decoder", **({"share": "source"} if kind == "tied" else {})}
    nodes = {name: {**node, "num_layers": layers} if node["kind"] == "stack" else node for name, node in nodes.items()}
    return {"tfkit": 1, "name": f"small-{kind}", "defaults": defaults, "nodes": nodes, "outputs": ["logits"]}


KINDS = ("tied", "untied", "decoder", "positions", "recurrent")


def build(kind: str, dtype: torch.dtype = torch.float64, layers: int = 2) -> tfkit.Model:
    """With as many layers in each stack; one where the model is compiled, which takes seconds for each."""
    return tfkit.build(spec(kind, layers), seed=0, dtype=dtype).eval()


def ids(rows: int = 3, length: int = 6, seed: int = 1) -> Tensor:
    return torch.randint(4, 53, (rows, length), generator=torch.Generator().manual_seed(seed))


def inputs(model: Any) -> dict[str, Tensor]:
    """Ids for every input of a model."""
    return {name: ids(seed=number) for number, name in enumerate(model.plan.inputs)}


def searches(model: Any, tokens: int = 7) -> list[Any]:
    """The ids of a greedy and of a beam search, at most so many in a row."""
    given: dict[str, Any] = {"max_new_tokens": tokens}
    if "source" in model.plan.inputs:
        given["source"] = ids()
    else:
        given["prompt"] = ids(length=2)
    beams = tfkit.beam_search(model, beams=3, **given)
    return [tfkit.greedy(model, **given).ids.tolist(), [[row.ids.tolist() for row in rows] for rows in beams]]
