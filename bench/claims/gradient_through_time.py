"""The gradient of the last state of a recurrent network against the tokens before it, for tanh and for gated cells."""

from __future__ import annotations

from typing import Any

import torch
from claim import Claim, Measured, Summary, main

import tfkit
from tfkit import parse_spec

SPEC = """
tfkit: 1
name: recurrent
defaults: {{vocab_size: 100, d_model: 64, pad_id: 0}}
nodes:
  tokens: {{kind: tokens}}
  body:   {{kind: rnn, input: tokens, cell: {cell}, d_state: 64}}
outputs: [body]
"""
DISTANCES = (0, 5, 10, 20, 40, 80)


def measure(seed: int, tiny: bool) -> Measured:
    found: Measured = {"log10 of the gradient norm, relative to distance 0": {}}
    for cell in ("rnn_tanh", "gru", "lstm"):
        model = tfkit.build(parse_spec(SPEC.format(cell=cell)), seed=seed)
        seen: dict[str, Any] = {}

        def capture(module: Any, inputs: Any, output: Any, seen: dict[str, Any] = seen) -> None:
            output.tensor.retain_grad()
            seen["embedding"] = output.tensor

        model.nodes["tokens"].register_forward_hook(capture)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, 100, (16, 41 if tiny else 81), generator=generator)
        last = model(tokens=ids)["body"][:, -1]
        (last * torch.randn(last.shape, generator=generator)).sum().backward()
        norms = seen["embedding"].grad.norm(dim=2).mean(0).flip(0)
        series = {float(at): float((norms[at] / norms[0]).log10()) for at in DISTANCES if at < len(norms)}
        found["log10 of the gradient norm, relative to distance 0"][cell] = series
    return found


def verdict(found: Summary) -> str:
    (series,) = found.values()
    far = max(series["gru"])
    values = {name: points[far] for name, points in series.items()}
    agree = min(values["gru"][2], values["lstm"][2]) > values["rnn_tanh"][3]
    text = ", ".join(f"{name} 10^{value[0]:.1f}" for name, value in values.items())
    return (
        f"{'The data agree' if agree else 'Not seen with these initial weights'}: {far:g} tokens back, the gradient relative to"
        f" that of the last token is {text}. All vanish before training; this does not show what training changes."
    )


CLAIM = Claim("Gradients of a tanh cell vanish over distance sooner than those of gated cells", "tokens back", measure, verdict)
if __name__ == "__main__":
    main(CLAIM)
