"""Post-norm and pre-norm before training: the gradient norm of the feed-forward weights of each layer (arXiv:2002.04745)."""

from __future__ import annotations

import torch
from claim import Claim, Measured, Summary, main

import tfkit
from tfkit import parse_spec

SPEC = """
tfkit: 1
name: lm
defaults: {{vocab_size: 100, d_model: 64, pad_id: 0, position: sinusoidal, placement: {placement},
  norm: layer_norm, dropout: 0.0,
  attention: {{num_heads: 4}}, ffn: {{d_ff: 256, activation: relu}}}}
nodes:
  tokens: {{kind: tokens, scale: sqrt_d_model}}
  decoder: {{kind: stack, input: tokens, num_layers: {layers}, causal: true}}
  logits: {{kind: token_logits, input: decoder}}
outputs: [logits]
"""
DEPTHS = (2, 4, 8, 16)
BY_LAYER, LAST = f"gradient norm by layer, {DEPTHS[-1]} layers", "gradient norm of the last layer against the number of layers"


def measure(seed: int, tiny: bool) -> Measured:
    """Cross-entropy of random text; the norm of the gradient of the second feed-forward matrix, as the paper measures it."""
    found: Measured = {BY_LAYER: {}, LAST: {}}
    depths = DEPTHS[:2] if tiny else DEPTHS
    for placement in ("post", "pre"):
        found[LAST][placement] = {}
        for layers in depths:
            model = tfkit.build(parse_spec(SPEC.format(placement=placement, layers=layers)), seed=seed)
            ids = torch.randint(3, 100, (16, 33), generator=torch.Generator().manual_seed(seed))
            logits = model(tokens=ids[:, :-1])["logits"]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            weights = model.nodes["decoder"].layers
            norms = [float(layer.branches["ffn"].output.weight.grad.norm()) for layer in weights]
            found[LAST][placement][layers] = norms[-1]
        found[BY_LAYER][placement] = dict(enumerate(norms, start=1))
    return found


def verdict(found: Summary) -> str:
    depths = sorted(found[LAST]["pre"])
    deepest = {name: points[depths[-1]] for name, points in found[LAST].items()}
    change = {name: deepest[name][0] / points[depths[0]][0] for name, points in found[LAST].items()}
    agree = deepest["post"][2] > deepest["pre"][3] and change["pre"] < change["post"]
    growth = found[BY_LAYER]["post"][max(found[BY_LAYER]["post"])][0] / found[BY_LAYER]["post"][1][0]
    return (
        f"The data {'agree in direction' if agree else 'do not agree'}: with {depths[-1]:g} layers, the gradient of the last is"
        f" {deepest['post'][0] / deepest['pre'][0]:.1f} times as large with post-norm as with pre-norm. From {depths[0]:g} to"
        f" {depths[-1]:g} layers it changes by a factor of {change['post']:.2f} with post-norm (theory: 1) and"
        f" {change['pre']:.2f} with pre-norm (theory: {(depths[-1] / depths[0]) ** -0.5:.2f}). From the first layer to the"
        f" last, gradients of post-norm grow by a factor of {growth:.2f} only."
    )


CLAIM = Claim("Post-norm has large gradients near the output at the start, pre-norm has not", "layer", measure, verdict)
if __name__ == "__main__":
    main(CLAIM)
