"""A call of the attention contract as calls of a kernel with FlashAttention's arguments.

FlashAttention has no mask tensor. It has causality, a window, and batches that are packed by lengths. `flash_calls` decides
which queries and keys go into which of its calls, and `run_flash_calls` makes the calls and puts their outputs together.

FlashAttention aligns the last query with the last key: in a sequence of n queries and m keys, query i stands at i + m - n, sees
keys to that position where causal, and from that position - left where there is a window. The contract's query i stands at
offset + i and sees keys in [offset + i - left, offset + i + right] below the key length. A row of the batch is cut in two:

    closed   queries whose right end is a key that is there: with offset + (last query) + right + 1 keys, "causal" is exact
    open     later queries, which see all keys to the end: not causal, the left side measured from the last key

and queries that see nothing are in neither. Where single keys are hidden (`key_visible`), those that are left are packed, and a
causal row is cut into runs: of queries that each see one key more than the last (causal), and of queries that see no more
than the last (not causal). Sequences with one alignment share a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BackendRefused, Diagnostic
from .rendering import shapes_of
from .types import AttentionInputs, AttentionOutput, Mask, Shapes


@dataclass(frozen=True)
class Sequence:
    """`queries` from `start` of one batch row with the first `keys` of its keys that are not hidden."""

    row: int
    start: int
    queries: int
    keys: int


@dataclass(frozen=True)
class FlashCall:
    """One call of the kernel. If every row of the batch has the same sequence, it is not packed and has no indices.

    Args:
        sequences: the sequences of queries and keys.
        causal: causal, aligned to the last key of each sequence.
        left: how many keys before its own position a query sees; None for all.
        query_index: index of each query (N,) among the B*Q tokens of the batch.
        key_index: index of each key (M,) among the B*K tokens of the batch.
        query_borders: where each sequence starts among the N queries, and N: int32 (sequences + 1,).
        key_borders: the same for the M keys.
    """

    sequences: tuple[Sequence, ...]
    causal: bool
    left: int | None
    query_index: Tensor | None = None
    key_index: Tensor | None = None
    query_borders: Tensor | None = None
    key_borders: Tensor | None = None


@dataclass(frozen=True)
class FlashCalls:
    """The calls that together compute the attention of a mask.

    Args:
        calls: the calls; no query is in two of them.
        single: queries that see all keys are sequences of their own, because ALiBi measures from the last key.
    """

    calls: tuple[FlashCall, ...]
    single: bool


FlashKernel = Callable[[AttentionInputs, FlashCall, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""A kernel: from the inputs, a call, and its query, key and value to the output and the log-sum-exp.

The tensors are (B, L, H, D) and the log-sum-exp is (B, H, L); in a packed call they are (N, H, D) and (H, N)."""


def flash_calls(mask: Mask, shapes: Shapes, single: bool = False) -> FlashCalls:
    """The calls for a mask. Lengths, offsets and hidden keys are read on the host.

    Args:
        mask: causality, a window, lengths, hidden keys and an offset; no segments and no `visible`.
        shapes: the sizes of the call.
        single: put each query that sees all keys into a sequence of its own.

    Returns:
        The calls; none if no query sees a key.

    Raises:
        BackendRefused: a window over keys of which some are hidden.
    """
    if mask.key_visible is not None and mask.window is not None:
        reason = "a kernel with FlashAttention's arguments has no window over keys of which some are hidden"
        raise BackendRefused(Diagnostic("TFK060", reason, "choose another backend"))
    B, Q, K = shapes.batch, shapes.queries, shapes.keys
    row_terms = (mask.key_lengths, mask.query_lengths, mask.key_visible)
    uniform = all(term is None for term in row_terms) and not isinstance(mask.offset, Tensor)
    rows = 1 if uniform else B
    offsets = mask.offset.tolist() if isinstance(mask.offset, Tensor) else [mask.offset or 0] * rows
    queries = _lengths(mask.query_lengths, Q, rows)
    keys = queries if mask.key_lengths is mask.query_lengths and Q == K else _lengths(mask.key_lengths, K, rows)
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    visible = None
    if mask.key_visible is not None:
        visible = mask.key_visible.cpu() & (torch.arange(K, device="cpu") < torch.tensor(keys, device="cpu")[:, None])
    groups: dict[tuple[bool, int | None], list[Sequence]] = {}
    for row in range(rows):
        if visible is not None:
            parts = _runs(row, offsets[row], queries[row], visible[row], mask.causal)
        else:
            parts = _cut(row, offsets[row], queries[row], keys[row], left, right, single)
        for causal, reach, sequence in parts:
            groups.setdefault((causal, reach), []).append(sequence)
    whole = uniform and all(len(sequences) == 1 for sequences in groups.values())
    calls = tuple(
        FlashCall(tuple(sequences), causal, reach)
        if whole
        else _packed(_every(sequences, B, uniform), causal, reach, shapes, visible)
        for (causal, reach), sequences in groups.items()
    )
    return FlashCalls(calls, single)


