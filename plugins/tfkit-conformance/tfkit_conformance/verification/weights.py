"""Weights: names as in the spec, independent of backends, and each with a gradient.

    A12   a state dict has the names of the spec, loads into a model built for another backend, and gives there, to the bit,
          what `set_backend` gives here
          every parameter of the spec is a tensor of its own: what the spec does not share is not shared
          every trainable parameter gets a finite gradient from a random loss that is not zero everywhere; the rows of a shared
          table get one from every node that uses it, and a memory from the keys and from the values of every cross-attention

A key bias adds one number to all scores of a query where nothing acts between the projection and the scores: the softmax does
not see it, and its gradient is nothing but rounding. It may be zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Model, build
from tfkit.inspection import Padding, SharedTable, catalogue_of
from tfkit.plugin.model_parts import ForwardContext, NodeOutput

from ..finding import Violation
from ..site_hooks import request_backend
from .expected import expected_sites, node_of
from .gradients import unseen_biases
from .model_under_test import ModelUnderTest
from .recording import node_outputs, run
from .rounding import copied
from .row import NotApplicable, same


def checkpoint(subject: ModelUnderTest) -> None:
    """A12."""
    state = subject.model.state_dict()
    listed = {f"nodes.{node.name}.{p.name}" for node in subject.graph.nodes.values() for p in node.parameters()}
    if set(state) != listed:
        odd = sorted(set(state) ^ listed)[0]
        raise Violation(
            "checkpoint", f"`{odd}` is {'missing from' if odd in listed else 'no name of the spec, but in'} the state dict"
        )
    if subject.model.spec is None:
        raise NotApplicable("the model keeps no spec to be built from")
    other: Model = build(subject.model.spec, catalogue_of(subject.model), device="meta", dtype=subject.dtype)
    other.to_empty(device=subject.device).load_state_dict(state)
    for name, module in subject.model.named_modules():
        if type(module) in (nn.Linear, nn.Embedding):  # in the place of the fast ones: their products round in another order
            other.get_submodule(name).__class__ = type(module)
    request_backend(other, "eager")
    other.retarget(torch.device(subject.device), subject.dtype)
    request_backend(other, subject.requested)
    after = run(other.eval(), subject.batch)
    for name, tensor in subject.baseline.items():
        same("checkpoint", after[name], tensor, "weights loaded into a model built anew must give the same bits", f"`{name}`")


def own_parameters(subject: ModelUnderTest) -> None:
    """No two names of the spec have one parameter, or overlapping memory."""
    message = shared_memory(subject.model)
    if message:
        raise Violation("own parameters", message)


def shared_memory(model: Model) -> str:
    """Two parameters that begin at one address, in words; empty if there are none."""
    owners: dict[tuple[object, int], str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.numel() or parameter.is_meta:
            continue
        place = (parameter.device, parameter.data_ptr())
        if place in owners:
            return f"`{owners[place]}` and `{name}` are one tensor, and the spec shares neither"
        owners[place] = name
    return ""


def gradient_flow(subject: ModelUnderTest) -> None:
    """Every parameter learns, through every node that uses it, and every memory through every attention that reads it."""
    model: Model = copied(subject.model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise NotApplicable("the model has no trainable parameter")
    if subject.model.sites and min((ids.shape[1] for ids in subject.batch.ids.values()), default=2) < 2:
        raise NotApplicable("over one token, a softmax is 1 and has no gradient")
    generator = subject.generator(3)
    with node_outputs(model) as recorded, _memories_read(subject, model) as read:
        outputs = model(**subject.batch.call(dtype=model.dtype))
    loss = torch.zeros((), dtype=torch.float64, device=subject.device)
    for tensor in outputs.values():
        weight = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        loss = loss + (tensor.double() * weight).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
    _memories(subject, read)
    unseen, slopes = unseen_biases(subject.model, subject.graph), subject.measured.gradients.yardstick
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            raise Violation("gradient flow", f"no gradient reaches `{name}` {tuple(parameters[name].shape)}")
        if not bool(gradient.isfinite().all()):
            index = tuple((~gradient.isfinite()).nonzero()[0].tolist())
            raise Violation("gradient flow", f"the gradient of `{name}`{list(index)} is {float(gradient[index])}", index=index)
        rounded = name in slopes.scales and slopes.share(name) >= 1.0  # this dtype alone may make it 0
        if not bool(gradient.any()) and name not in unseen and not rounded:
            raise Violation("gradient flow", f"the gradient of `{name}` {tuple(gradient.shape)} is zero everywhere")
    _shared_tables(subject, model, {name: tensors[0] for name, tensors in recorded.items()}, generator)


@contextmanager
def _memories_read(subject: ModelUnderTest, model: Model) -> Iterator[dict[str, list[_Read]]]:
    """By site, what the key and the value projection of a cross-attention read of its memory, each time, as a tensor of its own
    that keeps the gradient which reaches it."""
    read: dict[str, list[_Read]] = {}
    names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    sites = {use.site: use.attention for use in model.attention_sites()}
    handles = []

    def noting(site: str, part: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            view = inputs[0].view_as(inputs[0])
            name = next((names[id(p)] for p in module.parameters() if id(p) in names), "")
            note = _Read(part, name, view.requires_grad)
            if part == "query":
                read[site].clear()  # a matrix that is shared with the queries reads the memory last
            if view.requires_grad:
                view.register_hook(lambda gradient: setattr(note, "gradient", gradient.detach()))
            read[site].append(note)
            return (view, *inputs[1:])

        return hook

    for expected in expected_sites(subject.graph).values():
        if expected.memory is None:
            continue
        read[expected.name] = []
        for part in dict.fromkeys(expected.options.matrix(tensor) for tensor in ("key", "value")):
            module = sites[expected.name].get_submodule(part)
            handles.append(module.register_forward_pre_hook(noting(expected.name, part)))
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class _Read:
    """What a projection read of a memory: its parameter, whether a gradient can reach it, and which one did."""

    part: str
    parameter: str
    learns: bool
    gradient: Tensor | None = None


def _memories(subject: ModelUnderTest, read: dict[str, list[_Read]]) -> None:
    """Every memory with parameters gets a gradient from the keys and from the values of every cross-attention that reads it."""
    for site, notes in read.items():
        memory = expected_sites(subject.graph)[site].memory
        assert memory is not None
        if not _learns(subject, memory) or subject.baseline[memory].shape[1] < 2:
            continue  # over one position, a softmax is 1
        for note in notes:
            if note.learns and note.gradient is not None and bool(note.gradient.any()):
                continue
            words = f"no gradient reaches `{memory}` from the {note.part} projection of {site}: `{note.parameter}`"
            raise Violation("gradient flow", words)


def _learns(subject: ModelUnderTest, node: str) -> bool:
    """Whether a node, or one that it reads, has a parameter that is trained."""
    learns_itself = any(parameter.requires_grad for parameter in subject.model.nodes[node].parameters())
    edges = subject.graph.nodes[node].edges
    return learns_itself or any(_learns(subject, node_of(ref)) for ref in (*edges.reads.values(), *edges.memories))


def _shared_tables(subject: ModelUnderTest, model: Model, outputs: dict[str, Tensor], generator: torch.Generator) -> None:
    """A node that shares a table passes a gradient to the rows that it uses: those of its ids, or all where it is logits."""
    for name, node in subject.graph.nodes.items():
        owner = node.edges.owner
        if owner is None:
            continue
        embedding: Any = model.nodes[owner].embedding
        table = embedding.weight
        if not table.requires_grad:
            continue
        is_tokens = node.kind.input_rule is not None
        output = outputs[name] if is_tokens else _alone(model, name, outputs[node_of(node.edges.reads["input"])], embedding)
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.device, output.dtype)
        gradient = None
        if output.requires_grad:
            (gradient,) = torch.autograd.grad(output, [table], weight, allow_unused=True, retain_graph=True)
        used = torch.ones(table.shape[0], dtype=torch.bool, device=table.device)
        if is_tokens:
            used = torch.zeros_like(used).index_fill(0, subject.batch.ids[name].flatten().long(), True)
        reached = torch.zeros_like(used) if gradient is None else gradient.any(1)
        missed = (used & ~reached).nonzero()
        if len(missed):
            message = f"`{name}` uses row {int(missed[0])} of the table of `{owner}`, and passes no gradient to it"
            raise Violation("gradient flow", message, index=(int(missed[0]),))


def _alone(model: Model, name: str, source: Tensor, embedding: nn.Module) -> Tensor:
    """What a node of logits gives for its input, when only its table can pass a gradient."""
    output: NodeOutput = model.nodes[name](
        ForwardContext({}, {}, {}), input=NodeOutput(source.detach(), Padding()), table=SharedTable(embedding)
    )
    return output.tensor
