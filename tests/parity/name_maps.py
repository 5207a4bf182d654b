"""Which of their parameters is which of ours.

A map holds, by our name, their name; `{i}` is the number of a layer, unless the map names the layer itself, and a name that
ends in neither `weight`, `bias` nor `table` stands for the whole module. A pair (name, view) says how ours is seen in theirs:
one third of a fused projection, a transposed matrix. The same map carries values and gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

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


def _third_transposed(number: int) -> View:
    return lambda tensor: _transposed(tensor.chunk(3, -1)[number])


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.t() if tensor.dim() == 2 else tensor


def _row(tensor: Tensor) -> Tensor:
    return tensor[0]


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


_BERT_LAYER = {
    **attention_map(
        "self_attention",
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ),
    "branches.ffn.input": "intermediate.dense",
    "branches.ffn.output": "output.dense",
    "norms.self_attention": "attention.output.LayerNorm",
    "norms.ffn": "output.LayerNorm",
}
_BERT_TOKENS = {
    "embedding": "word_embeddings",
    "segments": "token_type_embeddings",
    "position.table": "position_embeddings.weight",
    "embedding_norm": "LayerNorm",
}
BERT = {
    **under("nodes.tokens", "embeddings", _BERT_TOKENS),
    **under("nodes.encoder.layers.{i}", "encoder.layer.{i}", _BERT_LAYER),
    "nodes.pooled.linear": "pooler.dense",
}
BERT_PRETRAINING = {
    **{name: f"bert.{there}" for name, there in BERT.items()},
    "nodes.transform.linear": "cls.predictions.transform.dense",
    "nodes.transform.output_norm": "cls.predictions.transform.LayerNorm",
    "nodes.words.bias": "cls.predictions.bias",
    "nodes.next.linear": "cls.seq_relationship",
}
BERT_QA = {
    **{name: f"bert.{there}" for name, there in BERT.items() if not name.startswith("nodes.pooled")},
    "nodes.answer.linear": "qa_outputs",
}
ROBERTA = {
    **{name: f"roberta.{there}" for name, there in BERT.items()},
    "nodes.transform.linear": "lm_head.dense",
    "nodes.transform.output_norm": "lm_head.layer_norm",
    "nodes.words.bias": "lm_head.bias",
}
ALBERT = {
    **under("nodes.tokens", "embeddings", _BERT_TOKENS),
    "nodes.widen.linear": "encoder.embedding_hidden_mapping_in",
    **under(
        "nodes.encoder.layers.{i}",
        "encoder.albert_layer_groups.{i}.albert_layers.0",
        {
            **attention_map("self_attention", "attention.query", "attention.key", "attention.value", "attention.dense"),
            "branches.ffn.input": "ffn",
            "branches.ffn.output": "ffn_output",
            "norms.self_attention": "attention.LayerNorm",
            "norms.ffn": "full_layer_layer_norm",
        },
    ),
    "nodes.pooled.linear": "pooler",
}

GPT2 = {
    "nodes.tokens.embedding": "transformer.wte",
    "nodes.tokens.position.table": "transformer.wpe.weight",
    **under(
        "nodes.body.layers.{i}",
        "transformer.h.{i}",
        {
            "branches.self_attention.query": ("attn.c_attn", _third_transposed(0)),
            "branches.self_attention.key": ("attn.c_attn", _third_transposed(1)),
            "branches.self_attention.value": ("attn.c_attn", _third_transposed(2)),
            "branches.self_attention.output": ("attn.c_proj", _transposed),
            "branches.ffn.input": ("mlp.c_fc", _transposed),
            "branches.ffn.output": ("mlp.c_proj", _transposed),
            "norms.self_attention": "ln_1",
            "norms.ffn": "ln_2",
        },
    ),
    "nodes.body.final_norm": "transformer.ln_f",
}
GPTJ = {
    "nodes.tokens.embedding": "transformer.wte",
    **under(
        "nodes.body.layers.{i}",
        "transformer.h.{i}",
        {
            **attention_map("self_attention", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
            "branches.ffn.input": "mlp.fc_in",
            "branches.ffn.output": "mlp.fc_out",
            "norms.shared": "ln_1",
        },
    ),
    "nodes.body.final_norm": "transformer.ln_f",
    "nodes.logits.logits": "lm_head",
    "nodes.logits.bias": "lm_head.bias",
}

LLAMA_BRANCHES = {
    **attention_map("self_attention", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    "branches.ffn.input": "mlp.up_proj",
    "branches.ffn.gate": "mlp.gate_proj",
    "branches.ffn.output": "mlp.down_proj",
}
LLAMA = {
    "nodes.tokens.embedding": "model.embed_tokens",
    **under(
        "nodes.body.layers.{i}",
        "model.layers.{i}",
        {**LLAMA_BRANCHES, "norms.self_attention": "input_layernorm", "norms.ffn": "post_attention_layernorm"},
    ),
    "nodes.body.final_norm": "model.norm",
    "nodes.logits.logits": "lm_head",
}
GEMMA2 = {
    "nodes.tokens.embedding": "model.embed_tokens",
    **under(
        "nodes.body.layers.{i}",
        "model.layers.{i}",
        {
            **LLAMA_BRANCHES,
            "norms.self_attention_in": "input_layernorm",
            "norms.self_attention_out": "post_attention_layernorm",
            "norms.ffn_in": "pre_feedforward_layernorm",
            "norms.ffn_out": "post_feedforward_layernorm",
        },
    ),
    "nodes.body.final_norm": "model.norm",
}
CLIP_TEXT = {
    "nodes.text.embedding": "text_model.embeddings.token_embedding",
    "nodes.text.position.table": "text_model.embeddings.position_embedding.weight",
    **under(
        "nodes.text_body.layers.{i}",
        "text_model.encoder.layers.{i}",
        {
            **attention_map("self_attention", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
            "branches.ffn.input": "mlp.fc1",
            "branches.ffn.output": "mlp.fc2",
            "norms.self_attention": "layer_norm1",
            "norms.ffn": "layer_norm2",
        },
    ),
    "nodes.text_body.final_norm": "text_model.final_layer_norm",
    "nodes.text_vector.linear": "text_projection",
}


def _t5_stack(name: str, sublayers: Mapping[str, str], ffn: NameMap) -> dict[str, Any]:
    """One stack of T5, whose sub-layers are numbered."""
    parts: dict[str, Any] = {}
    for number, (ours, theirs) in enumerate(sublayers.items()):
        at = f"layer.{number}"
        parts |= attention_map(ours, *(f"{at}.{theirs}.{letter}" for letter in "qkvo"))
        parts[f"norms.{ours}"] = f"{at}.layer_norm"
    at = f"layer.{len(sublayers)}"
    parts |= {f"branches.ffn.{ours}": f"{at}.DenseReluDense.{theirs}" for ours, theirs in ffn.items()}
    parts["norms.ffn"] = f"{at}.layer_norm"
    return {
        **under(f"nodes.{name}.layers.{{i}}", f"{name}.block.{{i}}", parts),
        f"nodes.{name}.positions.0.table": f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"nodes.{name}.final_norm": f"{name}.final_layer_norm",
    }


def _t5(ffn: NameMap) -> dict[str, Any]:
    return {
        "nodes.source.embedding": "shared",
        **_t5_stack("encoder", {"self_attention": "SelfAttention"}, ffn),
        **_t5_stack("decoder", {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}, ffn),
    }


T5 = _t5({"input": "wi", "output": "wo"})
T5_V1_1 = {**_t5({"input": "wi_1", "gate": "wi_0", "output": "wo"}), "nodes.logits.logits": "lm_head"}

_BART_LAYER = {
    **attention_map("self_attention", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    **attention_map("cross_attention", *(f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
    "branches.ffn.input": "fc1",
    "branches.ffn.output": "fc2",
    "norms.self_attention": "self_attn_layer_norm",
    "norms.cross_attention": "encoder_attn_layer_norm",
    "norms.ffn": "final_layer_norm",
}
MARIAN = {
    "nodes.source.embedding": "model.shared",
    **under("nodes.encoder.layers.{i}", "model.encoder.layers.{i}", _BART_LAYER),
    **under("nodes.decoder.layers.{i}", "model.decoder.layers.{i}", _BART_LAYER),
    "nodes.logits.bias": ("final_logits_bias", _row),
}
BART = {
    **MARIAN,
    "nodes.source.position.table": "model.encoder.embed_positions.weight",
    "nodes.target.position.table": "model.decoder.embed_positions.weight",
    "nodes.source.embedding_norm": "model.encoder.layernorm_embedding",
    "nodes.target.embedding_norm": "model.decoder.layernorm_embedding",
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


_CLIP_LAYER = {
    **attention_map("self_attention", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    "branches.ffn.input": "mlp.fc1",
    "branches.ffn.output": "mlp.fc2",
    "norms.self_attention": "layer_norm1",
    "norms.ffn": "layer_norm2",
}
CLIP = {
    **{name: there for name, there in CLIP_TEXT.items() if name.startswith("nodes.text")},
    "nodes.image.projection": "vision_model.embeddings.patch_embedding",
    "nodes.image.class_token": "vision_model.embeddings.class_embedding",
    "nodes.image.position.table": "vision_model.embeddings.position_embedding.weight",
    "nodes.image.embedding_norm": "vision_model.pre_layrnorm",
    **under("nodes.image_body.layers.{i}", "vision_model.encoder.layers.{i}", _CLIP_LAYER),
    "nodes.image_first.output_norm": "vision_model.post_layernorm",
    "nodes.image_vector.linear": "visual_projection",
    "nodes.match.scale": ("logit_scale", lambda tensor: tensor.reshape(1)),
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
WHISPER = {
    "nodes.frames.convolutions.0": "model.encoder.conv1",
    "nodes.frames.convolutions.1": "model.encoder.conv2",
    **under("nodes.encoder.layers.{i}", "model.encoder.layers.{i}", _BART_LAYER),
    "nodes.encoder.final_norm": "model.encoder.layer_norm",
    "nodes.target.embedding": "model.decoder.embed_tokens",
    "nodes.target.position.table": "model.decoder.embed_positions.weight",
    **under("nodes.decoder.layers.{i}", "model.decoder.layers.{i}", _BART_LAYER),
    "nodes.decoder.final_norm": "model.decoder.layer_norm",
}
