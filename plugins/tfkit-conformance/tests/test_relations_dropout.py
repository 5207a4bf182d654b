"""Rule A7 is held: each way of dropping wrongly breaks a relation, and the statistics are exact."""

from __future__ import annotations

import time
from dataclasses import replace
from math import comb

import pytest
import torch

from test_uses import SHARED_DRAWS
from tfkit.builtin.attention import eager
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import AttentionOutput, NoOptions, Range
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.finding import Inconclusive, Violation
from tfkit_conformance.relations import RELATIONS, fit
from tfkit_conformance.relations.draws import drawn_factors, own_generator
from tfkit_conformance.relations.dropout import interval, tail, wide_interval

PLAIN = Case(B=2, H=4, G=2, Q=5, K=7, D=8, V=8, gradients=True, lse=True, weights=True, seed=4)
MASKED = replace(PLAIN, causal=True, offset=3, K=11, V=4, bias="linear", bias_gradient=True)
BY_NAME = {relation.name: relation for relation in RELATIONS if relation.draws}


def right(inputs, **changes):
    return eager.attend(replace(inputs, **changes), NoOptions())


def kept(inputs, factors, rate=None):
    """The equation with given factors, 0 or 1, and the scaling of the call's rate."""
    found = right(inputs, dropout=0.0, return_weights=True)
    each = inputs.query.shape[1] // inputs.value.shape[1]
    drawn = found.weights * factors / (1 - (inputs.dropout if rate is None else rate))
    return AttentionOutput(drawn @ inputs.value.repeat_interleave(each, 1), found.weights, found.lse)


def coins(inputs, *axes, rate=None):
    sizes = dict(zip("BHQK", (*inputs.query.shape[:3], inputs.key.shape[2]), strict=True))
    rate = inputs.dropout if rate is None else rate
    return (torch.rand([size if axis in axes else 1 for axis, size in sizes.items()]) >= rate).float()


def unscaled(inputs, options):
    return kept(inputs, coins(inputs, *"BHQK"), rate=0.0)


def too_rarely(inputs, options):
    return kept(inputs, coins(inputs, *"BHQK", rate=0.8 * inputs.dropout))


def never_the_first_key(inputs, options):
    """Nor ever without the second, so that the share is right."""
    factors = coins(inputs, *"BHQK")
    factors[..., 0], factors[..., 1] = 1, 0
    return kept(inputs, factors)


def one_draw_for(axes):
    return lambda inputs, options: kept(inputs, coins(inputs, *axes))


def another_backward(inputs, options):
    forward, backward = right(inputs), right(inputs)
    return replace(forward, output=forward.output.detach() + backward.output - backward.output.detach())


def dropped_weights(inputs, options):
    factors = coins(inputs, *"BHQK")
    found = kept(inputs, factors)
    return replace(found, weights=found.weights * factors)


def by_the_numbers(inputs, options):
    torch.rand(1 + int((inputs.query == 0).all()) + int((inputs.value == 0).all()))
    return right(inputs)


def own_draws(inputs, options):
    with torch.random.fork_rng(devices=[]):
        return right(inputs)


