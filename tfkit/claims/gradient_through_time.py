"""The gradient of the last state of a tanh cell and of gated cells against earlier tokens, by initialisation and training."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from .claim import Measured, Series, Summary, model_of

if TYPE_CHECKING:
    from torch import Generator, Tensor

SPEC = """
tfkit: 1
name: recurrent
defaults: {vocab_size: 100, d_model: 64, pad_id: 0}
nodes:
  tokens: {kind: tokens}
  body:   {kind: rnn, input: tokens, cell: gru, d_state: 64}
outputs: [body]
"""
DISTANCES = (0, 5, 10, 20, 40)
SYMBOLS, STEPS, VANISHED = 8, 300, -6.0
INITS = {"orthogonal": "orthogonal", "uniform": "{kind: uniform, bound: 0.125}"}
"""tfkit's default for recurrent nodes, and that of torch's modules: U(-1/sqrt(d), 1/sqrt(d)) for all weights, d = 64."""
GRADIENT = {
    (init, when): f"log10 of the gradient norm, relative to distance 0, {init}, {when} training"
    for init in INITS
    for when in ("before", "after")
}
RIGHT = {init: f"first token named, per cent, {init}" for init in INITS}


def measure(seed: int, tiny: bool) -> Series:
    measured: Series = {quantity: {} for quantity in (*GRADIENT.values(), *RIGHT.values())}
    for init, options in INITS.items():
        for cell in ("rnn_tanh", "gru", "lstm"):
            model = model_of(SPEC, seed, f"body.cell={cell}", f"body.init={options}")
            measured[GRADIENT[init, "before"]][cell] = gradients(model, seed)
            measured[RIGHT[init]][cell] = train(model, seed, 3 if tiny else STEPS)
            measured[GRADIENT[init, "after"]][cell] = gradients(model, seed)
    return measured


def gradients(model: Any, seed: int) -> dict[float, float]:
    """The gradient norm of the last state against the embedding of each token, relative to that of the last token; in float64,
    for it falls below the smallest float32."""
    import torch

    model = deepcopy(model).double()
    seen: dict[str, Any] = {}

    def capture(module: Any, inputs: Any, output: Any) -> None:
        output.tensor.retain_grad()
        seen["embedding"] = output.tensor

    hook = model.nodes["tokens"].register_forward_hook(capture)
    generator = torch.Generator().manual_seed(seed)
    ids = tokens(64, max(DISTANCES) + 1, generator)
    last = model(tokens=ids)["body"][:, -1]
    (last * torch.randn(last.shape, generator=generator, device="cpu").double()).sum().backward()
    hook.remove()
    norms = seen["embedding"].grad.norm(dim=2).mean(0).flip(0)
    return {float(at): float((norms[at] / norms[0]).log10()) for at in DISTANCES}


def tokens(rows: int, length: int, generator: Generator) -> Tensor:
    """Random text; its first token is one of a few symbols that occur nowhere else."""
    import torch

    ids = torch.randint(3 + SYMBOLS, 100, (rows, length), generator=generator, device="cpu")
    ids[:, 0] = torch.randint(3, 3 + SYMBOLS, (rows,), generator=generator, device="cpu")
    return ids


def train(model: Any, seed: int, steps: int) -> dict[float, float]:
    """Train to name the first token from the last state, for texts of 2 to 41 tokens; the share of right names by distance."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    head = torch.nn.Linear(64, SYMBOLS)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(steps):
        length = int(torch.randint(2, max(DISTANCES) + 2, (), generator=generator, device="cpu"))
        ids = tokens(32, length, generator)
        loss = torch.nn.functional.cross_entropy(head(model(tokens=ids)["body"][:, -1]), ids[:, 0] - 3)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    right = {}
    with torch.no_grad():
        for distance in DISTANCES[1:]:
            ids = tokens(256, distance + 1, generator)
            named = head(model(tokens=ids)["body"][:, -1]).argmax(1) + 3
            right[float(distance)] = 100 * float((named == ids[:, 0]).float().mean())
    return right


def verdict(measured: Summary) -> str:
    """The claim is seen where both gated cells have a larger gradient over the largest distance than the tanh cell, with every
    seed. The gradient vanishes where it is below 1e-6 of that of the last token, the rounding of float32."""
    far = max(DISTANCES)
    sentences, seen, vanishes = [], {}, {}
    for init in INITS:
        for when in ("before", "after"):
            values = {name: points[far] for name, points in measured[GRADIENT[init, when]].items()}
            seen[init, when] = min(values["gru"][2], values["lstm"][2]) > values["rnn_tanh"][3]
            vanishes[init, when] = values["rnn_tanh"][3] < VANISHED
            text = ", ".join(f"{name} 10^{value[0]:.1f}" for name, value in values.items())
            sentences.append(
                f"{init.capitalize()}, {when} training: {'the data agree' if seen[init, when] else 'not seen'} ({text})."
            )
    decides = vanishes["uniform", "before"] != vanishes["orthogonal", "before"]
    first = "decides" if decides else "does not decide"
    right = "; ".join(
        f"{init}: {', '.join(f'{name} {points[far][0]:.0f} %' for name, points in measured[RIGHT[init]].items())}"
        for init in INITS
    )
    return (
        f"Initialisation {first} whether the gradient of the tanh cell vanishes before training. {' '.join(sentences)} Numbers:"
        f" the gradient {far} tokens back, relative to that of the last token. After {STEPS} batches, the first of {far + 1}"
        f" tokens is named right in: {right}; a guess is {100 / SYMBOLS:.0f} %."
    )


GRADIENT_THROUGH_TIME = Measured(
    "Gradients of a tanh cell vanish over distance sooner than those of gated cells",
    "The gradient of the last state of a tanh cell and of gated cells against earlier tokens, by initialisation and training.",
    "tokens back",
    measure,
    verdict,
    60,
)
