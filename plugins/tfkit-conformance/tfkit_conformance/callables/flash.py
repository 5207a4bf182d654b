"""FlashAttention's forms: tensors (B,S,H,D), or packed (T,H,D) with the borders of the sequences; masks are flags.

Causality and windows are aligned to the last query and the last key: query i of Q stands at K - Q + i. A request at another
offset is written as the call that says the same:

    queries before the last key     further queries are added at the end, until K - Q is the offset; their outputs are discarded
    queries after the last key      a call of their own: causality hides nothing there, and a window has a left side only

Reference: https://github.com/Dao-AILab/flash-attention, `flash_attn_func` and `flash_attn_varlen_func`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tfkit import Diagnostic, InputError
from tfkit.plugin import AttentionInputs

from ..finding import Inconclusive, Violation
from .adaptor import FunctionCall, Place, Rendering, Signature, Takes
from .dense import tensor_of
from .locate import CODE, imported, nearest

MAX_ADDED = 4096
"""So many queries are added at the end at most. A function may make a matrix of all of them and all keys."""

Flags = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Piece:
    """Queries of one sequence whose positions the form can say.

    Args:
        added: queries that are added at the end.
        flags: `causal` and `window_size`, where they are needed.
        beyond: how far the position of a single query lies beyond the last key.
    """

    rows: range
    keys: range
    added: int = 0
    flags: Flags = ()
    beyond: int = 0


def pieces(inputs: AttentionInputs, offset: int, queries: int, keys: int) -> Iterator[Piece]:
    """The queries of one sequence of these lengths, the first at position `offset`; queries that see no key may be left out."""
    mask, every = inputs.mask, range(keys)
    left, right = mask.window or (None, None)
    slopes = inputs.bias is not None
    if not (mask.causal or left is not None or right is not None or slopes):
        yield Piece(range(queries), every)
        return
    inside = min(max(keys - offset, 0), queries)
    if inside:
        flags: Flags = (("causal", True),) if mask.causal else ()
        if left is not None or right is not None:
            window = (-1 if left is None else left, -1 if right is None else right)
            flags += (("window_size", (window[0], 0 if mask.causal else window[1])),)
        added = keys - offset - inside
        if added > MAX_ADDED:
            raise Inconclusive(f"this form says an offset of {offset:,} by {added:,} further queries")
        yield Piece(range(inside), every, added, flags)
    seeing = queries if left is None else min(queries, max(inside, keys + left - offset))
    if slopes:  # the distances of one query differ from those of the last position by a constant, which softmax ignores
        for row in range(inside, seeing):
            yield Piece(range(row, row + 1), range(0 if left is None else max(0, offset + row - left), keys), 0, (),
                        offset + row - keys + 1)  # fmt: skip
    elif seeing > inside:
        flags = () if left is None else (("window_size", (keys - (seeing - inside) + left - offset - inside, -1)),)
        yield Piece(range(inside, seeing), every, 0, flags)


def keywords_of(inputs: AttentionInputs, flags: Flags) -> dict[str, Any]:
    """The arguments of a call that differ from their defaults."""
    keywords = dict(flags)
    if inputs.dropout:
        keywords["dropout_p"] = inputs.dropout
    if inputs.softcap is not None:
        keywords["softcap"] = inputs.softcap
    if inputs.bias is not None:
        keywords["alibi_slopes"] = inputs.bias.slopes  # type: ignore[union-attr]  # the only kind that is declared
    if inputs.return_lse:
        keywords["return_attn_probs"] = True
    return keywords


def lse_of(result: Any, want: tuple[int, ...]) -> Tensor:
    """The log-sum-exp beside the output. Raises Violation."""
    lse = result[1] if isinstance(result, (tuple, list)) and len(result) > 1 else None
    if not isinstance(lse, Tensor) or tuple(lse.shape) != want:
        got = tuple(lse.shape) if isinstance(lse, Tensor) else type(lse).__name__
        raise Violation("contract", f"return_attn_probs=True: softmax_lse is {got}, expected {want}", tensor="lse")
    return lse


def moved_lse(inputs: AttentionInputs, lse: Tensor, piece: Piece) -> Tensor:
    """The log-sum-exp (...,H,rows) with the constant that the piece leaves out."""
    return lse if inputs.bias is None else lse - inputs.bias.slopes[:, None] * piece.beyond  # type: ignore[union-attr]


def dense(inputs: AttentionInputs, takes: Takes) -> Rendering:
    B, H, Q, _ = inputs.query.shape
    K, V, offset = inputs.key.shape[2], inputs.value.shape[3], inputs.mask.offset
    parts = tuple(pieces(inputs, offset if isinstance(offset, int) else 0, Q, K))

    def call(piece: Piece) -> FunctionCall:
        query = pad(inputs.query[:, :, piece.rows.start : piece.rows.stop], (0, 0, 0, piece.added))
        tensors = (query, inputs.key[:, :, piece.keys.start :], inputs.value[:, :, piece.keys.start :])
        return FunctionCall(tuple(tensor.transpose(1, 2) for tensor in tensors), keywords_of(inputs, piece.flags))

    def read(results: list[Any]) -> tuple[Tensor, Tensor | None]:
        outputs, sums = [], []
        for result, piece in zip(results, parts, strict=True):
            rows = len(piece.rows)
            sizes = {"B": B, "H": H, "S": rows + piece.added, "D": V}
            outputs.append(tensor_of(result, inputs, "B S H D", sizes)[:, :, :rows])
            if inputs.return_lse:
                sums.append(moved_lse(inputs, lse_of(result, (B, H, rows + piece.added))[:, :, :rows], piece))
        left = Q - sum(len(piece.rows) for piece in parts)
        output = torch.cat([*outputs, blank(inputs, (B, H, left, V))], 2)
        none = torch.full((B, H, left), -torch.inf, device=output.device)
        return output, torch.cat([*sums, none], 2) if inputs.return_lse else None

    def place(b: int, h: int, i: int) -> Place | None:
        return next(((n, (b, i - piece.rows.start, h)) for n, piece in enumerate(parts) if i in piece.rows), None)

    return Rendering(tuple(map(call, parts)), read, place)


def blank(inputs: AttentionInputs, shape: tuple[int, ...]) -> Tensor:
    """Zeros that depend on query, key and value, whose gradients are then zero and not missing."""
    nothing = torch.zeros((), dtype=inputs.query.dtype, device=inputs.query.device)
    for tensor in (inputs.query, inputs.key, inputs.value):
        nothing = nothing + torch.where(torch.zeros_like(tensor, dtype=torch.bool), tensor, 0.0).sum()
    return nothing.expand(shape)


def packed(inputs: AttentionInputs, takes: Takes) -> Rendering:
    B, H, Q, _ = inputs.query.shape
    K, V, offset = inputs.key.shape[2], inputs.value.shape[3], inputs.mask.offset
    lengths = [
        [size] * B if row_lengths is None else [min(max(length, 0), size) for length in row_lengths.tolist()]
        for row_lengths, size in ((inputs.mask.query_lengths, Q), (inputs.mask.key_lengths, K))
    ]
    offsets = offset.tolist() if isinstance(offset, Tensor) else [offset or 0] * B
    groups: dict[Flags, list[tuple[int, Piece]]] = {}
    for b, (queries, keys, start) in enumerate(zip(*lengths, offsets, strict=True)):
        for piece in pieces(inputs, start, queries, keys) if queries and keys else ():
            if piece.rows and piece.keys:
                groups.setdefault(piece.flags, []).append((b, piece))
    sequences = tuple(groups.items())

    def call(flags: Flags, members: list[tuple[int, Piece]]) -> FunctionCall:
        queries = [pad(inputs.query[b, :, piece.rows.start : piece.rows.stop], (0, 0, 0, piece.added)) for b, piece in members]
        keys, values = ([tensor[b, :, piece.keys.start : piece.keys.stop] for b, piece in members]
                        for tensor in (inputs.key, inputs.value))  # fmt: skip
        tensors = tuple(torch.cat(slices, 1).transpose(0, 1) for slices in (queries, keys, values))
        sizes = [[tensor.shape[1] for tensor in part] for part in (queries, keys)]
        borders = [torch.tensor([0, *part], device=inputs.query.device).cumsum(0).to(torch.int32) for part in sizes]
        return FunctionCall((*tensors, *borders, *map(max, sizes)), keywords_of(inputs, flags))

    def read(results: list[Any]) -> tuple[Tensor, Tensor | None]:
        output = blank(inputs, (B, H, Q, V)).clone()
        sums = torch.full((B, H, Q), -torch.inf, device=output.device)
        for result, (_, members) in zip(results, sequences, strict=True):
            total = sum(len(piece.rows) + piece.added for _, piece in members)
            packed_output = tensor_of(result, inputs, "T H D", {"T": total, "H": H, "D": V}).transpose(0, 1)
            lse = lse_of(result, (H, total)) if inputs.return_lse else None
            start = 0
            for b, piece in members:
                rows = slice(piece.rows.start, piece.rows.stop)
                output[b, :, rows] = packed_output[:, start : start + len(piece.rows)]
                if lse is not None:
                    sums[b, :, rows] = moved_lse(inputs, lse[:, start : start + len(piece.rows)], piece)
                start += len(piece.rows) + piece.added
        return output, sums if inputs.return_lse else None

    def place(b: int, h: int, i: int) -> Place | None:
        for number, (_, members) in enumerate(sequences):
            start = 0
            for row, piece in members:
                if row == b and i in piece.rows:
                    return number, (start + i - piece.rows.start, h)
                start += len(piece.rows) + piece.added
        return None

    return Rendering(tuple(call(*group) for group in sequences), read, place)


FEATURES: dict[str, dict[str, Any]] = {
    "causal": {"mask_terms": {"causal"}},
    "window": {"mask_terms": {"window"}},
    "bias": {"bias_kinds": {"linear"}},
    "gqa": {"grouped_queries": True},
    "value_dim": {"value_dim_differs": True},
    "softcap": {"softcap": True},
    "dropout": {"dropout": True},
    "lse": {"lse": True},
    "backward": {"backward": True},
}
NEEDS = {
    "causal": ("causal",), "window": ("window_size",), "bias": ("alibi_slopes",), "softcap": ("softcap",),
    "dropout": ("dropout_p",), "lse": ("return_attn_probs",),
}  # fmt: skip
OPTIONS = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "return_attn_probs=False"
)
FLASH = (
    Signature("flash_attn", f"attention(q, k, v, {OPTIONS})", "B S H D", ("q", "k", "v"), FEATURES, NEEDS, dense,
              "softmax_scale", zero_rows=True),
    Signature("flash_attn_varlen",
              f"attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {OPTIONS})",
              "T H D", ("q", "k", "v"),
              {**FEATURES, "padding": {"mask_terms": {"key_lengths", "query_lengths"}, "tensor_offset": True}}, NEEDS, packed,
              "softmax_scale", zero_rows=True),
)  # fmt: skip


OPTION = "--flash-implementation"


@contextmanager
def flash_implementation_active(name: str | None) -> Iterator[None]:
    """A context in which torch's functions use an implementation of flash attention. Afterwards torch's own is back.

    Args:
        name: a registered name, such as FA3, or "module:NAME" for a module that registers it; None changes nothing.

    Raises:
        InputError: torch has no implementation of this name, no such module exists, or it cannot be activated here.
    """
    if name is None:
        yield
        return
    from torch.nn import attention

    activate: Any = getattr(attention, "activate_flash_attention_impl", None)
    if activate is None:
        message = f"{OPTION}: this torch has one implementation of flash attention, its own"
        raise InputError(Diagnostic(CODE, message, "install torch 2.10 or newer"))
    module, colon, impl = name.rpartition(":")
    if colon:
        imported(OPTION, module)
    known = attention.list_flash_attention_impls()
    if impl not in known:
        message = f"{OPTION}: torch has no implementation of flash attention `{impl}`"
        hint = "" if colon else "to use your own, name the module that registers it, as MODULE:NAME; "
        raise InputError(Diagnostic(CODE, message, hint + nearest(impl, known, "implementations")))
    try:
        activate(impl)
    except Exception as reason:  # whatever its author's function raises is the answer
        cause = " ".join(str(reason).split())[:300]
        message = f"{OPTION}: activating {impl} raised {type(reason).__name__}: {cause}"
        raise InputError(Diagnostic(CODE, message, "install its package, on a machine with its device")) from None
    try:
        yield
    finally:
        attention.restore_flash_attention_impl()
