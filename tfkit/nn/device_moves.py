"""Moves and copies of a model. It moves to available devices only. It can be copied and saved (`tfkit.save`), not pickled."""

from __future__ import annotations

import copy
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from ..errors import BuildError, Diagnostic, StoreError

Own = TypeVar("Own", bound="Placed")


def device_here(device: Any) -> torch.device:
    """The device of that name. Raises BuildError if this machine or this build of torch lacks it."""
    try:
        if isinstance(device, bytes):
            raise TypeError("a device is a text or a torch.device")
        torch_device = torch.device(device)
        if torch_device.type == "cpu" and torch_device.index:
            raise RuntimeError("all processors are one device, cpu")
        torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as reason:
        words = str(reason).strip().splitlines()
        message = f"there is no device {device} here: {words[0] if words else type(reason).__name__}"
        fix = 'use the device "cpu" (`--device cpu`), or `tfkit plan` to plan for one that is not there'
        raise BuildError(Diagnostic("TFK046", message, fix)) from None
    return torch_device


class Placed(nn.Module):
    """A module with the properties `device` and `dtype`: those of its first parameter."""

    @property
    def device(self) -> torch.device:
        """Where inputs must be: the device of the first parameter, or where accelerate's hooks compute with offloaded ones."""
        first = next(self.parameters(), None)
        if first is None:
            return torch.device("cpu")
        return self._computing_device() or first.device if first.is_meta else first.device

    def _computing_device(self) -> torch.device | None:
        for module in self.modules():
            device = getattr(module.__dict__.get("_hf_hook"), "execution_device", None)
            if device is not None:
                return torch.device(device)
        return None

    @property
    def dtype(self) -> torch.dtype:
        first = next(self.parameters(), None)
        return torch.float32 if first is None else first.dtype

    def to(self: Own, *args: Any, **kwargs: Any) -> Own:
        """As torch.nn.Module.to. Raises BuildError if this machine lacks the device."""
        device = kwargs.get("device", args[0] if args else None)
        if device is not None and not isinstance(device, (Tensor, torch.dtype)):
            device_here(device)
        return super().to(*args, **kwargs)

    def cuda(self: Own, device: int | torch.device | None = None) -> Own:
        """As torch.nn.Module.cuda. Raises BuildError if this machine lacks the device."""
        device_here("cuda" if device is None else device)
        return super().cuda(device)

    def to_empty(self: Own, *, device: Any, recurse: bool = True) -> Own:
        """As torch.nn.Module.to_empty. Raises BuildError if this machine lacks the device.

        `torch.empty_like` of a meta tensor runs torch's symbolic shapes, and so imports sympy: `empty_strided` does not.
        """
        place = None if device is None else device_here(device)

        def empty(tensor: Tensor) -> Tensor:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=place or tensor.device)

        self._apply(empty, recurse=recurse)  # type: ignore[no-untyped-call]
        return self

    def __copy__(self: Own) -> Own:
        return self._with_state(dict(self.__dict__))

    def __deepcopy__(self: Own, memo: dict[int, Any]) -> Own:
        copied = self._with_state({})
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        return copied

    def _with_state(self: Own, state: dict[str, Any]) -> Own:
        copied = self.__class__.__new__(self.__class__)
        copied.__setstate__(state)  # type: ignore[no-untyped-call]
        return copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises StoreError: the backends are functions of this process, and reading a pickle runs code."""
        message = "a model cannot be pickled (torch.save, pickle.dumps, multiprocessing): its backends are code of this process"
        fix = (
            "use tfkit.save(model, directory) and tfkit.load(directory), or torch.save(model.state_dict(), path); the file "
            "that torch.save started to write holds no model"
        )
        raise StoreError(Diagnostic("TFK081", message, fix))
