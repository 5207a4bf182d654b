"""The maps of gpt-oss without experts, ModernBERT and T5Gemma; see `name_maps.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .name_maps import LLAMA_BRANCHES, NameMap, View, attention_map, shipped, third, under

GPT_OSS_DENSE = {
    **shipped("LlamaForCausalLM"),
    "nodes.body.layers.{i}.branches.self_attention.sink": "model.layers.{i}.self_attn.sinks",
}


def _half(number: int) -> View:
    return lambda tensor: tensor.chunk(2)[number]


def modernbert(num_layers: int) -> NameMap:
    """Their first layer is two of ours, so that all others have other numbers."""
    attention = {
        **{
            f"branches.self_attention.{name}": ("attn.Wqkv", third(number))
            for number, name in enumerate(("query", "key", "value"))
        },
        "branches.self_attention.output": "attn.Wo",
        "norms.self_attention": "attn_norm",
    }
    ffn = {
        "branches.ffn.gate": ("mlp.Wi", _half(0)),
        "branches.ffn.input": ("mlp.Wi", _half(1)),
        "branches.ffn.output": "mlp.Wo",
        "norms.ffn": "mlp_norm",
    }
    layers = {**under("nodes.encoder.layers.0", "layers.0", attention), **under("nodes.encoder.layers.1", "layers.0", ffn)}
    for number in range(1, num_layers):
        layers |= under(f"nodes.encoder.layers.{number + 1}", f"layers.{number}", {**attention, **ffn})
    return {
        "nodes.tokens.embedding": "model.embeddings.tok_embeddings",
        "nodes.tokens.embedding_norm": "model.embeddings.norm",
        **{ours: _in_model(theirs) for ours, theirs in layers.items()},
        "nodes.encoder.final_norm": "model.final_norm",
        "nodes.transform.linear": "head.dense",
        "nodes.transform.output_norm": "head.norm",
        "nodes.words.bias": "decoder.bias",
    }


def _in_model(theirs: Any) -> Any:
    return f"model.{theirs}" if isinstance(theirs, str) else (f"model.{theirs[0]}", theirs[1])


def _t5gemma(name: str, sublayers: Mapping[str, str]) -> dict[str, Any]:
    parts = {key: there for key, there in LLAMA_BRANCHES.items() if ".ffn." in key}
    for ours, theirs in (*sublayers.items(), ("ffn", "feedforward")):
        if ours != "ffn":
            parts |= attention_map(ours, *(f"{theirs}.{letter}_proj" for letter in "qkvo"))
        parts |= {f"norms.{ours}_in": f"pre_{theirs}_layernorm", f"norms.{ours}_out": f"post_{theirs}_layernorm"}
    return {
        **under(f"nodes.{name}.layers.{{i}}", f"model.{name}.layers.{{i}}", parts),
        f"nodes.{name}.final_norm": f"model.{name}.norm",
    }


T5GEMMA = {
    "nodes.source.embedding": "model.encoder.embed_tokens",
    "nodes.target.embedding": "model.decoder.embed_tokens",
    **_t5gemma("encoder", {"self_attention": "self_attn"}),
    **_t5gemma("decoder", {"self_attention": "self_attn", "cross_attention": "cross_attn"}),
}
