"""One attention call as data that JSON can hold: the features of the call, and how its tensors are drawn.

The fields give the structure. The elements come from the seed. They are drawn on the CPU and then moved, so that a case is the
same call on every device. `key_visible`, `segments` and `visible` name a pattern, whose elements come from the seed too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import AttentionInputs, AttentionRequest, Bias, DenseBias, DistanceBias, LinearBias, Mask

from .elements import GRADIENT_FACTORS, arranged, drawn_call, grad_arranged

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


BLOCKS = (2, 8, 16, 30, 56, 64, 72, 120, 128)
"""Sizes of the blocks of a `visible` in blocks."""


@dataclass(frozen=True)
class Case:
    """An attention call as data.

    Args:
        B: batch size.
        H: query heads, a multiple of G.
        G: key/value heads.
        Q: queries.
        K: keys.
        D: query/key head dim.
        V: value head dim.
        dtype: of query, key and value: "float64", "float32", "bfloat16" or "float16".
        causal: a causal mask.
        window: (left, right) in keys; None for an open side.
        offset: position of the first query: an int, or a tensor with one per batch row.
        key_lengths: visible keys, one number per batch row.
        query_lengths: queries that see keys, one number per batch row.
        shared_lengths: equal key and query lengths are one tensor.
        key_visible: visible keys: "coins" (each with probability 0.7), "left" or "right" (padding on that side).
        segments: number of segments of queries and keys.
        segment_pattern: "coins", or "sorted": sequences laid end to end.
        visible: axes along which the mask differs, a subset of "BHQK"; "Q.K" has no batch and head axes.
        visible_pattern: "coins" (each pair with probability 0.6); "blocks", which are visible or hidden as a whole; "gap", in
            which no query sees the keys in the middle; "prefix", in which the first queries see all keys; "triangle", as
            causal, in which the last query does. Without the axes Q and K: coins.
        bias: "dense", "linear", "distance" or None.
        bias_axes: axes along which a dense bias differs, as `visible`.
        bias_values: number of values of a distance bias.
        bias_low: distance of the first value of a distance bias.
        bias_dtype: "float32" or "query".
        bias_gradient: the bias requires a gradient.
        softcap: c in c * tanh(score / c), or None.
        scale: factor of the scores; D^-1/2 by default.
        dropout: probability of dropout.
        lse: the call returns the log-sum-exp.
        weights: the call returns the attention weights.
        gradients: query, key and value require gradients.
        regime: kind of elements, see `attention/elements.py`.
        layout: memory layout of query, key and value, see `attention/elements.py`.
        grad_layout: memory layout of the output's gradient.
        seed: of the elements.
        name: of a case in a table.
    """

    B: int = 1
    H: int = 1
    G: int = 1
    Q: int = 1
    K: int = 1
    D: int = 8
    V: int = 8
    dtype: str = "float32"
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    offset: int | tuple[int, ...] | None = None
    key_lengths: tuple[int, ...] | None = None
    query_lengths: tuple[int, ...] | None = None
    shared_lengths: bool = False
    key_visible: str | None = None
    segments: int | None = None
    segment_pattern: str = "coins"
    visible: str | None = None
    visible_pattern: str = "coins"
    bias: str | None = None
    bias_axes: str = "BHQK"
    bias_values: int = 5
    bias_low: int = -3
    bias_dtype: str = "float32"
    bias_gradient: bool = False
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    lse: bool = False
    weights: bool = False
    gradients: bool = False
    regime: str = "normal"
    layout: str = "contiguous"
    grad_layout: str = "contiguous"
    seed: int = 0
    name: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def mask(self, device: str = "cpu") -> Mask:
        """The mask of the call."""
        draw = torch.Generator().manual_seed(self.seed + 1)
        key_lengths = _integers(self.key_lengths, device)
        query_lengths = _integers(self.query_lengths, device)
        if self.shared_lengths and self.key_lengths == self.query_lengths:
            query_lengths = key_lengths
        query_segments = key_segments = None
        if self.segments is not None:
            query_segments = torch.randint(0, self.segments + 1, (self.B, self.Q), generator=draw).to(device)
            key_segments = torch.randint(0, self.segments, (self.B, self.K), generator=draw).to(device)
            if self.segment_pattern == "sorted":
                query_segments, key_segments = query_segments.sort(1).values, key_segments.sort(1).values
        return Mask(
            causal=self.causal,
            window=self.window,
            offset=_integers(self.offset, device) if isinstance(self.offset, tuple) else self.offset,
            key_lengths=key_lengths,
            query_lengths=query_lengths,
            key_visible=None if self.key_visible is None else self._key_visible(draw).to(device),
            query_segments=query_segments,
            key_segments=key_segments,
            visible=None if self.visible is None else self._visible(draw).to(device),
        )

    def inputs(self, device: str = "cpu") -> AttentionInputs:
        """The call, with all tensors on a device."""
        dtype = self.torch_dtype
        tensors = drawn_call(self.regime, (self.B, self.H, self.G, self.Q, self.K, self.D, self.V), self.seed)
        query, key, value = (
            arranged(tensor.to(dtype, copy=True), self.layout, device).requires_grad_(self.gradients) for tensor in tensors
        )
        return AttentionInputs(
            query, key, value, self.mask(device), self.scale if self.scale is not None else self.D**-0.5,
            bias=self._bias(device), dropout=self.dropout, return_weights=self.weights, return_lse=self.lse,
            **self.score_settings(),
        )  # fmt: skip

    def grad_output(self, device: str = "cpu") -> Tensor:
        """The gradient (B,H,Q,V) that enters the backward pass."""
        draw = torch.Generator().manual_seed(self.seed + 3)
        drawn = torch.randn(self.B, self.H, self.Q, self.V, generator=draw, dtype=torch.float64)
        if self.regime == "lattice":
            drawn = drawn.mul(1.5).round().clamp(-2, 2)
        drawn = drawn * GRADIENT_FACTORS.get(self.regime, 1.0)
        return grad_arranged(drawn.to(self.torch_dtype), self.grad_layout, device)

    def request(self, device: str = "cpu") -> AttentionRequest:
        """What the case requests from a backend, for `check_request`."""
        features: dict[str, Any] = {name: value is not None for name, value in self.score_settings().items()}
        return AttentionRequest(
            device=device.partition(":")[0],
            cuda_capability=torch.cuda.get_device_capability(device) if device.startswith("cuda") else None,
            dtype=self.dtype,
            head_dim=self.D,
            value_dim=self.V,
            queries=self.Q,
            keys=self.K,
            mask_terms=self.terms(),
            tensor_offset=isinstance(self.offset, tuple),
            bias=self.bias,
            bias_gradient=self.bias is not None and self.bias_gradient,
            dropout=self.dropout > 0.0,
            weights=self.weights,
            lse=self.lse,
            grouped=self.G != self.H,
            gradients=self.gradients or (self.bias is not None and self.bias_gradient),
            **features,
        )

    def terms(self) -> frozenset[str]:
        """The mask terms that are set, as `Capabilities.mask_terms` spells them."""
        return frozenset(name for name in MASK_TERMS if getattr(self, name) not in (None, False))

    def score_settings(self) -> dict[str, Any]:
        """The numbers that change the scores, by name; None where the call has none."""
        return {setting.name: getattr(self, setting.name) for setting in SCORE_SETTINGS}

    def as_data(self) -> dict[str, Any]:
        """The case as JSON data: the sizes, and every other field that differs from its default."""
        plain = Case()
        return {name: value for name, value in asdict(self).items() if value != getattr(plain, name) or name in "BHGQKDV"}

    def _key_visible(self, draw: torch.Generator) -> Tensor:
        keys = torch.arange(self.K)
        if self.key_visible == "coins":
            return torch.rand(self.B, self.K, generator=draw) < 0.7
        pads = torch.randint(0, self.K + 1, (self.B, 1), generator=draw)
        return keys >= pads if self.key_visible == "left" else keys < self.K - pads

    def _visible(self, draw: torch.Generator) -> Tensor:
        axes = self.visible or ""
        sizes = [getattr(self, axis) if axis in axes else 1 for axis in "BHQK"]
        sizes = sizes[2:] if "." in axes else sizes
        coins = torch.rand(sizes, generator=draw) < 0.6
        if self.visible_pattern == "coins" or not {"Q", "K"} <= {*axes}:
            return coins
        rows, columns = torch.arange(self.Q)[:, None], torch.arange(self.K)
        if self.visible_pattern == "blocks":
            size = BLOCKS[int(torch.randint(len(BLOCKS), (), generator=draw))]
            return coins[..., rows // size, columns // size]
        if self.visible_pattern == "gap":
            first = int(torch.randint(0, self.K // 3 + 1, (), generator=draw))
            return coins & ((columns < first) | (columns >= first + self.K // 2))
        if self.visible_pattern == "prefix":
            return coins | (rows < int(torch.randint(1, self.Q + 1, (), generator=draw)))
        return (columns <= rows + self.K - self.Q).expand(sizes).clone()

    def _bias(self, device: str) -> Bias | None:
        if self.bias is None:
            return None
        draw = torch.Generator().manual_seed(self.seed + 2)
        dtype = self.torch_dtype if self.bias_dtype == "query" else torch.float32
        if self.bias == "linear":
            slopes = torch.rand(self.H, generator=draw, dtype=torch.float64) * 0.5 + 0.01
            return LinearBias(slopes.to(torch.float32).to(device).requires_grad_(self.bias_gradient))
        if self.bias == "distance":
            values = torch.randn(self.H, self.bias_values, generator=draw, dtype=torch.float64)
            return DistanceBias(values.to(dtype).to(device).requires_grad_(self.bias_gradient), self.bias_low)
        sizes = [getattr(self, axis) if axis in self.bias_axes else 1 for axis in "BHQK"]
        dense = torch.randn(sizes[2:] if "." in self.bias_axes else sizes, generator=draw, dtype=torch.float64)
        return DenseBias(dense.to(dtype).to(device).requires_grad_(self.bias_gradient))


def _integers(numbers: tuple[int, ...] | None, device: str) -> Tensor | None:
    return None if numbers is None else torch.tensor(numbers, device=device)
