"""Every installed beam top-k selects what a stable sort in float64 selects, and NaN and ties are defined."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.generate.top_k import best_continuations, fastest
from tfkit.nn.cpu.int8 import capabilities
from tfkit.plugin import BeamTopK
from tfkit.slots.lazy import load

KERNELS: list[BeamTopK] = tfkit.load_catalogue().entries("beam_top_k")
SHAPES = [(3, 1, 300, 10), (4, 5, 10_000, 10), (2, 3, 37_001, 6), (2, 2, 7, 4), (5, 4, 131, 8), (1, 1, 128, 1), (6, 5, 999, 64)]
"""Sentences, beams, vocabulary, count."""


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request: pytest.FixtureRequest) -> BeamTopK:
    found, entry = capabilities(), request.param
    if not all(found.get(name) for name in entry.needs):
        pytest.skip(f"not run: this processor has not {' and '.join(entry.needs)}")
    return entry  # type: ignore[no-any-return]


def drawn(S: int, k: int, V: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(S * k, V, generator=generator), -torch.rand(S, k, generator=generator)


def selected(kernel: BeamTopK, logits: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    return load(kernel.select)(logits.clone(), totals, count)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("S", "k", "V", "count"), SHAPES)
def test_the_best_are_those_of_a_sort_in_float64(kernel: BeamTopK, S: int, k: int, V: int, count: int) -> None:
    logits, totals = drawn(S, k, V)
    values, indices, log_probs = selected(kernel, logits, totals, count)
    exact = torch.log_softmax(logits.double(), 1).view(S, k * V)
    sums = (exact.view(S, k, V) + totals.double()[:, :, None]).flatten(1)
    assert values.shape == indices.shape == log_probs.shape == (S, count)
    assert (values.dtype, indices.dtype, log_probs.dtype) == (torch.float32, torch.int64, torch.float32)
    assert torch.equal(indices, sums.argsort(dim=1, descending=True, stable=True)[:, :count])
    torch.testing.assert_close(values.double(), sums.gather(1, indices), rtol=0, atol=4e-6)
    torch.testing.assert_close(log_probs.double(), exact.gather(1, indices), rtol=0, atol=4e-6)


@pytest.mark.parametrize("V", [40, 3000])
def test_of_equal_values_the_lower_index_comes_first(kernel: BeamTopK, V: int) -> None:
    logits, totals = torch.zeros(6, V), torch.tensor([[-1.0, -1.0, -2.0], [-2.0, -1.0, -1.0]])
    _, indices, _ = selected(kernel, logits, totals, 7)
    assert indices.tolist() == [list(range(7)), list(range(V, V + 7))]
    logits[2, 5] = 20.0
    values, indices, _ = selected(kernel, logits, totals, 4)
    assert indices[0].tolist() == [2 * V + 5, 0, 1, 2]
    assert values[0].tolist() == sorted(values[0].tolist(), reverse=True)


def test_fewer_candidates_than_asked_for_are_filled_up(kernel: BeamTopK) -> None:
    logits, totals = drawn(2, 1, 3)
    totals[1] = -torch.inf
    values, indices, _ = selected(kernel, logits, totals, 5)
    assert sorted(indices[0, :3].tolist()) == [0, 1, 2]
    assert values[0, 3:].tolist() == [-torch.inf] * 2
    assert values[1].tolist() == [-torch.inf] * 5
    assert bool(((indices >= 0) & (indices < 3)).all())


def test_an_unused_beam_is_not_selected(kernel: BeamTopK) -> None:
    logits, totals = drawn(2, 2, 500)
    totals[:, 0] = -torch.inf
    _, indices, _ = selected(kernel, logits, totals, 8)
    assert bool((indices >= 500).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 77, 999])
def test_nan_is_the_first_value_of_its_sentence_alone(kernel: BeamTopK, bad: float, at: int) -> None:
    logits, totals = drawn(3, 2, 1000)
    right = selected(kernel, logits, totals, 4)
    logits[3, at] = bad
    values, indices, log_probs = selected(kernel, logits, totals, 4)
    assert bool(values[1, 0].isnan())
    for found, expected in zip((values, indices, log_probs), right, strict=True):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_tokens_without_probability_are_not_selected(kernel: BeamTopK) -> None:
    logits, totals = drawn(1, 1, 1000)
    logits[:, ::2] = -torch.inf
    values, indices, _ = selected(kernel, logits, totals, 6)
    assert bool((indices % 2 == 1).all())
    assert bool(values.isfinite().all())


def test_a_sentence_alone_has_the_bits_it_has_in_a_batch(kernel: BeamTopK) -> None:
    logits, totals = drawn(7, 5, 2500)
    together = selected(kernel, logits, totals, 10)
    for sentence in range(7):
        alone = selected(kernel, logits[5 * sentence : 5 * sentence + 5], totals[sentence : sentence + 1], 10)
        for found, expected in zip(alone, together, strict=True):
            assert torch.equal(found[0], expected[sentence])


def test_the_fastest_that_the_processor_has_is_used() -> None:
    never = BeamTopK(name="never", summary="-", needs=("no_such_instructions",), select="nowhere:nothing", relative_time=0.01)
    slow = BeamTopK(name="slow", summary="-", needs=(), select="builtins:sorted", relative_time=2.0)
    quick = BeamTopK(name="quick", summary="-", needs=(), select="builtins:max", relative_time=0.02)
    assert fastest([slow, never, quick]) is max
    assert fastest([never]) is best_continuations
    assert fastest([]) is best_continuations
