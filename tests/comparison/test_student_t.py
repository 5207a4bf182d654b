"""Student's t against published quantiles (Abramowitz and Stegun, table 26.10) and closed forms."""

import math

import pytest

from tfkit.comparison.results import central_probability, paired_difference, quantile


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)])
def test_quantiles_of_the_table(degrees, t):
    assert quantile(0.95, degrees) == pytest.approx(t, abs=5e-4)
    assert central_probability(quantile(0.95, degrees), degrees) == pytest.approx(0.95)


def test_closed_forms():
    assert central_probability(1.0, 1) == pytest.approx(0.5)
    assert central_probability(2.0, 2) == pytest.approx(2 / math.sqrt(6))


def test_differences_are_paired_by_seed():
    """The spread between seeds is 100 times the difference, which is found nevertheless."""
    base = {0: 10.0, 1: 50.0, 2: 90.0, 3: 70.0}
    other = {0: 11.0, 1: 51.1, 2: 90.9, 4: 0.0}
    found = paired_difference(other, base)
    assert (found.seeds, found.sign) == (3, 1)
    assert found.mean == pytest.approx(1.0)
    assert found.high - found.low == pytest.approx(2 * 4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert paired_difference({}, base).seeds == 0
    assert paired_difference(base, base).p == 1.0
