"""The whole model in CTranslate2's specification, and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2.specs import common_spec, transformer_spec

from ...attention.positions import PositionRange
from ...errors import Diagnostic, InputError
from ...files import TOKENISER_BYTES, TOKENISER_VALUES, Content, child, content_bytes, parse_json, write_content
from ...graph import Graph, graph_of
from ...graph.model_graph import Node
from ...nn.model import Model
from ...slots.layer import sequence
from .layers import activation, array, fill_linear, layer_spec, norm_spec
from .refusals import Shape, common_eps, shape_of

SIDES = {"source": "source.json", "target": "target.json"}
"""The tokenisers of a model with two vocabularies. Other models have `tokeniser.json`."""


def tokenisers(texts: Mapping[str, Content]) -> dict[str, str | bytes]:
    """The imported tokenisers as JSON of the `tokenizers` library, by name; a saved model has further facts around it."""
    json_texts: dict[str, str | bytes] = {}
    for name in ("tokeniser.json", *SIDES.values()):
        data = _parsed(name, texts[name]) if name in texts else {}
        if "tokenizer" in data:
            json_texts[name] = json.dumps(data["tokenizer"], ensure_ascii=False, allow_nan=False)
    return json_texts


def _parsed(name: str, content: Content) -> dict[str, Any]:
    try:
        data = parse_json(content_bytes(content, TOKENISER_BYTES), values=TOKENISER_VALUES)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InputError(Diagnostic("TFK104", f"{name} holds no tokeniser with a vocabulary"))
    return data


class Vocabulary:
    """The pieces by id of the tokeniser of a side, `source` or `target`; none without a tokeniser. Raises InputError if it is
    not one of the `tokenizers` library."""

    def __init__(self, texts: Mapping[str, Content], side: str) -> None:
        name = next((name for name in ("tokeniser.json", SIDES[side]) if name in texts), None)
        self.pieces: dict[int, str] = {}
        self.unknown: str | None = None
        self.frames = False
        """Whether the tokeniser itself puts special tokens around a text."""
        if name is not None:
            data = _parsed(name, texts[name])
            try:
                self._read(data.get("tokenizer", data))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise InputError(Diagnostic("TFK104", f"{name} holds no tokeniser with a vocabulary")) from None

    def _read(self, data: Any) -> None:
        model = data["model"]
        self.frames = data.get("post_processor") is not None
        vocab = model["vocab"]
        numbered = (
            enumerate(piece for piece, _ in vocab) if isinstance(vocab, list) else ((n, piece) for piece, n in vocab.items())
        )
        self.pieces = dict(numbered) | {token["id"]: token["content"] for token in data.get("added_tokens") or ()}
        unknown = model.get("unk_token")
        if unknown is None and model.get("unk_id") is not None:
            unknown = self.pieces[model["unk_id"]]
        if not all(isinstance(piece, str) for piece in [*self.pieces.values(), unknown or ""]):
            raise TypeError
        self.unknown = unknown or ("<unk>" if "<unk>" in self.pieces.values() else None)

    def tokens(self, size: int) -> list[str]:
        """A distinct token for each id below `size`: its piece, or `<7>` for an id without a piece of its own."""
        taken, numbers = set(self.pieces.values()), dict[str, int]()
        for number in range(size):
            name = self.pieces.get(number)
            if name is None or name in numbers:
                name = f"<{number}>"
                while name in taken:
                    name = f"<{name}>"
            numbers[name] = number
        return list(numbers)


POSITIONS = 2048
"""Rows of a position table that the model itself does not limit."""


@torch.no_grad()
def write_files(model: Model, texts: dict[str, Content], directory: Path, quantization: str) -> None:
    """Write the files of an exported model into an empty directory."""
    graph = graph_of(model.spec)
    shape = shape_of(graph)
    assert shape is not None, "refusals() names every other graph"
    encoder = _encoder(model, graph, shape) if shape.encoder else None
    decoder = _decoder(model, graph, shape) if shape.decoder else None
    if encoder and decoder:
        spec: Any = transformer_spec.TransformerSpec(encoder, decoder)
    elif decoder:
        spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    else:
        spec = transformer_spec.TransformerEncoderModelSpec(encoder, pooling_layer=shape.pooler is not None)
        if shape.pooler:
            fill_linear(spec.pooler_dense, model.nodes[shape.pooler.name].linear)
            spec.pooler_activation = activation(shape.pooler.options.activation)
    _register_tokens(spec, model, shape, texts)
    spec.config.layer_norm_epsilon = common_eps(graph)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(directory))
    for name, content in (texts | tokenisers(texts)).items():
        path = child(directory, name)
        if path.exists():
            raise ValueError(f"the model has a file {name} of its own, and the engine another one")
        write_content(path, content)


def _stack(model: Model, graph: Graph, spec: Any, tokens: Node, stack: Node, embeddings: Any) -> None:
    """What an encoder and a decoder have in common."""
    module, options, nodes = model.nodes[stack.name], stack.options, model.nodes
    width = stack.context.signals["input"].width
    layers = list(sequence(options.layers))
    spec.layer = [layer_spec(module, module.layers[number], layer, width) for number, layer in layers]  # type: ignore[index]
    ffn = next(sublayer for sublayer in layers[0][1].sublayers or () if sublayer.kind == "ffn")
    spec.activation = activation(ffn.options.activation)
    tokens_module: Any = nodes[tokens.name]
    embeddings.weight = array(_table(model, graph, tokens))
    factor = tokens.options.factor
    spec.scale_embeddings = False if factor == 1.0 else np.float32(factor)
    scheme = layers[0][1].position.entry
    if scheme.acts and "embeddings" not in scheme.acts:
        del spec.position_encodings
    else:
        rows = getattr(tokens.options.position.options, "max_len", None) or POSITIONS
        nothing = torch.zeros(1, rows, width, device="cpu")
        span = PositionRange(rows, rows, 0, 0, nothing.device, nothing.dtype, None)
        table = nothing if tokens_module.position is None else tokens_module.position.embed(nothing, span)
        spec.position_encodings.encodings = array(table[0])
    for name, norm, there in (
        ("layernorm_embedding", tokens.options.embedding_norm, getattr(tokens_module, "embedding_norm", None)),
        ("layer_norm", options.final_norm, module.final_norm),
    ):
        if norm.kind != "none":
            spec.__dict__[name] = norm_spec(norm, there, width)


def _heads(stack: Node) -> int:
    layer = next(iter(sequence(stack.options.layers)))[1]
    return int((layer.sublayers or ())[0].options.num_heads)


def _pre_norm(stack: Node) -> bool:
    placement = next(iter(sequence(stack.options.layers)))[1].placement
    return placement is not None and placement.kind != "post"


def _encoder(model: Model, graph: Graph, shape: Shape) -> Any:
    tokens, stack = shape.source, shape.encoder
    assert tokens is not None
    assert stack is not None
    segments = tokens.options.segments
    spec = transformer_spec.TransformerEncoderSpec(
        0, _heads(stack), pre_norm=_pre_norm(stack), no_final_norm=True, num_source_embeddings=2 if segments else 1,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD if segments else common_spec.EmbeddingsMerge.CONCAT,
    )  # fmt: skip
    _stack(model, graph, spec, tokens, stack, spec.embeddings[0])
    if segments:
        spec.embeddings[1].weight = array(model.nodes[tokens.name].segments.weight)  # type: ignore[union-attr, arg-type]
    return spec


def _decoder(model: Model, graph: Graph, shape: Shape) -> Any:
    tokens, stack, logits = shape.target, shape.decoder, shape.logits
    assert tokens is not None
    assert stack is not None
    assert logits is not None
    spec = transformer_spec.TransformerDecoderSpec(
        0, _heads(stack), pre_norm=_pre_norm(stack), no_final_norm=True, with_encoder_attention=shape.encoder is not None
    )  # fmt: skip
    spec.alibi = next(iter(sequence(stack.options.layers)))[1].position.kind == "alibi"
    _stack(model, graph, spec, tokens, stack, spec.embeddings)
    module: Any = model.nodes[logits.name]
    spec.projection.weight = array(
        module.logits.weight if module.logits else _table(model, graph, graph.nodes[logits.options.share])
    )
    if module.bias is not None:
        spec.projection.bias = array(module.bias)
    if module.scale != 1.0:
        spec.scale_outputs = np.float32(module.scale)
    if module.softcap is not None:
        spec.final_logit_softcapping = np.float32(module.softcap)
    return spec


def _table(model: Model, graph: Graph, tokens: Node) -> Any:
    """The embedding table of a tokens node, which may be another node's."""
    while tokens.options.share is not None:
        tokens = graph.nodes[tokens.options.share]
    return model.nodes[tokens.name].table()  # type: ignore[operator]


