"""Derives the other call of a relation, and compares the results of two calls: bit for bit, or within both bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, Bias, LinearBias

from ..attention.compare import leaves_of
from ..attention.evaluated import Call
from ..differences import at_element, differing, error_ratio, first_of, worst_of

Result = TypeVar("Result")


def at_once(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """What these functions return, each in a thread of its own, all started at once. Raises what one of them raised."""
    ready = threading.Barrier(len(tasks))
    results: dict[int, Result] = {}
    raised: list[BaseException] = []

    def work(number: int, task: Callable[[], Result]) -> None:
        ready.wait()
        try:
            results[number] = task()
        except BaseException as reason:  # carried to the thread that waits, and raised there
            raised.append(reason)

    threads = [threading.Thread(target=work, args=task, daemon=True) for task in enumerate(tasks)]  # a kernel may hang
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [results[number] for number in range(len(tasks))]


def wants_gradients(inputs: AttentionInputs) -> bool:
    """Whether any tensor of the call requires a gradient."""
    return any(leaf.requires_grad for leaf in leaves_of(inputs).values())


def outcome(call: Call) -> dict[str, Tensor]:
    """Everything that a call gives, by name: output, lse, weights, and its gradients as `gradient of query`."""
    return named(call.output, call.gradients if wants_gradients(call.inputs) else {})


def named(answer: AttentionOutput, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output, lse, weights and gradients by their names in reports."""
    forward = {"output": answer.output, "lse": answer.lse, "weights": answer.weights}
    there = {name: tensor.detach() for name, tensor in forward.items() if tensor is not None}
    return there | {f"gradient of {name}": gradient for name, gradient in gradients.items()}


def leaf_copies(inputs: AttentionInputs, **tensors: Tensor) -> AttentionInputs:
    """The call with other tensors (`bias` too), every one a leaf of its own that lies in memory as before: kernels choose their
    order of summation by strides and alignment, so only then may two calls be compared bit for bit."""
    leaves = {}
    for name, old in leaves_of(inputs).items():
        leaves[name] = lying_as(old, tensors.get(name, old)).requires_grad_(old.requires_grad)
    return with_leaves(inputs, leaves)


def with_leaves(inputs: AttentionInputs, tensors: dict[str, Tensor]) -> AttentionInputs:
    """The call with these tensors, by the names of `leaves_of`."""
    bias: Bias | None = inputs.bias
    if bias is not None:
        values = tensors["bias"]
        bias = replace(bias, slopes=values) if isinstance(bias, LinearBias) else replace(bias, values=values)
    return replace(inputs, query=tensors["query"], key=tensors["key"], value=tensors["value"], bias=bias)


def identical(check: str, name: str, got: Tensor, want: Tensor, because: str) -> None:
    """Raise Violation unless both are the same, bit for bit; a NaN equals a NaN."""
    wrong = differing(got, want)
    if bool(wrong.any()):
        index = first_of(wrong)
        raise at_element(check, f"{format_element(name, index)} {because}", name, index, got, want)


def all_identical(check: str, got: Call, want: Call, because: str, names: Callable[[str], bool]) -> None:
    """Raise Violation unless what two calls give under these names is the same, bit for bit."""
    results, wanted = outcome(got), outcome(want)
    for name in filter(names, wanted):
        identical(check, name, results[name], wanted[name], because)


def within(check: str, name: str, got: Tensor, want: Tensor, bound: Tensor, because: str) -> float:
    """The largest |got - want| / bound. Raises Violation where it is above 1, or where there is a NaN."""
    worst, index = worst_of(error_ratio(got, want, bound))
    if worst > 1.0:
        raise at_element(check, f"{format_element(name, index)} {because}", name, index, got, want, bound)
    return worst


def format_element(name: str, index: tuple[int, ...]) -> str:
    """Which element this is, in words."""
    if name in ("output", "lse", "weights"):
        row = f"row {index[2]} of batch row {index[0]}, head {index[1]}"
        return f"{name} {row}" + (f", key {index[3]}," if name == "weights" else "")
    if name == "gradient of query":
        return f"gradient of query row {index[2]} of batch row {index[0]}, head {index[1]}"
    if name in ("gradient of key", "gradient of value"):
        return f"{name} {index[2]} of batch row {index[0]}, key/value head {index[1]}"
    return f"{name} at {list(index)}"


def lying_as(old: Tensor, values: Tensor) -> Tensor:
    """`values` in fresh memory with the strides and the offset of `old`. Where `old` repeats memory, the values repeat too."""
    room = old.storage_offset() + 1 + sum((size - 1) * stride for size, stride in zip(old.shape, old.stride(), strict=True))
    fresh = torch.zeros(room, dtype=old.dtype, device=old.device).as_strided(old.shape, old.stride(), old.storage_offset())
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in old.stride())
    fresh[once].copy_(values.detach()[once])
    return fresh
