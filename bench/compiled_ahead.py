"""What the conformance suite will compile, compiled by many processes at once: a backend whose kernels are compiled for every
kind of call, as Triton's are, and kept on disk, needs a thousand and more, a second each.

    python bench/compiled_ahead.py fused --dtypes bfloat16 --workers 14

Each process runs the quick suite on `eager` as if it were the backend: cases follow from the declaration and the seed, so these
are the calls of the suite. The backend makes its share of them too, forward and backward; what it gives is not evaluated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tfkit.attention.types import AttentionInputs, AttentionOutput
from tfkit.builtin.attention import eager
from tfkit.catalogue import load_catalogue
from tfkit.plugin import NoOptions, require_capabilities
from tfkit_conformance.attention.backend_under_test import Attend, backend_under_test
from tfkit_conformance.attention.compare import leaves_of
from tfkit_conformance.suite.conformance import check_backend


@dataclass
class Counted:
    """Kernels that Triton found in its cache on disk, and those that it compiled."""

    found: int = 0
    compiled: int = 0

    def __str__(self) -> str:
        return f"{self.found} kernels from the cache, {self.compiled} compiled"


@contextmanager
def counted() -> Iterator[Counted]:
    """Counts, by Triton's own word, how kernels are got meanwhile; none where Triton is not installed."""
    kernels = Counted()

    def listener(*, cache_hit: bool, **others: Any) -> None:
        kernels.found += cache_hit
        kernels.compiled += not cache_hit

    if find_spec("triton") is None:
        yield kernels
        return
    from triton import knobs

    with knobs.compilation.scope():
        knobs.compilation.listener = listener
        yield kernels


class Beside(torch.autograd.Function):
    """The output as it is; its gradient is also sent through that of another call, which autograd must not see."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, other: list[Tensor], leaves: list[Tensor]) -> Tensor:
        ctx.other, ctx.leaves = other, leaves
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        torch.autograd.grad(ctx.other, ctx.leaves, gradient, allow_unused=True, retain_graph=True)
        return gradient, None, None


def kind_of(inputs: AttentionInputs) -> int:
    """A number for all that a compiler may see of a call: equal calls are made by the same process."""
    bias = list(vars(inputs.bias).values()) if inputs.bias is not None else []
    seen = [inputs.query, inputs.key, inputs.value, *vars(inputs.mask).values(), type(inputs.bias).__name__, *bias,
            inputs.softcap is None, inputs.dropout > 0.0]  # fmt: skip
    words = [(tuple(each.shape), each.stride(), str(each.dtype)) if isinstance(each, Tensor) else each for each in seen]
    return zlib.crc32(repr(words).encode())


def beside_eager(attend: Attend, rank: int, workers: int, made: list[int]) -> Attend:
    """`eager`, beside which one of so many workers calls the backend; `made` gets an entry for each of these calls."""

    def attend_both(inputs: AttentionInputs, options: Any) -> AttentionOutput:
        found = eager.attend(replace(inputs, prepared=None), NoOptions())
        if kind_of(inputs) % workers != rank:
            return found
        made.append(rank)
        other = attend(inputs, options).output
        leaves = [leaf for leaf in leaves_of(inputs).values() if leaf.requires_grad]
        if not (other.requires_grad and found.output.requires_grad and leaves):
            return found
        return replace(found, output=Beside.apply(found.output, [other], leaves))

    return attend_both


def work(name: str, device: str, dtypes: list[str], rank: int, workers: int) -> dict[str, Any]:
    """One process's share."""
    subject = backend_under_test(load_catalogue().find("backend", name), device=device)
    made: list[int] = []
    both, check = beside_eager(subject.attend, rank, workers, made), require_capabilities(subject.name, subject.capabilities)

    def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
        check(inputs)
        return both(inputs, options)

    with counted() as kernels:
        report = check_backend(replace(subject, attend=attend), profile="quick", dtypes=dtypes, limit=600.0, shrink_steps=0)
    return {
        "calls": len(made),
        "found": kernels.found,
        "compiled": kernels.compiled,
        "seconds": report.seconds,
        "raised": [finding.message for finding in report.findings][:3],
    }


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--rank", type=int, help="of one process alone, which prints what it did")
    options = parser.parse_args(words)
    if options.rank is not None:
        torch.set_num_threads(1)
        found = work(options.name, options.device, options.dtypes.split(","), options.rank, options.workers)
        print(json.dumps(found, allow_nan=False))
        return [found]
    state = time.perf_counter()
    given = [options.name, "--device", options.device, "--dtypes", options.dtypes, "--workers", str(options.workers)]
    started = [
        subprocess.Popen([sys.executable, __file__, *given, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(options.workers)
    ]
    said = [process.communicate()[0].splitlines() for process in started]
    rows = [json.loads(lines[-1]) for lines in said if lines]
    kernels = Counted(sum(row["found"] for row in rows), sum(row["compiled"] for row in rows))
    calls, seconds = sum(row["calls"] for row in rows), time.perf_counter() - state
    for message in {message for row in rows for message in row["raised"]}:
        print(message)
    print(f"{calls} calls of {options.name} in {len(rows)} of {options.workers} processes, {seconds:.0f} s; {kernels}")
    return rows


if __name__ == "__main__":
    main()
