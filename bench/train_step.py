"""One training step (forward, loss, backward) of transformer-base against peers of the same shape, on the same batch.

Peers: torch.nn.Transformer, Hugging Face Marian, x-transformers (extra `bench`). All share one table between both embeddings
and the logits, have post-norm layers of the same sizes and the same dropout, and are given the padding of the batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed
from torch import Tensor, nn
from torch.nn import functional

import tfkit

SPEC = Path(__file__).parent.parent / "specs" / "transformer-base.yaml"
Step = Callable[[], Any]


def batch_of(size: int, length: int, vocab: int) -> tuple[Tensor, Tensor]:
    """Source and target ids (B, L), on average an eighth of them padding (id 0) on the right."""
    lengths = torch.linspace(length * 0.75, length, size).long()
    rows = torch.randint(1, vocab, (2, size, length))
    return tuple(rows.masked_fill(torch.arange(length) >= lengths[:, None], 0))  # type: ignore[return-value]


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


def tfkit_step(sizes: argparse.Namespace, source: Tensor, target: Tensor) -> Step:
    layers = [f"{stack}.num_layers={sizes.layers}" for stack in ("encoder", "decoder")]
    widths = [f"defaults.d_model={sizes.width}", f"defaults.vocab_size={sizes.vocab}", f"defaults.ffn.d_ff={4 * sizes.width}"]
    overrides = [*layers, *widths]
    spec = tfkit.load_spec(SPEC, tfkit.load_catalogue(), overrides)
    model = tfkit.build(spec, backend=sizes.backend)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model(source=source, target=target)["logits"], target).backward()

    return step


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and a shared table around it."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        self.width = sizes.width
        self.table = nn.Embedding(sizes.vocab, sizes.width)
        self.body = nn.Transformer(sizes.width, 8, sizes.layers, sizes.layers, 4 * sizes.width, 0.1, batch_first=True)
        self.body.encoder.norm = self.body.decoder.norm = None
        for module in self.body.modules():  # dropout where the paper has it, not inside attention and feed-forward
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout = nn.Identity()
        self.dropout = nn.Dropout(0.1)
        angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, sizes.width, 2) / sizes.width)
        self.register_buffer("sinusoids", torch.stack([angles.sin(), angles.cos()], 2).flatten(1))

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * self.width**0.5 + self.sinusoids[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden, later = source == 0, nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        out = self.body(
            self.embed(source), self.embed(target), tgt_mask=later, tgt_is_causal=True, src_key_padding_mask=hidden,
            tgt_key_padding_mask=target == 0, memory_key_padding_mask=hidden,
        )  # fmt: skip
        return functional.linear(out, self.table.weight)


def torch_step(sizes: argparse.Namespace, source: Tensor, target: Tensor) -> Step:
    model = TorchTransformer(sizes)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model(source, target), target).backward()

    return step


def marian_step(sizes: argparse.Namespace, source: Tensor, target: Tensor) -> Step:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=sizes.vocab, d_model=sizes.width, encoder_layers=sizes.layers, decoder_layers=sizes.layers,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * sizes.width, decoder_ffn_dim=4 * sizes.width,
        dropout=0.1, attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        pad_token_id=0, decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=None, use_cache=False,
        max_position_embeddings=512,
    )  # fmt: skip
    model = MarianMTModel._from_config(config, attn_implementation="sdpa").train()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        out = model(input_ids=source, attention_mask=source != 0, decoder_input_ids=target, decoder_attention_mask=target != 0)
        loss_of(out.logits, target).backward()

    return step


def x_transformers_step(sizes: argparse.Namespace, source: Tensor, target: Tensor) -> Step:
    from x_transformers import Decoder, Encoder, TransformerWrapper

    common = {
        "dim": sizes.width, "depth": sizes.layers, "heads": 8, "attn_dim_head": sizes.width // 8, "attn_flash": True,
        "pre_norm": False, "ff_dropout": 0.1, "layer_dropout": 0.0, "attn_dropout": 0.0,
    }  # fmt: skip
    encoder = TransformerWrapper(
        num_tokens=sizes.vocab, max_seq_len=512, attn_layers=Encoder(**common), emb_dropout=0.1, scaled_sinu_pos_emb=True
    )
    decoder = TransformerWrapper(
        num_tokens=sizes.vocab, max_seq_len=512, attn_layers=Decoder(cross_attend=True, **common), emb_dropout=0.1,
        scaled_sinu_pos_emb=True, tie_embedding=True,
    )  # fmt: skip
    encoder.token_emb = decoder.token_emb

    def step() -> None:
        encoder.zero_grad(set_to_none=True)
        decoder.zero_grad(set_to_none=True)
        memory = encoder(source, mask=source != 0, return_embeddings=True)
        logits = decoder(target, mask=target != 0, context=memory, context_mask=source != 0)
        loss_of(logits, target).backward()

    return step


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=37000)
    parser.add_argument("--backend", default="sdpa")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    sizes = parser.parse_args(arguments)
    torch.manual_seed(0)
    source, target = batch_of(sizes.batch, sizes.length, sizes.vocab)
    makers = {
        f"tfkit {sizes.backend}": tfkit_step,
        "torch.nn.Transformer": torch_step,
        "Hugging Face Marian": marian_step,
        "x-transformers": x_transformers_step,
    }
    candidates = {name: make(sizes, source, target) for name, make in makers.items()}
    title = f"one training step of transformer-base, batch {sizes.batch} x {sizes.length}"
    return report(title, timed(candidates, sizes.rounds), "torch.nn.Transformer", sizes.json)


if __name__ == "__main__":
    main()
