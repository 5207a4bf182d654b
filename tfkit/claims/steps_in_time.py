"""A recurrent layer and a Transformer layer: matrix products that must follow one another, operations, and time on one core."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import TYPE_CHECKING

from .claim import Measured, Series, Summary, model_of, ranges
from .gradient_through_time import SPEC as RECURRENT
from .token_order import SPEC as ENCODER

if TYPE_CHECKING:
    from torch import Tensor

    from ..nn.model import Model

LAYER = "Transformer layer"
CELLS = {"rnn_tanh": "rnn_tanh", "gru": "gru", "gru_reset_after": "{kind: gru, reset: after}", "lstm": "lstm"}
SPECS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (RECURRENT, (f"body.cell={cell}", "body.init=orthogonal")) for name, cell in CELLS.items()
}
SPECS[LAYER] = (
    ENCODER.replace("encoder", "body"),
    ("defaults.position=sinusoidal", "defaults.d_model=64", "defaults.ffn.d_ff=256"),
)
"""The text of each spec, and its overrides."""
STEPS, WORK = "matrix products in a row, at most", "FLOPs of a forward pass, relative"
PASSES = {
    f"time of {words}, batch {batch}, relative": (batch, backward)
    for words, backward in (("forward and backward", True), ("forward alone", False))
    for batch in (1, 32)
}


def measure(seed: int, tiny: bool) -> Series:
    """Times and FLOPs are relative to those of the Transformer layer; below 1, the recurrent layer needs less."""
    import torch

    from ..graph import graph_of
    from ..graph.costs import Batch, node_costs, total_flops
    from ..spec import parse_spec

    models = {name: model_of(text, seed, *overrides) for name, (text, overrides) in SPECS.items()}
    measured: Series = {STEPS: {name: {} for name in models}}
    measured |= {quantity: {name: {} for name in CELLS} for quantity in (WORK, *PASSES)}
    graphs = {name: graph_of(parse_spec(text, overrides=overrides)) for name, (text, overrides) in SPECS.items()}
    for length in (4, 8) if tiny else (16, 64, 256, 512):
        for name, model in models.items():
            measured[STEPS][name][length] = steps_of(model, length)
        batch_of_one = Batch(1, {"tokens": length})
        columns: dict[str, dict[str, float]] = {
            WORK: {name: total_flops(node_costs(graph, batch_of_one)) for name, graph in graphs.items()}
        }
        for quantity, (batch, backward) in PASSES.items():
            ids = torch.randint(3, 100, (batch, length), generator=torch.Generator().manual_seed(seed), device="cpu")
            columns[quantity] = {name: seconds(model, ids, backward, 2 if tiny else 5) for name, model in models.items()}
        for quantity, values in columns.items():
            for name in CELLS:
                measured[quantity][name][length] = values[name] / values[LAYER]
    return measured


def steps_of(model: Model, length: int) -> int:
    """The matrix products in a row of a forward pass."""
    import torch

    from .product_path import products_in_a_row

    model, ids = deepcopy(model).double(), torch.full((1, length), 3, device="cpu")
    with torch.no_grad():
        return products_in_a_row(lambda: model(tokens=ids)["body"])


def seconds(model: Model, ids: Tensor, backward: bool, repeats: int) -> float:
    """The least processor time of some passes, on one thread."""
    import torch

    times = []
    for _ in range(repeats):
        start = time.process_time()
        with torch.set_grad_enabled(backward):
            outputs = model(tokens=ids)["body"]
            if backward:
                outputs.square().sum().backward()
        times.append(time.process_time() - start)
    return min(times)


def verdict(measured: Summary) -> str:
    """The steps are counted. A time agrees with the claim if a recurrent layer takes longer at every length with every seed."""
    steps = {name: {length: spread[0] for length, spread in points.items()} for name, points in measured[STEPS].items()}
    longest, shortest = max(steps[LAYER]), min(steps[LAYER])
    grows = all(steps[cell][longest] / steps[cell][shortest] == longest / shortest for cell in CELLS)
    agrees = grows and steps[LAYER][longest] == steps[LAYER][shortest]
    counts = ", ".join(f"{name} {points[longest]:g}" for name, points in steps.items())
    sentences = [
        f"Steps: the data {'agree' if agrees else 'do not agree'}. Products in a row at {longest:g} tokens: {counts}; the"
        f" {LAYER} has {steps[LAYER][shortest]:g} at {shortest:g} tokens too, the others"
        f" {longest / shortest:g} times fewer there. Operations, relative to the {LAYER}:"
        f" {ranges(measured[WORK], 'fewer', 'more')}."
    ]
    sentences += [
        f"{quantity.removesuffix(', relative').capitalize()}: {ranges(measured[quantity], 'less', 'more')}."
        for quantity in PASSES
    ]
    always = all(spread[2] > 1 for quantity in PASSES for points in measured[quantity].values() for spread in points.values())
    speed = "the recurrent layers take longer" if always else "which layer is faster depends on cell, batch and length"
    return f"{' '.join(sentences)} So on one core {speed}; what a device with many cores makes of fewer steps is not measured."


STEPS_IN_TIME = Measured(
    "A recurrent layer steps through its tokens, a Transformer layer takes them at once and is faster",
    "A recurrent layer and a Transformer layer: matrix products that must follow one another, operations, and time"
    " on one core.",
    "tokens",
    measure,
    verdict,
    60,
)