def prepared_calls(inputs: AttentionInputs) -> FlashCalls:
    """The calls that `prepare` made for a stack, or new ones if these do not serve the inputs."""
    calls = inputs.prepared.payload if inputs.prepared is not None else None
    if calls is None or (inputs.bias is not None and not calls.single):
        calls = flash_calls(inputs.mask, shapes_of(inputs), single=inputs.bias is not None)
    return calls


def run_flash_calls(inputs: AttentionInputs, kernel: FlashKernel) -> AttentionOutput:
    """Make the calls of the inputs, and put their outputs together.

    Args:
        inputs: the inputs, possibly prepared by `Prepared(flash_calls(...))`.
        kernel: the kernel. It gets tensors whose last axis has stride 1.

    Returns:
        The output (B, H, Q, V), zero where a query sees no key, and the log-sum-exp (B, H, Q) if the inputs ask for it.
    """
    B, H, Q, _ = inputs.query.shape
    query, key, value = (_tokens_first(tensor) for tensor in (inputs.query, inputs.key, inputs.value))
    output = query.new_zeros(B, Q, H, value.shape[-1])
    lse = query.new_full((B, Q, H), -torch.inf, dtype=torch.float32) if inputs.return_lse else None
    calls = prepared_calls(inputs).calls
    if not calls:
        output = output + _nothing(query, key, value)
    for call in calls:
        if call.query_index is None or call.key_index is None:
            [one] = call.sequences
            rows = slice(one.start, one.start + one.queries)
            kernel_output, kernel_lse = kernel(inputs, call, query[:, rows], key[:, : one.keys], value[:, : one.keys])
            output = kernel_output if one.queries == Q else torch.slice_scatter(output, kernel_output, 1, rows.start, rows.stop)
            if lse is not None and kernel_lse is not None:
                lse[:, rows] = kernel_lse.detach().transpose(1, 2)
        else:
            tokens = query.flatten(0, 1)[call.query_index]
            keys, values = (tensor.flatten(0, 1)[call.key_index] for tensor in (key, value))
            kernel_output, kernel_lse = kernel(inputs, call, tokens, keys, values)
            output = output.flatten(0, 1).index_copy(0, call.query_index, kernel_output).view(B, Q, H, -1)
            if lse is not None and kernel_lse is not None:
                lse.view(B * Q, H)[call.query_index] = kernel_lse.detach().mT
    return AttentionOutput(output.transpose(1, 2), lse=None if lse is None else lse.transpose(1, 2))


def _tokens_first(tensor: Tensor) -> Tensor:
    """(B, H, L, D) as (B, L, H, D), its features side by side."""
    turned = tensor.transpose(1, 2)
    return turned if turned.stride(-1) == 1 else turned.contiguous()


def _nothing(*tensors: Tensor) -> Tensor:
    """Zero, with a gradient of zero for each tensor."""
    return torch.cat([tensor.flatten()[:0] for tensor in tensors]).sum()


