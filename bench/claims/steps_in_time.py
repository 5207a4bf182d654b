"""A recurrent network steps through its tokens, one matrix product after another; a Transformer takes all of them at once."""

from __future__ import annotations

import time

import torch
from claim import Claim, Measured, Summary, main
from gradient_through_time import SPEC as RECURRENT
from token_order import SPEC as ENCODER

import tfkit
from tfkit import parse_spec


def measure(seed: int, tiny: bool) -> Measured:
    """Processor time of a forward and backward pass over one sentence, on one thread, in milliseconds."""
    encoder = (
        ENCODER.format(position="sinusoidal", layers=1).replace("d_model: 32", "d_model: 64").replace("d_ff: 64", "d_ff: 256")
    )
    models = {"gru": tfkit.build(parse_spec(RECURRENT.format(cell="gru")), seed=seed),
              "transformer layer": tfkit.build(parse_spec(encoder), seed=seed)}  # fmt: skip
    output = {"gru": "body", "transformer layer": "encoder"}
    found: Measured = {"milliseconds": {name: {} for name in models}, "gru / transformer": {"ratio": {}}}
    for length in (16, 32) if tiny else (16, 32, 64, 128, 256, 512):
        ids = torch.randint(3, 100, (1, length))
        for name, model in models.items():
            times = []
            for _ in range(3 if tiny else 9):
                start = time.process_time()
                model(tokens=ids)[output[name]].square().sum().backward()
                times.append(1000 * (time.process_time() - start))
            found["milliseconds"][name][length] = min(times)
        found["gru / transformer"]["ratio"][length] = (
            found["milliseconds"]["gru"][length] / found["milliseconds"]["transformer layer"][length]
        )
    return found


def verdict(found: Summary) -> str:
    ratio = found["gru / transformer"]["ratio"]
    most = max(ratio, key=lambda length: ratio[length][0])
    agree = "agree" if ratio[most][2] > 1 else "do not agree"
    return (
        f"The data {agree} on one core: the GRU takes {ratio[min(ratio)][0]:.2g} times the time of the Transformer layer at"
        f" {min(ratio):g} tokens, {ratio[most][0]:.2g} times at {most:g}, {ratio[max(ratio)][0]:.2g} times at {max(ratio):g}."
    )


CLAIM = Claim(
    "A recurrent layer takes longer than a parallel one, and the more so the longer the text", "tokens", measure, verdict
)
if __name__ == "__main__":
    main(CLAIM)
