"""The settings and stages of `kernel`, each of which a mutant may replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from tfkit.plugin import AttentionInputs

from . import stages


@dataclass(frozen=True)
class KernelDesign:
    """First the settings, then the stages.

    block, query_block     how many keys, and in the backward pass queries, are looked at together
    split                  into how many parts the keys are split, merged by their maxima
    base2                  exponentials as powers of 2
    tf32                   float32 products of factors rounded to TF32
    prescaled              the query is scaled first and rounded to the storage type
    probabilities          the type in which p and dR enter their products
    """

    block: int = 16
    query_block: int = 64
    split: int = 1
    base2: bool = True
    tf32: bool = False
    prescaled: bool = False
    probabilities: Literal["storage", "accumulation"] = "storage"

    # the call: the mask's terms, the heads, the biases, the draw
    positions: Callable[[AttentionInputs], Tensor] = stages.positions
    terms: dict[str, stages.Term] = field(default_factory=lambda: stages.TERMS)
    join: Callable[[list[Tensor]], Tensor] = stages.all_of
    see: Callable[[Tensor, AttentionInputs], Tensor] = stages.unchanged
    read_keys: Callable[[Tensor, int], Tensor] = stages.read_heads
    read_values: Callable[[Tensor, int], Tensor] = stages.read_heads
    bias_positions: Callable[[AttentionInputs], Tensor] = stages.positions
    biases: dict[type, stages.BiasOf] = field(default_factory=lambda: stages.BIASES)
    draw: Callable[[AttentionInputs], Tensor | None] = stages.draw

    # forward: the scores of a block, then one step of the online softmax
    scale: Callable[[AttentionInputs], float] = lambda call: call.scale
    score: Callable[[Tensor, Tensor | float, AttentionInputs], tuple[Tensor, Tensor | float]] = stages.capped_and_biased
    hide: Callable[[Tensor, Tensor], Tensor] = stages.hide
    highest: Callable[[Tensor, Tensor], Tensor] = stages.highest
    fade: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = stages.fade
    keep: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = stages.keep
    merge: Callable[[Tensor], Tensor] = stages.unchanged
    masked: Callable[[Tensor, Tensor, Tensor], Tensor] = stages.zero_fully_masked
    report: Callable[[Tensor, Tensor], Tensor] = stages.unchanged

    # backward: what it reads again, the gradient of a block's scores, the sums
    see_again: Callable[[Tensor, AttentionInputs], Tensor] = stages.unchanged
    draw_again: Callable[[Tensor, AttentionInputs], Tensor] = stages.unchanged
    incoming: Callable[[Tensor, Tensor], Tensor] = stages.only_seeing_rows
    row_sums: Callable[[Tensor, Tensor], Tensor] = stages.row_sums
    lse_again: Callable[[Tensor, Tensor], Tensor] = stages.unchanged
    grad_scores: Callable[[Tensor, Tensor, Tensor, slice, int], Tensor] = stages.grad_scores
    slope: Callable[[Tensor | float], Tensor | float] = stages.unchanged
    add: Callable[[str, Tensor, Tensor, slice, AttentionInputs], Tensor] = stages.add
    gather: Callable[[Tensor, int], Tensor] = stages.gather_heads
    bias_gradients: dict[type, stages.BiasOf] = field(default_factory=lambda: stages.BIAS_GRADIENTS)
    gradients: Callable[[dict[str, Tensor], AttentionInputs], dict[str, Tensor]] = stages.unchanged
