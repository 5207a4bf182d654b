"""From tensors to kernels: addresses and strides in groups, tiles that fit, grids, and the order of the launches."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import INTERPRETED
from .kernels import backward as backward_kernels, bias as bias_kernels, call as kernel_call, decode as decode_kernels
from .kernels.forward import forward as kernel_of_forward
from .kernels.specialised import specialised as kernel_of_specialised
from .operator_call import Call, class_of, power_of_two, signature
from .repeated import Repeated
from .tiles import FP_FUSION, HOPPER, Tiles, specialised_tiles, tiles_for, triton_version
from .tuner import tuner_of

Made = TypeVar("Made")
forward_kernel, specialised_kernel = Repeated(kernel_of_forward), Repeated(kernel_of_specialised)
decode_chunks, join_chunks = Repeated(decode_kernels.decode_chunks), Repeated(decode_kernels.join_chunks)
row_sums, queries = Repeated(backward_kernels.row_sums), Repeated(backward_kernels.queries)
keys_and_values = Repeated(backward_kernels.keys_and_values)
dense, diagonals = Repeated(bias_kernels.dense), Repeated(bias_kernels.diagonals)
BITS = 31
"""Random bits that decide on a weight."""

one_at_a_time = threading.Lock() if INTERPRETED else nullcontext()
"""The interpreter changes Triton's language while a kernel runs: two threads would take it from each other."""

RISING = {is_rising: tl.constexpr(is_rising) for is_rising in (True, False)}
KINDS = {kind: tl.constexpr(kind) for kind in ("dense", "linear", "distance")}
FAR = 1 << 29
"""Positions are clamped to this in kernels."""
FAR_APART = 1 << 23
"""Strides from which on the numbers of one tile may be more than 2^31 apart."""


