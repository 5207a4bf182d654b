"""What a model must give: the plain evaluation of its spec in float64, with the weights that it has.

`tfkit_conformance.reference` evaluates a whole model by its equations, with `torch.nn.functional` alone. In float64 that is the
truth, in float32 it tells how far rounding may move a correct model (`rounding`). Nothing here is measured on the model under
test. A node whose kind has no reference, and the nodes computed from it, have no truth; they are listed as not checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tfkit import Graph, Model

from ..attention.bound import UNIT
from ..reference import evaluate
from .batch import Batch
from .expected import shown_positions
from .recording import run
from .rounding import Scale, Sums, Yardstick, cast, scale_of, sums_of

PRODUCTS = {"mm": 1, "bmm": 2, "addmm": 1, "baddbmm": 2, "mv": 1, "dot": 0, "addmv": 1}
"""Operations that sum products, and the axis over which their first factor is summed."""
REDUCTIONS = {"sum", "mean", "var", "cumsum", "linalg_vector_norm", "prod", "std", "var_mean"}
EXACT = {
    "_to_copy", "abs", "alias", "amax", "amin", "as_strided_scatter", "cat", "clone", "constant_pad_nd", "copy", "copy_",
    "diagonal_scatter", "embedding", "embedding_dense_backward", "empty", "empty_like", "eye", "fill", "fill_", "flip", "full",
    "full_like", "gather", "index", "index_select", "isfinite", "masked_fill", "masked_fill_", "max", "maximum", "min",
    "minimum", "neg", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "relu",
    "repeat", "roll", "scalar_tensor", "select_backward", "sign", "slice_backward", "slice_scatter", "sort", "stack",
    "threshold_backward", "topk", "tril", "triu", "unfold_backward", "where", "zero_", "zeros", "zeros_like", "arange",
    "detach", "lift_fresh", "lift_fresh_copy", "_unsafe_view", "_reshape_copy", "bernoulli", "clamp", "clamp_min", "floor",
    "round", "trunc",
}  # fmt: skip
"""Operations whose results are among the numbers that they are given, or whole."""


class Stochastic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, every operation errs at random, as in `dtype`."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unit, self.unit_of_sums = UNIT[dtype], UNIT[torch.promote_types(dtype, torch.float32)]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        name = function.overloadpacket.__name__
        if name in EXACT or function.is_view:
            return result
        if isinstance(result, Tensor):
            return self._rounded(name, result, arguments)
        if isinstance(result, (tuple, list)):
            return type(result)(self._rounded(name, part, arguments) if isinstance(part, Tensor) else part for part in result)
        return result

    def _rounded(self, name: str, y: Tensor, arguments: Any) -> Tensor:
        if y.dtype != torch.float64 or not y.numel():
            return y
        terms = _terms(name, y, arguments)
        summed = terms / 6.0 * self.unit_of_sums**2 if terms > 1 else 0.0
        deviation = math.sqrt(summed + self.unit**2 / 3.0)
        d = torch.empty(y.shape, dtype=torch.float64).uniform_(-1.0, 1.0, generator=self.generator)
        if name == "tanh":
            return y.add_(d, alpha=2.0 * self.unit)
        return y.mul_(d.mul_(math.sqrt(3.0) * deviation).add_(1.0))


def _terms(name: str, y: Tensor, arguments: Any) -> int:
    """How many terms each number of a result is the sum of."""
    if name in PRODUCTS:
        factor = arguments[1] if name.startswith(("add", "badd")) else arguments[0]
        return int(factor.shape[PRODUCTS[name]])
    if name in REDUCTIONS and isinstance(arguments[0], Tensor):
        return max(1, arguments[0].numel() // y.numel())
    if name == "convolution":
        return int(arguments[1][0].numel())
    return 1


DRAWS = 2
"""Evaluations in stochastic arithmetic, beside the one in float32; of half dtypes, one more in its place."""
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Truth:
    """The exact `outputs` of the nodes for a batch, and how far a correct model may be from them."""

    batch: Batch
    outputs: dict[str, Tensor]
    yardstick: Yardstick

    def at(self, dtype: torch.dtype) -> Truth:
        return replace(self, yardstick=self.yardstick.at(dtype))


@dataclass(frozen=True)
class TrueGradients:
    """The `exact` gradient of every parameter for the gradients `towards` of the outputs, how far a correct model may be from
    it, and by how much of its length a plain float32 evaluation is off (`share`)."""

    towards: Gradients
    exact: Gradients
    yardstick: Yardstick
    share: dict[str, float]

    def at(self, dtype: torch.dtype) -> TrueGradients:
        ratio = UNIT[dtype] / UNIT[self.yardstick.dtype]
        share = {name: fraction * ratio for name, fraction in self.share.items()}
        return replace(self, yardstick=self.yardstick.at(dtype), share=share)


@dataclass(frozen=True)
class Measured:
    """The truth of a model for three batches: one of a few rows and positions, with its gradients; one of more than 64
    positions, padded on the right; and one of many rows. `unchecked` are the nodes without a reference, and why."""

    truth: Truth
    long: Truth
    many: Truth
    gradients: TrueGradients
    unchecked: dict[str, str]

    def at(self, dtype: torch.dtype) -> Measured:
        """The same for another dtype."""
        truth, long, many = (part.at(dtype) for part in (self.truth, self.long, self.many))
        return Measured(truth, long, many, self.gradients.at(dtype), self.unchecked)


def pooled(truths: list[Truth]) -> list[Truth]:
    """The same truths, each tensor with the largest relative deviation that it showed in any of them."""
    names = truths[0].yardstick.scales
    relative = {name: max(_relative(truth.yardstick.scales[name]) for truth in truths) for name in names}
    scaled = []
    for truth in truths:
        scales = {name: replace(scale, error=relative[name] * scale.rms) for name, scale in truth.yardstick.scales.items()}
        scaled.append(replace(truth, yardstick=replace(truth.yardstick, scales=scales)))
    return scaled


def _relative(scale: Scale) -> float:
    return scale.error / scale.rms if scale.rms else 0.0


class Reference:
    """The plain evaluations of a graph with the weights of a model, in float64 and in float32."""

    def __init__(self, graph: Graph, model: Model, seed: int) -> None:
        self.graph, self.model, self.seed = graph, model, seed
        self.level = model.dtype if model.dtype in (torch.bfloat16, torch.float16) else torch.float32
        self.device = model.device
        self.exact = {name: tensor.detach().cpu().double() for name, tensor in model.state_dict(keep_vars=True).items()}
        self.trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.unchecked: dict[str, str] = {}

    def truth(self, batch: Batch, draws: int = DRAWS) -> Truth:
        """What every node must give for a batch."""
        masks = shown_positions(self.graph, batch)
        with torch.no_grad():
            exact = self._outputs(self.exact, batch, torch.float64)
            drawn = [self._outputs(self._single(), batch, torch.float32)] if self.level == torch.float32 else []
            for number in range(draws + (not drawn)):
                with Stochastic(self.seed + 2000 + number, self.level):
                    drawn.append(self._outputs(self.exact, batch, torch.float64))
        sums = sums_of(self.graph, self.model, self._positions(batch))
        scales = {
            name: scale_of(tensor, [outputs[name] for outputs in drawn], sums[name], masks.get(name))
            for name, tensor in exact.items()
        }
        placed = {name: tensor.to(self.device) for name, tensor in exact.items()}
        return Truth(batch, placed, self._stick(scales | self._own_scales(batch, sums, set(exact), draws)))

    def _own_scales(self, batch: Batch, sums: dict[str, Sums], known: set[str], draws: int) -> dict[str, Scale]:
        """The scales of what has no reference: how far stochastic arithmetic moves the model
        itself in float64. They are used where the model is compared with itself alone; what it rounds in its dtype is not among
        them."""
        names = [name for name in sums if name not in known]
        if not names:
            return {}
        wide = cast(self.model, torch.float64)
        masks, exact, drawn = shown_positions(self.graph, batch), run(wide, batch), []
        for number in range(max(draws, 1)):
            with Stochastic(self.seed + 2000 + number, self.level):
                drawn.append(run(wide, batch))
        return {
            name: scale_of(exact[name], [outputs[name] for outputs in drawn], sums[name], masks.get(name)) for name in names
        }

    def gradients(self, batch: Batch, towards: Gradients, draws: int = DRAWS) -> TrueGradients:
        """The gradient of every trainable parameter for gradients of the outputs; of none where an output has no reference."""
        if set(towards) & {name for name in self.graph.outputs if name.split(".")[0] in self.unchecked}:
            return TrueGradients(towards, {}, self._stick({}), {})
        exact = self._gradients(self.exact, batch, towards, torch.float64)
        drawn = [self._gradients(self._single(), batch, towards, torch.float32)] if self.level == torch.float32 else []
        for number in range(draws + (not drawn)):
            with Stochastic(self.seed + 3000 + number, self.level):
                drawn.append(self._gradients(self.exact, batch, towards, torch.float64))
        tokens = sum(visible.numel() for visible in batch.visible.values()) or batch.size
        sums = sum(sums_of(self.graph, self.model, self._positions(batch)).values(), Sums()).times(3.0) + Sums(1, tokens)
        scales = {name: scale_of(tensor, [gradients[name] for gradients in drawn], sums) for name, tensor in exact.items()}
        if self._stick(scales).blunt():
            with Stochastic(self.seed + 4000, torch.float64):
                fine = self._gradients(self.exact, batch, towards, torch.float64)
            scales = {name: self._no_less(scale, scale_of(exact[name], [fine[name]], sums)) for name, scale in scales.items()}
        share = {name: share_of(drawn[0][name], tensor) for name, tensor in exact.items()}
        placed = {name: tensor.to(self.device) for name, tensor in exact.items()}
        return TrueGradients(towards, placed, self._stick(scales), share)

    def _no_less(self, scale: Scale, fine: Scale) -> Scale:
        """A scale with the deviation in float64 that `fine` measured, if that is larger. Where rounding moves a tensor by a
        large share of itself, its errors are not of first order in u, and the one in float64 does not follow from it."""
        return replace(scale, error=max(scale.error, fine.error * UNIT[self.level] / UNIT[torch.float64]))

    def _stick(self, scales: dict[str, Scale]) -> Yardstick:
        return Yardstick(scales, self.level, self.level)

    def _positions(self, batch: Batch) -> int:
        lengths = [visible.shape[1] for visible in batch.visible.values()]
        return max(
            [*lengths, *(node.signal.length for node in self.graph.nodes.values() if isinstance(node.signal.length, int))],
            default=1,
        )

    def _outputs(self, weights: Gradients, batch: Batch, dtype: torch.dtype) -> dict[str, Tensor]:
        evaluation = evaluate(self.graph, weights, _on_cpu(batch), dtype)
        self.unchecked = evaluation.unchecked
        return evaluation.outputs

    def _gradients(self, weights: Gradients, batch: Batch, towards: Gradients, dtype: torch.dtype) -> Gradients:
        leaves = {name: tensor.clone().requires_grad_(name in self.trained) for name, tensor in weights.items()}
        outputs = self._outputs(leaves, batch, dtype)
        ends = [(outputs[name], toward) for name, toward in towards.items() if outputs[name].requires_grad]
        wanted = [leaves[name] for name in self.trained]
        if not wanted or not ends:
            return {name: torch.zeros_like(leaf) for name, leaf in zip(self.trained, wanted, strict=True)}
        reached = torch.autograd.grad(
            [end for end, _ in ends], wanted, [toward.to(end) for end, toward in ends], allow_unused=True
        )
        return {
            name: torch.zeros_like(leaves[name]) if gradient is None else gradient
            for name, gradient in zip(self.trained, reached, strict=True)
        }

    def _single(self) -> Gradients:
        return {name: weight.float() for name, weight in self.exact.items()}


def share_of(gradient: Tensor, exact: Tensor) -> float:
    """The length of the error over that of the exact gradient; 0 where both are."""
    error, length = float((gradient.double() - exact.double()).norm()), float(exact.double().norm())
    if error != error:
        return float("inf")
    return error / length if length else (float("inf") if error else 0.0)


def _on_cpu(batch: Batch) -> Batch:
    ids, visible, segments, images = (
        {name: tensor.cpu() for name, tensor in table.items()} for table in (*batch.tables(), batch.images)
    )
    return Batch(ids, visible, segments, images)


def random_towards(outputs: Gradients, masks: dict[str, Tensor], generator: torch.Generator) -> Gradients:
    """A gradient for each output that every dtype holds exactly, zero where a position is padding."""
    towards = {}
    for name, tensor in outputs.items():
        drawn = torch.randn(tensor.shape, generator=generator).bfloat16().double()
        if name in masks:
            drawn = drawn * masks[name].cpu().reshape(*masks[name].shape, *([1] * (drawn.dim() - 2)))
        towards[name] = drawn
    return towards
