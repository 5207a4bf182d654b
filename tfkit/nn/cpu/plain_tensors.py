"""Whether a kernel that reads memory may be called: torch's transforms, modes and tracers see only operators of torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether these are plain CPU tensors, and no mode, tracer, transform (`torch.func`) or forward-mode derivative is active.

    Args:
        *tensors: the inputs of the kernel.

    Returns:
        True if a kernel may read their memory and compute what operators of torch would.
    """
    return (
        not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
        and all(tensor is None or torch._C._dispatch_keys(tensor) in PLAIN for tensor in tensors)
    )


def may_read(*tensors: Tensor | None) -> bool:
    """Whether a kernel for float32 may read these tensors: plain ones of float32, not empty, without a compiler or autocast."""
    return (
        not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and are_plain(*tensors)
        and all(tensor is None or (tensor.dtype == torch.float32 and tensor.numel() > 0) for tensor in tensors)
    )


def _plain() -> tuple[object, ...]:
    """The dispatch keys of plain CPU tensors, created outside and inside of inference mode."""
    with torch.inference_mode():
        inference = torch._C._dispatch_keys(torch.ones(1, device="cpu"))
    return torch._C._dispatch_keys(torch.ones(1, device="cpu")), inference


PLAIN = _plain()