def _register_tokens(spec: Any, model: Model, shape: Shape, texts: Mapping[str, Content]) -> None:
    """The vocabularies, and the start, end and unknown tokens in config.json."""
    sides = {"source": shape.source, "target": shape.target}
    vocabularies = {side: Vocabulary(texts, side) for side in sides}
    words = {
        side: vocabularies[side].tokens(model.plan.token_rule(node.name).vocab_size)
        for side, node in sides.items()
        if node is not None
    }
    if len(words) == 2:
        spec.register_source_vocabulary(words["source"])
        spec.register_target_vocabulary(words["target"])
    else:
        spec.register_vocabulary(*words.values())
    side = "target" if shape.target else "source"
    tokens: Any = sides[side]
    rule, pieces = model.plan.token_rule(tokens.name), words[side]
    end = pieces[rule.end_id if rule.end_id is not None else 0]
    start = pieces[rule.start_id] if rule.start_id is not None else end
    config = spec.config
    config.eos_token, config.bos_token = end, start
    config.unk_token = vocabularies[side].unknown or start
    if len(words) == 2:
        source = model.plan.token_rule(shape.source.name)  # type: ignore[union-attr]
        config.decoder_start_token = start
        ends = source.end_id is not None and words["source"][source.end_id] == end
        config.add_source_eos = ends and not vocabularies["source"].frames
