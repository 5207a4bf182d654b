"""The paper's Transformer, after and before the norms, is torch.nn.Transformer between embeddings and logits."""

from __future__ import annotations

from math import cos, sin, sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from . import name_maps
from .comparison import compare, shake

WIDTH, HEADS, VOCABULARY = 24, 3, 61
SMALL = (
    "defaults.d_model=24",
    "defaults.vocab_size=61",
    "defaults.attention.num_heads=3",
    "defaults.ffn.d_ff=40",
    "encoder.num_layers=2",
    "decoder.num_layers=3",
)


def paper_positions(length: int) -> Tensor:
    """Section 3.5 of the paper, one number at a time."""
    return torch.tensor(
        [
            [(cos if feature % 2 else sin)(t / 10000 ** ((feature - feature % 2) / WIDTH)) for feature in range(WIDTH)]
            for t in range(length)
        ],
        dtype=torch.float64,
    )


class TorchTransformer(nn.Module):
    """torch's encoder and decoder; the embedding around them is all that is written here."""

    def __init__(self, before: bool, activation: str, positions: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.source_positions = nn.Parameter(torch.zeros(positions, WIDTH)) if positions else None
        self.target_positions = nn.Parameter(torch.zeros(positions, WIDTH)) if positions else None
        arguments = {"dim_feedforward": 40, "activation": activation, "norm_first": before, "batch_first": True}
        layer, norm = nn.TransformerEncoderLayer(WIDTH, HEADS, **arguments), nn.LayerNorm(WIDTH) if before else None
        self.encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(WIDTH, HEADS, **arguments), 3, norm and nn.LayerNorm(WIDTH)
        )

    def embed(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        table = paper_positions(ids.shape[1]) if positions is None else positions[: ids.shape[1]]
        return self.embedding(ids) * sqrt(WIDTH) + table

    def forward(self, source: Tensor, target: Tensor, seen: Tensor, real: Tensor) -> Tensor:
        memory = self.encoder(self.embed(source, self.source_positions), src_key_padding_mask=~seen)
        decoded = self.decoder(
            self.embed(target, self.target_positions),
            memory,
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            tgt_key_padding_mask=~real,
            memory_key_padding_mask=~seen,
        )
        return functional.linear(decoded, self.embedding.weight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "activation", "positions"),
    [
        ("transformer-base", False, "relu", None),
        ("transformer-learned", False, "relu", 23),
        ("transformer-prenorm", True, "gelu", 23),
    ],
)
def test_logits_and_gradients(shrunk, padded, name, before, activation, positions):
    source, seen = padded((19, 8, 3), VOCABULARY)
    target, real = padded((14, 5, 2), VOCABULARY)
    theirs = TorchTransformer(before, activation, positions).double().eval()
    shake(theirs)
    sizes = (*SMALL, f"defaults.position.max_len={positions}") if positions else SMALL
    ours = shrunk(name, *sizes)
    name_map = {our_name: there for our_name, there in name_maps.TORCH.items() if positions or "position" not in our_name}
    compare(
        ours,
        theirs,
        name_map,
        lambda: ours(source=source, target=target),
        lambda: {"logits": theirs(source, target, seen, real)},
        real,
    )
