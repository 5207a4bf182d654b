"""Errors of a call of a model that a part causes which was replaced, moved or given a hook after the model was built."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from types import TracebackType

import torch
from torch import nn

from ..errors import Diagnostic, InputError, TfkitError

RAISED_BY_PARTS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError)
"""What torch raises for tensors that do not fit, and an attention for an application that it has no backend for."""
MAX_PARTS = 3
"""Wrong parts that one message names."""


class BuiltParts:
    """The modules of a model and the shapes of its parameters, when it was built.

    Most modules of another width make torch raise an error. One that returns a single number per row does not: torch adds the
    number to every feature. So such a module is refused before the call.

    Args:
        model: the model.
        heads: names of the nodes of class logits. Nothing in the model depends on their width, and a regression has one output.
    """

    def __init__(self, model: nn.Module, heads: Container[str]) -> None:
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._heads = heads
        self._remember(model)

    def check(self, model: nn.Module) -> None:
        """Look at the parameters again, because a module was replaced.

        Args:
            model: the model that is called.

        Raises:
            InputError: a module that was replaced has one output, and the spec makes it wider.
        """
        for name, module in model.named_modules():
            if name.split(".")[1:2] and name.split(".")[1] in self._heads:
                continue
            axis = 0 if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) else -1
            for key, parameter in module.named_parameters(recurse=False):
                place, shape = f"{name}.{key}", tuple(parameter.shape)
                built = self.shapes.get(place)
                if built and len(built) == len(shape) and shape[axis] == 1 != built[axis]:
                    message = (
                        f"{_in_words(place, shape, built)}. torch would repeat the one number of its output {built[axis]} times"
                    )
                    raise InputError(Diagnostic("TFK071", message, "put a module of the same sizes there"))
        self._remember(model)

    def _remember(self, model: nn.Module) -> None:
        self.children = [
            (module._modules, name, child) for module in model.modules() for name, child in module._modules.items()
        ]


def _in_words(name: str, shape: tuple[int, ...], built: tuple[int, ...]) -> str:
    return f"`{name}` has the shape {shape}, and the spec of the model makes it {built}"


def explained(reason: Exception, model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Exception:
    """The exception to raise in place of one that a call of the model raised.

    Args:
        reason: what was raised.
        model: the model.
        shapes: the shape of every parameter by name, when the model was built.

    Returns:
        An InputError that names the wrong parameters, if parameters have other shapes or devices than the model needs and torch
        raised the error. Otherwise `reason` itself, with a note that names the module whose call raised it.
    """
    from_tfkit = isinstance(reason, TfkitError)
    if from_tfkit and not isinstance(reason, InputError):
        return reason
    where = _innermost(reason.__traceback__, model)
    wrong = list(_wrong_parts(model, shapes)) if from_tfkit or type(reason) in RAISED_BY_PARTS else []
    if not wrong:
        if where and not from_tfkit and hasattr(reason, "add_note"):  # Python 3.11
            reason.add_note(f"raised in a call of `{where}`, or in a hook of it")
        return reason
    more = f", and {len(wrong) - MAX_PARTS} more" if len(wrong) > MAX_PARTS else ""
    words = str(reason).strip().splitlines()
    message = (
        f"{'; '.join(wrong[:MAX_PARTS])}{more}. The call of `{where}` failed: {words[0] if words else type(reason).__name__}"
    )
    fix = "put modules of the same sizes there; `model.to(device)` moves all, `model.set_backend(...)` serves moved layers"
    return InputError(Diagnostic("TFK071", message, fix))


def _innermost(traceback: TracebackType | None, model: nn.Module) -> str:
    """The name of the innermost module of the model in whose call an error was raised; empty for the model itself."""
    names = {id(module): name for name, module in model.named_modules()}
    where = ""
    while traceback is not None:
        module = traceback.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            where = names.get(id(module), where)
        traceback = traceback.tb_next
    return where


def _wrong_parts(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """In words, every parameter with another shape than when the model was built, or on another device than most are."""
    parameters = dict(model.named_parameters())
    devices = [str(parameter.device) for parameter in parameters.values()]
    usual = max(devices, key=devices.count) if devices else ""
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != shapes.get(name, tuple(parameter.shape)):
            yield _in_words(name, tuple(parameter.shape), shapes[name])
        if parameter.device != torch.device(usual):
            yield f"`{name}` is on {parameter.device}, and most of the model on {usual}"
    for use in getattr(model, "attention_sites", list)():
        if use.application not in use.attention.choices:
            yield f"`{use.site}` has no attention backend, because its layer was moved or added by hand"
