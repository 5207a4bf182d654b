"""Greedy decoding of transformer-base with the cache, against Hugging Face `generate` of the same shape, and against the bare
matrix products: what a decoder with no framework around it would still have to compute, measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed
from torch import Tensor
from torch.nn import functional

import tfkit

SPEC = Path(__file__).parent.parent / "specs" / "transformer-base.yaml"


def tfkit_decoder(sizes: argparse.Namespace, source: Tensor) -> Callable[[], Any]:
    layers = [f"{stack}.num_layers={sizes.layers}" for stack in ("encoder", "decoder")]
    widths = [f"defaults.d_model={sizes.width}", f"defaults.vocab_size={sizes.vocab}", f"defaults.ffn.d_ff={4 * sizes.width}"]
    overrides = [*layers, *widths, "nodes.target.start_id=1"]
    model = tfkit.build(tfkit.load_spec(SPEC, tfkit.load_catalogue(), overrides)).eval()
    return lambda: tfkit.greedy(model, source=source, max_new_tokens=sizes.tokens)


def marian_decoder(sizes: argparse.Namespace, source: Tensor) -> Callable[[], Any]:
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=sizes.vocab, d_model=sizes.width, encoder_layers=sizes.layers, decoder_layers=sizes.layers,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * sizes.width, decoder_ffn_dim=4 * sizes.width,
        activation_function="relu", scale_embedding=True, pad_token_id=0, decoder_start_token_id=1, eos_token_id=None,
        forced_eos_token_id=None, bos_token_id=None, max_position_embeddings=512,
    )  # fmt: skip
    model = MarianMTModel._from_config(config, attn_implementation="sdpa").eval()
    model.generation_config = GenerationConfig(
        max_new_tokens=sizes.tokens, min_new_tokens=sizes.tokens, do_sample=False, num_beams=1, pad_token_id=0,
        decoder_start_token_id=1, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    return lambda: model.generate(input_ids=source, attention_mask=source != 0)


def bare_products(sizes: argparse.Namespace, source: Tensor) -> Callable[[], Any]:
    """Only the linear maps of encoder and decoder, at their shapes, in their number."""
    width, inner, layers = sizes.width, 4 * sizes.width, sizes.layers
    square, up, down = torch.randn(width, width), torch.randn(inner, width), torch.randn(width, inner)
    # Weights of their own for every layer: a cache that holds one layer's weights would flatter the limit.
    encoder = [[square.clone() for _ in range(4)] + [up.clone(), down.clone()] for _ in range(layers)]
    decoder = [[square.clone() for _ in range(6)] + [up.clone(), down.clone()] for _ in range(layers)]
    crossed = [square.clone() for _ in range(2 * layers)]
    table = torch.randn(sizes.vocab, width)
    memory, token = torch.randn(*source.shape, width), torch.randn(source.shape[0], 1, width)
    wide = torch.randn(source.shape[0], 1, inner)
    wide_memory = torch.randn(*source.shape, inner)

    @torch.no_grad()
    def products() -> None:
        for weights in encoder:
            for weight in weights:
                functional.linear(wide_memory if weight.shape[1] == inner else memory, weight)
        for weight in crossed:
            functional.linear(memory, weight)
        for _ in range(sizes.tokens):
            for weights in decoder:
                for weight in weights:
                    functional.linear(wide if weight.shape[1] == inner else token, weight)
            functional.linear(token, table).argmax(-1)

    return products


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--source", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=37000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    sizes = parser.parse_args(arguments)
    torch.manual_seed(0)
    source = torch.randint(2, sizes.vocab, (sizes.batch, sizes.source))
    source[-1, sizes.source // 2 :] = 0
    candidates = {
        "tfkit.greedy": tfkit_decoder(sizes, source),
        "Hugging Face generate": marian_decoder(sizes, source),
        "bare matrix products": bare_products(sizes, source),
    }
    seconds = timed(candidates, sizes.rounds, warm_up=1)
    title = f"greedy decoding of {sizes.tokens} tokens, batch {sizes.batch}, source {sizes.source}"
    return report(title, seconds, "Hugging Face generate", sizes.json, tokens_per_call=sizes.batch * sizes.tokens)


if __name__ == "__main__":
    main()
