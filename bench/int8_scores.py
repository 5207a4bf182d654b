"""BLEU and chrF of a trained translator in float32, int8 and bfloat16, and how many lines are translated alike.

    python bench/int8_scores.py RUN --source test.en --target test.de [--beams 5] [--json FILE]

`int8` is what `--precision int8` does here; the other rows round small weights too, to int8 with each kernel of this processor,
and to bfloat16 where it has instructions for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from interleaved import versions

import tfkit
from tfkit.cpu import int8
from tfkit.cpu.bfloat16 import bfloat16_kernel_here
from tfkit.doctor.installation import machine_here
from tfkit.metrics import corpus_scores
from tfkit.nn import precision
from tfkit.slots.processor_kernels import Int8Kernel


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run or a model with tokenisers")
    parser.add_argument("--source", type=Path, required=True, help="a sentence per line")
    parser.add_argument("--target", type=Path, required=True, help="its translations")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines, references = (path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target))
    kernels = [kernel for kernel in tfkit.load_catalogue().entries("int8_kernel") if int8.is_supported(kernel)]
    kernels.sort(key=lambda kernel: kernel.relative_time)
    ways: dict[str, tuple[str, int, Int8Kernel | None]] = {"float32": ("float32", 0, None)}
    if kernels:
        ways["int8"] = "int8", int8.MIN_ELEMENTS, kernels[0]
    ways |= {f"all weights int8, {kernel.summary}": ("int8", 1, kernel) for kernel in kernels}
    if bfloat16_kernel_here() is not None:
        ways["all weights bfloat16"] = "bfloat16", 1, None
    usual = int8.MIN_ELEMENTS, precision.fastest
    rows: dict[str, Any] = {}
    first: list[str] = []
    try:
        for name, (chosen, least, kernel) in ways.items():
            int8.MIN_ELEMENTS, precision.fastest = least, lambda kernels, kernel=kernel: kernel  # type: ignore[assignment,misc]
            translator = tfkit.Translator.load(options.model, tfkit.Search(beams=options.beams), precision=chosen)
            started = time.process_time()
            texts = [each.text for each in translator.translate(lines)]
            seconds = time.process_time() - started
            first = first or texts
            scores = {metric: round(score.value, 2) for metric, score in corpus_scores(texts, references).items()}
            alike = sum(mine == its for mine, its in zip(texts, first, strict=True))
            rows[name] = {**scores, "lines_as_float32": alike, "cpu_seconds": round(seconds, 1)}
            print(f"{name}: {rows[name]}")
    finally:
        int8.MIN_ELEMENTS, precision.fastest = usual  # type: ignore[assignment]
    found = {
        "title": f"{translator.model.plan.name} in lower precisions, {len(lines)} sentences, {options.beams} beams",
        "command": " ".join(["python", *sys.argv]), **versions(),
        **{name: machine_here()[name] for name in ("processor", "instructions")}, "rows": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
