"""Milliseconds of a decoding step and of a training step on a CUDA device, with and without CUDA graphs.

    python bench/recorded.py [--shape base] [--sentences 64] [--tokens 8192] [--json OUT]
    python bench/recorded.py --recorder --shape tiny --sentences 1      # decoding on a CPU, with tfkit-simd

Decoding: `tfkit.greedy` and a beam search in bfloat16 from sentences of 24 tokens, 40 new ones. Training in bfloat16: recorded
passes have batches of at most 8 shapes with more padding, ordinary ones any shape. What records is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed
from train_tokens import SHAPES, SPECS, step_for, tfkit_step

import tfkit
from tfkit.generate import StepGraphs, recorded_steps

LENGTH, NEW = 24, 40


def on_a_cpu(options: argparse.Namespace) -> dict[str, Any]:
    """Decoding in float32 on a CPU: ordinary and recorded steps, the first pass alone, and the steps in C alone."""
    model = tfkit.build(SPECS / f"transformer-{options.shape}.yaml", seed=0).eval()
    graphs = recorded_steps(model)
    if graphs is None:
        sys.exit("no recorder of steps is installed: pip install ./plugins/tfkit-simd")
    call = {"source": torch.randint(4, 1000, (options.sentences, LENGTH)), "max_new_tokens": NEW}
    tfkit.greedy(model, graphs=graphs, **call)
    if not graphs.steps:
        sys.exit(f"the step cannot be recorded: {graphs.held.refused}")
    [captured] = graphs.steps.values()
    captured.step.place.fill_(NEW // 2)  # the keys of half of the tokens

    def alone() -> None:
        for _ in range(NEW):
            captured.replay()

    candidates = {
        "ordinary steps": partial(tfkit.greedy, model, **call),
        "recorded steps": partial(tfkit.greedy, model, graphs=graphs, **call),
        "ordinary source and first token": partial(tfkit.greedy, model, **{**call, "max_new_tokens": 1}),
        "recorded source and first token": partial(tfkit.greedy, model, graphs=graphs, **{**call, "max_new_tokens": 1}),
        "the steps in C": alone,
        "ordinary steps, 5 beams": partial(tfkit.beam_search, model, **call),
        "recorded steps, 5 beams": partial(tfkit.beam_search, model, graphs=graphs, **call),
    }  # fmt: skip
    times = timed(candidates, options.rounds)
    for name, seconds in times.items():
        print(f"{name:32} {1e3 * statistics.median(seconds):8.2f} ms")
    title = f"{NEW} greedy steps of transformer-{options.shape}, {options.sentences} sentences of {LENGTH} tokens, float32"
    return report(title, times, "ordinary steps", options.json and options.json / "decoding.json")


def per_step(search: Callable[..., Any], options: dict[str, Any]) -> Callable[[], None]:
    """A search of `NEW` steps that waits for the device."""

    def run() -> None:
        search(**options)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192, help="of a training batch, each side")
    parser.add_argument("--rows", type=int, default=20000, help="of the training corpus")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="a directory for decoding.json and training.json")
    parser.add_argument("--recorder", action="store_true", help="on a CPU, by the recorder of an installed plugin; no training")
    options = parser.parse_args(arguments)
    if options.recorder:
        torch.set_num_threads(1)
        return {"decoding": on_a_cpu(options)}
    model = tfkit.build(SPECS / f"transformer-{options.shape}.yaml", seed=0).to(options.device, torch.bfloat16).eval()
    source = torch.randint(4, 1000, (options.sentences, LENGTH), device=options.device)
    searches: dict[str, Callable[[], None]] = {}
    for name, graphs in (("ordinary", None), ("recorded", StepGraphs(model))):
        call = {"model": model, "source": source, "max_new_tokens": NEW, "graphs": graphs}
        searches[f"greedy, {name}"] = per_step(tfkit.greedy, call)
        searches[f"{options.beams} beams, {name}"] = per_step(tfkit.beam_search, {**call, "beams": options.beams})
    seconds = {name: [one / NEW for one in times] for name, times in timed(searches, options.rounds).items()}
    place = options.json
    title = f"a decoding step of transformer-{options.shape}, {options.sentences} sentences, bfloat16"
    decoding = report(title, seconds, "greedy, ordinary", place and place / "decoding.json")
    options.source = None
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Callable[[], None]] = {}
        for name, recorded in (("ordinary", "false"), ("recorded", "true")):
            more = f"precision: bfloat16\ncuda_graphs: {recorded}\n"
            at = Path(folder) / name
            at.mkdir()
            steps[name] = tfkit_step(step_for(options, at, more, device=options.device))
        start = time.perf_counter()
        times = timed(steps, 6 * options.rounds, warm_up=40)  # every shape is recorded in the first steps
        print(f"{time.perf_counter() - start:.0f} s of training")
    title = f"a training step of transformer-{options.shape}, {options.tokens:,} tokens a side, bfloat16"
    return {"decoding": decoding, "training": report(title, times, "ordinary", place and place / "training.json")}


if __name__ == "__main__":
    main()
