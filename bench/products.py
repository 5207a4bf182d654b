"""The three products of a linear map in training, y = x W^T + b, dx = dy W and dW = dy^T x: MKL against oneDNN, shape by shape.

    python bench/products.py [--threads 1] [--rounds 15]

Processor time where there is one thread. `tfkit/cpu/products.py` rests on these ratios. On a processor for
which the rule chooses MKL, run it to check the rule.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from interleaved import report, timed
from torch.nn import functional

from tfkit.cpu import products

SHAPES = "1500x128x128 3000x128x128 2000x128x256 2000x256x128 2000x128x6000 2000x512x512 2000x512x2048 2000x2048x512"
Ways = dict[str, Callable[[], Any]]


def ways_of_products(rows: int, inner: int, outer: int) -> dict[str, Ways]:
    """The rivals of each product; oneDNN with either operand of dW as the columns."""
    x, weight, bias, gradient = (torch.randn(*size) for size in ((rows, inner), (outer, inner), (outer,), (rows, outer)))
    product = products.product
    return {
        "y": {"MKL": lambda: functional.linear(x, weight, bias), "oneDNN": lambda: product(x, weight, bias)},
        "dx": {"MKL": lambda: gradient @ weight, "oneDNN": lambda: product(gradient, weight.t())},
        "dW": {
            "MKL": lambda: gradient.t() @ x,
            "oneDNN": lambda: product(gradient.t(), x.t()),
            "oneDNN, longer as columns": lambda: product(x.t(), gradient.t()).t().contiguous(),
        },
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, help="rows x in x out, several in quotes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    products.PRODUCT = products.probe()
    if products.PRODUCT is None:
        raise SystemExit("this torch has no oneDNN")
    clock = time.process_time if options.threads == 1 else time.perf_counter
    billions: dict[str, dict[str, float]] = {}
    total: dict[str, list[float]] = {"MKL": [0.0] * options.rounds, "oneDNN": [0.0] * options.rounds}
    for shape in options.shapes.split():
        rows, inner, outer = (int(size) for size in shape.split("x"))
        for name, ways in ways_of_products(rows, inner, outer).items():
            seconds = timed(ways, options.rounds, clock=clock)
            row = {way: 2e-9 * rows * inner * outer / median(taken) for way, taken in seconds.items()}
            billions[f"{name} {shape}"] = {way: round(rate, 1) for way, rate in row.items()}
            taken = {"MKL": seconds["MKL"], "oneDNN": seconds[max((way for way in row if way != "MKL"), key=row.__getitem__)]}
            for way, all_of in taken.items():
                total[way] = [sum(pair) for pair in zip(total[way], all_of, strict=True)]
            print(f"{name:3} {shape:15} " + "   ".join(f"{way} {rate:.0f}" for way, rate in row.items()))
    facts = {
        "billion_operations_per_second": billions,
        "vendor": products.vendor(),
        "the_rule_says_oneDNN": products.is_faster(),
    }
    return report("all products of the shapes, the faster way of oneDNN", total, "MKL", options.json, **facts)


if __name__ == "__main__":
    main()
