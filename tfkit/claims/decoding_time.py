"""One more token from a recurrent decoder with attention and from a Transformer with caches, as the text grows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .claim import Measured, Series, Summary, model_of, ranges

if TYPE_CHECKING:
    from ..nn.model import Model

SPECS = {
    "gru with attention": """
tfkit: 1
name: recurrent
defaults: {vocab_size: 1000, d_model: 256, pad_id: 0}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 256}
  decoder: {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 256, initial_state: {take: last},
    cross_attention: {attend: before_cell, score: additive}, readout: {kind: tanh, d_model: 256}}
  logits:  {kind: token_logits, input: decoder}
outputs: [logits]
""",
    "Transformer": """
tfkit: 1
name: transformer
defaults: {vocab_size: 1000, d_model: 256, pad_id: 0, dropout: 0.0, position: sinusoidal, placement: pre, norm: layer_norm,
  attention: {num_heads: 4}, ffn: {d_ff: 1024, activation: relu}}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 1, causal: true}
  logits:  {kind: token_logits, input: decoder}
outputs: [logits]
""",
}
SPECS["gru with dot attention"] = SPECS["gru with attention"].replace("score: additive", "score: dot")
TRANSFORMER = "Transformer"
RECURRENT = [name for name in SPECS if name != TRANSFORMER]
PATH, WORK = "matrix products in a row for one more token", "FLOPs of one more token, relative"
TIMES = {f"time for a token, batch {batch}, relative": batch for batch in (1, 32)}
READING = {f"time to read the source, batch {batch}, relative": batch for batch in (1, 32)}


def measure(seed: int, tiny: bool) -> Series:
    """All but the products is relative to the Transformer; below 1, the recurrent network needs less."""
    models = {name: model_of(spec, seed).eval() for name, spec in SPECS.items()}
    measured: Series = {PATH: {name: {} for name in models}}
    measured |= {quantity: {name: {} for name in RECURRENT} for quantity in (WORK, *TIMES, *READING)}
    for length in (4, 8) if tiny else (16, 64, 256):
        counted = {name: step_counts(model, length) for name, model in models.items()}
        columns = {WORK: {name: float(flops) for name, (_, flops) in counted.items()}}
        for batch, quantity, reading in zip(TIMES.values(), TIMES, READING, strict=True):
            taken = {name: seconds(model, batch, length, seed, 1 if tiny else 2) for name, model in models.items()}
            columns[quantity] = {name: token for name, (_, token) in taken.items()}
            columns[reading] = {name: read for name, (read, _) in taken.items()}
        for name in models:
            measured[PATH][name][length] = counted[name][0]
        for quantity, values in columns.items():
            for name in RECURRENT:
                measured[quantity][name][length] = values[name] / values[TRANSFORMER]
    return measured


def step_counts(model: Model, length: int) -> tuple[int, int]:
    """The products in a row and the FLOPs of the token behind `length` tokens, with a source of as many."""
    from copy import deepcopy

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from .product_path import products_in_a_row

    model = deepcopy(model).double()
    with torch.no_grad():
        ids = torch.full((1, length), 3, device="cpu")
        state = model.start(source=ids, capacity=length + 1)
        model.step(state, ids)
        with FlopCounterMode(display=False) as counter:
            products = products_in_a_row(lambda: model.step(state, ids[:, :1])["logits"])
    return products, int(counter.get_total_flops())


def seconds(model: Model, batch: int, length: int, seed: int, repeats: int) -> tuple[float, float]:
    """The least processor time of reading a source of `length` tokens, and of a token while as many are generated."""
    import torch

    ids = torch.randint(3, 1000, (batch, length), generator=torch.Generator().manual_seed(seed), device="cpu")
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.process_time()
            state = model.start(source=ids, capacity=length)
            read = time.process_time()
            for at in range(length):
                model.step(state, ids[:, at : at + 1])
            times.append((read - start, (time.process_time() - read) / length))
    return min(read for read, _ in times), min(token for _, token in times)


def verdict(measured: Summary) -> str:
    """The data agree if with every batch, length and seed each recurrent decoder takes longer for a token."""
    paths = {name: [spread[0] for spread in points.values()] for name, points in measured[PATH].items()}
    longest = max(measured[PATH][TRANSFORMER])
    counts = ", ".join(
        f"{name} {min(values):g}" if min(values) == max(values) else f"{name} {min(values):g} to {max(values):g}"
        for name, values in paths.items()
    )
    lowest = min(spread[2] for quantity in TIMES for points in measured[quantity].values() for spread in points.values())
    highest = max(spread[3] for quantity in TIMES for points in measured[quantity].values() for spread in points.values())
    word = (
        "the data agree"
        if lowest > 1
        else "the data say the opposite"
        if highest < 1
        else "it depends on score, batch and length"
    )
    times = " ".join(
        f"{quantity.removesuffix(', relative').capitalize()}: {ranges(measured[quantity], 'less', 'more')}."
        for quantity in (*TIMES, *READING)
    )
    return (
        f"Time for a token on one core, relative to the {TRANSFORMER}: {word}. Both write one token after another; products in"
        f" a row for one: {counts}, up to {longest:g} tokens."
        f" Operations of products for a token, relative to the {TRANSFORMER}:"
        f" {ranges(measured[WORK], 'fewer', 'more')}. {times}"
    )


DECODING_TIME = Measured(
    "A Transformer generates text faster than a recurrent network with attention",
    "One more token from a GRU decoder with attention and from a Transformer decoder with caches, one layer of 256 features"
    " each, as source and text grow: products that must follow one another, operations, and time on one core.",
    "tokens of source and text",
    measure,
    verdict,
    60,
)
