"""Errors in formulas that carry a paper's name: cells, scores, read-outs, nodes and position schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit import Model
from tfkit.builtin.cell.cells import GruResetBefore
from tfkit.builtin.position import embedding_positions, rotary, score_biases
from tfkit.builtin.score.scores import TanhSum
from tfkit.nn.heads import LayerMix, Pool
from tfkit.nn.readout import Readout
from tfkit.plugin.model_parts import NodeOutput, PositionRange

from .tampering import each, swap


def half_the_state(self: GruResetBefore, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    [h], N = state, self.d_state
    gates, new = torch.split(projected, [2 * N, N], 1)
    r, z = torch.sigmoid(gates + functional.linear(h, self.weight_hh)).chunk(2, 1)
    n = torch.tanh(new + functional.linear(r * h, self.weight_hn))
    return (0.5 * h + z * (n - h),)


def without_tanh(self: TanhSum, query: Tensor, key: Tensor) -> Tensor:
    return (query.unsqueeze(3) + key.unsqueeze(2)) @ self.weight[0]


def smaller_of_two(self: Readout, parts: Mapping[str, Tensor | None]) -> Tensor:
    x: Tensor = self.linear(torch.cat([parts[name] for name in self.reads], -1))  # type: ignore[misc]
    return torch.minimum(x[..., ::2], x[..., 1::2])


def halved(kind: type[nn.Module]) -> Callable[..., NodeOutput]:
    def forward(self: Any, *arguments: Any, **keywords: Any) -> NodeOutput:
        output: NodeOutput = kind.forward(self, *arguments, **keywords)
        return NodeOutput(0.5 * output.tensor, output.padding, output.ids)

    return forward


def twice_the_position(self: embedding_positions.Sinusoidal, x: Tensor, span: PositionRange) -> Tensor:
    waves = embedding_positions.sinusoids(2 * span.query_positions(), self.width, self.base, self.inclusive, self.interleaved)
    return x + waves.to(x.dtype)


def half_the_slopes(self: score_biases.Alibi, span: PositionRange) -> Tensor:
    return 0.5 * score_biases.slopes(self.heads, span.device)


def half_the_frequencies(self: rotary.Rotary, positions: Tensor, dtype: torch.dtype) -> Any:
    return rotary.Rotary._waves(self, 0.5 * positions, dtype)


def half_the_buckets(self: score_biases.RelativeT5, span: PositionRange) -> Tensor:
    return score_biases.RelativeT5.prepare(self, span) // 2


METHODS: dict[str, tuple[type[nn.Module], str, Callable[..., Any]]] = {
    "gru_half_state": (GruResetBefore, "step", half_the_state),
    "additive_without_tanh": (TanhSum, "forward", without_tanh),
    "maxout_as_min": (Readout, "forward", smaller_of_two),
    "layer_mix_halved": (LayerMix, "forward", halved(LayerMix)),
    "pool_halved": (Pool, "forward", halved(Pool)),
    "sinusoids_of_2t": (embedding_positions.Sinusoidal, "embed", twice_the_position),
    "alibi_half_slopes": (score_biases.Alibi, "prepare", half_the_slopes),
    "rotary_half_frequencies": (rotary.Rotary, "_waves", half_the_frequencies),
    "t5_half_buckets": (score_biases.RelativeT5, "prepare", half_the_buckets),
}


def broken(name: str) -> Callable[[Model], Model]:
    """Puts the formula of METHODS into every module of its class."""

    def apply(model: Model) -> Model:
        kind, method, wrong = METHODS[name]
        modules = list(each(model, kind))
        assert modules, f"the model has no {kind.__name__}"
        for module in modules:
            swap(module, method, wrong)
        return model

    return apply
