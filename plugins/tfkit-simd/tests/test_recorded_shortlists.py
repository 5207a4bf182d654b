"""Recorded steps of searches with shortlists give what ordinary steps give."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from tfkit_simd import steps

import tfkit
from tfkit.cpu.low_precision import recording_lists
from tfkit.generate import RecordedSteps, recorded_steps
from tfkit.nn.precision import round_weights
from tfkit.nn.runtime.head_columns import listed_logits

from .test_steps import INSTRUCTIONS, built, counting, pytestmark, with_instructions

__all__ = ["pytestmark"]


def source(rows: int) -> torch.Tensor:
    return torch.randint(4, 60, (rows, 7), generator=torch.Generator().manual_seed(rows))


def shortlists_of(rows: int, draw: random.Random, vocabulary: int) -> list[list[int]]:
    return [[2, *draw.sample(range(3, vocabulary), draw.choice([1, 30, 90]))] for _ in range(rows)]


def greedy(model: tfkit.Model, graphs: RecordedSteps | None, **call: Any) -> tuple[list[list[int]], torch.Tensor]:
    found = tfkit.greedy(model, scores=True, graphs=graphs, **call)
    return found.ids.tolist(), found.log_probabilities


def beams(model: tfkit.Model, graphs: RecordedSteps | None, **call: Any) -> tuple[list[list[int]], torch.Tensor]:
    found = tfkit.beam_search(model, graphs=graphs, **call)
    hypotheses = [hypothesis for row in found for hypothesis in row]
    numbers = [[one.score, one.log_probability, *one.token_log_probabilities.tolist()] for one in hypotheses]
    return [one.ids.tolist() for one in hypotheses], torch.tensor([number for one in numbers for number in one])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", ["transformer-tiny", "transformer-fast", "tiny-parallel"])
def test_searches_find_what_ordinary_steps_find(name: str, instructions: str) -> None:
    draw = random.Random(name)
    models = [built(name, "nodes.target.start_id=1"), counting(name)]
    for turn in range(20):
        model = models[turn % 2]
        graphs, rows = with_instructions(model, instructions), draw.choice([1, 3, 9])
        vocabulary = model.plan.inputs["target"].vocab_size
        limits: Any = torch.tensor([draw.randint(1, 30) for _ in range(rows)]) if draw.random() < 0.5 else draw.choice([2, 30])
        few = draw.sample(range(3, vocabulary), draw.randint(1, 6)) if draw.random() < 0.5 else []
        call = {
            "source": source(rows), "max_new_tokens": limits, "shortlists": shortlists_of(rows, draw, vocabulary),
            "filters": [tfkit.score_filter("suppress", ids=[0, 1, *few])] if draw.random() < 0.7 else [],
        }  # fmt: skip
        if turn % 2:
            call["prompt"] = torch.randint(60, 90, (rows, 1), generator=torch.Generator().manual_seed(turn))
        width = draw.randint(1, 5)
        settings = {"beams": width, "n_best": draw.randint(1, width), "early_stopping": draw.choice(["never", True, False])}
        ranked = {"unfinished": draw.choice(["last", "ranked"])}
        for search in (greedy, partial(beams, **settings, **ranked)):
            (ids, numbers), (wanted, expected) = search(model, graphs, **call), search(model, None, **call)
            assert ids == wanted
            torch.testing.assert_close(numbers, expected, rtol=1e-4, atol=1e-4)
        assert len(graphs.steps) >= (0 if isinstance(limits, torch.Tensor) else 2), graphs.held.refused
        assert not graphs.held.refused


def test_a_row_has_the_bits_that_it_has_alone() -> None:
    model, rows, draw = built("transformer-tiny", "nodes.target.start_id=1"), 9, random.Random(5)
    lists, graphs = shortlists_of(rows, draw, 10_000), recorded_steps(model)
    ids, numbers = greedy(model, graphs, source=source(rows), max_new_tokens=12, shortlists=lists)
    for row in range(rows):
        alone, bits = greedy(
            model, recorded_steps(model), source=source(rows)[row : row + 1], max_new_tokens=12, shortlists=lists[row : row + 1]
        )
        assert alone[0] == ids[row][: len(alone[0])]
        # The first token is selected among the logits of all rows together.
        assert torch.equal(bits[0, 1:], numbers[row, 1 : len(bits[0])])


def test_these_searches_have_ordinary_steps() -> None:
    model, lists = built("transformer-tiny", "nodes.target.start_id=1"), [[2, 5, 6, 7], [2, 8, 9]]
    call = {"source": source(2), "max_new_tokens": 9, "shortlists": lists}
    emitted: list[Any] = []
    for other in (
        {"emit": lambda rows, ids: emitted.append(ids)}, {"filters": [lambda scores, prefix: scores]},
        {"prefixes": [[7], []]}, {"shortlists": [[1, 5, 6], [2, 8]]},
    ):  # fmt: skip
        graphs = recorded_steps(model)
        found, wanted = (tfkit.greedy(model, graphs=given, **{**call, **other}) for given in (graphs, None))
        assert torch.equal(found.ids, wanted.ids)
        assert graphs is not None
        assert not graphs.steps
    assert len(emitted) == 18


def test_a_head_in_int8_has_the_logits_of_a_shortlist_in_float32() -> None:
    model = built("transformer-tiny", "nodes.target.start_id=1")
    round_weights(model, "int8", tfkit.load_catalogue().entries("int8_kernel"))
    graphs, call = recorded_steps(model), {"source": source(3), "max_new_tokens": 9, "shortlists": [[2, *range(9, 300)]] * 3}
    for search in (greedy, partial(beams, beams=3)):
        (ids, numbers), (wanted, expected) = search(model, graphs, **call), search(model, None, **call)
        assert ids == wanted
        torch.testing.assert_close(numbers, expected, rtol=1e-4, atol=1e-4)
    assert graphs is not None
    assert len(graphs.steps) == 2


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (3, 5, 17, 40), (2, 16, 33, 128), (4, 1, 8, 7)])
def test_the_logits_of_lists_are_those_of_torch(size: tuple[int, int, int, int], biased: bool, instructions: str) -> None:
    lists, together, ids, inner = size
    record = steps.record_avx2 if instructions == "avx2" else steps.record_avx512
    x, weight = torch.randn(lists * together, inner), torch.randn(50, inner)
    bias, names = torch.randn(50) if biased else None, torch.randint(-1, 50, (lists, ids))
    weights = [weight] if bias is None else [weight, bias]

    def run() -> torch.Tensor:
        listed = recording_lists.get()
        assert listed is not None
        return listed(x + 0.0, names, weight, bias)

    replay, found = record(run, weights, {})
    for _ in range(2):
        x.normal_()
        names.random_(-1, 50)
        replay()
        torch.testing.assert_close(found, listed_logits(x, names, weight, bias), rtol=1e-5, atol=1e-5)
    names[-1, -1] = 50
    with pytest.raises(IndexError, match="that its tensor does not have"):
        replay()
