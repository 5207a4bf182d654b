"""Host time of one call of tfkit-fused beside a bare SDPA call on tiny tensors, with a driver that launches nothing.

    python bench/fused_overhead.py --json bench/results/fused_overhead_cpu.json

All that Python does before a kernel runs is done: checks, the choice of tiles, allocation, the launch of Triton's compiled
kernel up to the call of its C launcher. Times are processor times of this thread, and of the rounds the least, which noise only
adds to.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tfkit_fused
import torch
import triton
from tfkit_fused.attend import attend
from torch.nn.functional import scaled_dot_product_attention

from tfkit.attention.types import AttentionInputs, Mask

sys.path[:0] = [str(Path(__file__).parents[1] / "plugins" / "tfkit-fused" / "tests")]
import aot  # noqa: E402


def microseconds(call: Callable[[], Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls * 1e6


def cases() -> dict[str, Callable[[], Any]]:
    query, key, value = (torch.randn(2, 8, 64, 64, dtype=torch.float16) for _ in range(3))
    single = query[:, :, :1]
    options, tiny = tfkit_fused.FusedOptions(), torch.randn(1, 1, 1, 8)
    learning = query.clone().requires_grad_()
    tiny_learning, grad = tiny.clone().requires_grad_(), torch.ones_like(query)

    def forward(query: torch.Tensor, offset: int) -> torch.Tensor:
        with torch.no_grad():
            return attend(AttentionInputs(query, key, value, Mask(causal=True, offset=offset), 0.125), options).output

    def trained() -> None:
        output = attend(AttentionInputs(learning, key, value, Mask(causal=True, offset=0), 0.125), options).output
        torch.autograd.grad(output, learning, grad)

    def bare_trained() -> None:
        output = scaled_dot_product_attention(tiny_learning, tiny, tiny)
        torch.autograd.grad(output, tiny_learning, output)

    def bare() -> None:
        with torch.no_grad():
            scaled_dot_product_attention(tiny, tiny, tiny)

    return {
        "bare SDPA": bare, "fused": lambda: forward(query, 0), "fused, one query": lambda: forward(single, 63),
        "bare SDPA with backward": bare_trained, "fused with backward": trained,
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    with aot.without_a_device(90):
        calls = cases()
        for call in calls.values():
            call()
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(options.rounds):
            for name, call in calls.items():
                best[name] = min(best[name], microseconds(call, options.calls))
    found = {
        "title": "host time of one call, microseconds of processor time, driver stubbed",
        "command": "python bench/fused_overhead.py --json bench/results/fused_overhead_cpu.json",
        "microseconds": {name: round(figure, 1) for name, figure in best.items()}, "python": platform.python_version(),
        "torch": torch.__version__, "triton": triton.__version__, "processor": platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    for name, figure in best.items():
        print(f"{name}: {figure:.1f} us")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    return found


if __name__ == "__main__":
    main()
