"""Post-norm and pre-norm before training: the gradient norm of the feed-forward weights of each layer (arXiv:2002.04745)."""

from __future__ import annotations

from .claim import Measured, Series, Summary, model_of

SPEC = """
tfkit: 1
name: lm
defaults: {vocab_size: 100, d_model: 64, pad_id: 0, position: sinusoidal, placement: pre,
  norm: layer_norm, dropout: 0.0,
  attention: {num_heads: 4}, ffn: {d_ff: 256, activation: relu}}
nodes:
  tokens: {kind: tokens, scale: sqrt_d_model}
  decoder: {kind: stack, input: tokens, num_layers: 1, causal: true}
  logits: {kind: token_logits, input: decoder}
outputs: [logits]
"""
DEPTHS = (2, 4, 8, 16)
BY_LAYER, LAST = f"gradient norm by layer, {DEPTHS[-1]} layers", "gradient norm of the last layer against the number of layers"


def measure(seed: int, tiny: bool) -> Series:
    """Cross-entropy of random text; the norm of the gradient of the second feed-forward matrix, as the paper measures it."""
    import torch

    measured: Series = {BY_LAYER: {}, LAST: {}}
    depths = DEPTHS[:2] if tiny else DEPTHS
    for placement in ("post", "pre"):
        measured[LAST][placement] = {}
        for layers in depths:
            model = model_of(SPEC, seed, f"defaults.placement={placement}", f"decoder.num_layers={layers}")
            ids = torch.randint(3, 100, (16, 33), generator=torch.Generator().manual_seed(seed), device="cpu")
            logits = model(tokens=ids[:, :-1])["logits"]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
            weights = [model.get_parameter(f"nodes.decoder.layers.{n}.branches.ffn.output.weight") for n in range(layers)]
            norms = [float(weight.grad.norm()) for weight in weights if weight.grad is not None]
            measured[LAST][placement][layers] = norms[-1]
        measured[BY_LAYER][placement] = dict(enumerate(norms, start=1))
    return measured


def verdict(measured: Summary) -> str:
    depths = sorted(measured[LAST]["pre"])
    deepest = {name: points[depths[-1]] for name, points in measured[LAST].items()}
    change = {name: deepest[name][0] / points[depths[0]][0] for name, points in measured[LAST].items()}
    agree = deepest["post"][2] > deepest["pre"][3] and change["pre"] < change["post"]
    growth = measured[BY_LAYER]["post"][max(measured[BY_LAYER]["post"])][0] / measured[BY_LAYER]["post"][1][0]
    return (
        f"The data {'agree in direction' if agree else 'do not agree'}: with {depths[-1]:g} layers, the gradient of the last is"
        f" {deepest['post'][0] / deepest['pre'][0]:.1f} times as large with post-norm as with pre-norm. From {depths[0]:g} to"
        f" {depths[-1]:g} layers it changes by a factor of {change['post']:.2f} with post-norm (theory: 1) and"
        f" {change['pre']:.2f} with pre-norm (theory: {(depths[-1] / depths[0]) ** -0.5:.2f}). From the first layer to the"
        f" last, gradients of post-norm grow by a factor of {growth:.2f} only."
    )


NORM_GRADIENTS = Measured(
    "Post-norm has large gradients near the output at the start, pre-norm has not",
    "Post-norm and pre-norm before training: the gradient norm of the feed-forward weights of each layer (arXiv:2002.04745).",
    "layer",
    measure,
    verdict,
    5,
)