def always_the_same(inputs, options):
    torch.rand(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return right(inputs)


def rows_far_apart_share(inputs, options):
    factors = coins(inputs, *"BHQK")
    Q = factors.shape[2]
    return kept(inputs, torch.where(torch.arange(Q)[:, None] < 331, factors, factors.roll(331, 2)))


def of_65536_draws(inputs, options):
    with torch.random.fork_rng(devices=[]):
        number = int(torch.randint(0, 1 << 10, ()))
    torch.rand(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return right(inputs)


def not_scaled_at_high_rates(inputs, options):
    return kept(inputs, coins(inputs, *"BHQK"), rate=0.0 if inputs.dropout > 0.87 else None)


def coins_of_16_bits(inputs, options):
    B, H, Q = inputs.query.shape[:3]
    numbers = torch.randint(1 << 16, (B, H, Q, inputs.key.shape[2]))
    return kept(inputs, (numbers >= int(inputs.dropout * (1 << 16))) / (1 - inputs.dropout))


def another_draw_without_gradients(inputs, options):
    if not torch.is_grad_enabled():
        torch.rand(1)
    return right(inputs)


def rows_share_in_turn(inputs, options):
    """Batch rows 0 and 3, 1 and 4, ... have the same draw."""
    factors = coins(inputs, *"BHQK")
    return kept(inputs, factors[torch.arange(len(factors)) % 3])


def a_backward_that_moves_the_generator(inputs, options):
    found = right(inputs)
    if found.output.requires_grad:
        found.output.register_hook(lambda gradient: gradient + 0 * torch.rand(1))
    return found


class FromOneGenerator(torch.autograd.Function):
    """Forward and backward draw from a generator that all threads seed."""

    generator = torch.Generator()

    @staticmethod
    def factors(seed, size):
        FromOneGenerator.generator.manual_seed(seed)
        time.sleep(1e-4)
        return (torch.rand(size, generator=FromOneGenerator.generator) >= 0.5) * 2.0

    @staticmethod
    def forward(ctx, weights, value):
        seed = int(torch.randint(1 << 40, ()))
        ctx.save_for_backward(weights, value)
        ctx.seed = seed
        return (weights * FromOneGenerator.factors(seed, weights.shape)) @ value

    @staticmethod
    def backward(ctx, sent):
        weights, value = ctx.saved_tensors
        factors = FromOneGenerator.factors(ctx.seed, weights.shape)
        return (sent @ value.mT) * factors, (weights * factors).mT @ sent


def one_generator_of_all_threads(inputs, options):
    found = right(inputs, dropout=0.0, return_weights=True)
    value = inputs.value.repeat_interleave(inputs.query.shape[1] // inputs.value.shape[1], 1)
    return AttentionOutput(FromOneGenerator.apply(found.weights, value), found.weights, found.lse)


def nothing_when_compiled(inputs, options):
    return right(inputs, dropout=0.0 if torch.compiler.is_compiling() else inputs.dropout)


def bands_share_without_gradients(inputs, options):
    factors = coins(inputs, *"BHQK")
    if not torch.is_grad_enabled() and factors.shape[2] > 600:
        factors = torch.cat([factors[:, :, :600], factors[:, :, : factors.shape[2] - 600]], 2)
    return kept(inputs, factors)


def coins_of_the_dtype(inputs, options):
    size = (*inputs.query.shape[:3], inputs.key.shape[2])
    return kept(inputs, (torch.rand(size, dtype=inputs.query.dtype) >= inputs.dropout) * 1.0)


def nothing_in_a_second_backward(inputs, options):
    """The output, and a backward pass that forgets the draw once it has run."""

    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx, dropped, whole):
            ctx.turns = 0
            return dropped.clone()

        @staticmethod
        def backward(ctx, sent):
            ctx.turns += 1
            return (sent, torch.zeros_like(sent)) if ctx.turns == 1 else (torch.zeros_like(sent), sent)

    found = kept(inputs, coins(inputs, *"BHQK"))
    return replace(found, output=Forgets.apply(found.output, right(inputs, dropout=0.0).output))


def tiles_of_a_diagonal_share(inputs, options):
    """Tiles of 37 queries and 41 keys."""
    B, H, Q, K = *inputs.query.shape[:3], inputs.key.shape[2]
    seed = int(torch.randint(1 << 40, ()))

    def tile(place):
        drawn = torch.rand(B, H, 37, 41, generator=torch.Generator().manual_seed(seed + place))
        return (drawn >= inputs.dropout).float()

    rows = [torch.cat([tile(row - column) for column in range(-(-K // 41))], -1) for row in range(-(-Q // 37))]
    return kept(inputs, torch.cat(rows, -2)[:, :, :Q, :K])


def keys_far_apart_share(inputs, options):
    factors = coins(inputs, *"BHQK")
    return kept(inputs, factors[..., torch.arange(factors.shape[3]) % 30_000])


def scaled_by_a_thousand_at_most(inputs, options):
    return kept(inputs, coins(inputs, *"BHQK"), rate=min(inputs.dropout, 0.999))


KILLS = {
    "no_part_repeats": (tiles_of_a_diagonal_share,),
    "drops_when_compiled": (nothing_when_compiled,),
    "one_draw_in_threads": (one_generator_of_all_threads, another_backward),
    "nothing_repeats": (rows_far_apart_share, bands_share_without_gradients, keys_far_apart_share),
    "many_draws": (of_65536_draws,),
    "every_rate": (scaled_by_a_thousand_at_most, not_scaled_at_high_rates, too_rarely, coins_of_16_bits, coins_of_the_dtype),
    "kept_weights_are_scaled": (unscaled,),
    "kept_share": (too_rarely, never_the_first_key),
    "nothing_is_shared": (one_draw_for("HQK"), one_draw_for("BQK"), one_draw_for("BHK"), one_draw_for("BHQ"), always_the_same),
    "same_state_same_draw": (by_the_numbers, another_draw_without_gradients),
    "generator_moves": (own_draws, by_the_numbers),
    "one_draw_per_call": (another_backward, dropped_weights, unscaled, a_backward_that_moves_the_generator),
}


def subject(attend):
    return backend_under_test(EAGER, attend=attend)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mutant"), [(name, mutant) for name, mutants in KILLS.items() for mutant in mutants])
def test_a_wrong_dropout_breaks_the_relation(name, mutant):
    fitted = fit(BY_NAME[name], subject(mutant), PLAIN)
    with pytest.raises(Violation) as found:
        BY_NAME[name].run(Evaluated(subject(mutant), fitted))
    assert found.value.check == name


def test_a_draw_that_a_second_backward_pass_lacks_is_found():
    case = fit(BY_NAME["one_draw_per_call"], subject(nothing_in_a_second_backward), replace(PLAIN, seed=9))
    with pytest.raises(Violation, match=r"gradient of .* is not that of the draw of the forward pass"):
        BY_NAME["one_draw_per_call"].run(Evaluated(subject(nothing_in_a_second_backward), case))


class RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, sent):
        raise RuntimeError("sizes do not agree")


@pytest.mark.parametrize("seed", [8, 9], ids=["one backward pass", "two"])
def test_an_error_of_the_backward_pass_is_a_finding(seed):
    def attend(inputs, options):
        found = kept(inputs, coins(inputs, *"BHQK"))
        return replace(found, output=RaisesInBackward.apply(found.output))

    case = fit(BY_NAME["one_draw_per_call"], subject(attend), replace(PLAIN, seed=seed))
    with pytest.raises(Violation, match="its backward pass raised RuntimeError: sizes do not agree"):
        BY_NAME["one_draw_per_call"].run(Evaluated(subject(attend), case))


def test_rows_that_share_a_draw_are_found_in_any_batch():
    case = replace(PLAIN, B=8, K=12, dropout=0.5)
    with pytest.raises(Violation, match="head 0 of batch row 0 and head 0 of batch row 3 share one dropout draw"):
        BY_NAME["one_draw_per_call"].run(Evaluated(subject(rows_share_in_turn), case))


def test_results_that_dropout_scales_beyond_the_range_decide_nothing():
    case = replace(PLAIN, dtype="float16", dropout=0.9, regime="high_gradients", seed=0)
    with pytest.raises(Inconclusive, match="beyond the range of float16"):
        BY_NAME["one_draw_per_call"].run(Evaluated(backend_under_test(EAGER), case))


def test_a_call_that_sees_no_key_need_not_draw():
    def nothing_to_drop(inputs, options):
        return right(inputs, dropout=0.0)

    case = replace(PLAIN, B=1, key_lengths=(0,))
    BY_NAME["generator_moves"].run(Evaluated(subject(nothing_to_drop), case))
    with pytest.raises(Violation, match="leaves torch's generator where it was"):
        BY_NAME["generator_moves"].run(Evaluated(subject(nothing_to_drop), replace(case, key_lengths=(1,))))


def test_every_relation_of_dropout_has_its_mutant():
    assert {*KILLS, *SHARED_DRAWS} == set(BY_NAME)


@pytest.mark.slow
@pytest.mark.parametrize("case", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("name", BY_NAME)
def test_correct_dropout_breaks_no_relation(name, case):
    correct = backend_under_test(EAGER)
    for seed in range(3):
        share = BY_NAME[name].run(Evaluated(correct, fit(BY_NAME[name], correct, replace(case, seed=seed))))
        assert share is None or 0 < share <= 1


def test_a_message_names_the_pair_and_the_count():
    relation = BY_NAME["kept_share"]
    case = fit(relation, subject(never_the_first_key), replace(PLAIN, B=1, H=1, G=1, Q=8, K=8))
    with pytest.raises(Violation, match=r"keeps a weight in 96 of 96 draws, .* query row 0 of batch row 0, head 0, key 0"):
        relation.run(Evaluated(subject(never_the_first_key), case))


def test_the_draw_is_read_out_in_chunks_of_the_value_dim():
    case = replace(PLAIN, K=11, V=4, dropout=0.5)
    factors = coins(case.inputs(), *"BHQK")
    fixed = subject(lambda inputs, options: kept(inputs, factors))
    with own_generator("cpu", 0):
        drawn = drawn_factors(Evaluated(fixed, case))
    assert torch.equal(drawn, 2.0 * factors.double())


def test_undeclared_dropout_voids_the_relations():
    poor = replace(EAGER, capabilities=EAGER.capabilities.model_copy(update={"dropout": False}))
    assert {fit(relation, backend_under_test(poor), PLAIN) for relation in BY_NAME.values()} == {"dropout is not declared"}


@pytest.mark.parametrize(("draws", "chance"), [(1, 0.5), (20, 0.3), (60, 0.9)])
def test_tails_are_those_of_the_binomial_distribution(draws, chance):
    exact = [comb(draws, count) * chance**count * (1 - chance) ** (draws - count) for count in range(draws + 1)]
    for count in range(draws + 1):
        side = exact[: count + 1] if count <= draws * chance else exact[count:]
        assert tail(count, draws, chance) == pytest.approx(min(1.0, 2 * sum(side)), rel=1e-9)
    for alarm in (1e-2, 1e-9):
        low, high = interval(draws, chance, alarm)
        inside = [count for count in range(draws + 1) if tail(count, draws, chance) >= alarm]
        assert (low, high) == (inside[0], inside[-1])


@pytest.mark.parametrize(("draws", "chance"), [(5_000, 0.5), (20_000, 0.9), (60_000, 0.02), (200_000, 0.25)])
def test_a_wide_interval_is_little_wider_than_the_exact_one(draws, chance):
    low, high = interval(draws, chance, 1e-12)
    below, above = wide_interval(draws, chance, 1e-12)
    assert below <= low < high <= above
    assert above - below < 1.4 * (high - low)


def test_a_check_of_large_draws_decides_nothing_where_no_large_call_is_declared():
    small_only = EAGER.capabilities.model_copy(update={"query_length": Range(maximum=4), "key_length": Range(maximum=4)})
    entry = replace(EAGER, capabilities=small_only)
    for name in ("nothing_repeats", "every_rate", "many_draws"):
        evaluated = Evaluated(backend_under_test(entry), replace(PLAIN, Q=3, K=4, dropout=0.5))
        with pytest.raises(Inconclusive, match="no call"):
            BY_NAME[name].run(evaluated)
