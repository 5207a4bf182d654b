"""Large finite numbers in keys and values that must not matter (rules A5 and A6).

They are as large as products with them stay finite in the accumulation type, and at most 2^60; a backend that keeps its scores
in the storage type keeps them there. Infinities and NaN are not demanded: 0 * inf is NaN, and kernels multiply by zero weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..attention.evaluated import Call, Evaluated
from .call_parts import repeats
from .paired_calls import identical, leaf_copies, outcome


def large(evaluated: Evaluated, partner: Tensor, terms: int) -> float:
    """A power of two whose products with `partner`, `terms` of them added up, stay finite."""
    dtype = evaluated.case.torch_dtype
    kept = dtype if evaluated.subject.capabilities.numerics.scores == "storage" else torch.promote_types(dtype, torch.float32)
    size = max(1.0, float(partner.detach().abs().max()) * max(1.0, abs(evaluated.inputs.scale)))
    limit = min(2.0**60, torch.finfo(kept).max / (64 * terms * size), torch.finfo(dtype).max / 2)
    return 2.0 ** math.floor(math.log2(limit))


def poisoned(evaluated: Evaluated, keys: Tensor) -> dict[str, Tensor]:
    """Key and value in which the given keys (B,G,K) hold large numbers of mixed signs."""
    inputs, case = evaluated.inputs, evaluated.case
    draw = torch.Generator().manual_seed(case.seed + 5)
    tensors = {}
    for name, partner, features in (("key", inputs.query, case.D), ("value", evaluated.grad_output, case.V)):
        tensor = getattr(inputs, name).detach()
        signs = torch.randint(0, 2, tensor.shape, generator=draw).mul(2).sub(1).to(tensor)
        tensors[name] = torch.where(keys[..., None].to(tensor.device), signs * large(evaluated, partner, features), tensor)
    return tensors


def unmoved(check: str, evaluated: Evaluated, keys: Tensor, rows: Tensor, also: Tensor, because: str) -> None:
    """Raise Violation unless poison in the given keys (B,G,K) leaves `rows` (B,H,Q) of output, lse, weights and query gradient,
    and the gradients of the keys `also` (B,G,K), bit for bit as they were."""
    before = outcome(evaluated)
    after = outcome(Call(evaluated.subject, leaf_copies(evaluated.inputs, **poisoned(evaluated, keys)), evaluated.grad_output))
    picked = {"gradient of key": also, "gradient of value": also}
    for name, tensor in before.items():
        chosen = picked.get(name, rows).to(tensor.device)
        if name == "gradient of bias" or not repeats(evaluated)(name):
            continue
        while chosen.dim() < tensor.dim():
            chosen = chosen[..., None]
        identical(check, name, after[name].where(chosen, 0.0), tensor.where(chosen, 0.0), because)
