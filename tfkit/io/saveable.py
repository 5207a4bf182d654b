"""Whether a model is what its spec describes, so that `load` can build it again. Checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import Diagnostic, StoreError
from ..graph import graph_of
from ..nn.model import Model
from .saved_files import ITEM_SIZES

MAX_ERRORS = 5
"""Errors in one refusal."""
REMOVALS = {
    "parametrizations": ("is parametrised", "torch.nn.utils.parametrize.remove_parametrizations"),
    "mask": ("is pruned", "torch.nn.utils.prune.remove"),
    "u": ("has spectral norm", "torch.nn.utils.remove_spectral_norm"),
    "g": ("has weight norm", "torch.nn.utils.remove_weight_norm"),
}
"""What torch puts on a module, by the mark it leaves in the names of tensors: in words, and the function that takes it off."""
ADAPTER = re.compile(r"\.(lora_|base_layer\.|modules_to_save\.|original_module\.|ia3_|hada_|lokr_|oft_|vera_)")
"""What peft's adapters put into the names of tensors."""


def check_described(model: Any) -> Mapping[str, Tensor]:
    """Check that the spec of a model describes its tensors.

    Args:
        model: the model.

    Returns:
        Its tensors by name.

    Raises:
        StoreError: it is no model of tfkit, has no values, was rounded, or has other tensors than its spec. The error names the
            modules and what to do.
    """
    if not isinstance(model, Model) or model.spec is None:
        message = f"a {type(model).__name__} is not a model that `tfkit.build` or `tfkit.load` made"
        fix = "save the model inside a wrapper; one with adapters of peft is `wrapper.merge_and_unload()`"
        raise StoreError(Diagnostic("TFK081", message, fix))
    if model.precision != "float32":
        message = f"the model was loaded with {model.precision} weights, which are not those that were trained"
        raise StoreError(Diagnostic("TFK081", message, "load it without `precision` and save that"))
    state = {**dict(model.named_buffers()), **model.state_dict()}
    diagnostics = [*_differences(model, state)]
    if len(diagnostics) > MAX_ERRORS:
        more = Diagnostic("TFK081", f"{len(diagnostics) - MAX_ERRORS} more tensors are not those of the spec")
        diagnostics = [*diagnostics[:MAX_ERRORS], more]
    if diagnostics:
        raise StoreError(diagnostics)
    empty = [name for name, tensor in state.items() if tensor.is_meta]
    if empty:
        message = f"`{empty[0]}` and {len(empty) - 1} more are on the meta device and have no values"
        raise StoreError(Diagnostic("TFK081", message, "build the model on another device"))
    return state


def _differences(model: Model, state: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """An error for each module with other tensors than the spec has, and for each tensor of another shape or kind."""
    wanted = {
        f"nodes.{node.name}.{parameter.name}": tuple(parameter.shape)
        for node in graph_of(model.spec).nodes.values()
        for parameter in node.parameters()
    }
    added: dict[str, list[str]] = {}
    for name in sorted(state.keys() - wanted.keys()):
        added.setdefault(_module_of(name), []).append(name)
    for module, names in added.items():
        reason, fix = _explained(module, names)
        yield Diagnostic("TFK081", f"`{module}` {reason}: `{names[0]}` is no tensor of the spec and could not be loaded", fix)
    for name, shape in wanted.items():
        tensor = state.get(name)
        if tensor is None:
            if name.rpartition(".")[0] not in added:
                fix = "put a module with this tensor back, or change the spec and copy the weights"
                yield Diagnostic("TFK081", f"`{name}` {shape} of the spec is missing from the model", fix)
        elif tuple(tensor.shape) != shape:
            fix = "write this size in the spec, build that model and copy the weights"
            yield Diagnostic("TFK081", f"`{name}` is {tuple(tensor.shape)}, and {shape} in the spec", fix)
        elif (dtype := str(tensor.dtype).removeprefix("torch.")) not in ITEM_SIZES:
            fix = f"cast it to one of {', '.join(ITEM_SIZES)}"
            yield Diagnostic("TFK081", f"`{name}` is {dtype}, which no saved model holds", fix)


def _module_of(name: str) -> str:
    """The module that a tensor was added to."""
    for piece in (".parametrizations.", *ADAPTER.findall(name)):
        if piece in name:
            return name.partition(piece if piece.startswith(".") else f".{piece}")[0]
    return name.rpartition(".")[0]


def _explained(module: str, names: Sequence[str]) -> tuple[str, str]:
    """What was done to a module, in words, and how to undo it."""
    if any(ADAPTER.search(name) for name in names):
        return "has an adapter of peft", "save what `merge_and_unload()` of the adapter's model returns"
    for name in names:
        first, _, rest = name.removeprefix(f"{module}.").partition(".")
        tensor, _, mark = first.rpartition("_")
        if first == "parametrizations":
            tensor, mark = rest.partition(".")[0], first
        if mark in REMOVALS:
            words, function = REMOVALS[mark]
            return words, f'call {function}(model.get_submodule("{module}"), "{tensor}") first'
    return (
        "has an added parameter or buffer",
        "remove it; a part of a model is written in its spec (`tfkit new node` starts one)",
    )
