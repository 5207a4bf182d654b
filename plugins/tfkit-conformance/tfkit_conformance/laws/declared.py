"""Compares what a part builds with what its entry declares: weights, shapes, no further parameters."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.inspection import CLAIMS

from .law import LawExample


def check_claims(example: LawExample) -> None:
    """The names in `claims` and `same_as` are known: no law would check an unknown one."""
    claimed, same_as = example.entry.claimed(example.options), example.entry.same_as
    known = CLAIMS[example.subject.slot]
    if not isinstance(claimed, (frozenset, set)):
        raise example.broken(f"`claims` must give a frozenset of names; it gave {claimed!r}")
    if unknown := sorted(map(str, claimed - known)):
        near = get_close_matches(unknown[0], sorted(known), 1)
        fix = f"did you mean `{near[0]}`?" if near else f"known: {sorted(known)}"
        raise example.broken(f"it claims {unknown}, which no law is about; {fix}")
    slot, catalogue = example.subject.slot, example.subject.catalogue
    if same_as and catalogue.find(slot, same_as) is None:
        fix = catalogue.why_missing(slot, same_as)
        raise example.broken(f"`same_as` names `{same_as}`, which is no {slot} of the catalogue; {fix}")


def check_parameters(example: LawExample, module: nn.Module, declared: Any) -> None:
    """Names, shapes and trainability agree with the entry's `parameters`; there are no further buffers."""
    built = {name: (tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()}
    listed = {p.name: (tuple(p.shape), p.trainable) for p in declared if not p.buffer}
    buffers = {p.name: tuple(p.shape) for p in declared if p.buffer}
    if len(listed) + len(buffers) != len(declared):
        raise example.broken(f"its entry lists a parameter twice: {[p.name for p in declared]}")
    for name in sorted(set(built) | set(listed)):
        if built.get(name) != listed.get(name):
            in_entry, in_module = listed.get(name, "missing"), built.get(name, "missing")
            raise example.broken(f"parameter `{name}` is {in_module} in the module and {in_entry} in its entry", tensor=name)
    for name, buffer in module.named_buffers():
        if buffers.get(name) != tuple(buffer.shape):
            raise example.broken(f"`{name}` is a buffer; modules are built without storage, so its numbers would be lost")
    if set(module.state_dict()) != {*built, *buffers}:
        names = sorted({*built, *buffers})
        raise example.broken(f"its state_dict holds {sorted(module.state_dict())}, its parameters are {names}")


def check_reasons(example: LawExample, reasons: Any) -> bool:
    """Whether `unsupported` accepts, its answer being a tuple of reasons in words."""
    if not isinstance(reasons, tuple) or any(not isinstance(reason, str) or not reason.strip() for reason in reasons):
        raise example.broken(f"`unsupported` must give a tuple of reasons in words; it gave {reasons!r}")
    return not reasons


def check_unwritten(example: LawExample, before: list[Tensor], after: list[Tensor]) -> None:
    """Inputs are the caller's: no bit of them changes."""
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        example.equal(f"input {number} of shape {tuple(old.shape)} was written to", new, old, "input")


def check_reached(example: LawExample, output: Tensor, leaves: dict[str, Tensor]) -> None:
    """Some gradient arrives at every leaf, and is finite."""
    if not output.requires_grad:
        raise example.broken(f"the output carries no gradient, though {', '.join(leaves)} require one")
    gradients = torch.autograd.grad(
        output, list(leaves.values()), example.normal(*output.shape).to(output.dtype), allow_unused=True
    )
    for (name, _), gradient in zip(leaves.items(), gradients, strict=True):
        if gradient is None or not bool(gradient.any()):
            raise example.broken(f"no gradient reaches `{name}`", tensor=name)
        example.finite(f"the gradient of `{name}`", gradient)
