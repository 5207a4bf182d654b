"""Samples follow the model's distribution, cut as the settings say; a row's own seed decides, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from math import gamma
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import tfkit
from tfkit import Model
from tfkit.generate.sample import _draw, _uniforms

SOURCE = torch.randint(3, 11, (6, 5), generator=torch.Generator().manual_seed(3))
SOURCE[1, 3:] = 0
DRAWS = 4000


def cut(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> list[float]:
    """The equation with lists: the distribution over ids that is to be drawn from."""
    chances = (logits.double() / temperature).softmax(0).tolist()
    ranked = sorted(range(len(chances)), key=lambda word: (-chances[word], word))[:top_k]
    total = sum(chances[word] for word in ranked)
    kept, before = {}, 0.0
    for word in ranked:
        if top_p is not None and before >= top_p * total:
            break
        kept[word] = chances[word]
        before += chances[word]
    return [kept.get(word, 0.0) / sum(kept.values()) for word in range(len(chances))]


def chi_square(counts: list[int], chances: list[float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom, of outcomes that may happen; the others must not have."""
    assert not any(count for count, chance in zip(counts, chances, strict=True) if chance == 0.0)
    total = sum(counts)
    there = [(count, total * chance) for count, chance in zip(counts, chances, strict=True) if chance > 0.0]
    return sum((count - expected) ** 2 / expected for count, expected in there), len(there) - 1


def improbable(statistic: float, freedom: int) -> bool:
    """Whether chance alone exceeds the statistic less than once in 1,000: its density, summed from there on."""
    if freedom == 0:
        return statistic > 1e-9
    half, step = freedom / 2, 0.01
    points = (statistic + step * (number + 0.5) for number in range(20_000))
    tail = sum(x ** (half - 1) * 2.718281828459045 ** (-x / 2) for x in points) * step / (2**half * gamma(half))
    return tail < 1e-3


