"""What the witnesses of all sets share: calls, what a kernel makes of them.

A result is wrong that is further from float64 attention than its error bound (`tfkit_conformance.attention`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias, Mask, NoOptions
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.compare import error_ratios, leaves_of, request_of

OPTIONS = NoOptions()
ALL = ("query", "key", "value", "bias")
Witness = Callable[[ModuleType], bool]


def call(B=1, H=1, G=None, Q=4, K=6, D=8, V=None, dtype=torch.float32, seed=0, scale=None, bias=None, spread=1.0, softcap=None,
         dropout=0.0, weights=False, lse=False, score=None, **mask) -> AttentionInputs:  # fmt: skip
    """A call with normal tensors. `bias`: a Bias, or "dense", "linear", ("distance", number of values, low)."""
    draw = torch.Generator().manual_seed(seed)
    G, V = G or H, V or D
    query, key, value = (
        torch.randn(size, generator=draw).mul(factor).to(dtype)
        for size, factor in (((B, H, Q, D), spread), ((B, G, K, D), 1.0), ((B, G, K, V), 1.0))
    )
    if bias == "dense":
        bias = DenseBias(torch.randn(B, H, Q, K, generator=draw).to(dtype))
    elif bias == "linear":
        bias = LinearBias(2.0 ** -torch.arange(1.0, H + 1))
    elif isinstance(bias, tuple):
        bias = DistanceBias(torch.randn(H, bias[1], generator=draw), low=bias[2])
    return AttentionInputs(query, key, value, Mask(**mask), D**-0.5 if scale is None else scale, bias=bias, softcap=softcap,
                           dropout=dropout, return_weights=weights, return_lse=lse, score=score)  # fmt: skip


class Witnesses(dict[str, Witness]):
    """By the name of a fault, its witness."""

    def shows(self, function: Witness) -> Witness:
        self[function.__name__] = function
        return function


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def coins(*size: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.5


def asking(inputs: AttentionInputs, only: tuple[str, ...] = ALL) -> AttentionInputs:
    """The call with tensors of their own that need gradients. Layouts stay."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves_of(inputs).items() if name in only}
    bias = leaves.pop("bias", None)
    if bias is not None:
        field = "slopes" if isinstance(inputs.bias, LinearBias) else "values"
        leaves["bias"] = replace(inputs.bias, **{field: bias})
    return replace(inputs, **leaves)


def grad_for(inputs: AttentionInputs, seed: int = 99) -> Tensor:
    size = (*inputs.query.shape[:3], inputs.value.shape[3])
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(inputs.query.dtype)


def attend(module: ModuleType, inputs: AttentionInputs, seed: int | None = None) -> AttentionOutput:
    """What a kernel makes of a call that it declares."""
    subject = backend_under_test(module.BACKEND)
    assert subject.accepts(request_of(inputs)), subject.evaluate(request_of(inputs))
    if seed is not None:
        torch.manual_seed(seed)
    return module.attend(inputs, OPTIONS)


def backward(output: Tensor, inputs: AttentionInputs, grad: Tensor, **more: Any) -> dict[str, Tensor]:
    leaves = leaves_of(inputs)
    return dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad, **more), strict=True))


def differs(module: ModuleType, inputs: AttentionInputs, gradients: bool = True, only: tuple[str, ...] = ALL,
            grad: Tensor | None = None, seed: int | None = None, drawn: Tensor | None = None) -> bool:  # fmt: skip
    """Whether a result of a call is wrong, or missing. `drawn`: the factors of its dropout draw."""
    can = module.BACKEND.capabilities
    if isinstance(inputs.bias, LinearBias) and "linear" not in can.bias_gradient:
        only = tuple(name for name in only if name != "bias")
    inputs = asking(inputs, only) if gradients else inputs

    def answer() -> AttentionOutput:
        with torch.set_grad_enabled(gradients):
            return attend(module, inputs, seed)

    return judged(answer, module, inputs, grad, drawn)


def judged(answer: Callable[[], AttentionOutput], module: ModuleType, inputs: AttentionInputs, grad: Tensor | None = None,
           drawn: Tensor | None = None) -> bool:  # fmt: skip
    """Whether an answer to a call, or the gradients that follow from it, are wrong, or an error."""
    grad = grad_for(inputs) if grad is None else grad
    numerics = module.BACKEND.capabilities.numerics
    try:
        ratios = error_ratios(lambda inputs, options: answer(), OPTIONS, numerics, inputs, grad, drawn)
    except RuntimeError:
        return True
    return any(ratio > 1 for ratio in ratios.values())


