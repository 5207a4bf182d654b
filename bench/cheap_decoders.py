"""Greedy decoding and beams of `transformer-fast` (SSRU) and `tiny-average` beside `transformer-tiny`: one sentence, random
weights, every search as long as the source. With int8 and a shortlist too.

    python bench/cheap_decoders.py [--beams 1] [--tokens 20] [--vocab 6000] [--ids 600]

It measures the CPU time of one thread. Other processes change it, so compare times of one run only.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed

import tfkit
from tfkit.cpu.int8 import fastest
from tfkit.cpu.packed_weight import SearchProducts, searching
from tfkit.doctor.installation import machine_here
from tfkit.generate import recorded_steps
from tfkit.nn.precision import round_weights

SPECS = Path(__file__).parent.parent / "specs"


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=6_000)
    parser.add_argument("--ids", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    catalogue = tfkit.load_catalogue()
    kernels = catalogue.entries("int8_kernel")
    changes = ["expect=null", "target.end_id=null", f"defaults.vocab_size={options.vocab}"]
    generator = torch.Generator().manual_seed(0)
    source, shortlist = (
        torch.randint(3, options.vocab, (size,), generator=generator) for size in (options.tokens, options.ids)
    )

    def candidate(name: str, int8: bool = False, **more: Any) -> Any:
        model = tfkit.build(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, changes), catalogue, seed=0).eval()
        if int8:
            round_weights(model, "int8", kernels)
        rules = {"source": source[None], "max_new_tokens": options.tokens, "graphs": recorded_steps(model), **more}

        def search() -> Any:
            with searching(SearchProducts(model.float32_kernels)):
                return (
                    tfkit.greedy(model, **rules)
                    if options.beams == 1
                    else tfkit.beam_search(model, beams=options.beams, **rules)
                )

        return search

    ways = {name: candidate(name) for name in ("transformer-tiny", "tiny-average", "transformer-fast")}
    ways["transformer-fast, shortlist"] = candidate("transformer-fast", shortlists=[shortlist])
    if fastest(kernels) is not None:
        ways["transformer-fast, int8, shortlist"] = candidate("transformer-fast", True, shortlists=[shortlist])
    seconds = timed(ways, options.rounds, clock=time.process_time)
    title = f"one sentence of {options.tokens} tokens, beams {options.beams}, {options.vocab:,} ids"
    return report(title, seconds, "transformer-tiny", options.json, machine=machine_here(), **vars(options))


if __name__ == "__main__":
    main()
