"""The optimiser of a recipe: its learning rate, and its state by parameter name.

https://arxiv.org/abs/1412.6980, https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..nn.model import Model
from ..recipe import Recipe
from .distributed.ddp_fsdp import shard_of
from .parameter_rates import rate_factors


def optimiser_for(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """torch's Adam or AdamW, fused where the device supports it. Weight decay excludes gains and biases. Each group of
    parameters has the `factor` of its learning rate."""
    options, factors = recipe.optimiser.options, rate_factors(recipe, model)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    betas = (options.beta1, options.beta2)
    decayed: dict[tuple[bool, float], list[Tensor]] = {}
    for matrix in (True, False) if recipe.optimiser.kind == "adamw" else (True,):
        for name, parameter in parameters.items():
            if (parameter.dim() > 1) is matrix or recipe.optimiser.kind == "adam":
                decayed.setdefault((matrix, factors[name]), []).append(parameter)
    groups = [{"params": each, "factor": factor} for (_, factor), each in decayed.items()]
    if recipe.optimiser.kind == "adam":
        return torch.optim.Adam(groups, lr=0.0, betas=betas, eps=options.eps, fused=fused)
    for group, (matrix, _) in zip(groups, decayed, strict=True):
        group["weight_decay"] = options.weight_decay if matrix else 0.0
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=options.eps, fused=fused)


def set_rate(optimiser: torch.optim.Optimizer, recipe: Recipe, step: int, width: int) -> float:
    """Set the learning rate of a step, counted from 1, for a model of this width; returns it, without the factors."""
    rate = float(recipe.schedule.entry.rate(recipe.schedule.options, step, width))
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]
    return rate


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """The optimiser's tensors as `PARAMETER/KEY`; `names` gives the parameter's name by its `id`."""
    return {
        f"{names[id(parameter)]}/{key}": value
        for parameter, state in optimiser.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: Mapping[int, str], tensors: Mapping[str, Tensor]) -> None:
    """Set the tensors that `optimiser_tensors` returned, as copies."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            prefix = f"{names[id(parameter)]}/"
            found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            optimiser.state[parameter] = {key: _placed(optimiser, parameter, key, value) for key, value in found.items()}


def _placed(optimiser: torch.optim.Optimizer, parameter: Tensor, key: str, value: Tensor) -> Tensor:
    """A copy of a state tensor on the device of its parameter, sharded as the parameter."""
    if key == "step" and not (optimiser.defaults.get("fused") or optimiser.defaults.get("capturable")):
        return value.clone()
    value = value.clone().to(parameter.device)
    return shard_of(value, parameter) if value.shape == parameter.shape else value