def in_turn(module: ModuleType, *calls: AttentionInputs, gradients: bool = True) -> bool:
    """Whether the last call is wrong after the others; alone it is right."""
    for before in calls[:-1]:
        output = attend(module, asking(before) if gradients else before).output
        if gradients:
            output.sum().backward()
    return differs(module, calls[-1], gradients)


def overwritten(module: ModuleType, *calls: AttentionInputs) -> bool:
    """Whether the output of the first call changes when the others are made."""
    output = attend(module, calls[0]).output
    before = output.clone()
    for later in calls[1:]:
        attend(module, later)
    return not torch.equal(output, before)


def wrong_after_inference(module: ModuleType, inputs: AttentionInputs) -> bool:
    """Whether a call is wrong after the same call under inference_mode."""
    with torch.inference_mode():
        attend(module, inputs)
    return differs(module, inputs, gradients=False)


def of(*calls: Callable[[], AttentionInputs], **more: Any) -> Witness:
    """A witness of calls alone: one of them is wrong."""
    return lambda module: any(differs(module, make(), **more) for make in calls)


def drawn(module: ModuleType, inputs: AttentionInputs, seed: int | None = 7, keys: int | None = None) -> Tensor:
    """The dropout factors (B,H,Q,keys) of a call: values are one-hot, so that the output is the dropped weights."""
    (G, K), dtype = inputs.key.shape[1:3], inputs.query.dtype
    value = torch.eye(K, K if keys is None else keys, dtype=dtype).expand(inputs.query.shape[0], G, -1, -1)
    probe = replace(inputs, query=torch.zeros_like(inputs.query), key=torch.zeros_like(inputs.key), value=value, bias=None,
                    softcap=None, mask=Mask(), return_weights=False, return_lse=False)  # fmt: skip
    with torch.no_grad():
        output = attend(module, probe, seed).output
    return (output.double() * K > 0.5).double() / (1.0 - inputs.dropout)


def draws_broken(module: ModuleType, inputs: AttentionInputs, between: Callable[[], Any] = lambda: None, seed: int = 7) -> bool:
    """Whether a call with dropout is wrong for the draw of its seed. `between` comes before the backward pass."""
    factors, inputs = drawn(module, inputs, seed), asking(inputs)
    answer = attend(module, inputs, seed)
    between()
    return judged(lambda: answer, module, inputs, drawn=factors)


def changed_between(module: ModuleType, inputs: AttentionInputs, change: Callable[[], Any]) -> bool:
    """Whether gradients are wrong where the caller changes a tensor of the mask between forward and backward."""
    inputs, grad = asking(inputs), grad_for(inputs)
    want = backward(attend(module, inputs).output, inputs, grad)
    output = attend(module, inputs).output
    change()
    try:
        got = backward(output, inputs, grad)
    except RuntimeError:
        return True
    return not all(torch.allclose(got[name], want[name], rtol=1e-4, atol=1e-5) for name in want)


def share_dropped(module: ModuleType, p: float, dtype: torch.dtype = torch.float32) -> float:
    return float((drawn(module, call(1, 8, Q=256, K=200, D=4, dtype=dtype, dropout=p)) == 0).double().mean())


def in_threads(work: Callable[[int], Any], number: int = 3) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(turn,)) for turn in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def value_gradient_of_threads(module: ModuleType, Q: int, K: int, turns: int) -> bool:
    """Whether the backward pass of some thread has another draw than its forward pass: dV = O^T dO for queries of zero and
    one-hot values, where the output O is the dropped weights."""
    inputs = call(Q=Q, K=K, D=4, dropout=0.5)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.eye(K)[None, None])
    broken: list[bool] = []

    def work(number: int) -> None:
        grad = grad_for(inputs, number)
        for _ in range(turns):
            mine = asking(inputs, ("value",))
            output = module.attend(mine, OPTIONS).output
            [got] = torch.autograd.grad(output, [mine.value], grad)
            broken.append(not torch.allclose(got, output.detach().mT @ grad, atol=1e-3))

    in_threads(work)
    return any(broken)
