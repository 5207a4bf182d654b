"""The checkpoint of the package anarcii (a state dict of PyTorch) as a model of tfkit.

python importer.py antibody_4_2_128_512.pt anarcii
"""

import json
import sys

import torch

import tfkit

# tfkit's name of each part. "self_attention.multihead_attn" holds three products in one matrix, as torch.nn.MultiheadAttention.
PARTS = {
    "encoder.tok_embedding.weight": "nodes.source.embedding.weight",
    "encoder.pos_embedding.weight": "nodes.source.position.table",
    "decoder.tok_embedding.weight": "nodes.target.embedding.weight",
    "decoder.pos_embedding.weight": "nodes.target.position.table",
    "decoder.fc_out.weight": "nodes.logits.logits.weight",
    "decoder.fc_out.bias": "nodes.logits.bias",
}
LAYER_PARTS = {
    "self_attention.multihead_attn.out_proj": "branches.self_attention.output",
    "encoder_attention.multihead_attn.out_proj": "branches.cross_attention.output",
    "positionwise_feedforward.fc_1": "branches.ffn.input",
    "positionwise_feedforward.fc_2": "branches.ffn.output",
    "self_attn_layer_norm": "norms.self_attention",
    "enc_attn_layer_norm": "norms.cross_attention",
    "ff_layer_norm": "norms.ffn",
}
ATTENTIONS = {"self_attention": "self_attention", "encoder_attention": "cross_attention"}


def renamed(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by tfkit's names."""
    ours = {}
    for name, tensor in theirs.items():
        if name in PARTS:
            ours[PARTS[name]] = tensor
            continue
        side, _, number, part = name.split(".", 3)
        layer = f"nodes.{side}.layers.{number}"
        owner, _, kind = part.rpartition(".")
        if kind.startswith("in_proj_"):
            attention = ATTENTIONS[owner.split(".")[0]]
            for product, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                ours[f"{layer}.branches.{attention}.{product}.{kind.removeprefix('in_proj_')}"] = third
        else:
            ours[f"{layer}.{LAYER_PARTS[owner]}.{kind}"] = tensor
    return ours


# The ids of the package.
SPECIAL = {"pad": "<PAD>", "bos": "<SOS>", "eos": "<EOS>"}
RESIDUES = [*SPECIAL.values(), "<SKIP>", *"ACDEFGHIKLMNPQRSTVWXY"]
NUMBERS = [*SPECIAL.values(), "<SKIP>", *map(str, range(1, 129)), "X", "H", "L", "K"]


def tokeniser(pieces: list[str], model: dict[str, object], **steps: object) -> str:
    """The pieces as a tokeniser, in the format of `tokenizer.json` with the roles of its special tokens."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": ids[piece], "content": piece, **flags} for piece in SPECIAL.values()]
    none = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    whole = {"version": "1.0", **none, "added_tokens": added, "model": {**model, "vocab": ids}, **steps}
    return json.dumps({"roles": SPECIAL, "rows": len(pieces), "tokenizer": whole})


START, END = ({"SpecialToken": {"id": SPECIAL[role], "type_id": 0}} for role in ("bos", "eos"))
CHAIN = {"Sequence": {"id": "A", "type_id": 0}}
SECOND = {"Sequence": {"id": "B", "type_id": 1}}
SOURCE = tokeniser(
    RESIDUES,
    {"type": "BPE", "merges": [], "unk_token": "X"},  # a letter is a piece; others are any residue
    post_processor={
        "type": "TemplateProcessing",
        "single": [START, CHAIN, END],
        "pair": [START, CHAIN, SECOND, END],
        "special_tokens": {
            piece: {"id": piece, "ids": [RESIDUES.index(piece)], "tokens": [piece]} for piece in ("<SOS>", "<EOS>")
        },
    },
)
TARGET = tokeniser(NUMBERS, {"type": "WordLevel", "unk_token": "X"}, pre_tokenizer={"type": "WhitespaceSplit"})
SEARCH = json.dumps({"kind": "greedy", "new_tokens": 209})


def main(checkpoint: str, output: str) -> None:
    model = tfkit.build("specs/anarcii.yaml")
    model.load_state_dict(renamed(torch.load(checkpoint, map_location="cpu", weights_only=True)))
    tfkit.save(model, output, texts={"source.json": SOURCE, "target.json": TARGET, "generation.json": SEARCH})


if __name__ == "__main__":
    main(*sys.argv[1:])