CUTS: dict[str, tuple[float, int | None, float | None]] = {
    "all": (1.0, None, None),
    "cold": (0.5, None, None),
    "hot": (3.0, None, None),
    "top 3": (1.0, 3, None),
    "top 1": (1.0, 1, None),
    "more than there are": (1.0, 99, None),
    "nucleus": (1.0, None, 0.8),
    "a small nucleus": (1.0, None, 0.01),
    "a whole nucleus": (1.0, None, 1.0),
    "both": (1.7, 6, 0.7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CUTS)
def test_the_draws_have_the_distribution(name: str, decoder_of: Callable[..., Model]) -> None:
    temperature, top_k, top_p = CUTS[name]
    model = decoder_of("translator")
    with torch.no_grad():
        logits = model(source=SOURCE[:1], target=torch.tensor([[1]]))["logits"][0, 0]
    wanted = cut(logits, temperature, top_k, top_p)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": 5}
    (found,) = tfkit.sample(model, source=SOURCE[:1], max_new_tokens=1, samples=DRAWS, **settings)
    counts = torch.tensor([int(one.ids[0]) for one in found]).bincount(minlength=11).tolist()
    statistic, freedom = chi_square(counts, wanted)
    assert not improbable(statistic, freedom), (counts, wanted)
    if name == "all":  # the test detects a distribution that is a little off
        assert improbable(*chi_square(counts, cut(logits, 1.2, None, None)))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.7, 5, None), (1.3, None, 0.8), (0.9, 9, 0.75), (2.0, 4, 1.0)]
)
def test_the_distribution_is_that_of_transformers(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Its warpers, in the order in which `generate` applies them. Ours by draws at evenly spaced numbers."""
    logits = 3 * torch.randn(1, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    warped = TemperatureLogitsWarper(temperature)(None, logits)
    warped = warped if top_k is None else TopKLogitsWarper(top_k)(None, warped)
    warped = warped if top_p is None else TopPLogitsWarper(top_p)(None, warped)
    count = 100_000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    ids = _draw(logits.expand(count, -1), uniforms, temperature, top_k, top_p)
    torch.testing.assert_close(
        torch.bincount(ids, minlength=40) / count, warped.softmax(1)[0], rtol=0, atol=2 / count, check_dtype=False
    )


def test_the_second_token_is_drawn_given_the_first(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    (found,) = tfkit.sample(model, prompt=torch.tensor([[1, 5]]), max_new_tokens=2, samples=DRAWS, seed=7)
    first = torch.tensor([int(one.ids[0]) for one in found if len(one.ids) == 2]).bincount(minlength=11).argmax()
    second = [int(one.ids[1]) for one in found if len(one.ids) == 2 and one.ids[0] == first]
    with torch.no_grad():
        logits = model(tokens=torch.tensor([[1, 5, int(first)]]))["logits"][0, -1]
    counts = torch.tensor(second).bincount(minlength=11).tolist()
    assert len(second) > 500
    assert not improbable(*chi_square(counts, cut(logits, 1.0, None, None)))


def test_every_number_leads_to_a_token_that_has_a_chance() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        for top_k, top_p in ((None, None), (2, None), (None, 0.9), (4, 0.99)):
            drawn = int(_draw(logits, torch.tensor([uniform], dtype=torch.float64), 1.0, top_k, top_p))
            assert drawn in (1, 3)


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-9, 1e-4])
def test_without_warmth_it_is_greedy(temperature: float, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    greedy = tfkit.greedy(model, source=SOURCE, max_new_tokens=9, scores=True).hypotheses()
    found = tfkit.sample(model, source=SOURCE, max_new_tokens=9, temperature=temperature, seed=1)
    for (one,), (other,) in zip(found, greedy, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.finished == other.finished
        assert one.log_probability == other.log_probability == one.score
        assert torch.equal(one.token_log_probabilities, other.token_log_probabilities)


def token_ids(found: list[list[tfkit.Hypothesis]]) -> list[list[list[int]]]:
    return [[one.ids.tolist() for one in row] for row in found]


def test_a_seed_decides_and_a_row_has_its_own(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    limits = torch.tensor([9, 4, 1, 9, 7, 2])
    together = token_ids(tfkit.sample(model, source=SOURCE, max_new_tokens=limits, samples=3, seed=4, temperature=3.0))
    assert together == token_ids(tfkit.sample(model, source=SOURCE, max_new_tokens=limits, samples=3, seed=4, temperature=3.0))
    assert together != token_ids(tfkit.sample(model, source=SOURCE, max_new_tokens=limits, samples=3, seed=5, temperature=3.0))
    for row in range(6):
        alone = {
            "source": SOURCE[row : row + 1],
            "max_new_tokens": int(limits[row]),
            "streams": [row],
            "seed": 4,
            "temperature": 3.0,
        }
        assert token_ids(tfkit.sample(model, samples=3, **alone)) == [together[row]]
        assert token_ids(tfkit.sample(model, samples=1, **alone)) == [together[row][:1]]
    assert len({str(one) for row in together for one in row}) > 10


def test_without_a_seed_torchs_generator_decides(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    torch.manual_seed(3)
    first, second = (token_ids(tfkit.sample(model, max_new_tokens=9, samples=4)) for _ in range(2))
    torch.manual_seed(3)
    assert token_ids(tfkit.sample(model, max_new_tokens=9, samples=4)) == first != second


def test_streams_and_samples_are_apart() -> None:
    drawn = _uniforms(2**64 - 1, [0, 1, 2**40], 3, 50)
    assert len(drawn.unique()) == 9 * 50
    assert float(drawn.min()) >= 0.0
    assert float(drawn.max()) < 1.0


def test_samples_have_the_models_probabilities_and_attention(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    sites = ["decoder.0.cross_attention", "decoder.1.self_attention"]
    found = tfkit.sample(model, source=SOURCE, max_new_tokens=6, temperature=2.0, top_k=5, seed=2, samples=2, attention=sites)
    for row, hypotheses in zip(SOURCE, found, strict=True):
        for one in hypotheses:
            ids = torch.tensor([[1, *one.ids.tolist()[:-1]]])
            with torch.no_grad():
                real = {"target": torch.ones_like(ids, dtype=torch.bool)}
                full = model(source=row[row != 0][None], target=ids, masks=real, weights=sites)
            chances = full["logits"][0].log_softmax(-1).gather(1, one.ids[:, None])[:, 0]
            torch.testing.assert_close(one.token_log_probabilities, chances)
            assert one.log_probability == pytest.approx(float(chances.sum()))
            for site, weights in one.attention.items():
                keys = full["weights"][site].shape[3]
                torch.testing.assert_close(weights[..., :keys], full["weights"][site][0])
                assert not bool(weights[..., keys:].any())
            assert one.attention.keys() == set(sites)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "colder than cold": ({"temperature": -1.0}, "TFK078.*temperature is -1.0"),
    "no temperature": ({"temperature": float("nan")}, "TFK078.*temperature is nan"),
    "top of none": ({"top_k": 0}, "TFK078.*top_k is 0"),
    "top of half": ({"top_k": 2.5}, "TFK078.*top_k is 2.5"),
    "an empty nucleus": ({"top_p": 0.0}, "TFK078.*top_p is 0.0"),
    "more than everything": ({"top_p": 1.1}, "TFK078.*top_p is 1.1"),
    "a negative seed": ({"seed": -1}, "TFK078.*seed is -1"),
    "no samples": ({"samples": 0}, "TFK078.*samples is 0"),
    "streams of other rows": ({"streams": [1]}, "TFK078.*1 streams and 6 rows"),
    "no tokens": ({"max_new_tokens": 0}, "TFK077"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_an_input_error(name: str, decoder_of: Callable[..., Model]) -> None:
    arguments, pattern = WRONG[name]
    with pytest.raises(tfkit.InputError, match=pattern):
        tfkit.sample(decoder_of("translator"), **{"source": SOURCE, "max_new_tokens": 3, **arguments})


def test_nan_logits_are_reported(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    with torch.no_grad():
        next(iter(model.nodes["decoder"].parameters())).fill_(torch.nan)
    with pytest.raises(tfkit.InputError, match=r"TFK077.*row 0 are NaN or infinite"):
        tfkit.sample(model, source=SOURCE, max_new_tokens=3, seed=1)
