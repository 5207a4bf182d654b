"""`tfkit bench cpu`: rows follow from the times, a wrong kernel is found, and the file serves the commands that decode."""

from __future__ import annotations

import pytest
import torch

from tfkit_conformance.bench import products
from tfkit_conformance.bench.products import ProductSettings, best, exact_product, is_right, measure_products, rows_of

SMALL = ProductSettings(sizes=((6, 4), (3, 8)), rows=(1, 2, 5), rounds=1)


@pytest.mark.parametrize(
    ("times", "fastest"),
    [
        ({"mkl": 1.0, "onednn": 0.9, "transposed": 2.0, "packed": 0.5}, ("packed", "onednn")),
        ({"mkl": 1.0, "onednn": 0.96, "packed": 0.97}, ("mkl", "mkl")),  # differences within the margin
        ({"mkl": 1.0, "onednn": 1.2, "packed": 0.94}, ("packed", "mkl")),
        ({"mkl": 1.0, "transposed": 0.5, "packed": 0.49}, ("transposed", "transposed")),
        ({"onednn": 1.0, "transposed": 1.0}, ("onednn", "onednn")),  # MKL's product was wrong
    ],
)
def test_a_simpler_kernel_stays_unless_another_is_clearly_faster(times, fastest):
    assert best(times) == fastest


def test_rows_cover_every_number_once_and_neighbours_with_the_same_kernels_are_one():
    facts = {"threads": 1, "outputs": 6, "inputs": 4}
    slow, fast = {"mkl": 1.0, "onednn": 2.0}, {"mkl": 2.0, "onednn": 1.0}
    measured = [
        {**facts, "rows": rows, "microseconds": times}
        for rows, times in ((1, slow), (2, slow), (8, fast), (32, fast), (64, slow))
    ]
    assert [(row["rows"], row["fastest"]) for row in rows_of(measured)] == [
        ([1, 4], "mkl"), ([5, 45], "onednn"), ([46, 128], "mkl"),
    ]  # fmt: skip
    assert rows_of([]) == []


def test_the_check_accepts_every_order_of_summation_and_refuses_a_wrong_product(monkeypatch):
    x, weight, bias = torch.randn(5, 300), torch.randn(7, 300), torch.randn(7)
    in_parts = x[:, :100] @ weight[:, :100].t() + (x[:, 100:] @ weight[:, 100:].t() + bias)
    exact, bound = exact_product(x, weight, bias)
    assert is_right(in_parts, exact, bound)
    assert not is_right(x @ weight.t(), exact, bound)
    assert not is_right(torch.full((5, 7), torch.nan), exact, bound)
    assert not is_right((x.bfloat16() @ weight.bfloat16().t()).float() + bias, exact, bound)
    assert not is_right(in_parts[:4], exact, bound)
    monkeypatch.setattr(products, "PART", 3)
    for one, whole in zip(exact_product(x, weight, bias), (exact, bound), strict=True):
        torch.testing.assert_close(one, whole, rtol=1e-14, atol=1e-12)


@pytest.fixture
def kernels_with(monkeypatch):
    """`kernels_with(wrong)`: the kernels of a product, and in place of some those of `wrong(the right product)`."""

    def take(wrong):
        own = products.product_kernels

        def kernels(*arguments):
            found = own(*arguments)
            return {**found, **wrong(found["mkl"])}

        monkeypatch.setattr(products, "product_kernels", kernels)

    return take


def test_a_wrong_kernel_is_reported_and_never_chosen(kernels_with):
    def once(right):
        return {"onednn": lambda x: right(x) + (len(x) == 2), "packed": lambda x: right(x)[: len(x) - (len(x) == 5)]}

    kernels_with(once)
    table = measure_products(SMALL, "tfkit bench cpu")
    assert {"onednn: 2 rows with a weight of 3 x 8", "packed: 5 rows with a weight of 6 x 4"} <= set(table["wrong"])
    assert not {"onednn", "packed"} & {name for row in table["rows"] for name in (row["fastest"], row["unpacked"])}


def test_a_weight_without_a_right_product_has_no_row(kernels_with):
    kernels_with(lambda right: {name: lambda x: x[:0] for name in ("mkl", "onednn", "transposed")})
    table = measure_products(SMALL, "tfkit bench cpu")
    assert table["rows"] == []
    assert len(table["wrong"]) == 6


def test_threads_are_what_they_were_afterwards_and_an_interrupt_is_recorded(monkeypatch):
    before = torch.get_num_threads()
    table = measure_products(ProductSettings(sizes=((6, 4),), rows=(1,), threads=(1, 2), rounds=1), "")
    assert {row["threads"] for row in table["rows"]} == {1, 2}
    assert not table["wrong"]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(products, "_measure", interrupted)
    assert measure_products(SMALL, "")["interrupted"]
    assert torch.get_num_threads() == before


def test_a_clock_that_stands_still_gives_times_above_zero():
    times = products.medians({"mkl": lambda x: x, "onednn": lambda x: x}, torch.ones(1, 2), 3, lambda: 0.0)
    assert set(times.values()) == {1e-9}
    assert best(times) == ("mkl", "mkl")
