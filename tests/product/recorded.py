"""What every attention site of a model was given in one run, and the gradient that came back to its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tfkit import Model
from tfkit.inspection import BackendChoice, BoundBackend
from tfkit.plugin import AttentionInputs, AttentionOutput
from tfkit.plugin.model_parts import MultiHeadAttention


def record(model: Model, call: dict[str, Any], seed: int = 3) -> dict[str, tuple[AttentionInputs, Tensor]]:
    """By site: its inputs as leaves, and the gradient of its output for one random gradient of the model's outputs.

    The model runs under the backends that it has; afterwards it is as it was.
    """
    kept: dict[str, tuple[AttentionInputs, Tensor]] = {}
    before = {module: dict(module.choices) for module in model.modules() if isinstance(module, MultiHeadAttention)}
    for module, choices in before.items():
        module.choices = {index: _watched(choice, kept) for index, choice in choices.items()}
    try:
        outputs = list(model(**call).values())
        draw = torch.Generator().manual_seed(seed)
        towards = [torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output) for output in outputs]
        torch.autograd.backward(outputs, towards)
    finally:
        model.zero_grad(set_to_none=True)
        for module, choices in before.items():
            module.choices = choices
    return kept


def _watched(choice: BackendChoice, kept: dict[str, tuple[AttentionInputs, Tensor]]) -> BackendChoice:
    (bound,) = choice.candidates

    def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
        found = bound.attend(inputs, options)
        leaves = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), inputs)

        def keep(gradient: Tensor) -> None:
            kept[choice.site] = (leaves, gradient.detach())

        found.output.register_hook(keep)
        return found

    watched = BoundBackend(bound.entry, bound.options, attend, None, bound.name)
    return BackendChoice(choice.site, choice.requested_backends, (watched,), False, choice.others)
