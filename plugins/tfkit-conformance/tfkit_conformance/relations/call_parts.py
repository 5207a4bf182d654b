"""A call rewritten as other calls: R9 to R31 are all of this form.

The whole call's tensors are made float64 leaves; each `Piece` is a call on differentiable selections of them. The backend runs
on the pieces in the stored dtype, and the transpose of the selections (autograd's, in float64, hence exact) brings gradients
back to the whole call's tensors. Selections have coefficients 0 and 1, so the same transpose brings the bounds back:

    |pick(O) - O'| <= pick(T_O) + T_O'        |dx - sum select^T dx'| <= T_dx + sum select^T T_dx'
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, LinearBias, Mask

from ..attention.compare import leaves_of, request_of
from ..attention.elements import arranged
from ..attention.evaluated import Call
from .paired_calls import identical, outcome, wants_gradients, with_leaves, within

Index = range | Tensor


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Piece:
    """`inputs`, made of the leaves that `wide` gave. `pick` takes the piece's rows out of anything (B,H,Q,...) of the whole
    call; `output` and `lse` turn the picked rows into the expected ones. `layout` is how its tensors lie in memory. `row` is
    the batch row of a piece of one; gradients are compared in the rows that have a piece."""

    inputs: AttentionInputs
    pick: Callable[[Tensor], Tensor] = _same
    output: Callable[[Tensor], Tensor] = _same
    lse: Callable[[Tensor], Tensor] = _same
    layout: str | None = None
    row: int | None = None


def wide(inputs: AttentionInputs) -> AttentionInputs:
    """The call on float64 leaves, from which pieces are made."""
    return with_leaves(inputs, {name: leaf.detach().double().requires_grad_() for name, leaf in leaves_of(inputs).items()})


def stored(piece: Piece, whole: AttentionInputs) -> AttentionInputs:
    """The piece as a backend gets it: leaves of the whole call's dtypes, requiring gradients where the whole call's do."""
    tensors = {}
    old = leaves_of(whole)
    for name, leaf in leaves_of(piece.inputs).items():
        tensor = leaf.detach().to(old[name].dtype)
        if piece.layout is not None and name != "bias":
            tensor = arranged(tensor, piece.layout, str(tensor.device))
        tensors[name] = tensor.requires_grad_(old[name].requires_grad)
    return with_leaves(piece.inputs, tensors)


def agree(check: str, whole: Call, parts: Callable[[AttentionInputs], list[Piece]], because: str, exact: bool = False) -> float:
    """The largest difference between a call and its pieces, as a share of both bounds (0 where `exact` holds)."""
    leaves = wide(whole.inputs)
    wanted = outcome(whole)
    gradients: dict[str, Tensor] = {}
    allowed: dict[str, Tensor] = {}
    worst = 0.0
    pieces = parts(leaves)
    for piece in pieces:
        call = Call(whole.subject, stored(piece, whole.inputs), piece.pick(whole.grad_output))
        results = outcome(call)
        for name, due in (("output", piece.output), ("lse", piece.lse)):
            if name not in results or name not in wanted:
                continue
            want = due(piece.pick(wanted[name].double()))
            if exact:
                identical(check, name, results[name].double(), want, because)
                continue
            bound = getattr(call.bounds, name) + piece.pick(getattr(whole.bounds, name))
            worst = max(worst, within(check, name, results[name], want, bound, because))
        if wants_gradients(whole.inputs):
            _add(gradients, piece, leaves, call.gradients)
            if not exact:
                _add(allowed, piece, leaves, call.bounds.gradients)
    rows = {piece.row for piece in pieces if piece.row is not None}
    left_out = [row for row in range(len(leaves.query)) if row not in rows] if rows else []
    for name, gradient in whole.gradients.items() if gradients else ():
        title = f"gradient of {name}"
        if left_out and name == "bias":
            continue  # rows without a piece add to it, too
        if left_out:
            gradients[name][left_out] = gradient[left_out].to(gradients[name])
        if exact and (name == "bias" or not repeats(whole)(title)):
            continue  # what several pieces add to is summed in another order
        if exact:
            identical(check, title, gradients[name].to(gradient.dtype), gradient, because)
        else:
            bound = whole.bounds.gradients[name] + allowed[name].cpu()
            worst = max(worst, within(check, title, gradients[name], gradient, bound, because))
    return worst


def taken(
    inputs: AttentionInputs, batch: Tensor | None = None, groups: Tensor | None = None,
    queries: Index | None = None, keys: Index | None = None,
) -> AttentionInputs:  # fmt: skip
    """The call on some of its batch rows, key/value heads (with their query heads), queries and keys.

    Ranges keep positions: the offset and the lengths are counted from their starts. Index tensors are for calls whose mask and
    bias read no positions along that axis.
    """
    group_size = inputs.query.shape[1] // inputs.key.shape[1]
    heads = None if groups is None else (groups[:, None] * group_size + torch.arange(group_size)).flatten()
    first_query, first_key = (index.start if isinstance(index, range) else 0 for index in (queries, keys))
    mask = inputs.mask
    return replace(
        inputs,
        query=_at(inputs.query, batch, heads, queries),
        key=_at(inputs.key, batch, groups, keys),
        value=_at(inputs.value, batch, groups, keys),
        mask=Mask(
            causal=mask.causal,
            window=mask.window,
            offset=_moved(_at(mask.offset, batch), first_query - first_key),
            key_lengths=_moved(_at(mask.key_lengths, batch), -first_key),
            query_lengths=_moved(_at(mask.query_lengths, batch), -first_query),
            key_visible=_at(mask.key_visible, batch, keys),
            query_segments=_at(mask.query_segments, batch, queries),
            key_segments=_at(mask.key_segments, batch, keys),
            visible=_broadcast_at(mask.visible, batch, heads, queries, keys),
        ),
        bias=_bias_at(inputs.bias, batch, heads, queries, keys),
    )


def repeats(call: Call) -> Callable[[str], bool]:
    """Which outcomes of a call are the same bits each time, by name. On CUDA gradients only where the declaration promises it
    under torch's switch: other kernels accumulate them in no fixed order."""
    inputs = call.inputs
    sure = not inputs.query.is_cuda or call.subject.accepts(replace(request_of(inputs), deterministic=True))
    return lambda name: sure or not name.startswith("gradient")


