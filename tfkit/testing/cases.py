"""Attention calls that between them meet every feature of the contract: names, a builder each, data drawn from a seed.

B, H, D, V and the lengths differ pairwise, so that a swapped axis fails, except in the square cases: their fast paths must
be met too. `case.inputs(dtype, seed)` gives a call, `request_of(inputs)` what it asks of a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention import BIAS_NAMES, AttentionInputs, Bias, DenseBias, DistanceBias, LinearBias, Mask
from ..slots.attention import AttentionRequest


@dataclass(frozen=True)
class Case:
    """One call: sizes, the mask, the bias kind and the rest of what a call can ask for."""

    name: str
    mask: Callable[[Case, torch.Generator], Mask] = lambda case, draw: Mask()
    bias: Callable[[Case, torch.Generator], Bias | None] = lambda case, draw: None
    B: int = 2
    H: int = 6
    G: int = 6
    Q: int = 5
    K: int = 7
    D: int = 8
    V: int = 8
    softcap: float | None = None

    def inputs(self, dtype: torch.dtype, seed: int = 0, gradients: bool = True) -> AttentionInputs:
        """The call with data drawn from the seed; tensors require gradients where asked."""
        draw = torch.Generator().manual_seed(seed)
        sizes = ((self.B, self.H, self.Q, self.D), (self.B, self.G, self.K, self.D), (self.B, self.G, self.K, self.V))
        query, key, value = (
            torch.randn(size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_(gradients) for size in sizes
        )
        bias = self.bias(self, draw)
        if bias is not None:
            bias = _as_leaf(bias, dtype, gradients)
        return AttentionInputs(query, key, value, self.mask(self, draw), self.D**-0.5, bias=bias, softcap=self.softcap)

    def grad_output(self, dtype: torch.dtype, seed: int = 1) -> Tensor:
        """A gradient (B,H,Q,V) whose memory is laid out unlike the output's."""
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(self.Q, self.V, self.B, self.H, generator=draw, dtype=torch.float64).to(dtype).permute(2, 3, 0, 1)


def request_of(inputs: AttentionInputs, gradients: bool = True) -> AttentionRequest:
    """What a call asks of a backend, as `judge` reads it."""
    query, value, bias = inputs.query, inputs.value, inputs.bias
    return AttentionRequest(
        device=query.device.type,
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        queries=query.shape[2],
        keys=value.shape[2],
        mask_terms=inputs.mask.terms(),
        tensor_offset=isinstance(inputs.mask.offset, Tensor),
        bias=None if bias is None else BIAS_NAMES[type(bias)],
        bias_gradient=gradients and bias is not None,
        dropout=inputs.dropout > 0.0,
        weights=inputs.return_weights,
        lse=inputs.return_lse,
        grouped=query.shape[1] != value.shape[1],
        softcap=inputs.softcap is not None,
        gradients=gradients,
    )


def _as_leaf(bias: Bias, dtype: torch.dtype, gradients: bool) -> Bias:
    if isinstance(bias, LinearBias):
        return LinearBias(bias.slopes.float().requires_grad_(gradients))
    if isinstance(bias, DistanceBias):
        return DistanceBias(bias.values.to(dtype).requires_grad_(gradients), bias.low)
    return DenseBias(bias.values.to(dtype).requires_grad_(gradients))


def _lengths(case: Case, draw: torch.Generator, longest: int) -> Tensor:
    lengths = torch.randint(1, longest, (case.B,), generator=draw)
    lengths[0] = longest + 3
    return lengths


def _coins(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=draw) < 0.6


def _dense(*shape: str) -> Callable[[Case, torch.Generator], Bias]:
    return lambda case, draw: DenseBias(torch.randn([getattr(case, n) if n != "1" else 1 for n in shape], generator=draw))


def _linear(case: Case, draw: torch.Generator) -> Bias:
    return LinearBias(torch.rand(case.H, generator=draw))


def _distance(case: Case, draw: torch.Generator) -> Bias:
    return DistanceBias(torch.randn(case.H, 6, generator=draw), -3)


def _causal(offset: int) -> Callable[[Case, torch.Generator], Mask]:
    return lambda case, draw: Mask(causal=True, offset=offset)


def _padded(case: Case, draw: torch.Generator) -> Mask:
    lengths = _lengths(case, draw, case.K)
    return Mask(causal=True, offset=0, key_lengths=lengths, query_lengths=lengths)


def _left_padded(case: Case, draw: torch.Generator) -> Mask:
    start = torch.randint(1, case.K, (case.B, 1), generator=draw)
    return Mask(causal=True, offset=case.K - case.Q, key_visible=torch.arange(case.K) >= start)


