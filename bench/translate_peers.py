"""A tfkit translation model as Hugging Face's Marian and as CTranslate2 see it: the same weights under other names.

For models of the paper's shape: post-norm, sinusoidal positions, one table for all tokens, biases everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tfkit

PARTS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def shape_of(model: tfkit.Model) -> dict[str, Any]:
    """The sizes that the peers are made with. Raises ValueError for a model that they cannot be."""
    plan, spec = model.plan, model.spec
    encoder, decoder = model.nodes["encoder"], model.nodes["decoder"]
    layer: Any = decoder.layers[0]
    if list(plan.inputs) != ["source", "target"] or model.nodes["source"].position is None or decoder.final_norm is not None:
        raise ValueError(f"`{plan.name}` is not of the shape of `transformer-base`, so the peers cannot be built")
    return {
        "vocabulary": plan.inputs["target"].vocab_size,
        "width": layer.branches["ffn"].input.in_features,
        "inner": layer.branches["ffn"].input.out_features,
        "heads": layer.branches["self_attention"].config.num_heads,
        "encoder_layers": len(encoder.layers),
        "decoder_layers": len(decoder.layers),
        "start": plan.inputs["target"].start_id,
        "end": plan.inputs["target"].end_id,
        "name": spec.name if spec is not None else plan.name,
    }


@torch.no_grad()
def positions(model: tfkit.Model, length: int) -> Tensor:
    """(length, M): the table of positions that this model adds."""
    tokens: Any = model.nodes["source"]
    from tfkit.attention.positions import PositionRange

    weight = tokens.table()
    nothing = weight.new_zeros(1, length, weight.shape[1])
    return tokens.position.embed(nothing, PositionRange(length, length, 0, 0, weight.device, weight.dtype, None))[0]


def marian(model: tfkit.Model, most: int) -> Any:
    from transformers import MarianConfig, MarianMTModel

    shape = shape_of(model)
    config = MarianConfig(
        vocab_size=shape["vocabulary"], d_model=shape["width"], encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"], encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"], encoder_ffn_dim=shape["inner"], decoder_ffn_dim=shape["inner"],
        activation_function="relu", scale_embedding=True, pad_token_id=0, decoder_start_token_id=shape["start"],
        eos_token_id=shape["end"], forced_eos_token_id=None, bos_token_id=None, max_position_embeddings=most,
    )  # fmt: skip
    peer = MarianMTModel._from_config(config, attn_implementation="sdpa").eval()
    mine = dict(model.named_parameters())
    embedding = mine["nodes.source.embedding.weight"]
    theirs = {"model.shared.weight": embedding, "lm_head.weight": embedding}
    table = positions(model, most)
    for stack in ("encoder", "decoder"):
        theirs[f"model.{stack}.embed_tokens.weight"] = embedding
        theirs[f"model.{stack}.embed_positions.weight"] = table
        for number in range(shape[f"{stack}_layers"]):
            ours, other = f"nodes.{stack}.layers.{number}", f"model.{stack}.layers.{number}"
            for leaf in ("weight", "bias"):
                for part, name in PARTS.items():
                    if f"{ours}.norms.{part}.weight" not in mine:
                        continue
                    for projection, theirs_name in PROJECTIONS.items():
                        theirs[f"{other}.{name}.{theirs_name}.{leaf}"] = mine[f"{ours}.branches.{part}.{projection}.{leaf}"]
                    theirs[f"{other}.{name}_layer_norm.{leaf}"] = mine[f"{ours}.norms.{part}.{leaf}"]
                theirs[f"{other}.fc1.{leaf}"] = mine[f"{ours}.branches.ffn.input.{leaf}"]
                theirs[f"{other}.fc2.{leaf}"] = mine[f"{ours}.branches.ffn.output.{leaf}"]
                theirs[f"{other}.final_layer_norm.{leaf}"] = mine[f"{ours}.norms.ffn.{leaf}"]
    missing, unexpected = peer.load_state_dict(theirs, strict=False)
    left = [name for name in missing if name != "final_logits_bias"]
    if left or unexpected:
        raise ValueError(f"weights without a counterpart: {left}, {unexpected}")
    return peer


def token(number: int) -> str:
    """Every id is a word of CTranslate2's vocabulary."""
    return {0: "<blank>", 1: "<s>", 2: "</s>", 3: "<unk>"}.get(number, f"t{number}")


def ctranslate2(model: tfkit.Model, directory: Path, most: int, threads: int, workers: int, precision: str = "float32") -> Any:
    import ctranslate2 as peer
    import numpy
    from ctranslate2.specs import common_spec, transformer_spec

    shape = shape_of(model)
    spec = transformer_spec.TransformerSpec.from_config(
        (shape["encoder_layers"], shape["decoder_layers"]), shape["heads"], pre_norm=False,
        activation=common_spec.Activation.RELU,
    )  # fmt: skip
    mine = {name: parameter.detach().float().numpy() for name, parameter in model.named_parameters()}
    table, places = mine["nodes.source.embedding.weight"], positions(model, most).numpy()

    def norm(there: Any, name: str) -> None:
        there.gamma, there.beta = mine[f"{name}.weight"], mine[f"{name}.bias"]

    def linear(there: Any, *names: str) -> None:
        there.weight = numpy.concatenate([mine[f"{name}.weight"] for name in names])
        there.bias = numpy.concatenate([mine[f"{name}.bias"] for name in names])

    for stack, there in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = there.embeddings[0] if isinstance(there.embeddings, list) else there.embeddings
        embeddings.weight, there.scale_embeddings, there.position_encodings.encodings = table, True, places
        for number, layer in enumerate(there.layer):
            ours = f"nodes.{stack}.layers.{number}"
            own, crossed = f"{ours}.branches.self_attention", f"{ours}.branches.cross_attention"
            linear(layer.self_attention.linear[0], f"{own}.query", f"{own}.key", f"{own}.value")
            linear(layer.self_attention.linear[1], f"{own}.output")
            norm(layer.self_attention.layer_norm, f"{ours}.norms.self_attention")
            if stack == "decoder":
                linear(layer.attention.linear[0], f"{crossed}.query")
                linear(layer.attention.linear[1], f"{crossed}.key", f"{crossed}.value")
                linear(layer.attention.linear[2], f"{crossed}.output")
                norm(layer.attention.layer_norm, f"{ours}.norms.cross_attention")
            linear(layer.ffn.linear_0, f"{ours}.branches.ffn.input")
            linear(layer.ffn.linear_1, f"{ours}.branches.ffn.output")
            norm(layer.ffn.layer_norm, f"{ours}.norms.ffn")
    spec.decoder.projection.weight = table
    words = [token(number) for number in range(shape["vocabulary"])]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = token(shape["start"])
    spec.config.layer_norm_epsilon = _epsilon(model)
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
    return peer.Translator(
        str(directory), device="cpu", compute_type=precision, inter_threads=workers, intra_threads=max(1, threads // workers)
    )


def _epsilon(model: tfkit.Model) -> float:
    return next(module.eps for module in model.modules() if isinstance(module, nn.LayerNorm))
