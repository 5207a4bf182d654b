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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit.attention.types import AttentionInputs, AttentionOutput
from tfkit.builtin.attention import eager
from tfkit.catalogue import load_catalogue
from tfkit.plugin import NoOptions, require_capabilities
from tfkit_conformance.attention.backend_under_test import Attend, BackendUnderTest, backend_under_test
from tfkit_conformance.attention.compare import leaves_of
from tfkit_conformance.suite.conformance import check_backend


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


def sharing(subject: BackendUnderTest, rank: int, workers: int) -> tuple[Attend, list[int]]:
    """`eager`, beside which one of so many workers calls the backend; and the number of these calls, in a list."""
    made, check = [0], require_capabilities(subject.name, subject.capabilities)

    def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
        check(inputs)
        found = eager.attend(replace(inputs, prepared=None), NoOptions())
        if kind_of(inputs) % workers != rank:
            return found
        made[0] += 1
        other = subject.attend(inputs, options).output
        leaves = [leaf for leaf in leaves_of(inputs).values() if leaf.requires_grad]
        if not (other.requires_grad and found.output.requires_grad and leaves):
            return found
        return replace(found, output=Beside.apply(found.output, [other], leaves))

    return attend, made


def work(name: str, device: str, dtypes: list[str], rank: int, workers: int) -> dict[str, Any]:
    """One process's share."""
    entry = load_catalogue().find("backend", name)
    subject = backend_under_test(entry, device=device)
    attend, made = sharing(subject, rank, workers)
    report = check_backend(replace(subject, attend=attend), profile="quick", dtypes=dtypes, limit=600.0, shrink_steps=0)
    return {"calls": made[0], "seconds": report.seconds, "raised": [finding.message for finding in report.findings][:3]}


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
        print(json.dumps(found))
        return [found]
    state = time.perf_counter()
    given = [options.name, "--device", options.device, "--dtypes", options.dtypes, "--workers", str(options.workers)]
    started = [
        subprocess.Popen([sys.executable, __file__, *given, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(options.workers)
    ]
    said = [process.communicate()[0].splitlines() for process in started]
    rows = [json.loads(lines[-1]) for lines in said if lines]
    calls, seconds = sum(row["calls"] for row in rows), time.perf_counter() - state
    for message in {message for row in rows for message in row["raised"]}:
        print(message)
    print(f"{calls} calls of {options.name} in {len(rows)} of {options.workers} processes, {seconds:.0f} s")
    return rows


if __name__ == "__main__":
    main()
