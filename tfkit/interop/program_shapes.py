"""Examples of the inputs of programs, and the sizes that vary.

Every program is run with two examples. A size that differs between them varies, and the pair of sizes is its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ..nn.convolutions import Convolutions
from ..nn.model import Model
from ..nn.recurrent import Recurrent
from ..slots.node import AnyInputRule, FeatureRule, ImageRule
from .programs import Encode, Forward, Program, Step, encoded
from .state_tensors import Named, caches_of, memory_of, recurrent_of


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that a program reads or returns.

    Args:
        name: its name in the program.
        dtype: its dtype, as numpy spells it.
        shape: its sizes; a name stands for a size that varies.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class ProgramFacts:
    """A program with the facts of its inputs and outputs, in order."""

    program: Program
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]


def programs_of(model: Model) -> list[ProgramFacts]:
    """The programs of a model: `forward`; or `step`, after `encode` if the model has other inputs than its target."""
    targets = targets_of(model)
    sizes = _sizes(model, targets[0] if targets else "")
    names = {pair: name for name, pair in sizes.items()}
    with torch.no_grad():
        target = targets[0] if targets else ""
        small = _programs(model, target, {name: pair[0] for name, pair in sizes.items()})
        large = _programs(model, target, {name: pair[1] for name, pair in sizes.items()}, small[-1])
        return [
            ProgramFacts(
                one,
                _facts(one.example, other.example, names),
                _facts(one.run(one.example), other.run(other.example), names),
            )
            for one, other in zip(small, large, strict=True)
        ]


def targets_of(model: Model) -> list[str]:
    """The inputs that can be decoded step by step."""
    return [name for name in model.plan.inputs if name not in model.plan.undecodable]


def shortest_inputs(model: Model) -> dict[str, int]:
    """The least length of each input whose length a convolution divides: two vectors remain. Other inputs may have length 1."""
    convolutions = [each for node in model.nodes.values() if isinstance(node, Convolutions) for each in node.convolutions]
    stride = prod(each.stride[0] for each in convolutions if isinstance(each, nn.Conv1d))
    frames = [name for name, rule in model.plan.inputs.items() if isinstance(rule, FeatureRule)]
    return dict.fromkeys(frames, 1 + stride) if stride > 1 else {}


def _sizes(model: Model, target: str) -> dict[str, tuple[int, int]]:
    """The sizes of both examples by name. All pairs differ. None holds 0 or 1, which tracing would keep as they are."""
    plan = model.plan
    sizes = {"batch": (2, 3)}
    if target:
        looped = any(isinstance(model.nodes[name], Recurrent) for name in plan.followers[target])
        new = (1, 1) if looped else (2, 5)  # tracing unrolls the loop of a recurrent decoder
        sizes |= {"new": new, "past": (5, 11), "past + new": (5 + new[0], 11 + new[1])}
    for index, (name, rule) in enumerate(plan.inputs.items()):
        if name != target and not isinstance(rule, ImageRule):
            limit = plan.max_input_lengths.get(name, 99)
            small, large = min(16 + 3 * index, limit), min(29 + 7 * index, limit)
            sizes |= {f"{name}/{stride}": (-(-small // stride), -(-large // stride)) for stride in (8, 4, 2)}
            sizes[name] = small, large
    return sizes


def _programs(model: Model, target: str, sizes: Mapping[str, int], alike: Program | None = None) -> list[Program]:
    """The programs with an example of some sizes; `alike` is the last of them with another example, if it is known already."""
    example: Named = {}
    for name, rule in model.plan.inputs.items():
        if name != target:
            example.update(_example(name, rule, sizes, model))
    if not target:
        return [Forward(model, example)]
    like = encoded(model, example, target)
    ids = torch.ones(sizes["batch"], sizes["new"], dtype=torch.int64, device=model.device)
    tensors = {"ids": ids, "visible": ids.bool(), **memory_of(like)}
    tensors["past.visible"] = torch.ones(sizes["batch"], sizes["past"], dtype=torch.bool, device=model.device)
    for name, tensor in caches_of(like).items():
        tensors[name] = tensor[:1].expand(sizes["batch"], -1, sizes["past"], -1).contiguous()
    for name, tensor in recurrent_of(like.recurrent).items():
        tensors[name] = tensor[:1].expand(sizes["batch"], -1).contiguous()
    read = set(alike.example) if alike is not None else _read(Step(model, tensors, like))
    step = Step(model, {name: tensor for name, tensor in tensors.items() if name in read}, like)
    return [Encode(model, example, target, step.example), step] if example else [step]


def _read(program: Program) -> set[str]:
    """The names of the tensors that the program reads."""
    traced = torch.export.export(program, tuple(program.example.values()), strict=False)
    nodes = {node.name: node for node in traced.graph.nodes}
    inputs = traced.graph_signature.user_inputs
    return {name for name, node in zip(program.example, inputs, strict=True) if nodes[node].users}


def _example(name: str, rule: AnyInputRule, sizes: Mapping[str, int], model: Model) -> Named:
    batch, device = sizes["batch"], model.device
    if isinstance(rule, ImageRule):
        return {name: torch.zeros(batch, rule.channels, rule.size, rule.size, dtype=model.dtype, device=device)}
    ids = torch.ones(batch, sizes[name], dtype=torch.int64, device=device)
    visible = {f"{name}.visible": ids.bool()}
    if isinstance(rule, FeatureRule):
        return {name: torch.zeros(*ids.shape, rule.size, dtype=model.dtype, device=device), **visible}
    token = next(each for each in (rule.end_id, 1, 0) if each is not None and each != rule.pad_id)
    segments = {f"{name}.segments": torch.zeros_like(ids)} if rule.segments else {}
    return {name: token * ids, **(visible if rule.pad_id is None else {}), **segments}


def _facts(one: Named, other: Named, names: Mapping[tuple[int, int], str]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(a if a == b else names[a, b] for a, b in zip(tensor.shape, other[name].shape, strict=True)),
        )
        for name, tensor in one.items()
    )
