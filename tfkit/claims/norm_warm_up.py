"""Post-norm and pre-norm, with warm-up and without: how many runs learn to copy, at constant rates (arXiv:2002.04745)."""

from __future__ import annotations

import math

from .claim import Measured, Series, Summary, model_of
from .norm_gradients import SPEC

LAYERS, STEPS, WARM_UP, ROWS, LENGTH, SYMBOLS = 6, 150, 40, 16, 8, 16
RATES = (0.001, 0.003)
LOSS, SUCCESS = "loss of the last 10 steps", "success, per cent of seeds"
LIMIT = math.log(SYMBOLS) / 2


def measure(seed: int, tiny: bool) -> Series:
    """Train on random tokens that come twice. A run is a success if the loss of the copy is below half that of a guess."""
    measured: Series = {LOSS: {}, SUCCESS: {}}
    for placement in ("post", "pre"):
        for words, warm_up in (("warm-up", WARM_UP), ("no warm-up", 1)):
            rates = RATES[:1] if tiny else RATES
            losses = {rate: train(placement, rate, warm_up, seed, 3 if tiny else STEPS) for rate in rates}
            measured[LOSS][f"{placement}, {words}"] = losses
            measured[SUCCESS][f"{placement}, {words}"] = {rate: 100.0 * (loss < LIMIT) for rate, loss in losses.items()}
    return measured


def train(placement: str, rate: float, warm_up: int, seed: int, steps: int) -> float:
    """The mean loss of the last ten steps of Adam; infinite losses count as those of a guess."""
    import torch

    model = model_of(SPEC, seed, f"defaults.placement={placement}", f"decoder.num_layers={LAYERS}")
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    losses = []
    for step in range(1, steps + 1):
        half = torch.randint(3, 3 + SYMBOLS, (ROWS, LENGTH), generator=generator, device="cpu")
        ids = torch.cat([half, half], 1)
        logits = model(tokens=ids[:, :-1])["logits"][:, LENGTH - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, LENGTH:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.param_groups[0]["lr"] = rate * min(step / warm_up, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    mean = sum(losses[-10:]) / len(losses[-10:])
    return mean if math.isfinite(mean) else 2 * LIMIT


def verdict(measured: Summary) -> str:
    success = {name: sum(p[0] for p in points.values()) / len(points) for name, points in measured[SUCCESS].items()}
    fastest = max(measured[LOSS]["pre, warm-up"])
    text = ", ".join(f"{name} {value:.0f} %" for name, value in success.items())
    if success["post, warm-up"] == success["post, no warm-up"]:
        post = "not seen in the success rate"
    else:
        post = "the data agree" if success["post, warm-up"] > success["post, no warm-up"] else "the data do not agree"
    pre = "the data agree" if success["pre, no warm-up"] >= success["pre, warm-up"] else "the data do not agree"
    losses = {name: f"{points[fastest][0]:.2f}" for name, points in measured[LOSS].items()}
    return (
        f"Pre-norm needs no warm-up: {pre}. Post-norm needs it: {post}. Runs with a loss below {LIMIT:.2f}, half that of a"
        f" guess, after {STEPS} steps: {text}. At the rate {fastest:g} the loss of post-norm is {losses['post, warm-up']} with"
        f" warm-up and {losses['post, no warm-up']} without; a guess is {2 * LIMIT:.2f}."
    )


NORM_WARM_UP = Measured(
    "Pre-norm trains without warm-up, post-norm needs it",
    "Post-norm and pre-norm, with warm-up and without: how many runs learn to copy, at constant rates (arXiv:2002.04745).",
    "learning rate",
    measure,
    verdict,
    60,
)