def _cut(
    row: int, offset: int, queries: int, keys: int, left: int | None, right: int | None, single: bool
) -> list[tuple[bool, int | None, Sequence]]:
    """The closed and the open part of one row, where they see anything: causal, left, sequence."""
    if keys < 1 or (left is not None and right is not None and left + right < 0):
        return []
    first = 0 if right is None else max(0, -(offset + right))
    end = queries if left is None else min(queries, keys + left - offset)
    closed = first if right is None else min(end, max(first, keys - offset - right))
    parts: list[tuple[bool, int | None, Sequence]] = []
    if right is not None and closed > first:
        seen = offset + closed + right
        parts.append((True, _reach(left, right, seen), Sequence(row, first, closed - first, seen)))
    step = 1 if single else max(1, end - closed)
    for start in range(closed, end, step):
        count = min(step, end - start)
        parts.append((False, _reach(left, keys - offset - start - count, keys), Sequence(row, start, count, keys)))
    return parts


def _reach(left: int | None, right: int, keys: int) -> int | None:
    """The left side of a window, measured from a position `right` later; None if it reaches the first of the keys. Kernels take
    int32, and a window in a spec may be wider."""
    return None if left is None or left + right >= keys else left + right


def _runs(row: int, offset: int, queries: int, visible: Tensor, causal: bool) -> list[tuple[bool, int | None, Sequence]]:
    """The runs of one row whose visible keys are scattered: causal, no window, sequence."""
    counts = visible.cumsum(0)
    if not causal:
        return [(False, None, Sequence(row, 0, queries, int(counts[-1])))] if queries and int(counts[-1]) else []
    positions = (offset + torch.arange(queries, device="cpu")).clamp(max=len(visible) - 1)
    seen = torch.where(positions < 0, 0, counts[positions.clamp(min=0)]).tolist()
    runs: list[tuple[bool, int | None, Sequence]] = []
    at = next((query for query, keys in enumerate(seen) if keys), queries)
    while at < queries:
        end = at + 1
        step = seen[end] - seen[at] if end < queries else 0
        while end < queries and seen[end] - seen[end - 1] == step:
            end += 1
        runs.append((step == 1, None, Sequence(row, at, end - at, seen[end - 1])))
        at = end
    return runs


def _every(sequences: list[Sequence], batch: int, uniform: bool) -> list[Sequence]:
    """The sequences of all rows, from those of the first where all are alike."""
    if not uniform:
        return sequences
    return [Sequence(row, one.start, one.queries, one.keys) for row in range(batch) for one in sequences]


def _lengths(lengths: Tensor | None, most: int, rows: int) -> list[int]:
    return [most] * rows if lengths is None else lengths.long().clamp(0, most).tolist()


def _packed(sequences: list[Sequence], causal: bool, left: int | None, shapes: Shapes, visible: Tensor | None) -> FlashCall:
    query_index, query_borders = _index([(one.row * shapes.queries + one.start, one.queries) for one in sequences], shapes)
    key_index, key_borders = _index([(one.row * shapes.keys, one.keys) for one in sequences], shapes)
    if visible is not None:  # the visible keys of each row first, in their order
        starts = shapes.keys * torch.arange(len(visible), device="cpu")
        first = (~visible).to(torch.int8).argsort(dim=1, stable=True) + starts[:, None]
        key_index = first.flatten().to(shapes.device)[key_index]
    return FlashCall(tuple(sequences), causal, left, query_index, key_index, query_borders, key_borders)


def _index(pieces: list[tuple[int, int]], shapes: Shapes) -> tuple[Tensor, Tensor]:
    """The tokens of pieces (start, count) one after another, and the borders between them."""
    starts, counts = (torch.tensor(column, device="cpu") for column in zip(*pieces, strict=True))
    borders = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.arange(int(borders[-1]), device="cpu") + (starts - borders[:-1]).repeat_interleave(counts)
    return index.to(shapes.device), borders.to(shapes.device, torch.int32)
