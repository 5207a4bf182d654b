"""The optimiser of a recipe, and its learning rate. https://arxiv.org/abs/1412.6980, https://arxiv.org/abs/1711.05101"""

from __future__ import annotations

import torch
from torch import nn

from ..recipe import Recipe


def optimiser_for(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """torch's Adam or AdamW, fused where the device has it; weight decay leaves gains and biases alone."""
    options = recipe.optimiser.options
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    betas = (options.beta1, options.beta2)
    if recipe.optimiser.kind == "adam":
        return torch.optim.Adam(parameters, lr=0.0, betas=betas, eps=options.eps, fused=fused)
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=betas, eps=options.eps, fused=fused)


def set_rate(optimiser: torch.optim.Optimizer, recipe: Recipe, step: int, width: int) -> float:
    """Give the optimiser the learning rate of a step, counted from 1, of a model of that width."""
    rate = float(recipe.schedule.entry.rate(recipe.schedule.options, step, width))
    for group in optimiser.param_groups:
        group["lr"] = rate
    return rate
