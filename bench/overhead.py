"""What tfkit adds to one attention call: the sdpa backend through choice and dispatch, less a bare SDPA call on equal tensors.

The mask is rendered beforehand, as a stack does once for all its layers."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import report
from torch.nn.functional import scaled_dot_product_attention

import tfkit
from tfkit.attention.dispatch import attend
from tfkit.attention.types import AttentionInputs, Mask, Shapes

SPEC = Path(__file__).parent.parent / "specs" / "transformer-tiny.yaml"


def per_call(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    query, key, value = torch.randn(3, 1, 4, 4, 8)
    choice = next(iter(tfkit.build(SPEC, backend="sdpa").attention_sites()))[0].choices[0]
    scale, mask = 8**-0.5, Mask(causal=True, offset=0)
    call = AttentionInputs(query, key, value, mask, scale)
    backend = choice.select(call)
    assert backend.prepare is not None
    prepared = backend.prepare(mask, None, Shapes(1, 4, 4, 4, query.dtype, query.device), backend.options)

    def through() -> None:
        attend(choice.select(call), AttentionInputs(query, key, value, mask, scale, prepared=prepared))

    def bare() -> None:
        scaled_dot_product_attention(query, key, value, None, 0.0, True, scale=scale)

    with torch.no_grad():
        candidates = {"bare SDPA": bare, "tfkit": through}
        for candidate in candidates.values():
            per_call(candidate, options.calls)
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(options.rounds):
            for name, candidate in candidates.items():
                seconds[name].append(per_call(candidate, options.calls))
    added = statistics.median(a - b for a, b in zip(seconds["tfkit"], seconds["bare SDPA"], strict=True))
    print(f"tfkit adds {1e6 * added:.1f} microseconds to a call")
    return report("one attention call", seconds, "bare SDPA", options.json, added_microseconds=1e6 * added)


if __name__ == "__main__":
    main()
