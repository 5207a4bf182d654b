"""Wrong dropout: its scaling, its draw, or the place where it acts. Rule A7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput

from .kernel import stages
from .kernel.kernel import Kernel
from .mutant import Mutant, of_family

mutant = of_family("dropout")
NONE = "there is no dropout"


def drawn(change: Callable[[Tensor, AttentionInputs], Tensor]) -> Kernel:
    """The kernel whose dropout factors are changed, in both passes alike."""

    def draw(call: AttentionInputs) -> Tensor | None:
        factors = stages.draw(call)
        return None if factors is None else change(factors, call)

    return Kernel(draw=draw)


def same_along(axis: int) -> Kernel:
    return drawn(lambda factors, call: factors.narrow(axis, 0, 1).expand_as(factors))


def draw_of(call: AttentionInputs, rate: float) -> Tensor | None:
    return stages.draw(replace(call, dropout=rate))


def draw_by_values(call: AttentionInputs) -> Tensor | None:
    """A larger query draws more numbers before its own."""
    if call.dropout and float(call.query.detach().float().abs().sum()) % 2.0 > 1.0:
        torch.rand(1, device=call.query.device)
    return stages.draw(call)


def weights_after_dropout(call: AttentionInputs, options: object) -> AttentionOutput:
    """The returned weights are those after dropout; the output is right."""
    factors = stages.draw(call)
    answer = Kernel(draw=lambda again: factors)(call)
    if answer.weights is None or factors is None:
        return answer
    return replace(answer, weights=(answer.weights * factors).to(answer.weights.dtype))


def renormalised(call: AttentionInputs, options: object) -> AttentionOutput:
    """The weights that survive are normalised again, so that they sum to one."""
    factors = stages.draw(call)
    if factors is None:
        return Kernel()(call)
    kept = factors > 0
    return Kernel(see=lambda visible, again: visible & kept)(replace(call, dropout=0.0))


def dropped_output(call: AttentionInputs, options: object) -> AttentionOutput:
    """Elements of the output are dropped instead of weights."""
    answer = Kernel()(replace(call, dropout=0.0))
    return replace(answer, output=torch.dropout(answer.output, call.dropout, True)) if call.dropout else answer


def drawn_from(call: AttentionInputs, generator: torch.Generator) -> Tensor | None:
    """A draw made on the CPU by another generator than torch's."""
    if not call.dropout:
        return None
    B, H, Q, _ = call.query.shape
    kept = torch.rand(B, H, Q, call.key.shape[2], generator=generator) >= call.dropout
    wide = torch.promote_types(call.query.dtype, torch.float32)
    return (kept.to(wide) / max(1.0 - call.dropout, 1e-30)).to(call.query.device)


def with_generator_of_its_own() -> Callable[[AttentionInputs, object], AttentionOutput]:
    """A generator that torch.manual_seed does not reach."""
    generator = torch.Generator().manual_seed(0)
    return Kernel(draw=lambda call: drawn_from(call, generator))


def always_the_same(call: AttentionInputs) -> Tensor | None:
    return drawn_from(call, torch.Generator().manual_seed(0))


def first_key_kept(factors: Tensor, call: AttentionInputs) -> Tensor:
    return torch.cat([torch.full_like(factors[..., :1], 1 / (1 - call.dropout)), factors[..., 1:]], -1)


MUTANTS = (
    mutant("dropout_unscaled", "the weights that survive dropout are not scaled by 1/(1-p)",
          drawn(lambda factors, call: factors * (1 - call.dropout)), NONE),
    mutant("dropout_scaled_by_rate", "the weights that survive dropout are scaled by 1/p",
          drawn(lambda factors, call: (factors > 0) / call.dropout), "p is 1/2"),
    mutant("dropout_keeps_rate", "weights are kept with probability p instead of 1-p",
          drawn(lambda factors, call: (factors == 0) / (1 - call.dropout)), NONE),
    mutant("dropout_ignored", "dropout is ignored", Kernel(draw=lambda call: None), NONE),
    mutant("dropout_draws_again_in_backward", "the backward pass makes a dropout draw of its own",
          Kernel(draw_again=lambda factors, call: stages.given(stages.draw(call))), NONE),
    mutant("dropout_forgotten_in_backward", "the backward pass knows nothing of dropout",
          Kernel(draw_again=lambda factors, call: torch.ones_like(factors)), NONE),
    mutant("dropout_unscaled_in_backward", "the backward pass leaves out the factor 1/(1-p)",
          Kernel(draw_again=lambda factors, call: factors * (1 - call.dropout)), NONE),
    mutant("dropout_without_being_asked", "one weight in a hundred is dropped though no dropout is asked for",
          Kernel(draw=lambda call: draw_of(call, call.dropout or 0.01)), "there is dropout"),
    mutant("dropout_draw_depends_on_values", "the dropout draw depends on the query's values",
          Kernel(draw=draw_by_values), NONE),
    mutant("dropout_same_for_all_heads", "all heads have one dropout draw", same_along(1), NONE),
    mutant("dropout_same_for_all_rows", "all batch rows have one dropout draw", same_along(0), NONE),
    mutant("dropout_same_for_all_queries", "all queries have one dropout draw", same_along(2), NONE),
    mutant("dropout_spares_first_key", "the first key is never dropped",
          drawn(first_key_kept),
          NONE),
    mutant("dropout_renormalised", "the weights that survive dropout are normalised to sum to one", renormalised, NONE),
    mutant("dropout_of_output", "elements of the output are dropped instead of weights", dropped_output, NONE),
    mutant("dropout_always_the_same", "every call makes the same dropout draw", Kernel(draw=always_the_same), NONE),
    Mutant("dropout_generator_of_its_own", "dropout", "the dropout draw does not come from torch's default generator",
                with_generator_of_its_own, equivalent_when=NONE),
    mutant("dropout_in_weights", "the returned weights are those after dropout", weights_after_dropout,
          "no weights are asked for"),
)  # fmt: skip
"""The mutants of this family."""
