"""Training a language model on texts of very different lengths, with and without packed rows: tokens per second of the steps
of `tfkit train`, without padding.

    python bench/packed_rows.py [--threads 1 --cpu-time] [--json bench/results/packed_rows_cpu.json]

Lengths are log-normal, with a median of 20 words and some over 150.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import report, timed

import tfkit
from tfkit.data import prepare
from tfkit.doctor.installation import machine_here
from tfkit.recipe import recipe_of
from tfkit.train.fit_spec import fitted_spec, roles_in
from tfkit.train.step import TrainStep

SPEC = Path(__file__).parent.parent / "specs" / "gpt-char.yaml"
VOCABULARY = 2000
RECIPE = """\
tfkit: 1
name: bench
model: {spec}
changes: [defaults.position=rotary_half]
data: {{kind: texts, text: {text}, held_out: 50}}
tokeniser: {{kind: bpe, vocab_size: {vocabulary}}}
batching: {{tokens: {tokens}, max_length: 256, pack: {pack}}}
stopping: {{max_steps: 1}}
"""


def texts(path: Path, rows: int) -> Path:
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdefghijklmnoprstu"), draw.integers(2, 8))) for _ in range(1500)]
    lengths = np.clip(np.exp(draw.normal(3, 0.9, rows)), 2, 240).astype(int)
    path.write_text("".join(" ".join(draw.choice(words, length)) + "\n" for length in lengths), encoding="utf-8")
    return path


def step_for(text: Path, tokens: int, pack: bool, folder: Path) -> TrainStep:
    written = RECIPE.format(spec=SPEC, text=text, vocabulary=VOCABULARY, tokens=tokens, pack=str(pack).lower())
    recipe, catalogue = recipe_of(written, "<bench>"), tfkit.load_catalogue()
    data = prepare(recipe, folder, VOCABULARY)
    spec, _ = fitted_spec(recipe, catalogue, roles_in(recipe, catalogue), data.tokenisers, 0)
    return TrainStep(tfkit.build(spec, catalogue, seed=0), recipe, data)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="processor time of all threads: fair on a busy machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = texts(folder / "texts.txt", options.rows)
        steps = {name: step_for(text, options.tokens, name == "packed", folder / name) for name in ("by length", "packed")}
        counts: dict[str, list[int]] = {name: [] for name in steps}

        def run(name: str) -> None:
            step = steps[name].run()
            assert step is not None, "float32 has no loss scale"
            counts[name].append(step.target_tokens)

        clock = time.process_time if options.cpu_time else time.perf_counter
        seconds = timed({name: partial(run, name) for name in steps}, options.steps, clock=clock)
        by_token = {
            name: [spent / count for spent, count in zip(times, counts[name][-options.steps :], strict=True)]
            for name, times in seconds.items()
        }
        facts = {
            "tokens_per_second": {name: sum(counts[name][-options.steps :]) / sum(times) for name, times in seconds.items()},
            "padding": {name: step.batches.epoch(1).padding for name, step in steps.items()},
            "clock": "processor time" if options.cpu_time else "wall",
            "processor": machine_here()["processor"],
            "instructions": machine_here()["instructions"],
        }
        title = f"texts of 2 to 240 words in batches of {options.tokens:,} tokens, seconds per token"
        return report(title, by_token, "by length", options.json, **facts)


if __name__ == "__main__":
    main()
