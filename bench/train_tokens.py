"""Training speed on text: the steps of `tfkit train` against Hugging Face Marian in a plain PyTorch loop, on the same
batches, with the same optimiser, label smoothing, clipping and moving average.

    python bench/train_tokens.py [--shape tiny|base] [--source train.en --target train.de] [--steps 12] [--threads 1 --cpu-time]

Beside them the bare matrix products of the linear maps and their gradients, on as many positions, by MKL and by oneDNN: no step
with the same arithmetic is faster.

Without files a corpus with lengths like Multi30k's is made up. Tokens are counted without padding, source and target together.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import report, timed
from torch import nn
from torch.nn import functional

import tfkit
from tfkit.cpu import products
from tfkit.cpu.products import weight_gradient
from tfkit.data import NO_LABEL, Batch, prepare
from tfkit.doctor.installation import machine_here
from tfkit.recipe import recipe_of
from tfkit.train.fit_spec import fitted_spec, roles_in
from tfkit.train.step import TrainStep

SPECS = Path(__file__).parent.parent / "specs"
DECAY = 0.999
SHAPES = {"tiny": (4, 4, 256, 0.3), "base": (6, 8, 2048, 0.1)}
"""Layers of either stack, heads, width of the feed-forward layer and dropout of the specs, for the peer."""
RECIPE = """\
tfkit: 1
name: bench
model: {spec}
data: {{kind: parallel, source: {source}, target: {target}}}
tokeniser: {{kind: bpe, vocab_size: {vocab}}}
batching: {{tokens: {tokens}}}
clip_norm: 1.0
average: {decay}
stopping: {{max_steps: 1}}
"""


def made_up(folder: Path, rows: int) -> tuple[Path, Path]:
    """Text of random words, as long as captions are."""
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdefghijklmnoprstu"), draw.integers(2, 8))) for _ in range(4000)]
    paths = folder / "source", folder / "target"
    lengths = np.clip(draw.normal(12, 4, rows), 4, 37).astype(int)
    for path, stretch in zip(paths, (1.0, 0.95), strict=True):
        text = (" ".join(draw.choice(words, max(3, round(length * stretch)))) for length in lengths)
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return paths


def step_for(options: argparse.Namespace, folder: Path, more: str = "", device: str = "cpu") -> TrainStep:
    source, target = (options.source, options.target) if options.source else made_up(folder, options.rows)
    spec_path = SPECS / f"transformer-{options.shape}.yaml"
    text = RECIPE.format(spec=spec_path, source=source, target=target, vocab=options.vocab, tokens=options.tokens, decay=DECAY)
    text += more
    recipe, catalogue = recipe_of(text, "<bench>"), tfkit.load_catalogue()
    roles = roles_in(recipe, catalogue)
    data = prepare(recipe, folder / "data", options.vocab)
    spec, _ = fitted_spec(recipe, catalogue, roles, data.tokenisers, 0)
    return TrainStep(tfkit.build(spec, catalogue).to(device), recipe, data)


def marian_step(train_step: TrainStep, batches: list[Batch], shape: str) -> Callable[[], Any]:
    """A step of the model of the same shape, as a careful user would write it."""
    from transformers import MarianConfig, MarianMTModel

    layers, heads, inner, dropout = SHAPES[shape]
    config = MarianConfig(
        vocab_size=train_step.data.tokenisers["target"].size, d_model=train_step.width,
        encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
        dropout=dropout, attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        pad_token_id=0, decoder_start_token_id=1, eos_token_id=2, forced_eos_token_id=None, use_cache=False,
        max_position_embeddings=512,
    )  # fmt: skip
    model = MarianMTModel._from_config(config, attn_implementation="sdpa").train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    turns = cycle(batches)

    def step() -> None:
        batch = next(turns)
        source, target = batch.inputs[train_step.roles.source or ""], batch.inputs[train_step.roles.target]
        optimiser.zero_grad(set_to_none=True)
        shown, seen = source != 0, target != 0
        logits = model(input_ids=source, attention_mask=shown, decoder_input_ids=target, decoder_attention_mask=seen).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=NO_LABEL, label_smoothing=0.1
        )
        loss.backward()
        float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, [parameter.detach() for parameter in model.parameters()], 1 - DECAY)

    return step


def bare_products(train_step: TrainStep, batches: list[Batch], shape: str, library: str) -> Callable[[], Any]:
    """y = x W^T, dx = dy W and dW = dy^T x of every linear map in a step of the same model, and nothing else."""
    (layers, _, inner, _), M = SHAPES[shape], train_step.width
    vocabulary = train_step.data.tokenisers["target"].size
    # Attention has four square maps; those of the memory's keys and values see the positions of the source.
    maps = [("source", M, M, 6 * layers), ("target", M, M, 6 * layers), ("target", M, vocabulary, 1)]
    maps += [(side, *sizes, layers) for side in ("source", "target") for sizes in ((M, inner), (inner, M))]
    weights = {(first, last): torch.randn(last, first) for _, first, last, _ in maps}
    most = max(ids.numel() for batch in batches for ids in batch.inputs.values())
    rows = {size: torch.randn(most, size) for sizes in weights for size in sizes}
    turns = cycle(batches)

    @torch.no_grad()
    def step() -> None:
        batch = next(turns)
        counts = {
            "source": batch.inputs[train_step.roles.source or ""].numel(),
            "target": batch.inputs[train_step.roles.target].numel(),
        }
        for side, first, last, number in maps:
            x, gradient, weight = rows[first][: counts[side]], rows[last][: counts[side]], weights[first, last]
            for _ in range(number):
                if library == "MKL":
                    functional.linear(x, weight)
                    torch.mm(gradient, weight)
                    torch.mm(gradient.t(), x)
                else:
                    products.product(x, weight)
                    products.product(gradient, weight.t())
                    weight_gradient(gradient, x)

    return step


def tfkit_step(train_step: TrainStep) -> Callable[[], Any]:
    def step() -> None:
        if train_step.epoch_complete:
            train_step.progress.batch = 0
        train_step.launch(lambda earlier: None)  # its numbers are read in the next call, as in a run

    return step


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="tiny")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of tfkit; the peer has float32"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="processor time of all threads: fair on a busy machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        train_step = step_for(options, Path(folder), f"precision: {options.precision}\n")
        epoch = train_step.batches.epoch(1)
        # As many batches as there are rounds, so that both meet the same ones, warm-up included.
        epoch.batches[:] = epoch.batches[: options.steps + 2]
        batches = [
            train_step.task.batch(train_step.data.train, rows.tolist(), np.random.default_rng(0)) for rows in epoch.batches
        ]
        candidates = {
            "tfkit train": tfkit_step(train_step),
            "Hugging Face Marian": marian_step(train_step, batches, options.shape),
            "products of MKL": bare_products(train_step, batches, options.shape, "MKL"),
        }
        if products.MULTIPLY is not None:
            candidates["products of oneDNN"] = bare_products(train_step, batches, options.shape, "oneDNN")
        seconds = timed(candidates, options.steps, clock=clock)
        counts = [batch.source_tokens + batch.target_tokens for batch in batches[2:]]
        rates = {name: sum(counts) / sum(times) for name, times in seconds.items()}
        title = f"a step of training, transformer-{options.shape}, at most {options.tokens} tokens a side"
        title += f", tfkit in {options.precision}" if options.precision != "float32" else ""
        kernels = torch.backends.cpu.get_cpu_capability()
        title += f", kernels of torch: {kernels}" if os.environ.get("ATEN_CPU_CAPABILITY") else ""
        machine = machine_here()
        facts = {
            "tokens_per_second": rates,
            "padding": epoch.padding,
            "parameters": train_step.model.parameter_count(),
            "clock": "processor time" if options.cpu_time else "wall",
            "processor": machine["processor"],
            "instructions": machine["instructions"],
            "kernels": kernels,
        }
        return report(title, seconds, "Hugging Face Marian", options.json, **facts)


if __name__ == "__main__":
    main()
