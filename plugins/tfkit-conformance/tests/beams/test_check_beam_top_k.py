"""Installed kernels pass, and each mistake is found by the law that is about it."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit import InputError
from tfkit.cpu.int8 import capabilities
from tfkit.generate.top_k import best_continuations, fastest, fastest_greedy, most_probable
from tfkit.plugin import BeamTopK
from tfkit_conformance import check_beam_top_k


@pytest.mark.parametrize("kernel", tfkit.load_catalogue().entries("beam_top_k"), ids=lambda kernel: kernel.name)
def test_the_installed_kernels_pass(kernel):
    found = capabilities()
    if not all(found.get(name) for name in kernel.needs):
        pytest.skip(f"not run: this processor has not {' and '.join(kernel.needs)}")
    report = check_beam_top_k(kernel)
    report.raise_for_failures()
    assert (report.name, report.verdict) == (kernel.name, "CONFORMANT")
    assert ("greedy" in {check.name for check in report.checks}) == (kernel.greedy is not None)
    worst = {check.name: check.worst for check in report.checks}
    assert 0.01 < worst["error bound"] <= 1


def test_the_fastest_that_the_processor_has_is_used():
    never = BeamTopK(name="never", summary="-", needs=("no_such_instructions",), select="nowhere:nothing", relative_time=0.01)
    slow = BeamTopK(name="slow", summary="-", needs=(), select="builtins:sorted", relative_time=2.0)
    quick = BeamTopK(name="quick", summary="-", needs=(), select="builtins:max", relative_time=0.02)
    assert fastest([slow, never, quick]) is max
    assert fastest([never]) is best_continuations
    assert fastest([]) is best_continuations


def test_greedy_decoding_uses_the_fastest_that_has_a_function_for_it():
    fields = {"summary": "-", "select": "nowhere:nothing", "greedy": "nowhere:nothing"}
    never = BeamTopK(name="never", **fields, needs=("no_such_instructions",), relative_time=0.01)
    without = BeamTopK(name="without", **{**fields, "greedy": None}, needs=(), relative_time=0.02)
    mine = BeamTopK(name="mine", **{**fields, "greedy": f"{__name__}:always_three"}, needs=(), relative_time=0.5)
    greedy = fastest_greedy([mine, without, never])
    assert greedy(torch.zeros(2, 5)).tolist() == [3, 3]
    assert greedy(torch.zeros(2, 5).double()).tolist() == [0, 0]
    assert greedy(torch.zeros(2, 5).to("meta")).device.type == "meta"
    assert torch.func.vmap(greedy)(torch.zeros(1, 2, 5)).tolist() == [[0, 0]]
    assert fastest_greedy([without, never]) is most_probable
    assert fastest_greedy([]) is most_probable


def always_three(logits):
    return torch.full((len(logits),), 3)


def plainly(logits, totals, count, *, before=None, after=None):
    """A plain selection; `before` changes the log-probabilities, `after` the results."""
    S, k = totals.shape
    log_probs = torch.log_softmax(logits, 1)
    if before is not None:
        log_probs = before(log_probs, logits)
    sums = (log_probs.view(S, k, -1) + totals[:, :, None]).flatten(1)
    order = sums.nan_to_num(torch.inf).argsort(dim=1, descending=True, stable=True)[:, :count]
    order = torch.nn.functional.pad(order, (0, max(0, count - sums.shape[1])))
    values = sums.gather(1, order)
    values[:, sums.shape[1] :] = -torch.inf
    values[:, 0] = torch.where(sums.isnan().any(1), torch.nan, values[:, 0])
    found = values, order, log_probs.view(S, -1).gather(1, order)
    return found if after is None else after(*found)


def half_precision(logits, totals, count):
    return plainly(logits, totals, count, before=lambda log_probs, _: log_probs.half().float())


def without_normaliser(logits, totals, count):
    return plainly(logits, totals, count, before=lambda _, logits: logits)


def without_totals(logits, totals, count):
    return plainly(logits, torch.zeros_like(totals), count)


def unsorted(logits, totals, count):
    return plainly(logits, totals, count, after=lambda *found: tuple(tensor.flip(1) for tensor in found))


def without_the_last_token(logits, totals, count):
    hidden = logits.clone()
    hidden[:, -1:] = -torch.inf if logits.shape[1] > 130 else hidden[:, -1:]
    _, order, _ = plainly(hidden, totals, count)
    values, _, log_probs = plainly(logits, totals, count)
    return values, order, log_probs


def each_beam_in_turn(logits, totals, count):
    """Only the first beam is searched."""
    (S, k), V = totals.shape, logits.shape[1]
    return plainly(logits.view(S, k, V)[:, 0], totals[:, :1], count)


def higher_index_first(logits, totals, count):
    (S, k), V = totals.shape, logits.shape[1]
    values, order, log_probs = plainly(logits.view(S, k, V).flip(1, 2).reshape(S * k, V), totals.flip(1), count)
    return values, k * V - 1 - order, log_probs


def zeros_fill_up(logits, totals, count):
    return plainly(logits, totals, count, after=lambda values, *rest: (values.clamp(min=-1e30), *rest))


def nan_is_skipped(logits, totals, count):
    return plainly(logits.nan_to_num(-torch.inf, posinf=-torch.inf), totals, count)


def nan_spreads(logits, totals, count):
    values, order, log_probs = plainly(logits, totals, count)
    return (values + torch.nan if bool(values.isnan().any()) else values), order, log_probs


def largest_of_the_batch(logits, totals, count):
    level = logits.max()
    sums = (logits - level).exp().sum(1, keepdim=True).clamp(min=1e-37).log()
    return plainly(logits, totals, count, before=lambda *_: (logits - level) - sums)


def noisy_batches(logits, totals, count):
    values, order, log_probs = plainly(logits, totals, count)
    return values * (1 + 2.0**-23 * (len(values) > 1)), order, log_probs


def overwrites_totals(logits, totals, count):
    found = plainly(logits, totals, count)
    totals -= 1
    return found


class Reuses:
    """Writes all results of one shape to the same memory."""

    def __init__(self):
        self.memory = {}

    def __call__(self, logits, totals, count):
        found = enumerate(plainly(logits, totals, count))
        return tuple(self.memory.setdefault((at, tensor.shape), torch.empty_like(tensor)).copy_(tensor) for at, tensor in found)


class Counts:
    """Rounds otherwise from the second call on."""

    def __init__(self):
        self.calls = 0

    def __call__(self, logits, totals, count):
        self.calls += 1
        values, order, log_probs = plainly(logits, totals, count)
        return values, order, log_probs * (1 + 2.0**-23 * (self.calls > 1))


def wrong_dtype(logits, totals, count):
    values, order, log_probs = plainly(logits, totals, count)
    return values, order.int(), log_probs


def beyond_the_vocabulary(logits, totals, count):
    values, order, log_probs = plainly(logits, totals, count)
    return values, order + 1, log_probs


def unable(logits, totals, count):
    raise RuntimeError("no room")


WRONG = {
    half_precision: "error bound", without_normaliser: "error bound", without_totals: "error bound",
    largest_of_the_batch: "error bound", unsorted: "largest", without_the_last_token: "largest", each_beam_in_turn: "largest",
    higher_index_first: "ties", zeros_fill_up: "impossible", nan_is_skipped: "not a number", nan_spreads: "not a number",
    noisy_batches: "sentence alone", overwrites_totals: "inputs", Counts: "inputs", Reuses: "inputs", wrong_dtype: "largest",
    beyond_the_vocabulary: "ties", unable: "ties",
}  # fmt: skip


def test_a_plain_selection_passes():
    check_beam_top_k(plainly).raise_for_failures()


@pytest.mark.parametrize(("wrong", "law"), WRONG.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_is_found_by_the_law_that_is_about_it(wrong, law):
    report = check_beam_top_k(wrong() if isinstance(wrong, type) else wrong, checks=[law])
    [found] = report.findings
    assert (found.check, report.verdict) == (law, "NONCONFORMANT")


def last_of_equal(logits):
    return logits.shape[1] - 1 - logits.flip(1).argsort(dim=1, descending=True, stable=True)[:, 0]


def skips_nan(logits):
    return logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(1)


def misses_the_last(logits):
    return logits[:, :-1].argmax(1) if logits.shape[1] > 130 else logits.argmax(1)


def takes_infinity_for_nan(logits):
    return torch.where(logits.isinf().any(1), logits.isinf().int().argmax(1), logits.argmax(1))


def in_32_bits(logits):
    return logits.argmax(1).int()


def overwrites_logits(logits):
    found = logits.argmax(1)
    logits.zero_()
    return found


@pytest.mark.parametrize(
    "wrong", [last_of_equal, skips_nan, misses_the_last, takes_infinity_for_nan, in_32_bits, overwrites_logits]
)
def test_mistakes_of_greedy_decoding_are_found(wrong):
    report = check_beam_top_k(plainly, greedy=wrong, checks=["greedy"])
    [found] = report.findings
    assert (found.check, report.verdict) == ("greedy", "NONCONFORMANT")
    check_beam_top_k(plainly, greedy=most_probable, checks=["greedy"]).raise_for_failures()


def test_the_first_violation_says_where():
    [found] = check_beam_top_k(half_precision, checks=["error bound"]).findings
    assert found.tensor == "log_probs"
    assert found.bound < abs(found.got - found.want)
    assert "3 sentences, 1 beams, 300 tokens, 10 asked for" in found.message


def test_unknown_laws_are_refused():
    with pytest.raises(InputError, match=r"there is no law `order`.*laws: error bound, largest"):
        check_beam_top_k(plainly, checks=["order"])
