"""Every two registered parts that can meet, in one model: a pairwise covering array of the whole catalogue."""

from __future__ import annotations

from itertools import islice, product

import pytest
import torch

from product.evaluated import Trial, causal, counts, round_trip, same_under_every_backend, sites_within_bounds, stepwise
from tfkit import load_catalogue
from whole_models.covering import covering, pairs_in, pairs_of
from whole_models.part_rows import PLAIN, factors_of, refusal, spec_of, untried

pytestmark = [pytest.mark.xdist_group("covering"), pytest.mark.exhaustive]  # the array is computed once

CATALOGUE = load_catalogue()
SLICES = 6


@pytest.fixture(scope="module")
def array():
    factors = factors_of(CATALOGUE)
    return covering(factors, {name: PLAIN[name] for name in factors}, lambda row: refusal(row, CATALOGUE))


def tried(row, number, device="cpu"):
    """What is asked of a row: its backend against float64, at every site and from end to end; the model itself."""
    trial = Trial(spec_of(row, CATALOGUE), CATALOGUE, lengths=(7, 6), seed=number, device=device)
    round_trip(trial)
    counts(trial)
    sites_within_bounds(trial, torch.float32, (row["backend"],))
    dtype = torch.float64 if device == "cpu" and row["backend"] != "eager" else torch.float32
    same_under_every_backend(trial, dtype, (row["backend"],))
    if row["shape"] != "encoder":
        assert causal(trial, row["backend"])
        assert stepwise(trial, (1, 3, 2), row["backend"])


def test_the_array_covers_every_pair_that_the_rules_allow(array, capsys):
    factors = factors_of(CATALOGUE)
    assert untried(CATALOGUE) == []
    every = set(pairs_of(factors))
    met = {pair for row in array.rows for pair in pairs_in(row)}
    assert met | set(array.excluded) == every
    assert not met & set(array.excluded)
    assert not any(refusal(row, CATALOGUE) for row in array.rows)
    with capsys.disabled():
        print(f"\n{len(array.rows)} models for {len(every)} pairs of parts; {len(array.excluded)} pairs cannot meet:")
        for ((_, one), (_, other)), reason in array.excluded.items():
            print(f"  {one} x {other}: {reason}")


@pytest.mark.parametrize("part", range(SLICES))
def test_every_pair_of_parts_keeps_every_promise(array, part):
    failed = []
    for number, row in islice(enumerate(array.rows), part, None, SLICES):
        try:
            tried(row, number)
        except Exception as reason:  # every broken row is reported, not the first alone
            failed.append(f"{dict(row)}: {type(reason).__name__}: {reason}")
    assert not failed, "\n".join(failed)


def test_the_full_product_keeps_every_promise(full_product):
    """Rows in the order of the product, the I-th of N slices of them; those that the rules refuse are counted. Four and a half
    million rows of the built-in parts at a third of a second each are two weeks of one core: hence the slices."""
    number, slices = full_product
    factors = factors_of(CATALOGUE)
    refused = kept = 0
    for index, values in islice(enumerate(product(*factors.values())), number - 1, None, slices):
        row = dict(zip(factors, values, strict=True))
        if refusal(row, CATALOGUE):
            refused += 1
            continue
        tried(row, index)
        kept += 1
    print(f"{kept} models tried, {refused} refused by the rules")
    assert kept + refused > 0
