"""Rule A7: dropout keeps a weight with probability 1 - p and scales it by 1/(1-p), by one draw per call of torch's generator.

    values      each kept weight is 0 or P/(1-p)                share     kept pairs ~ Binomial(n, 1-p), and pair by pair
    one draw    the gradients are those of the factors that the forward pass drew, read out under the same generator state
    threads     the same, while other threads draw: sum dO O = sum dV V of each key/value head, because O is linear in V
    no sharing  two heads, batch rows, queries or calls agree on n pairs with probability (p^2 + (1-p)^2)^n only
    generator   same state, same draw, for any values; every call advances the generator by a step that depends on shapes only

Statistical checks give a false alarm with probability `ALARM` at most, each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise, product
from random import Random

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import gradients_of
from ..attention.elements import arranged
from ..attention.evaluated import Evaluated, backward_of, bounds_of, in_range, run, run_backward
from ..attention.reference import reference
from ..attention.score_functions import negated_product, without_score
from ..differences import first_of
from ..finding import Inconclusive, Violation
from ..raised import format_exception
from .draws import (
    drawn_factors,
    flat,
    generator_state,
    kept_draws,
    kept_pairs,
    kept_weights,
    own_generator,
    set_generator_state,
)
from .fitting import undeclared
from .paired_calls import at_once, leaf_copies, wants_gradients, within
from .relation import Demand, Relation


def tail(successes: int, draws: int, chance: float) -> float:
    """The probability of a count at least as far out, on its own side, as the one that was found, times 2 for both sides."""
    below = successes <= draws * chance
    steps = range(successes, -1, -1) if below else range(successes, draws + 1)
    total = 0.0
    for count in steps:
        term = _probability(count, draws, chance)
        total += term
        if term <= total * 1e-17:
            break  # the rest falls at least geometrically, or is 0 like this term
    return min(1.0, 2 * total)


@lru_cache(maxsize=4096)
def interval(draws: int, chance: float, alarm: float) -> tuple[int, int]:
    """The smallest and the largest count whose `tail` is at least `alarm`."""
    middle = round(draws * chance)

    def last(far: int) -> int:
        """The count farthest from the middle towards `far` that is likely enough, by bisection: tails only fall outwards."""
        near = middle
        if tail(far, draws, chance) >= alarm:
            return far
        while abs(far - near) > 1:
            between = (near + far) // 2
            near, far = (between, far) if tail(between, draws, chance) >= alarm else (near, between)
        return near

    return last(0), last(draws)


def wide_interval(draws: int, chance: float, alarm: float) -> tuple[int, int]:
    """As `interval`, and quick for many draws: there the tail of a normal distribution, and a fifth more, because a binomial
    one differs from it."""
    variance = draws * chance * (1 - chance)
    if variance < 1000:
        return interval(draws, chance, alarm)
    away = math.ceil(1.2 * math.sqrt(2 * variance * math.log(2 / alarm)))
    return max(0, round(draws * chance) - away), min(draws, round(draws * chance) + away)


def _probability(count: int, draws: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(count == draws * chance)
    ways = math.lgamma(draws + 1) - math.lgamma(count + 1) - math.lgamma(draws - count + 1)
    return math.exp(ways + count * math.log(chance) + (draws - count) * math.log1p(-chance))


ALARM = 1e-9
DRAWS = 96
"""Draws per case of the statistical checks."""

CALLS, BITS = 1000, 128
THREADS, TURNS = 3, 20
ROWS = 1600
"""So many rows of a draw are compared with each other."""

COMPARISONS = 1024
"""More pairs of draws are not compared in one case."""


def _kept_weights_are_scaled(evaluated: Evaluated) -> float:
    """One read-out at the case's own queries: each element is 0 or what the reference says."""
    check, inputs = "kept_weights_are_scaled", evaluated.inputs
    with own_generator(evaluated.subject.device, evaluated.case.seed):
        state = generator_state(evaluated.subject.device)
        drawn = drawn_factors(evaluated)
        set_generator_state(evaluated.subject.device, state)
        kept = kept_weights(evaluated.subject, inputs)
    identity = torch.eye(evaluated.case.K, dtype=inputs.query.dtype, device=inputs.query.device)
    value = identity.expand(evaluated.case.B, evaluated.case.G, -1, -1)
    due = in_range(reference(replace(inputs, value=value), drawn=drawn))
    allowed = bounds_of(due, evaluated.subject.capabilities.numerics, evaluated.subject.tf32)
    factor = 1 / (1 - inputs.dropout)
    because = f"is neither 0 nor its weight times {factor:g} under dropout {inputs.dropout:g}, read out by one-hot values"
    return within(check, "output", kept, due.output, allowed.output, because)


