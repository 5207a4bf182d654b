"""The optimiser of a recipe: its learning rate, and its state by parameter name.

https://arxiv.org/abs/1412.6980, https://arxiv.org/abs/1711.05101, https://arxiv.org/abs/1212.5701
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from ..nn.stack import Stack
from ..recipe import Parameters, Recipe
from .distributed.ddp_fsdp import shard_of

# The parameters that a recipe trains, and the factor of the learning rate of each.
#
#     rate(parameter) = rate(step) * rates[pattern] * layer_decay^k
#
# k is the number of layers between a parameter and the outputs, its own included; an input node counts as one layer.
# https://arxiv.org/abs/2106.08254 (BEiT)

PREFIX = "nodes."
_LAYER = re.compile(r"([^.]+)\.layers\.(\d+)\.")


def freeze(recipe: Recipe, model: Model) -> None:
    """Turn off the gradients of the parameters that the recipe freezes."""
    names = _names(model)
    for name in matched(names, _settings(recipe).freeze):
        model.get_parameter(PREFIX + name).requires_grad_(False)


def rate_factors(recipe: Recipe, model: Model) -> dict[str, float]:
    """The factor of the learning rate of every parameter, by its name in the model."""
    rates, decay = _settings(recipe).rates or {}, _settings(recipe).layer_decay
    depths = depths_of(model) if decay is not None else {}
    factors = {}
    for name in _names(model):
        pattern = next((pattern for pattern in rates if matches(name, pattern)), None)
        factors[PREFIX + name] = (1.0 if pattern is None else rates[pattern]) * (decay or 1.0) ** depths.get(name, 0)
    return factors


def check_parameters(recipe: Recipe, model: Model) -> None:
    """Raises InputError for a pattern that matches no parameter, if all parameters are frozen, or if there are no layers."""
    names, diagnostics = _names(model), list[Diagnostic]()
    patterns = {"freeze": _settings(recipe).freeze, "rates": tuple(_settings(recipe).rates or ())}
    for key, key_patterns in patterns.items():
        for pattern in key_patterns:
            if not any(matches(name, pattern) for name in names):
                message = f"no parameter of `{model.plan.name}` matches `{pattern}`"
                fix = f"the names of its nodes are {', '.join(model.nodes)}; a layer is `NODE.layers.0`"
                diagnostics.append(recipe.diagnostic("TFK125", f"parameters.{key}", message, fix))
    trained = [name for name in names if model.get_parameter(PREFIX + name).requires_grad]
    if not set(trained) - set(matched(names, _settings(recipe).freeze)):
        message = "all parameters are frozen, and none is left to train"
        diagnostics.append(recipe.diagnostic("TFK125", "parameters.freeze", message, "leave out a pattern"))
    if _settings(recipe).layer_decay is not None and not any(isinstance(node, Stack) for node in model.nodes.values()):
        message = f"`{model.plan.name}` has no `stack`, and so no layers"
        diagnostics.append(recipe.diagnostic("TFK125", "parameters.layer_decay", message, "write `rates` by node"))
    if diagnostics:
        raise InputError(diagnostics)


def matched(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that match one of the patterns."""
    all_patterns = tuple(patterns)
    return [name for name in names if any(matches(name, pattern) for pattern in all_patterns)]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name, or its beginning up to a dot. `*` stands for any text without a dot."""
    names, parts = name.split("."), pattern.removeprefix(PREFIX).split(".")
    return len(parts) <= len(names) and all(fnmatchcase(*pair) for pair in zip(names, map(_literal, parts), strict=False))


def _literal(part: str) -> str:
    """A part of a pattern for `fnmatch`, in which only `*` has a meaning."""
    return part.replace("[", "[[]").replace("?", "[?]")


def depths_of(model: Model) -> dict[str, int]:
    """k of every parameter, by name: the layers on the longest path from the parameter to an output."""
    after = _layers_after(model)
    depths = {}
    for name in _names(model):
        node = name.partition(".")[0]
        layer = _LAYER.match(name)
        stack = model.nodes[node]
        if layer is not None and isinstance(stack, Stack):
            depths[name] = after[node] + len(stack.order) - stack.order.index(int(layer[2]))
        else:
            depths[name] = after[node] + (node in model.plan.inputs)
    return depths


def _layers_after(model: Model) -> dict[str, int]:
    """The layers that follow every node, on the longest path to an output."""
    after = dict.fromkeys(model.plan.wires, 0)
    for name, wire in reversed(list(model.plan.wires.items())):  # they are in dependency order
        node = model.nodes[name]
        num_layers = len(node.order) if isinstance(node, Stack) else 0
        for reference in (*wire.edges.values(), *wire.memories):
            source = reference.partition(".")[0]
            if source in after:
                after[source] = max(after[source], after[name] + num_layers)
    return after


def _settings(recipe: Recipe) -> Parameters:
    return recipe.parameters or Parameters()


def _names(model: Model) -> list[str]:
    return [name.removeprefix(PREFIX) for name, _ in model.named_parameters()]


def optimiser_for(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """torch's optimiser, fused where possible. Weight decay excludes gains and biases. Each group of parameters has
    the `factor` of its learning rate."""
    options, factors = recipe.optimiser.options, rate_factors(recipe, model)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    decayed: dict[tuple[bool, float], list[Tensor]] = {}
    for matrix in (True, False) if recipe.optimiser.kind == "adamw" else (True,):
        for name, parameter in parameters.items():
            if (parameter.dim() > 1) is matrix or recipe.optimiser.kind != "adamw":
                decayed.setdefault((matrix, factors[name]), []).append(parameter)
    groups = [{"params": tensors, "factor": factor} for (_, factor), tensors in decayed.items()]
    if recipe.optimiser.kind == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=options.momentum, fused=fused)
    if recipe.optimiser.kind == "adadelta":
        return torch.optim.Adadelta(groups, lr=0.0, rho=options.rho, eps=options.eps)
    betas = (options.beta1, options.beta2)
    if recipe.optimiser.kind == "adam":
        return torch.optim.Adam(groups, lr=0.0, betas=betas, eps=options.eps, fused=fused)
    for group, (matrix, _) in zip(groups, decayed, strict=True):
        group["weight_decay"] = options.weight_decay if matrix else 0.0
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=options.eps, fused=fused)


MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.Adadelta: ("square_avg", "acc_delta"),
    torch.optim.SGD: ("momentum_buffer",),
}
"""The tensors of an optimiser in the shape of a parameter. SGD has its own with momentum alone, and counts no steps."""


def rate_of(recipe: Recipe, step: int, width: int, reductions: int) -> float:
    """The learning rate of a step, counted from 1, for a model of this width, after so many plateaus."""
    options = recipe.schedule.options
    rate = float(recipe.schedule.entry.rate(options, step, width))
    for _ in range(reductions):
        rate = max(rate * options.factor, min(rate, options.floor))
    return rate


def set_rate(optimiser: torch.optim.Optimizer, recipe: Recipe, step: int, width: int, reductions: int = 0) -> float:
    """Set the learning rate of a step as `rate_of`; returns it, without the factors of parameters. A rate that is a tensor
    stays that tensor."""
    rate = rate_of(recipe, step, width, reductions)
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["factor"])
        else:
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
            state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            optimiser.state[parameter] = {key: _placed(optimiser, parameter, key, value) for key, value in state.items()}


def _placed(optimiser: torch.optim.Optimizer, parameter: Tensor, key: str, value: Tensor) -> Tensor:
    """A copy of a state tensor on the device of its parameter, sharded as the parameter."""
    if key == "step" and not (optimiser.defaults.get("fused") or optimiser.defaults.get("capturable")):
        return value.clone()
    value = value.clone().to(parameter.device)
    return shard_of(value, parameter) if value.shape == parameter.shape else value
