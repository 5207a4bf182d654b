"""The n best are those of a plain stable sort, however the vocabulary is looked through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfkit.generate.top_k import GROUP, MIN_GROUPED, best, best_tokens, most_probable


def plainly(scores: Tensor, count: int) -> list[list[tuple[float, int]]]:
    rows = [
        sorted(((-score, index) for index, score in enumerate(row)), key=lambda one: one)[:count] for row in scores.tolist()
    ]
    return [[(-cost, index) for cost, index in row] for row in rows]


def progress(values: Tensor, indices: Tensor) -> list[list[tuple[float, int]]]:
    rows = zip(values.tolist(), indices.tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def drawn(*shape: int, levels: int | None, seed: int = 0) -> Tensor:
    """Numbers in general position, or of few levels, so that most are tied."""
    generator = torch.Generator().manual_seed(seed)
    if levels is None:
        return torch.randn(shape, generator=generator)
    return torch.randint(0, levels, shape, generator=generator).float()


@pytest.mark.parametrize("levels", [None, 2, 40])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_best_of_scores(count: int, levels: int | None) -> None:
    scores = drawn(7, 23, levels=levels)
    assert progress(*best(scores, count)) == plainly(scores, count)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [None, 3, 5000])
@pytest.mark.parametrize("vocabulary", [MIN_GROUPED - 1, MIN_GROUPED, 20 * GROUP, 20 * GROUP + 1, 21 * GROUP - 1])
@pytest.mark.parametrize("beams", [1, 5])
def test_the_best_words_are_the_best_of_all_sums(beams: int, vocabulary: int, levels: int | None) -> None:
    for seed in range(4):
        chances, totals = drawn(3, beams, vocabulary, levels=levels, seed=seed), drawn(3, beams, levels=levels, seed=9)
        if beams > 1:
            totals[1, 2:] = -torch.inf
        sums = (chances + totals[:, :, None]).flatten(1)
        for count in (1, 10):
            assert progress(*best_tokens(chances, totals, count)) == plainly(sums, count)


def test_a_tied_row_changes_no_other_row() -> None:
    """Ties lie beyond the groups that are searched: the lowest indices are of groups whose maximum equals others."""
    scores = drawn(3, 2, 20 * GROUP, levels=None)
    scores[1] = scores[1].round()
    totals = torch.zeros(3, 2)
    assert progress(*best_tokens(scores, totals, 10)) == plainly(scores.flatten(1), 10)


def test_the_last_words_of_a_vocabulary_are_looked_at() -> None:
    chances = torch.zeros(1, 2, 20 * GROUP + 3)
    chances[0, 1, -1], chances[0, 0, -3] = 2.0, 1.0
    values, indices = best_tokens(chances, torch.zeros(1, 2), 2)
    assert progress(values, indices) == [[(2.0, 2 * (20 * GROUP + 3) - 1), (1.0, 20 * GROUP)]]


def test_too_few_are_filled_up() -> None:
    values, indices = best(torch.tensor([[1.0, 2.0]]), 4)
    assert progress(values, indices) == [[(2.0, 1), (1.0, 0), (-torch.inf, 0), (-torch.inf, 0)]]


def test_nan_comes_first_and_changes_no_other_row() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, torch.nan], [1.0, 2.0, 2.0, 2.0], [-torch.inf, 3.0, -torch.inf, -torch.inf]])
    values, indices = best(scores, 2)
    assert values[0].isnan().tolist() == [True, False]
    assert indices[:2].tolist() == [[3, 0], [1, 2]]
    assert values[2].tolist() == [3.0, -torch.inf]


@pytest.mark.parametrize("levels", [None, 2, 3000])
@pytest.mark.parametrize("vocabulary", [7, MIN_GROUPED - 1, MIN_GROUPED, 20 * GROUP + 1, 21 * GROUP - 1])
def test_the_most_probable_is_the_first_of_the_largest(vocabulary: int, levels: int | None) -> None:
    logits = drawn(50, vocabulary, levels=levels)
    logits[0] = -torch.inf
    logits[1, -1], logits[2, 3] = 1e9, torch.nan
    assert most_probable(logits).tolist() == logits.argmax(1).tolist()
    assert most_probable(logits)[1] == vocabulary - 1
    assert most_probable(logits.t().contiguous().t()).tolist() == logits.argmax(1).tolist()