def _share(evaluated: Evaluated) -> None:
    """All visible pairs of all draws together, and each pair over the draws."""
    check, p = "kept_share", evaluated.inputs.dropout
    with own_generator(evaluated.subject.device, evaluated.case.seed):
        kept = kept_draws(evaluated, DRAWS)
    visible = evaluated.visible
    pairs = int(visible.sum())
    if not pairs:
        return
    together, draws = int(kept[:, visible].sum()), DRAWS * pairs
    if tail(together, draws, 1 - p) < ALARM / 2:
        low, high = interval(draws, 1 - p, ALARM / 2)
        raise Violation(check, f"dropout {p:g} keeps {together} of {draws} weights; {low} to {high} are likely",
                        got=together / draws, want=1 - p)  # fmt: skip
    counts = kept.sum(0)
    low, high = interval(DRAWS, 1 - p, ALARM / 2 / pairs)
    wrong = visible & ((counts < low) | (counts > high))
    if bool(wrong.any()):
        count = int(counts[wrong][0])
        raise _violation(check, wrong, f"dropout {p:g} keeps a weight in {count} of {DRAWS} draws, {low} to {high} are likely:")


def _nothing_is_shared(evaluated: Evaluated) -> None:
    with own_generator(evaluated.subject.device, evaluated.case.seed):
        kept = kept_draws(evaluated, DRAWS)
    visible = evaluated.visible[None].expand(kept.shape)
    for axis, name in enumerate(("calls one after another", "batch rows", "heads", "query rows", "keys")):
        for one, other in _pairs(kept.shape[axis]):
            _differ(evaluated, name, kept.select(axis, one), kept.select(axis, other),
                    visible.select(axis, one) & visible.select(axis, other), one, other)  # fmt: skip


