"""Decoding with shortlists against decoding without, with equal numbers of tokens: a model with a large vocabulary and random
weights, in which every sentence continues to the same length.

    python bench/shortlist.py [--vocab 32000] [--ids 1200] [--beams 1] [--batch 1] [--precision float32]

Each sentence has `--ids` ids of its own, drawn at random with those that all have (`--common`), so that sentences share few.
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
from tfkit.cpu.packed_weight import SearchProducts, searching
from tfkit.doctor.installation import machine_here
from tfkit.generate import recorded_steps
from tfkit.nn.precision import round_weights

SPECS = Path(__file__).parent.parent / "specs"


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="base", choices=("tiny", "base"))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--ids", type=int, default=1_200)
    parser.add_argument("--common", type=int, default=100)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    catalogue = tfkit.load_catalogue()
    ends = ["target.start_id=1", "target.end_id=null", "expect=null", f"defaults.vocab_size={options.vocab}"]
    layers = [f"{name}.num_layers={options.layers}" for name in ("encoder", "decoder")] if options.layers else []
    spec = tfkit.load_spec(SPECS / f"transformer-{options.shape}.yaml", catalogue, [*ends, *layers])
    model = tfkit.build(spec, catalogue, seed=0).eval()
    if options.precision != "float32":
        round_weights(model, options.precision, catalogue.entries("int8_kernel"))
    generator, graphs = torch.Generator().manual_seed(0), recorded_steps(model)
    source = torch.randint(3, options.vocab, (options.batch, options.tokens), generator=generator)
    own = max(options.ids - options.common, 0)
    shortlists = [
        torch.cat([torch.arange(3, 3 + options.common), torch.randint(3, options.vocab, (own,), generator=generator)])
        for _ in range(options.batch)
    ]

    def search(**more: Any) -> Any:
        with searching(SearchProducts(model.float32_kernels)):
            if options.beams == 1:
                return tfkit.greedy(model, source=source, max_new_tokens=options.tokens, graphs=graphs, **more).ids
            return tfkit.beam_search(
                model, source=source, beams=options.beams, max_new_tokens=options.tokens, graphs=graphs, **more
            )

    seconds = timed(
        {"all ids": search, "shortlists": lambda: search(shortlists=shortlists)}, options.rounds, clock=time.process_time
    )
    title = f"{options.shape}, {options.vocab:,} ids, batch {options.batch}, beams {options.beams}, {options.precision}"
    columns = int(torch.cat(shortlists).unique().numel())
    return report(title, seconds, "all ids", options.json, columns=columns, machine=machine_here(), **vars(options))


if __name__ == "__main__":
    main()