def prepared(launches: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches kernels: on the device of its tensors, which Triton takes to be the current one; one thread at a
    time where they are interpreted; on copies of tensors whose rows lie too far apart for the arithmetic within a tile, or have
    numbers that do not lie beside each other."""

    @functools.wraps(launches)
    def launched(call: Call, *others: Any) -> Any:
        if not all(map(_is_plain, (call.query, call.key, call.value))):
            call = replace(call, query=_plain(call.query), key=_plain(call.key), value=_plain(call.value))
        device = call.query.device
        with one_at_a_time, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return launches(call, *others)

    return launched


@prepared
def forward(call: Call) -> tuple[Tensor, Tensor]:
    """output (B,H,Q,V), stored as (B,Q,H,V) is, and log-sum-exp (B,H,Q) float32."""
    B, H, Q, _ = call.query.shape
    V = call.value.shape[3]
    output = call.query.new_empty(B, Q, H, V).transpose(1, 2)
    lse = call.query.new_empty(B, H, Q, dtype=torch.float32)
    if few_queries(call):
        _run(call, "decode", lambda tiles: _decode(call, output, lse, tiles), (output, lse))
    else:
        rows = (_rows(call.query), _rows(call.key), _rows(call.value), _rows(output), lse)
        key, described, (scores, mask, bias, dropout) = signature(call), _describes(call.key, call.value), _terms(call)

        def sweep(tiles: Tiles) -> None:
            programs, constants = _tiles_along(Q, tiles.queries) * B * H, _constants(call, tiles)
            sizes = Q, call.key.shape[2]
            if tiles.is_specialised:
                specialised_kernel((key, tiles), programs, (*rows, *sizes, scores, mask), constants)
            else:
                arguments = (*rows, *sizes, call.offset, scores, mask, bias, dropout)
                forward_kernel((key, tiles), programs, arguments, {**constants, "DESCRIBED": described})

        more = specialised_tiles(call.query, call.value) if described and _specialises(call) else ()
        _run(call, "forward", sweep, (output, lse), described, more)
    return output, lse


def _describes(*tensors: Tensor) -> bool:
    """Whether the hardware copies tiles of these by descriptors (TMA): from sm_90 on, for numbers of 16 bits whose rows lie at
    multiples of 16 bytes. All that this depends on is part of the key of a launch."""
    if not (INTERPRETED or (_has_tma(tensors[0].device) and tensors[0].element_size() == 2)):
        return False
    described = all(map(_is_aligned, tensors))
    if described and not INTERPRETED:
        triton.set_allocator(_scratch)  # for this thread: kernels keep their descriptors there
    return described


def _specialises(call: Call) -> bool:
    """Whether `kernels/specialised.py` serves a call whose keys and values are described: on sm_90, where all queries see the
    same keys. Triton has another way to groups of warps on sm_100."""
    is_even = call.left is None and call.right is None and call.scale > 0.0
    return is_even and features_of(call) == "plain" and _is_hopper(call.query.device) and _describes(call.query)


def _copies_queries(device: torch.device, width: int) -> bool:
    """Whether the hardware copies tiles of queries, for heads of at most `width` numbers. On sm_100 the registers that this
    takes would spill, and so they would with Triton 3.6 for heads wider than 64."""
    return INTERPRETED or (_is_hopper(device) and (width <= 64 or triton_version() != "3.6"))


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER


def _sees_intervals(call: Call) -> bool:
    """Whether the queries that see a key are consecutive: the window is not empty, and nothing but position, window and lengths
    hides keys. Rich calls are left out: their kernels have no registers to spare."""
    is_empty = call.left is not None and call.right is not None and call.left + call.right < 0
    return not is_empty and call.key_visible is None and features_of(call) != "rich"


def _is_aligned(tensor: Tensor) -> bool:
    """Whether descriptors can say where the rows are: each at a multiple of 16 bytes, and none at the place of another."""
    *strides, last = tensor.stride()
    aligned = tensor.data_ptr() % 16 == 0 and not any(stride * tensor.element_size() % 16 for stride in strides)
    return last == 1 and aligned and strides[-1] > 0


@functools.cache
def _has_tma(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _scratch(size: int, alignment: int, stream: Any) -> Tensor:
    """Memory for the descriptors of a launch, in the form in which Triton asks for it."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


MAX_DECODE_QUERIES = 16
"""Queries that are few: with so many or fewer, the keys of a head are split among programs."""
TILES_IN_CHUNK = 8
MOST_ROWS = {2: 64, 4: 16}
"""Of a tile of queries times the heads of a group, by the bytes of a number: more do not fit registers."""


def few_queries(call: Call) -> bool:
    """Whether a tile holds the queries of all heads of a group: by sizes of the call that are no batch size, never by what was
    measured."""
    Q, group = call.query.shape[2], call.query.shape[1] // call.key.shape[1]
    return Q <= MAX_DECODE_QUERIES and Q * group <= MOST_ROWS[call.query.element_size()]


def _decode(call: Call, output: Tensor, lse: Tensor, tiles: Tiles) -> None:
    (B, H, Q, _), (G, K), V = call.query.shape, call.key.shape[1:3], call.value.shape[3]
    chunk = TILES_IN_CHUNK * tiles.keys
    chunks = _tiles_along(K, chunk)
    outputs, lses = None, lse
    if chunks > 1:
        outputs = torch.empty(B, H, Q, chunks, V, dtype=torch.float32, device=output.device)
        lses = torch.empty(B, H, Q, chunks, dtype=torch.float32, device=output.device)
    sizes, terms, key = _sizes(call), _terms(call), (signature(call), tiles, chunks > 1)
    rows = (_rows(call.query), _rows(call.key), _rows(call.value), _rows(output), outputs, lses)
    constants = {**sizes, **tiles.constants, "CHUNK": chunk, "TILE_Q": power_of_two(max(Q * (H // G), 16))}
    decode_chunks(key, chunks * B * G, (*rows, Q, K, call.offset, chunks, *terms), constants)
    if outputs is not None:
        constants = {"V": V, "CHUNKS": 16, "TILE_V": sizes["TILE_V"], **({} if INTERPRETED else FP_FUSION)}
        join_chunks(key, B * H * Q, (outputs, lses, _rows(output), lse, Q, chunks, *terms), constants)


@prepared
def backward(call: Call, output: Tensor, lse: Tensor, grad: Tensor, grad_lse: Tensor | None, wants_bias: bool) -> list[Tensor]:
    """[dq, dk, dv], and with `wants_bias` the gradient of the bias in its own shape and dtype."""
    (B, H, Q, D), (G, K), V = call.query.shape, call.key.shape[1:3], call.value.shape[3]
    sums, grad = torch.empty_like(lse), _plain(grad)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    grads = [None if gradient is None else (gradient.stride(), gradient.data_ptr() & 15) for gradient in (grad, grad_lse)]
    key = (signature(call), K, *grads, wants_bias)
    constants = {"V": V, "TILE_Q": 64, "TILE_V": power_of_two(max(V, 16)), **({} if INTERPRETED else FP_FUSION)}
    row_sums(key, _tiles_along(Q, 64) * B * H, (_rows(output), _rows(grad), grad_lse, lse, sums, H, Q), constants)
    described = _describes(call.key, call.value)
    copies_queries = _copies_queries(call.query.device, max(D, V))
    queries_described = copies_queries and _sees_intervals(call) and _describes(call.query, grad)
    together = call.atomic and not torch.are_deterministic_algorithms_enabled() and bool(_tiles(call, "together"))
    grad_key, grad_value = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (call.key, call.value)
    )
    grad_query = call.query.new_empty(B, H, Q, D, dtype=torch.float32 if together else call.query.dtype)
    saved = (_rows(call.query), _rows(call.key), _rows(call.value), _rows(grad), lse, sums)
    warned = (Q, K, call.offset, *_terms(call))
    by_distance = wants_bias and call.bias is not None and call.bias_kind != "dense"

    def sums_for(tiles: int) -> Tensor | None:
        return lse.new_empty(B, H, tiles, 2) if by_distance else None

    def of_queries(tiles: Tiles) -> Tensor | None:
        number = _tiles_along(Q, tiles.queries)
        bias_sums = sums_for(number)
        arguments = (*saved, _rows(grad_query), bias_sums, *warned)
        queries((key, tiles), number * B * H, arguments, {**_constants(call, tiles), "DESCRIBED": described})
        return bias_sums

    def of_keys(tiles: Tiles) -> Tensor | None:
        number = _tiles_along(K, tiles.keys)
        bias_sums = sums_for(number) if together else None
        added = grad_query.zero_() if together else None
        arguments = (*saved, _rows(grad_key), _rows(grad_value), added, bias_sums, *warned)
        constants = {**_constants(call, tiles), "MASK_ALL": _masks_all(grad.device), "DESCRIBED": queries_described}
        keys_and_values((key, tiles, together), number * B * G, arguments, constants)
        return bias_sums

    if together:
        bias_sums = _run(call, "together", of_keys, (grad_query, grad_key, grad_value), queries_described)
    else:
        bias_sums = _run(call, "queries", of_queries, (grad_query,), described)
        _run(call, "keys", of_keys, (grad_key, grad_value), queries_described)
    gradients = [grad_query.to(call.query.dtype), grad_key, grad_value]
    if bias_sums is not None:
        gradients.append(_position_bias(call, saved, bias_sums.sum((0, 2)), key))
    elif wants_bias and call.bias is not None:
        gradients.append(_dense_bias(call, saved, key))
    return gradients


def _dense_bias(call: Call, saved: tuple[Any, ...], key: Hashable) -> Tensor:
    """Of values that are broadcast to (B,H,Q,K), in their own shape."""
    assert call.bias is not None
    (B, _, Q, _), K = call.query.shape, call.key.shape[2]
    shape = (1,) * (4 - call.bias.dim()) + tuple(call.bias.shape)
    gradient = torch.empty(shape, dtype=torch.float32, device=call.bias.device)

    def of_pairs(tiles: Tiles) -> None:
        programs = shape[0] * shape[1] * _tiles_along(shape[2], tiles.queries) * _tiles_along(shape[3], tiles.keys)
        arguments = (*saved, gradient, B, *shape, Q, K, call.offset, *_terms(call))
        dense((key, tiles), programs, arguments, _constants(call, tiles))

    _run(call, "bias", of_pairs, (gradient,))
    return gradient.reshape(call.bias.shape).to(call.bias.dtype)


def _position_bias(call: Call, saved: tuple[Any, ...], ends: Tensor, key: Hashable) -> Tensor:
    """Of slopes (H,) or of a table (H,R). `ends` (H,2) has the sums of |d| dS of slopes, or of dS beyond each end of a table;
    what lies between comes from the sums of dS over the pairs of each distance.

    dslope_h = - sum_d |d| s_hd        dtable_hr = sum of s_hd over the distances d with clamp(d, low, low + R - 1) = low + r
    """
    assert call.bias is not None
    R = call.bias.shape[-1]
    if call.bias_kind == "linear":
        return (-ends[:, 0]).to(call.bias.dtype)
    gradient = torch.zeros_like(call.bias, dtype=torch.float32)
    gradient[:, 0] += ends[:, 0]
    gradient[:, -1] += ends[:, 1]
    if R > 2:
        gradient[:, 1:-1] = _run(call, "diagonals", lambda tiles: _between_ends(call, saved, tiles, key)).sum(0)
    return gradient.to(call.bias.dtype)


def _between_ends(call: Call, saved: tuple[Any, ...], tiles: Tiles, key: Hashable) -> Tensor:
    """Sums (B,H,R-2) of dS over the pairs of each distance between the ends of a table."""
    assert call.bias is not None
    (B, H), Q, K, R = call.query.shape[:2], call.query.shape[2], call.key.shape[2], call.bias.shape[1]
    size = tiles.keys
    bands = (R - 3) // size + 3
    sums = call.query.new_empty(B, H, bands, 2, size, dtype=torch.float32)
    arguments = (*saved, sums, bands, Q, K, call.offset, *_terms(call))
    diagonals((key, tiles), bands * B * H, arguments, {**_sizes(call), "TILE": size, **tiles.launch})
    blank = sums.new_zeros(B, H, 1, size)
    by_distance = (torch.cat([sums[:, :, :, 1], blank], 2) + torch.cat([blank, sums[:, :, :, 0]], 2)).flatten(2)
    offset = torch.full((1,), call.offset, device=sums.device) if call.offsets is None else call.offsets
    least = (offset + call.bias_low + 1).clamp(-FAR, FAR)  # the least j - i; `by_distance` begins a tile before its band
    first = least - (least // size - 1) * size
    places = first[:, None] + torch.arange(R - 2, device=sums.device)
    return by_distance.gather(2, places[:, None].expand(B, H, R - 2))


def _masks_all(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0)


def _is_plain(tensor: Tensor) -> bool:
    """Whether kernels read the tensor where it is. Where queries and keys have another last stride than 1, ptxas 12.8.93, which
    Triton 3.6 and 3.7 have, makes code that reads registers that nothing wrote (docs/field-report.md); so they are copied."""
    rows, last = tensor.stride()[2:]
    return rows < FAR_APART and (last == 1 or tensor.shape[3] == 1)


def _plain(tensor: Tensor) -> Tensor:
    return tensor if _is_plain(tensor) else tensor.contiguous()


def _tiles_along(length: int, tile: int) -> int:
    return -(-length // tile)


def _rows(tensor: Tensor) -> kernel_call.Rows:
    return kernel_call.Rows(tensor, *tensor.stride())


def _constants(call: Call, tiles: Tiles) -> dict[str, Any]:
    """Shared among calls: not to be changed."""
    return _constants_of(call.query.shape[3], call.value.shape[3], tiles)


@functools.cache
def _constants_of(D: int, V: int, tiles: Tiles) -> dict[str, Any]:
    return {**_sizes_of(D, V), **tiles.constants}


def _sizes(call: Call) -> dict[str, int]:
    return _sizes_of(call.query.shape[3], call.value.shape[3])


def _sizes_of(D: int, V: int) -> dict[str, int]:
    return {"D": D, "V": V, "TILE_D": power_of_two(max(D, 16)), "TILE_V": power_of_two(max(V, 16))}


def _run(
    call: Call, kernel: str, launch: Callable[[Tiles], Made], results: Sequence[Tensor] = (), described: bool = False,
    more: tuple[Tiles, ...] = (),
) -> Made:  # fmt: skip
    """What `launch` makes with the tiles that are chosen for such calls. It begins anew each time: to measure, it is called
    many times. It writes `results`. `described`: the hardware copies tiles (`_describes`). `more` are tiles for which only
    measuring can decide."""
    tiles = _tiles(call, kernel, described)
    if len(tiles) > 1 and call.tuned != "off" and not torch.are_deterministic_algorithms_enabled():
        call_class = class_of(kernel, call) + " tma" * described + " specialised" * bool(more)
        return launch(tuner_of(call.query.device).chosen(call_class, (*tiles, *more), call.tuned == "measure", launch, results))
    return launch(tiles[0])


def _tiles(call: Call, kernel: str, described: bool = False) -> tuple[Tiles, ...]:
    ragged = call.key_lengths is not None
    return tiles_for(
        kernel, call.query, call.key, call.value, features_of(call), ragged, described, call.tile_queries, call.tile_keys
    )


def features_of(call: Call) -> str:
    """One of tiles.FEATURES."""
    if any(term is not None for term in (call.query_segments, call.visible, call.softcap)) or call.bias_kind == "dense":
        return "rich"
    is_dropout = call.seed is not None or call.key_visible is not None
    if call.bias is not None:
        return "rich" if is_dropout else "position"
    return "dropout" if is_dropout else "plain"


def _terms(call: Call) -> tuple[kernel_call.Scores, kernel_call.Mask, kernel_call.Bias, kernel_call.Dropout]:
    H, G = call.query.shape[1], call.key.shape[1]
    dropout = kernel_call.Dropout(None, None, None)
    if call.seed is not None:
        dropout = kernel_call.Dropout(call.seed, round(call.dropout * 2**BITS), 1.0 / (1.0 - call.dropout))
    return (
        kernel_call.Scores(call.scale, RISING[call.scale > 0.0], call.softcap, H, H // G),
        kernel_call.Mask(
            call.offsets, call.left, call.right, call.key_lengths, call.query_lengths, *_strided(call.key_visible, 2),
            *_strided(call.query_segments, 2), *_strided(call.key_segments, 2), *_strided(call.visible, 4),
        ),
        _bias(call),
        dropout,
    )  # fmt: skip


def _bias(call: Call) -> kernel_call.Bias:
    """Strides of a table by distance are in `h` and `k`, the stride of slopes in `h`."""
    values = call.bias
    if values is None:
        return kernel_call.Bias(*[None] * 8)
    if call.bias_kind == "dense":
        return kernel_call.Bias(KINDS["dense"], *_strided(_broadcast(values, call), 4), None, None)
    if call.bias_kind == "linear":
        return kernel_call.Bias(KINDS["linear"], values, None, values.stride(0), None, None, None, None)
    return kernel_call.Bias(
        KINDS["distance"], values, None, values.stride(0), None, values.stride(1), call.bias_low, values.shape[1]
    )


def _broadcast(values: Tensor, call: Call) -> Tensor:
    (B, H, Q, _), K = call.query.shape, call.key.shape[2]
    return values.expand(B, H, Q, K)


def _strided(tensor: Tensor | None, axes: int) -> tuple[Any, ...]:
    """The tensor, booleans as bytes, and its strides."""
    if tensor is None:
        return (None,) * (axes + 1)
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, *tensor.stride())