def _nothing_repeats(evaluated: Evaluated) -> float:
    """One draw of many rows and one of many keys: no two rows and no two keys share theirs; forward and backward agree."""
    check = "nothing_repeats"
    large = _large(evaluated.subject, replace(evaluated.case, dropout=0.5))
    for case, gradients in product(large, (True, False)):  # a kernel may take another path without gradients
        with torch.set_grad_enabled(gradients):
            kept = _drawn(evaluated.subject, replace(case, gradients=gradients and evaluated.subject.capabilities.backward)) > 0
        B, H, Q, K = kept.shape
        some = sorted({*range(0, Q, -(-Q * B * H // ROWS)), *range(min(Q, 8))})
        rows = [f"query row {i} of batch row {b}, head {h}" for b, h, i in product(range(B), range(H), some)]
        _check_unlike(check, kept[:, :, some].flatten(0, 2), rows)
        _check_unlike(check, kept.permute(3, 0, 1, 2).flatten(1), [f"key {j}" for j in range(K)])
    _no_far_keys_repeat(check, evaluated.subject, evaluated.case, LONG + evaluated.case.seed % LONG)
    return _one_draw_per_call(evaluated)


def _no_part_repeats(evaluated: Evaluated) -> None:
    """Of draws with p = 1/2, as signs s: for every shift (d, e) and heads g, h the sum of s_g(i,j) s_h(i+d,j+e) is as small as
    by chance, |sum| <= sqrt(2 n log(2 M / ALARM)) for n terms and M sums (Hoeffding). Tiles that share a draw make it large,
    wherever they lie."""
    check, choose = "no_part_repeats", Random(evaluated.case.seed + 1)
    if choose.random() < 0.15:
        _no_far_keys_repeat(check, evaluated.subject, evaluated.case, round(1000 * 30 ** choose.random()))
    _no_part_of_call_repeats(check, evaluated.subject, evaluated.inputs, evaluated.case.seed)
    unusual = _unusual_sizes(evaluated.case, evaluated.subject, choose)
    if unusual is not None:
        _no_part_of_call_repeats(check, evaluated.subject, unusual.inputs(evaluated.subject.device), unusual.seed)


def _unusual_sizes(case: Case, subject: BackendUnderTest, choose: Random) -> Case | None:
    """Many heads, many rows or many keys, in half of the calls."""
    two_tiles = 2 * max(_tile_sizes(subject)) + 9
    H, Q, K = choose.choice(((67, 2, two_tiles), (1, MOST_COINS // 9, 9), (1, 130, MOST_COINS // 130)))
    for V in (256, 128, 64, case.D) if choose.random() < 0.5 else ():
        for D in (8, V):
            tried = Case(H=H, G=H, Q=Q, K=K, D=D, V=V, dtype=case.dtype, dropout=0.5, seed=case.seed)
            if subject.accepts(tried.request(subject.device)):
                return tried
    return None


def _no_part_of_call_repeats(check: str, subject: BackendUnderTest, inputs: AttentionInputs, seed: int) -> None:
    """Of two calls one after the other, where they are small."""
    with own_generator(subject.device, seed):
        draws = [kept_pairs(subject, inputs)]
        if draws[0].numel() <= MOST_COINS_OF_TWO:
            draws.append(kept_pairs(subject, inputs))
    B, H, Q, K = draws[0].shape
    kept = torch.stack(draws)
    planes = kept.flatten(0, 2).double() * 2 - 1
    size = [_transformed(2 * length - 1) for length in (Q, K)]
    spectra = torch.fft.rfft2(planes, s=size)
    terms = torch.fft.irfft2(torch.fft.rfft2(torch.ones(Q, K, dtype=torch.float64), s=size).abs() ** 2, s=size).round()
    sums = len(planes) * (len(planes) + 1) // 2 * terms.numel()
    allowed = (2 * terms * math.log(2 * sums / ALARM)).sqrt()
    for one in range(len(planes)):
        products = torch.fft.irfft2(spectra[one].conj() * spectra[one:], s=size)
        products[0, 0, 0] = 0.0  # a draw with itself
        wrong = products.abs() > allowed + 0.5
        if bool(wrong.any()):
            other, down, right = first_of(wrong)
            count, most = round(float(products[other, down, right])), int(terms[down, right])
            down, right = (step - length * (step >= most) for step, length, most in ((down, size[0], Q), (right, size[1], K)))
            heads = " and ".join(
                f"head {at % H} of batch row {at // H % B} of call {at // H // B + 1}" for at in sorted({one, one + other})
            )
            message = (
                f"the draw of {heads}, {Q} queries and {K} keys, comes again {down} queries and {right} keys further on: "
                f"{(most + count) // 2} of {most} places agree"
            )
            raise Violation(check, message)


def _no_far_keys_repeat(check: str, subject: BackendUnderTest, case: Case, K: int) -> None:
    """No two keys of a long row share their coins, of any distance: read are s neighbours and every s-th key, between which
    every distance occurs."""
    dtype = "float32" if "float32" in subject.capabilities.dtypes else case.dtype
    for Q, D in product((64, 128), (64, 32, 128, 16, case.D)):
        tried = Case(Q=Q, K=K, D=D, V=D, dtype=dtype, dropout=0.5, seed=case.seed)
        if subject.accepts(tried.request(subject.device)):
            break
    else:
        return
    step = math.isqrt(K) + 1
    keys = torch.cat([torch.arange(step), torch.arange(step, K, step)])
    with own_generator(subject.device, case.seed), torch.no_grad():
        kept = kept_pairs(subject, tried.inputs(subject.device), keys)
    _check_unlike(check, kept[0, 0].mT, [f"of {K} keys, key {key}" for key in keys.tolist()])


def _transformed(length: int) -> int:
    """The next size that a Fourier transform computes quickly."""
    return next(size for size in range(length, 2 * length + 1) if _rest(size) == 1)


def _rest(number: int) -> int:
    for prime in (2, 3, 5):
        while number % prime == 0:
            number //= prime
    return number


def _check_unlike(check: str, kept: Tensor, names: Sequence[str]) -> None:
    """(N,M) bool, N draws of M numbers each: no two agree, or disagree, more often than by chance; nor do parts of 64."""
    N, M = kept.shape
    signs = kept.float() * 2 - 1
    for start in (0, *range(64, M - 63, 64)):
        part = signs if start == 0 else signs[:, start : start + 64]
        length = part.shape[1]
        low, high = interval(length, 0.5, ALARM / N**2)
        agreeing = (part @ part.T + length) / 2
        agreeing.fill_diagonal_(length / 2)
        wrong = (agreeing < low) | (agreeing > high)
        if bool(wrong.any()):
            one, other = first_of(wrong)
            message = f"{names[one]} and {names[other]} share a draw: {int(agreeing[one, other])} of {length} places agree"
            raise Violation(check, f"{message}, {low} to {high} are likely")


LONG = 33_000
"""More keys than 15 bits count, and than 256 tiles of 128 keys hold."""
MOST_COINS, MOST_COINS_OF_TWO = 130_000, 40_000
"""Of a draw in which no part repeats; of one that is compared with that of the next call."""
RATES = (0.02, 0.1, 0.25, 0.4, 0.6, 0.75, 0.9, 0.998)


def _rates(subject: BackendUnderTest) -> list[float]:
    """Rates of every size, and those beside the numbers of the source."""
    near = [number for number in subject.source.floats if 0.001 < number < 0.999][:8]
    return sorted({*RATES, *(rate for number in near for rate in (number - 0.01, number, number + 0.01) if 0 < rate < 1)})


def _every_rate(evaluated: Evaluated) -> None:
    """Of a large draw at each rate: how often every head, row and key is dropped, and what is kept, 1/(K(1-p))."""
    check, subject = "every_rate", evaluated.subject
    rates = [*_rates(subject), 0.9999, 1 - 10 ** -Random(evaluated.case.seed).uniform(3, 4)]
    smallest = min(_large(subject, evaluated.case), key=lambda case: case.B * case.H * case.Q * case.K)
    for case, p in product([smallest], rates):
        weights = _drawn(subject, replace(case, dropout=p))
        kept = weights > 0
        due = 1 / case.K / (1 - p)
        wrong = kept & ((weights - due).abs() > due / 64)
        if bool(wrong.any()):
            index = first_of(wrong)
            message = (
                f"dropout {p:g} makes a weight of 1/{case.K} {float(weights[index]):.6g}, and {due:.6g} is 1/(1-p) times it"
            )
            raise Violation(check, message, tensor="weights", index=index)
        for axis, name in enumerate(("batch row", "head", "query row", "key")):
            counts = kept.sum([other for other in range(4) if other != axis])
            draws = kept.numel() // kept.shape[axis]
            low, high = wide_interval(draws, 1 - p, ALARM / len(rates) / sum(kept.shape))
            wrong = (counts < low) | (counts > high)
            if bool(wrong.any()):
                [first] = first_of(wrong)
                count = int(counts[first])
                message = f"dropout {p:g} keeps {count} of {draws} weights of {name} {first}; {low} to {high} are likely"
                raise Violation(check, message, got=count / draws, want=1 - p)
    for dtype in sorted({evaluated.case.dtype, *subject.capabilities.dtypes} - {"float64"}):
        _check_rare(check, subject, replace(evaluated.case, dtype=dtype))


def _check_rare(check: str, subject: BackendUnderTest, case: Case) -> None:
    """The share at rates so small that a coin of 16 bits never drops: of `RARE_WEIGHTS` weights, each 1/K
    by the sums of rows."""
    B, H, L = 50, 30, 64
    for D in (8, 16, 32, 64, 128, case.D):
        tried = Case(B=B, H=H, G=H, Q=L, K=L, D=D, V=D, dtype=case.dtype, dropout=0.5, seed=case.seed)
        if subject.accepts(tried.request(subject.device)):
            break
    else:
        return
    for p in (1e-5, 10 ** (-4.5 + case.seed % 16 / 10))[: 2 if case.dtype == "float32" else 1]:
        inputs = flat(replace(tried, dropout=p).inputs(subject.device))
        with own_generator(subject.device, case.seed), torch.no_grad():
            sums = run(subject, replace(inputs, value=torch.ones_like(inputs.value)), check).output[..., 0]
        _check_sums(check, sums, L, p, f" in {case.dtype}")


def _check_sums(check: str, sums: Tensor, K: int, p: float, where: str) -> None:
    """The share of K weights of 1/K that each of these rows dropped, by their sums."""
    draws, counts = sums.numel() * K, (K * (1 - sums.detach().double() * (1 - p))).round()
    dropped, (low, high) = round(float(counts.sum())), interval(draws, p, ALARM)
    if K * p >= 1 and bool((counts == counts.flatten()[0]).all()):  # without dropout each sum is 1: the share is right
        raise Violation(check, f"dropout {p:.3g} drops as many weights of each of {sums.numel():,} rows{where}, or none")
    if not low <= dropped <= high:
        message = f"dropout {p:.3g} drops {dropped} of {draws:,} weights{where}; {low} to {high} are likely"
        raise Violation(check, message, got=dropped / draws, want=p)


def _drops_when_compiled(evaluated: Evaluated) -> None:
    """As `compiled`: Dynamo's state is cleared first."""
    check, subject = "drops_when_compiled", evaluated.subject
    case = replace(evaluated.case, gradients=False, weights=False, lse=False)
    inputs = flat(case.inputs(subject.device))
    inputs = replace(inputs, value=torch.ones_like(inputs.value))
    torch._dynamo.reset()
    traced = torch.compile(lambda: subject.attend(inputs, subject.options).output, backend="aot_eager")
    with own_generator(subject.device, case.seed), torch.no_grad():
        try:
            output = traced()
        except Exception as reason:  # any exception of tracing is reported
            message = f"a call with dropout fails under torch.compile: {format_exception(reason)}"
            raise Violation(check, message) from reason
    _check_sums(check, output[..., 0], case.K, case.dropout, " when the call is compiled")


def _many_draws(evaluated: Evaluated) -> None:
    """No draw comes again in `CALLS` calls: generators of 16 bits repeat theirs."""
    subject, inputs = evaluated.subject, evaluated.inputs
    seen: dict[bytes, int] = {}
    with own_generator(subject.device, evaluated.case.seed):
        for call in range(CALLS):
            kept = kept_weights(subject, inputs) > 0
            if kept.numel() < BITS:
                raise Inconclusive(f"no call is declared whose draw of {BITS} weights is read at once")
            bits = kept.numpy().tobytes()
            if bits in seen:
                raise Violation("many_draws", f"calls {seen[bits]} and {call} have the same draw of {len(bits)} weights")
            seen[bits] = call


def _read_at_once(case: Case, subject: BackendUnderTest) -> Case:
    """A call whose draw of at least 128 weights is read by one call."""
    dropping = _dropping(case, subject)
    for D in (16, 32, 64, 128, case.D):
        tried = Case(Q=max(1, 256 // D), K=D, D=D, V=D, dtype=case.dtype, dropout=0.5, seed=case.seed)
        if subject.accepts(tried.request(subject.device)):
            return tried
    return dropping


def _large(subject: BackendUnderTest, case: Case) -> list[Case]:
    """Calls of many query rows, of many batch rows and heads, and of many keys, of those that the backend takes."""
    large = []
    for B, H, Q, K, dims in (
        (3, 5, 700, 0, (128, 64, 32, 16)),
        (40, 35, 2, 0, (64, 32, 128, 16)),
        (2, 4, 8, 1000, (128, 64, 32, 16)),
    ):
        for D in (*dims, case.D):
            tried = Case(B=B, H=H, G=H, Q=Q, K=K or D, D=D, V=D, dtype=case.dtype, dropout=case.dropout, seed=case.seed)
            if subject.accepts(tried.request(subject.device)):
                large.append(tried)
                break
    if not large:
        raise Inconclusive("no call of many rows or keys is declared")
    return large


def _drawn(subject: BackendUnderTest, case: Case) -> Tensor:
    """(B,H,Q,K), of queries that read all keys alike: 1/(K(1-p)), or 0 where a weight was dropped."""
    with own_generator(subject.device, case.seed):
        return kept_weights(subject, flat(case.inputs(subject.device)))


def _pairs(size: int) -> list[tuple[int, int]]:
    """Neighbours, and the first with the last."""
    pairs = list(pairwise(range(size)))
    return [*pairs, (0, size - 1)] if size > 2 else pairs


def _differ(evaluated: Evaluated, name: str, one: Tensor, other: Tensor, both: Tensor, first: int, second: int) -> None:
    """Two draws that agree on every pair: unlikely enough, or shared."""
    p, count = evaluated.inputs.dropout, int(both.sum())
    by_chance = count * math.log(p**2 + (1 - p) ** 2)
    if by_chance > math.log(ALARM / COMPARISONS) or bool(((one != other) & both).any()):
        return
    raise Violation("nothing_is_shared", f"{name} {first} and {second} share one dropout draw: all {count} pairs agree, which "
                    f"has a chance of 1 in 10^{-by_chance / math.log(10):.0f}")  # fmt: skip


def _same_state_same_draw(evaluated: Evaluated) -> None:
    subject, inputs = evaluated.subject, evaluated.inputs
    representable = evaluated.reference.weights > 4 * torch.finfo(evaluated.case.torch_dtype).tiny
    readings = (
        ("when values name the keys in another order", flat(inputs), True, evaluated.visible),
        ("for other queries and biases", inputs, False, evaluated.visible & representable),
        ("when heads and places of a query are exchanged in memory", _heads_last(flat(inputs)), True, evaluated.visible),
    )
    with own_generator(subject.device, evaluated.case.seed):
        state = generator_state(subject.device)
        first = drawn_factors(evaluated) > 0
        set_generator_state(subject.device, state)
        with torch.no_grad():  # as a reentrant checkpoint calls it first
            alone = drawn_factors(evaluated) > 0
        if bool((alone != first).any()):
            raise _violation(
                "same_state_same_draw", alone != first, "the same generator state gives another draw without gradients: see"
            )
        for words, other, backwards, readable in readings:
            set_generator_state(subject.device, state)
            again = kept_weights(subject, other, backwards) > 0
            wrong = evaluated.visible & ((again & ~first) | (~again & first & readable))
            if bool(wrong.any()):
                raise _violation("same_state_same_draw", wrong, f"the same generator state gives another draw {words}: see")


def _heads_last(inputs: AttentionInputs) -> AttentionInputs:
    query = inputs.query.detach()
    return replace(inputs, query=arranged(query, "heads_last", str(query.device)).requires_grad_(inputs.query.requires_grad))


def _generator_moves(evaluated: Evaluated) -> None:
    check, subject, device = "generator_moves", evaluated.subject, evaluated.subject.device
    other = replace(replace(evaluated.case, seed=evaluated.case.seed + 1).inputs(device), mask=evaluated.inputs.mask)
    after = []
    with own_generator(device, evaluated.case.seed):
        state = generator_state(device)
        for inputs in (evaluated.inputs, other, leaf_copies(evaluated.inputs, value=torch.zeros_like(evaluated.inputs.value))):
            set_generator_state(device, state)
            run(subject, inputs, check)
            after.append(generator_state(device))
    if torch.equal(after[0], state) and bool(evaluated.visible.any()):  # a call that sees no key may draw nothing
        raise Violation(check, "a call with dropout leaves torch's generator where it was: the next drops the same weights")
    if not (torch.equal(after[0], after[1]) and torch.equal(after[0], after[2])):
        raise Violation(check, "how far a call moves torch's generator depends on its numbers, not on its sizes alone")


def _one_draw_per_call(evaluated: Evaluated) -> float:
    """Output, lse, weights and gradients against the reference with the factors that were drawn; recomputation included. Some
    calls have a score function, where any is declared."""
    subject, device, worst = evaluated.subject, evaluated.subject.device, 0.0
    if "*" in subject.capabilities.scores and evaluated.case.seed % 4 == 1:
        evaluated = Evaluated(subject, evaluated.case)
        evaluated.inputs = replace(evaluated.inputs, **negated_product(evaluated.inputs))
    with own_generator(device, evaluated.case.seed):
        state = generator_state(device)
        drawn = drawn_factors(evaluated)
        set_generator_state(device, state)
        inputs = leaf_copies(evaluated.inputs)
        answer = run(subject, inputs, "one_draw_per_call")
        gradients: dict[str, Tensor] = {}
        again: dict[str, Tensor] = {}
        if wants_gradients(inputs):
            if evaluated.case.seed % 2:
                run(subject, leaf_copies(evaluated.inputs), "one_draw_per_call")  # a draw that the backward pass must not take
            moved = generator_state(device)
            if evaluated.case.seed % 3 == 0:  # a first backward pass, after which the second has the same draw
                with backward_of(subject, "one_draw_per_call"):
                    gradients_of(answer.output, inputs, evaluated.grad_output, retain_graph=True)
            gradients = run_backward(subject, answer, inputs, evaluated.grad_output, "one_draw_per_call")
            if not torch.equal(generator_state(device), moved):
                raise Violation("one_draw_per_call", "the backward pass moves torch's generator")
            set_generator_state(device, state)
            again = _recomputed(evaluated)
    _check_no_draw_twice("one_draw_per_call", evaluated, drawn > 0)
    due = in_range(reference(without_score(evaluated.inputs), evaluated.grad_output, drawn))
    allowed = bounds_of(due, evaluated.subject.capabilities.numerics, evaluated.subject.tf32)
    forward = (("output", answer.output, due.output, allowed.output), ("lse", answer.lse, due.lse, allowed.lse),
               ("weights", answer.weights, due.weights, allowed.weights))  # fmt: skip
    for name, got, want, bound in forward:
        if got is not None:
            words = "does not agree with the dropout draw" if name == "output" else "is not that before dropout"
            worst = max(worst, within("one_draw_per_call", name, got, want, bound, f"{words}, by more than its bound"))
    for how, computed in (("", gradients), (" when the call is checkpointed", again)):
        for name, gradient in computed.items():
            because = f"is not that of the draw of the forward pass{how}, by more than its bound"
            want, bound = due.gradients[name], allowed.gradients[name]
            worst = max(worst, within("one_draw_per_call", f"gradient of {name}", gradient, want, bound, because))
    return worst


def _one_draw_in_threads(evaluated: Evaluated) -> None:
    """Forward and backward in several threads at once, again and again."""
    check, case, subject = "one_draw_in_threads", evaluated.case, evaluated.subject
    if not case.gradients:
        raise Inconclusive("no call with gradients is declared")

    def repeat(inputs: AttentionInputs, sent: Tensor) -> None:
        for _ in range(TURNS):
            leaves = leaf_copies(inputs)
            answer = run(subject, leaves, check)
            gradient = run_backward(subject, answer, leaves, sent, check)["value"]
            terms = (sent.double() * answer.output.detach().double()).view(case.B, case.G, -1, case.Q, case.V)
            off = terms.sum((2, 3, 4)) - (gradient.double() * leaves.value.detach().double()).sum((2, 3))
            wrong = off.abs() > terms.square().sum((2, 3, 4)).sqrt() / 8  # another draw is off by all of it
            if bool(wrong.any()):
                row, head = first_of(wrong)
                where = f"key/value head {head} of batch row {row}"
                raise Violation(check, f"beside other threads the gradient of value is that of another draw: {where}")

    calls = [replace(case, seed=case.seed + number) for number in range(THREADS)]
    with own_generator(subject.device, case.seed):
        at_once([partial(repeat, call.inputs(subject.device), call.grad_output(subject.device)) for call in calls])


def _check_no_draw_twice(check: str, evaluated: Evaluated, kept: Tensor) -> None:
    """(B,H,Q,K) bool: no two heads of any batch rows, of those with the same visible pairs, have the same draw."""
    p, (B, H, _, _) = evaluated.inputs.dropout, kept.shape
    visible = evaluated.visible.expand(kept.shape).flatten(0, 1)
    least = math.log(ALARM / (B * H) ** 2) / math.log(p**2 + (1 - p) ** 2)  # of so many pairs, all agree too seldom by chance
    seen: dict[tuple[bytes, bytes], int] = {}
    for at, (drawn, pairs) in enumerate(zip(kept.flatten(0, 1) & visible, visible, strict=True)):
        if int(pairs.sum()) < least:
            continue
        first = seen.setdefault((pairs.numpy().tobytes(), drawn.numpy().tobytes()), at)
        if first != at:
            (row, head), (other, other_head) = divmod(first, H), divmod(at, H)
            heads = f"head {head} of batch row {row} and head {other_head} of batch row {other}"
            raise Violation(check, f"{heads} share one dropout draw: all {int(pairs.sum())} visible pairs agree")


def _recomputed(evaluated: Evaluated) -> dict[str, Tensor]:
    inputs = leaf_copies(evaluated.inputs)

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return evaluated.subject.call(replace(inputs, query=query, key=key, value=value)).output

    with backward_of(evaluated.subject, "one_draw_per_call"):
        attended = checkpoint(output, inputs.query, inputs.key, inputs.value, use_reentrant=False)
        return gradients_of(attended, inputs, evaluated.grad_output)


def _violation(check: str, wrong: Tensor, words: str) -> Violation:
    index = first_of(wrong)
    where = f"query row {index[2]} of batch row {index[0]}, head {index[1]}, key {index[3]}"
    return Violation(check, f"{words} {where}", tensor="weights", index=index)


def _dropping(case: Case, subject: BackendUnderTest) -> Case:
    """The case with dropout, where it is declared."""
    if not subject.capabilities.dropout:
        return case
    rates = _rates(subject)
    return replace(case, dropout=case.dropout or rates[case.seed % len(rates)])


def _returning_all(case: Case, subject: BackendUnderTest) -> Case:
    """The case with dropout that asks for what is declared beside the output: weights and log-sum-exp before dropout."""
    dropping = _dropping(case, subject)
    asking = replace(dropping, weights=subject.capabilities.weights != "none", lse=subject.capabilities.lse)
    return asking if subject.accepts(asking.request(subject.device)) else dropping


def _often(case: Case, subject: BackendUnderTest) -> Case:
    """A small call with a high dropout rate, so that few draws suffice."""
    if not subject.capabilities.dropout:
        return case
    dropping = replace(case, dropout=(0.5, 0.3)[case.seed % 2], gradients=False, bias_gradient=False)
    small = replace(dropping, Q=min(case.Q, 8), K=min(case.K, case.V))
    return small if subject.accepts(small.request(subject.device)) else dropping


def _many_tiles(case: Case, subject: BackendUnderTest) -> Case:
    """Two tiles of 64 queries and keys and some more. A wide value dim reads the draw out in few calls."""
    dropping = _dropping(case, subject)
    plain = Case(B=1, H=3, G=3, Q=130, K=130, dtype=case.dtype, dropout=dropping.dropout, seed=case.seed)
    for D, length, gradients in product((64, 32, 16, case.D), (130, 128), (subject.capabilities.backward, False)):
        tried = replace(plain, D=D, V=D, Q=length, K=length, gradients=gradients)
        if subject.accepts(tried.request(subject.device)):
            return tried
    return dropping


def _tile_sizes(subject: BackendUnderTest) -> list[int]:
    """The numbers of the source that may be sizes of tiles. Where there are none: sizes that most kernels have."""
    return [number for number in subject.source.integers if 8 <= number <= 170] or [16, 32, 64, 128]


def _tiles(case: Case, subject: BackendUnderTest) -> Case:
    """Two or three times a number of the source, and some more, of queries and of keys. Two of the largest hold two of all."""
    choose = Random(case.seed)
    sizes = _tile_sizes(subject)

    def length() -> int:
        tile = max(sizes) if choose.random() < 0.6 else choose.choice(sizes)
        return choose.choice((2, 2, 3)) * tile + choose.randint(1, 9)

    Q, K, heads = length(), length(), choose.choice((1, 1, 2, 3))
    tried = [(heads, Q, K), (1, Q, K), *((1, max(1, MOST_COINS // size), size) for size in (K, Q))]
    for H, q, k in tried:
        if H * q * k <= MOST_COINS:
            for V in (k, 256, 128, 64, 32, 16, 8, case.D):
                for D in (8, V, case.D):
                    plain = Case(H=H, G=H, Q=q, K=k, D=D, V=V, dtype=case.dtype, dropout=0.5, seed=case.seed)
                    if V <= 512 and subject.accepts(plain.request(subject.device)):
                        return plain
    return _dropping(case, subject)


def _relation(name: str, summary: str, run: Callable[[Evaluated], float | None], demand: Demand = "exact",
              adapt: Callable[[Case, BackendUnderTest], Case] = _dropping, slow: bool = False) -> Relation:  # fmt: skip
    return Relation(name, "A7", summary, demand, run, "A7", adapt, (undeclared("dropout"),), draws=True, slow=slow)


DROPOUT = (
    _relation("kept_weights_are_scaled", "Each weight is dropped, or kept times 1/(1-p).", _kept_weights_are_scaled, "bound"),
    _relation("one_draw_per_call",
              "Forward, backward and recomputation use one draw; log-sum-exp and weights are those before dropout.",
              _one_draw_per_call, "bound", adapt=_returning_all),
    _relation("one_draw_in_threads", "Forward and backward use one draw while other threads draw, too.", _one_draw_in_threads,
              adapt=_many_tiles, slow=True),
    Relation("drops_when_compiled", "A7", "A compiled call drops as many weights as it should.", "exact", _drops_when_compiled,
             "A7", _many_tiles, (undeclared("dropout"), undeclared("compile")), draws=True, slow=True),
    _relation("kept_share", "Each pair is kept with probability 1-p.", _share, adapt=_often),
    _relation("nothing_is_shared", "Calls, batch rows, heads, queries and keys have independent draws.", _nothing_is_shared,
              adapt=_often),
    _relation("nothing_repeats", "No two query rows of any heads, and no two keys, have like draws.",
              _nothing_repeats, "bound", adapt=_many_tiles, slow=True),
    _relation("every_rate", "At rates from 0.00001 to 0.9999 every head, row and key is dropped as often as it should be.",
              _every_rate, adapt=_many_tiles, slow=True),
    _relation("no_part_repeats", "No part of a draw comes again in another place of it.", _no_part_repeats, adapt=_tiles),
    _relation("many_draws", "A thousand calls have a thousand draws.", _many_draws, adapt=_read_at_once, slow=True),
    _relation("same_state_same_draw", "The same generator state gives the same draw for any values.",
              _same_state_same_draw),
    _relation("generator_moves", "A call advances the generator by a step that depends on its sizes only.", _generator_moves),
)  # fmt: skip
