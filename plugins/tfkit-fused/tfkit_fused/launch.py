"""From tensors to kernels: addresses and strides in groups, tiles that fit, grids, and the order of the launches."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import INTERPRETED
from .kernels import call
from .kernels.backward import keys_and_values, queries, row_sums
from .kernels.bias import dense, diagonals
from .kernels.decode import decode_chunks, join_chunks
from .kernels.forward import forward as forward_kernel
from .operator_call import Call, class_of
from .tiles import FP_FUSION, Tiles, tiles_for
from .tuner import tuner_of

Made = TypeVar("Made")
BITS = 31
"""Random bits that decide on a weight."""

one_at_a_time = threading.Lock() if INTERPRETED else nullcontext()
"""The interpreter changes Triton's language while a kernel runs: two threads would take it from each other."""

FAR_APART = 1 << 23
"""Strides from which on the numbers of one tile may be more than 2^31 apart."""


def prepared(launches: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches kernels: on the device of its tensors, which Triton takes to be the current one; one thread at a
    time where they are interpreted; on copies of tensors whose rows lie too far apart for the arithmetic within a tile."""

    @functools.wraps(launches)
    def launched(given: Call, *others: Any) -> Any:
        near = {name: _near(getattr(given, name)) for name in ("query", "key", "value")}
        device = given.query.device
        with one_at_a_time, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return launches(replace(given, **near), *others)

    return launched


@prepared
def forward(given: Call) -> tuple[Tensor, Tensor]:
    """output (B,H,Q,V), stored as (B,Q,H,V) is, and log-sum-exp (B,H,Q) float32."""
    B, H, Q, _ = given.query.shape
    V = given.value.shape[3]
    output = given.query.new_empty(B, Q, H, V).transpose(1, 2)
    lse = given.query.new_empty(B, H, Q, dtype=torch.float32)
    if few_queries(given, _tiles(given, "decode")[0]):
        _run(given, "decode", lambda tiles: _decode(given, output, lse, tiles))
    else:
        _run(given, "forward", lambda tiles: forward_kernel[(triton.cdiv(Q, tiles.queries) * B * H,)](
            _rows(given.query), _rows(given.key), _rows(given.value), _rows(output), lse, Q, given.key.shape[2], given.offset,
            *_terms(given), **_sizes(given), TILE_Q=tiles.queries, TILE_K=tiles.keys, **tiles.launch,
        ))  # fmt: skip
    return output, lse


FEW = 16
"""Queries that are few: with so many or fewer, the keys of a head are split among programs."""
TILES_IN_CHUNK = 8
MOST_ROWS = {2: 64, 4: 16}
"""Of a tile of queries times the heads of a group, by the bytes of a number: more do not fit registers."""


def few_queries(given: Call, tiles: Tiles) -> bool:
    """Whether the keys are split: by the lengths of the call alone, never by the size of the batch or by what was measured."""
    Q, K = given.query.shape[2], given.key.shape[2]
    packed = Q * (given.query.shape[1] // given.key.shape[1])
    return Q <= FEW and packed <= MOST_ROWS[given.query.element_size()] and 2 * TILES_IN_CHUNK * tiles.keys < K


def _decode(given: Call, output: Tensor, lse: Tensor, tiles: Tiles) -> None:
    (B, H, Q, _), (G, K), V = given.query.shape, given.key.shape[1:3], given.value.shape[3]
    chunk = TILES_IN_CHUNK * tiles.keys
    chunks = triton.cdiv(K, chunk)
    outputs = torch.empty(B, H, Q, chunks, V, dtype=torch.float32, device=output.device)
    lses = torch.empty(B, H, Q, chunks, dtype=torch.float32, device=output.device)
    sizes = _sizes(given)
    decode_chunks[(chunks * B * G,)](
        _rows(given.query), _rows(given.key), _rows(given.value), outputs, lses, Q, K, given.offset, chunks, *_terms(given),
        **sizes, CHUNK=chunk, TILE_Q=triton.next_power_of_2(max(Q * (H // G), 16)), TILE_K=tiles.keys, **tiles.launch,
    )  # fmt: skip
    join_chunks[(B * H * Q,)](
        outputs, lses, _rows(output), lse, Q, chunks, *_terms(given), V=V, CHUNKS=16, TILE_V=sizes["TILE_V"],
        **(FP_FUSION if output.is_cuda else {}),
    )  # fmt: skip


@prepared
def backward(given: Call, output: Tensor, lse: Tensor, grad: Tensor, grad_lse: Tensor | None, wants_bias: bool) -> list[Tensor]:
    """[dq, dk, dv], and with `wants_bias` the gradient of the bias in its own shape and dtype."""
    (B, H, Q, D), (G, K), V = given.query.shape, given.key.shape[1:3], given.value.shape[3]
    sums, grad = torch.empty_like(lse), _near(grad)
    wide = triton.next_power_of_2(max(V, 16))
    row_sums[(triton.cdiv(Q, 64) * B * H,)](
        _rows(output),
        _rows(grad),
        None if grad_lse is None else grad_lse.contiguous(),
        lse,
        sums,
        H,
        Q,
        V=V,
        TILE_Q=64,
        TILE_V=wide,
        **(FP_FUSION if grad.is_cuda else {}),
    )
    together = given.atomic and not torch.are_deterministic_algorithms_enabled() and bool(_tiles(given, "together"))
    grad_key, grad_value = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (given.key, given.value))
    grad_query = given.query.new_empty(B, H, Q, D, dtype=torch.float32 if together else given.query.dtype)
    saved = (_rows(given.query), _rows(given.key), _rows(given.value), _rows(grad), lse, sums)
    warned = (Q, K, given.offset, *_terms(given))

    def of_queries(tiles: Tiles) -> None:
        queries[(triton.cdiv(Q, tiles.queries) * B * H,)](
            *saved, _rows(grad_query), *warned, **_sizes(given), TILE_Q=tiles.queries, TILE_K=tiles.keys, **tiles.launch
        )

    def of_keys(tiles: Tiles) -> None:
        keys_and_values[(triton.cdiv(K, tiles.keys) * B * G,)](
            *saved, _rows(grad_key), _rows(grad_value), grad_query.zero_() if together else None, *warned, **_sizes(given),
            TILE_Q=tiles.queries, TILE_K=tiles.keys, **tiles.launch,
        )  # fmt: skip

    if together:
        _run(given, "together", of_keys)
    else:
        _run(given, "queries", of_queries)
        _run(given, "keys", of_keys)
    found = [grad_query.to(given.query.dtype), grad_key, grad_value]
    if wants_bias and given.bias is not None:
        found.append((_dense_bias if given.bias_kind == "dense" else _position_bias)(given, saved))
    return found


def _dense_bias(given: Call, saved: tuple[Any, ...]) -> Tensor:
    """Of values that are broadcast to (B,H,Q,K), in their own shape."""
    assert given.bias is not None
    (B, _, Q, _), K = given.query.shape, given.key.shape[2]
    shape = (1,) * (4 - given.bias.dim()) + tuple(given.bias.shape)
    found = torch.empty(shape, dtype=torch.float32, device=given.bias.device)

    def of_pairs(tiles: Tiles) -> None:
        programs = shape[0] * shape[1] * triton.cdiv(shape[2], tiles.queries) * triton.cdiv(shape[3], tiles.keys)
        dense[(programs,)](
            *saved, found, B, *shape, Q, K, given.offset, *_terms(given), **_sizes(given), TILE_Q=tiles.queries,
            TILE_K=tiles.keys, **tiles.launch,
        )  # fmt: skip

    _run(given, "bias", of_pairs)
    return found.reshape(given.bias.shape).to(given.bias.dtype)


def _position_bias(given: Call, saved: tuple[Any, ...]) -> Tensor:
    """Of slopes (H,) or of a table (H,R), from the sums of dS over the pairs of each distance.

    dslope_h = - sum_d |d| s_hd        dtable_hr = sum of s_hd over the distances d with clamp(d, low, low + R - 1) = low + r
    """
    assert given.bias is not None
    (B, H, Q, _), K = given.query.shape, given.key.shape[2]

    def of_pairs(tiles: Tiles) -> Tensor:
        bands = triton.cdiv(Q, tiles.keys) + triton.cdiv(K, tiles.keys) - 1
        sums = given.query.new_empty(B, H, bands, 2, tiles.keys, dtype=torch.float32)
        diagonals[(bands * B * H,)](
            *saved, sums, Q, K, given.offset, *_terms(given), **_sizes(given), TILE=tiles.keys, **tiles.launch,
        )  # fmt: skip
        return sums

    sums = _run(given, "diagonals", of_pairs)
    size = sums.shape[4]
    blank = sums.new_zeros(B, H, 1, size)
    by_distance = (torch.cat([sums[:, :, :, 1], blank], 2) + torch.cat([blank, sums[:, :, :, 0]], 2)).flatten(2)
    offset = given.offset if given.offsets is None else given.offsets[:, None]
    distance = torch.arange(by_distance.shape[2], device=sums.device) - triton.cdiv(Q, size) * size - offset
    distance = distance.expand(B, -1)[:, None]
    if given.bias_kind == "linear":
        return -(by_distance * distance.abs()).sum((0, 2)).to(given.bias.dtype)
    places = given.bias.shape[1]
    place = distance - given.bias_low
    inside = torch.arange(places, device=sums.device) - place[:, :, :1]
    there = (inside >= 0) & (inside < by_distance.shape[2])
    inside = inside.clamp(0, by_distance.shape[2] - 1).expand(B, H, -1)
    found = torch.where(there, by_distance.gather(2, inside), 0.0)
    found[:, :, 0] += torch.where(place < 0, by_distance, 0.0).sum(2)
    found[:, :, -1] += torch.where(place >= places, by_distance, 0.0).sum(2)
    return found.sum(0).to(given.bias.dtype)


def _near(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if max(tensor.stride()[2:]) >= FAR_APART else tensor


def _rows(tensor: Tensor) -> call.Rows:
    return call.Rows(tensor, *tensor.stride())


def _sizes(given: Call) -> dict[str, int]:
    D, V = given.query.shape[3], given.value.shape[3]
    return {"D": D, "V": V, "TILE_D": triton.next_power_of_2(max(D, 16)), "TILE_V": triton.next_power_of_2(max(V, 16))}


def _run(given: Call, kernel: str, launch: Callable[[Tiles], Made]) -> Made:
    """What `launch` makes with the tiles that are chosen for such calls. It begins anew each time: to measure, it is called
    many times."""
    tiles = _tiles(given, kernel)
    if len(tiles) > 1 and given.tuned != "off" and not torch.are_deterministic_algorithms_enabled():
        return launch(tuner_of(given.query.device).chosen(class_of(kernel, given), tiles, given.tuned == "measure", launch))
    return launch(tiles[0])


def _tiles(given: Call, kernel: str) -> tuple[Tiles, ...]:
    others = (given.key_visible, given.query_segments, given.visible, given.bias, given.seed, given.softcap)
    rich = any(each is not None for each in others)
    return tiles_for(kernel, given.query, given.value, rich, given.tile_queries, given.tile_keys)


def _terms(given: Call) -> tuple[call.Scores, call.Mask, call.Bias, call.Dropout]:
    H, G = given.query.shape[1], given.key.shape[1]
    dropout = call.Dropout(None, None, None)
    if given.seed is not None:
        dropout = call.Dropout(given.seed, round(given.dropout * 2**BITS), 1.0 / (1.0 - given.dropout))
    return (
        call.Scores(given.scale, given.softcap, H, H // G),
        call.Mask(
            given.offsets, given.left, given.right, given.key_lengths, given.query_lengths, *_strided(given.key_visible, 2),
            *_strided(given.query_segments, 2), *_strided(given.key_segments, 2), *_strided(given.visible, 4),
        ),
        _bias(given),
        dropout,
    )  # fmt: skip


def _bias(given: Call) -> call.Bias:
    """Strides of a table by distance are in `h` and `k`, the stride of slopes in `h`."""
    values = given.bias
    if values is None:
        return call.Bias(*[None] * 8)
    if given.bias_kind == "dense":
        return call.Bias(tl.constexpr("dense"), *_strided(_broadcast(values, given), 4), None, None)
    if given.bias_kind == "linear":
        return call.Bias(tl.constexpr("linear"), values, None, values.stride(0), None, None, None, None)
    return call.Bias(
        tl.constexpr("distance"), values, None, values.stride(0), None, values.stride(1), given.bias_low, values.shape[1]
    )


def _broadcast(values: Tensor, given: Call) -> Tensor:
    (B, H, Q, _), K = given.query.shape, given.key.shape[2]
    return values.expand(B, H, Q, K)


def _strided(tensor: Tensor | None, axes: int) -> tuple[Any, ...]:
    """The tensor, booleans as bytes, and its strides."""
    if tensor is None:
        return (None,) * (axes + 1)
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, *tensor.stride())
