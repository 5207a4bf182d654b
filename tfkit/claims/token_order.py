"""Without positions, self-attention does not see the order of tokens: permuted tokens give permuted outputs."""

from __future__ import annotations

from .claim import Measured, Series, Summary, model_of

SPEC = """
tfkit: 1
name: encoder
defaults: {vocab_size: 100, d_model: 32, pad_id: 0, position: none, placement: pre, norm: layer_norm,
  attention: {num_heads: 4}, ffn: {d_ff: 64, activation: relu}}
nodes:
  tokens: {kind: tokens}
  encoder: {kind: stack, input: tokens, num_layers: 1}
outputs: [encoder]
"""


def measure(seed: int, tiny: bool) -> Series:
    import torch

    quantity = "largest |f(Px) - P f(x)| / largest |f(x)|"
    measured: Series = {quantity: {}}
    for position in ("none", "sinusoidal", "rotary_half", "alibi"):
        points = measured[quantity][position] = {}
        for layers in (1,) if tiny else (1, 2, 4, 8):
            model = model_of(SPEC, seed, f"defaults.position={position}", f"encoder.num_layers={layers}").eval()
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(3, 100, (4, 24), generator=generator, device="cpu")
            order = torch.randperm(24, generator=generator, device="cpu")
            with torch.no_grad():
                plain, permuted = model(tokens=ids)["encoder"], model(tokens=ids[:, order])["encoder"]
            points[layers] = float((permuted - plain[:, order]).abs().max() / plain.abs().max())
    return measured


def verdict(measured: Summary) -> str:
    (series,) = measured.values()
    largest = max(spread[3] for spread in series["none"].values())
    others = min(spread[2] for name, points in series.items() if name != "none" for spread in points.values())
    agree = "agree" if largest < 1e-5 < 1e-3 < others else "do not agree"
    return (
        f"The data {agree}: without positions the outputs differ by at most {largest:.1e}, which is float32 rounding; with"
        f" positions by {others:.1e} or more."
    )


TOKEN_ORDER = Measured(
    "Without positions, an encoder does not see the order of its tokens",
    "Without positions, self-attention does not see the order of tokens: permuted tokens give permuted outputs.",
    "layers",
    measure,
    verdict,
    5,
)