def _segments(causal: bool, shown: bool = False) -> Callable[[Case, torch.Generator], Mask]:
    def mask(case: Case, draw: torch.Generator) -> Mask:
        queries = torch.randint(0, 4, (case.B, case.Q), generator=draw)
        keys = torch.randint(0, 3, (case.B, case.K), generator=draw)
        visible = _coins(draw, case.B, 1, case.Q, case.K) if shown else None
        return Mask(causal=causal, offset=2 if causal else None, query_segments=queries, key_segments=keys, visible=visible)

    return mask


def _window(left: int | None, right: int | None, offset: Any = 1, causal: bool = False, lengths: bool = False) -> Any:
    def mask(case: Case, draw: torch.Generator) -> Mask:
        return Mask(
            causal=causal,
            window=(left, right),
            offset=torch.tensor(offset) if isinstance(offset, list) else offset,
            key_lengths=_lengths(case, draw, case.K) if lengths else None,
            query_lengths=_lengths(case, draw, case.Q) if lengths else None,
        )

    return mask


def _shown(*shape: str) -> Callable[[Case, torch.Generator], Mask]:
    return lambda case, draw: Mask(visible=_coins(draw, *[getattr(case, n) if n != "1" else 1 for n in shape]))


CASES = (
    Case("plain"),
    Case("plain_square", Q=7),
    Case("one_key", K=1),
    Case("causal_square", _causal(0), Q=7),
    Case("causal_offset", _causal(2)),
    Case("causal_more_queries", _causal(0), Q=11),
    Case("causal_more_keys", _causal(0), K=12),
    Case("causal_blind_rows", _causal(-3)),
    Case("causal_offsets", lambda case, draw: Mask(causal=True, offset=torch.tensor([3, -2]))),
    Case("decode", _causal(6), Q=1),
    Case("decode_cache", _causal(3), Q=1),
    Case("decode_ragged", lambda case, draw: Mask(causal=True, offset=torch.tensor([6, 2])), Q=1),
    Case("window_left", _window(2, None)),
    Case("window_right", _window(None, 1)),
    Case("window_both", _window(1, 2, offset=3)),
    Case("window_causal", _window(2, 0, causal=True), Q=7),
    Case("window_offsets", _window(2, 1, offset=[4, -2])),
    Case("window_blind_rows", _window(1, 1, offset=5)),
    Case("window_lengths", _window(2, 3, offset=0, lengths=True)),
    Case("key_lengths", lambda case, draw: Mask(key_lengths=_lengths(case, draw, case.K))),
    Case("no_keys", lambda case, draw: Mask(key_lengths=torch.tensor([0, 4]))),
    Case("query_lengths", lambda case, draw: Mask(query_lengths=_lengths(case, draw, case.Q))),
    Case("no_queries", lambda case, draw: Mask(query_lengths=torch.tensor([-1, 3]), key_lengths=torch.tensor([3, 5]))),
    Case("right_padded", _padded, Q=7),
    Case("right_padded_causal_keys", lambda case, draw: Mask(causal=True, offset=0, key_lengths=torch.tensor([3, 7])), Q=7),
    Case("left_padded", _left_padded),
    Case("key_visible", lambda case, draw: Mask(key_visible=_coins(draw, case.B, case.K))),
    Case("segments", _segments(False)),
    Case("segments_causal", _segments(True)),
    Case("segments_visible", _segments(False, shown=True)),
    Case("visible", _shown("B", "H", "Q", "K")),
    Case("visible_heads", _shown("H", "1", "K")),
    Case("visible_pairs", _shown("Q", "K")),
    Case("visible_queries", _shown("B", "1", "Q", "1")),
    Case("grouped", _causal(2), G=3),
    Case("one_group", lambda case, draw: Mask(key_lengths=torch.tensor([7, 3])), G=1),
    Case("value_dim", _causal(2), V=4),
    Case("dense_bias", bias=_dense("B", "H", "Q", "K")),
    Case("dense_bias_heads", _causal(2), _dense("H", "Q", "K")),
    Case("dense_bias_keys", _padded, _dense("B", "1", "1", "K"), Q=7),
    Case("linear_bias", _causal(2), _linear),
    Case("linear_bias_offsets", lambda case, draw: Mask(offset=torch.tensor([3, -1])), _linear),
    Case("distance_bias", lambda case, draw: Mask(offset=0), _distance, Q=7),
    Case("distance_bias_padded", lambda case, draw: Mask(causal=True, offset=2, key_lengths=torch.tensor([7, 0])), _distance),
    Case("distance_bias_offsets", lambda case, draw: Mask(offset=torch.tensor([6, 1]), causal=True), _distance, G=2),
    Case("softcap", _causal(2), softcap=1.5),
    Case("softcap_bias", _padded, _distance, Q=7, G=2, V=3, softcap=0.8),
    Case("many_keys", _causal(127), Q=3, K=130, H=2, G=1),
    Case("many_keys_padded", lambda case, draw: Mask(key_lengths=torch.tensor([65, 129])), Q=3, K=129, H=4, G=4),
)  # fmt: skip
"""The table; every mask term alone and in pairs, blind rows, every bias, grouping, V != D, one query, block edges."""
