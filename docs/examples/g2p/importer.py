"""The checkpoint of the package g2p-en (an archive of NumPy) as a model of tfkit.

python importer.py checkpoint20.npz g2p
"""

import json
import sys

import numpy as np
import torch

import tfkit

# tfkit's name of each array. Gates stand in the order of torch.nn.GRU in both.
ARRAYS = {
    "enc_emb": "nodes.source.embedding.weight",
    "dec_emb": "nodes.target.embedding.weight",
    "fc_w": "nodes.logits.logits.weight",
    "fc_b": "nodes.logits.bias",
}
for side, node in (("enc", "encoder"), ("dec", "decoder")):
    for theirs, ours in (("w_ih", "weights_ih.0"), ("w_hh", "weight_hh"), ("b_ih", "bias_ih"), ("b_hh", "bias_hh")):
        ARRAYS[f"{side}_{theirs}"] = f"nodes.{node}.layers.0.cell.{ours}"

# The ids of the package: its lists of graphemes and phonemes.
LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
PHONEMES = [
    "<pad>", "<unk>", "<s>", "</s>",
    *sorted([f"{vowel}{stress}" for vowel in VOWELS.split() for stress in "012"] + CONSONANTS.split() + ["UW"]),
]  # fmt: skip
SPECIAL = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}


def tokeniser(pieces: list[str], model: dict[str, object], **steps: object) -> str:
    """The pieces as a tokeniser, in the format of `tokenizer.json` with the roles of its special tokens."""
    roles = {role: piece for role, piece in SPECIAL.items() if piece in pieces}
    ids = {piece: number for number, piece in enumerate(pieces)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": ids[piece], "content": piece, **flags} for piece in roles.values()]
    none = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    whole = {"version": "1.0", **none, "added_tokens": added, "model": {**model, "vocab": ids, "unk_token": "<unk>"}, **steps}
    return json.dumps({"roles": roles, "rows": len(pieces), "tokenizer": whole})


END = {"SpecialToken": {"id": "</s>", "type_id": 0}}
WORD = {"Sequence": {"id": "A", "type_id": 0}}
SECOND = {"Sequence": {"id": "B", "type_id": 1}}
SOURCE = tokeniser(
    LETTERS,
    {"type": "BPE", "merges": []},  # so that each letter is a piece
    normalizer={"type": "Lowercase"},
    post_processor={
        "type": "TemplateProcessing",
        "single": [WORD, END],
        "pair": [WORD, SECOND, END],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [LETTERS.index("</s>")], "tokens": ["</s>"]}},
    },
)
TARGET = tokeniser(PHONEMES, {"type": "WordLevel"}, pre_tokenizer={"type": "WhitespaceSplit"})
SEARCH = json.dumps({"kind": "greedy", "new_tokens": 20})


def main(checkpoint: str, output: str) -> None:
    model = tfkit.build("specs/g2p-en.yaml")
    with np.load(checkpoint, allow_pickle=False) as arrays:
        weights = {ours: torch.from_numpy(arrays[theirs]) for theirs, ours in ARRAYS.items()}
    model.load_state_dict(weights)
    tfkit.save(model, output, texts={"source.json": SOURCE, "target.json": TARGET, "generation.json": SEARCH})


if __name__ == "__main__":
    main(*sys.argv[1:])
