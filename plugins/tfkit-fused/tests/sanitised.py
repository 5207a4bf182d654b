"""Every kernel once, on small calls whose tiles are cut off on all sides; a program for compute-sanitizer too."""

from __future__ import annotations

from dataclasses import replace

import tfkit_fused
import torch
from torch import Tensor

from tfkit_conformance.attention.case import Case

FULL = Case(
    B=2, H=4, G=2, Q=37, K=53, D=24, V=40, gradients=True, lse=True, offset=(3, -5), causal=True, key_lengths=(50, 20),
    query_lengths=(37, 30),
)  # fmt: skip
CALLS = {
    "padded": FULL,
    "dense": replace(FULL, causal=False, offset=None, key_lengths=None, query_lengths=None, D=64, V=64),
    "segments": replace(FULL, segments=3, window=(9, 4), causal=False),
    "visible": replace(FULL, visible="BHQK", softcap=2.0),
    "slopes": replace(FULL, bias="linear", bias_gradient=True),
    "table": replace(FULL, bias="distance", bias_gradient=True),
    "dense bias": replace(FULL, bias="dense", bias_gradient=True, bias_axes="HQK"),
    "dropout": replace(FULL, dropout=0.3),
    "decoding": replace(FULL, G=1, Q=3, K=300, offset=(290, 280), key_lengths=(300, 120), query_lengths=None),
}


def results(name: str, dtype: str, device: str) -> list[Tensor]:
    """Output, log-sum-exp and all gradients of a call."""
    from tfkit_fused.attend import attend

    case = replace(CALLS[name], dtype=dtype)
    inputs = case.inputs(device)
    torch.manual_seed(0)
    made = attend(inputs, tfkit_fused.FusedOptions())
    given = [inputs.query, inputs.key, inputs.value]
    bias = inputs.bias
    given += [each for each in vars(bias).values() if isinstance(each, Tensor) and each.requires_grad] if bias else []
    assert made.lse is not None
    return [made.output, made.lse, *torch.autograd.grad(made.output, given, case.grad_output(device))]


def main() -> None:
    for name in CALLS:
        for dtype in ("float32", "bfloat16"):
            results(name, dtype, "cuda")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