@contextmanager
def deterministic_if_declared(call: Call) -> Iterator[None]:
    """Turns torch's deterministic algorithms on for CUDA calls whose declaration promises a deterministic backward. Torch's
    warnings are ignored: they are about cuBLAS's workspace and about the reference."""
    if not (call.inputs.query.is_cuda and wants_gradients(call.inputs) and repeats(call)("gradient")):
        yield
        return
    with warnings.catch_warnings(), deterministic_algorithms(True, warn_only=True):
        warnings.filterwarnings("ignore", ".*determinis")
        yield


@contextmanager
def deterministic_algorithms(wanted: bool, warn_only: bool) -> Iterator[None]:
    """Sets torch's switch for deterministic algorithms until the block ends."""

    def switch() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def turn(mode: tuple[bool, bool]) -> None:
        if switch() != mode:  # touching the switch imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])

    before = switch()
    turn((wanted, warn_only))
    try:
        yield
    finally:
        turn(before)


def rows_of(index: Index | None) -> Callable[[Tensor], Tensor]:
    """Picks these queries out of (B,H,Q,...)."""
    return lambda tensor: _at(tensor, None, None, index)


def _add(total: dict[str, Tensor], piece: Piece, leaves: AttentionInputs, gradients: dict[str, Tensor]) -> None:
    """Add the piece's gradients (or their bounds), brought back to the whole call's tensors, to the total."""
    sources = {name: leaf for name, leaf in leaves_of(piece.inputs).items() if leaf.requires_grad and name in gradients}
    for name, source in sources.items():
        leaf = leaves_of(leaves)[name]
        sent = gradients[name].detach().to(leaf.device, torch.float64)
        back = sent if source is leaf else torch.autograd.grad(source, leaf, sent, retain_graph=True)[0]
        total[name] = total[name] + back if name in total else back


def _at(tensor: Any, *indices: Index | None) -> Any:
    """`tensor` (or what stands in its place: None, an int) at indices along its first axes."""
    if not isinstance(tensor, Tensor):
        return tensor
    for axis, index in enumerate(indices):
        if isinstance(index, range):
            tensor = tensor.narrow(axis, index.start, len(index))
        elif index is not None:
            tensor = tensor[(slice(None),) * axis + (index.to(tensor.device),)]
    return tensor


def _broadcast_at(tensor: Tensor | None, *indices: Index | None) -> Tensor | None:
    """The same for a tensor that broadcasts to (B,H,Q,K): an axis of size 1 is kept."""
    if tensor is None:
        return None
    tensor = tensor[(None,) * (4 - tensor.dim())]
    selected: Tensor = _at(tensor, *(index if size > 1 else None for index, size in zip(indices, tensor.shape, strict=True)))
    return selected


def _bias_at(bias: Bias | None, *indices: Index | None) -> Bias | None:
    if isinstance(bias, DenseBias):
        values = _broadcast_at(bias.values, *indices)
        assert values is not None
        return DenseBias(values)
    if bias is None or indices[1] is None:
        return bias
    if isinstance(bias, LinearBias):
        return LinearBias(_at(bias.slopes, indices[1]))
    return replace(bias, values=_at(bias.values, indices[1]))


def _moved(number: Any, step: int) -> Any:
    return None if number is None else number + step


def every(size: int, length: int) -> Sequence[range]:
    """range(length) cut into ranges of `size`."""
    return [range(start, min(start + size, length)) for start in range(0, length, size)]
