"""A recurrent layer and a Transformer layer: matrix products that must follow one another, operations, and time on one core."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from claim import Claim, Measured, Summary, main
from gradient_through_time import SPEC as RECURRENT
from token_order import SPEC as ENCODER

import tfkit
from tfkit import graph_of, parse_spec
from tfkit.graph.costs import Batch, node_costs, total_flops

LAYER = "Transformer layer"
CELLS = {"rnn_tanh": "rnn_tanh", "gru": "gru", "gru_reset_after": "{kind: gru, reset: after}", "lstm": "lstm"}
SPECS = {name: RECURRENT.format(cell=cell, init="orthogonal") for name, cell in CELLS.items()}
SPECS[LAYER] = (
    ENCODER.format(position="sinusoidal", layers=1)
    .replace("d_model: 32", "d_model: 64")
    .replace("d_ff: 64", "d_ff: 256")
    .replace("encoder", "body")
)
STEPS, WORK = "matrix products in a row, at most", "FLOPs of a forward pass, relative"
PASSES = {
    f"time of {words}, batch {batch}, relative": (batch, backward)
    for words, backward in (("forward and backward", True), ("forward alone", False))
    for batch in (1, 32)
}
DEPENDS = "more or less, by length,"
PRODUCTS = {"Addmm": 1, "Mm": 1, "Bmm": 1, "Baddbmm": 1, "ScaledDotProduct": 2}
"""Matrix products of a node of autograd's graph, by the begin of its name."""


def measure(seed: int, tiny: bool) -> Measured:
    """Times and FLOPs are relative to those of the Transformer layer; below 1, the recurrent layer needs less."""
    models = {name: tfkit.build(parse_spec(spec), seed=seed) for name, spec in SPECS.items()}
    found: Measured = {STEPS: {name: {} for name in models}}
    found |= {quantity: {name: {} for name in CELLS} for quantity in (WORK, *PASSES)}
    graphs = {name: graph_of(parse_spec(spec)) for name, spec in SPECS.items()}
    for length in (4, 8) if tiny else (16, 64, 256, 512):
        for name, model in models.items():
            found[STEPS][name][length] = products_in_a_row(model, length)
        batch_of_one = Batch(1, {"tokens": length})
        columns: dict[str, dict[str, float]] = {
            WORK: {name: total_flops(node_costs(graph, batch_of_one)) for name, graph in graphs.items()}
        }
        for quantity, (batch, backward) in PASSES.items():
            ids = torch.randint(3, 100, (batch, length), generator=torch.Generator().manual_seed(seed))
            columns[quantity] = {name: seconds(model, ids, backward, 2 if tiny else 5) for name, model in models.items()}
        for quantity, values in columns.items():
            for name in CELLS:
                found[quantity][name][length] = values[name] / values[LAYER]
    return found


def products_in_a_row(model: Any, length: int) -> int:
    """The most matrix products on a path of the graph that autograd has recorded: each needs the result of the one before."""
    model = deepcopy(model).double()  # an LSTM of oneDNN, which has no float64, would be one node of the graph
    last = model(tokens=torch.full((1, length), 3))["body"].grad_fn
    before: dict[Any, int] = {}
    waiting = [last]
    while waiting:
        node = waiting[-1]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if unknown := [parent for parent in parents if parent not in before]:
            waiting += unknown
        else:
            products = sum(count for name, count in PRODUCTS.items() if node.name().startswith(name))
            before[waiting.pop()] = max((before[parent] for parent in parents), default=0) + products
    return before[last]


def seconds(model: Any, ids: torch.Tensor, backward: bool, repeats: int) -> float:
    """The least processor time of some passes, on one thread."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        with torch.set_grad_enabled(backward):
            outputs = model(tokens=ids)["body"]
            if backward:
                outputs.square().sum().backward()
        times.append(time.process_time() - start)
    return min(times)


def verdict(found: Summary) -> str:
    """The steps are counted. A time agrees with the claim if a recurrent layer takes longer at every length with every seed."""
    steps = {name: {length: spread[0] for length, spread in points.items()} for name, points in found[STEPS].items()}
    longest, shortest = max(steps[LAYER]), min(steps[LAYER])
    grows = all(steps[cell][longest] / steps[cell][shortest] == longest / shortest for cell in CELLS)
    agrees = grows and steps[LAYER][longest] == steps[LAYER][shortest]
    counts = ", ".join(f"{name} {points[longest]:g}" for name, points in steps.items())
    sentences = [
        f"Steps: the data {'agree' if agrees else 'do not agree'}. Products in a row at {longest:g} tokens: {counts}; the"
        f" {LAYER} has {steps[LAYER][shortest]:g} at {shortest:g} tokens too, the others"
        f" {longest / shortest:g} times fewer there. Operations, relative to the {LAYER}:"
        f" {_ranges(found[WORK], 'fewer', 'more')}."
    ]
    sentences += [
        f"{quantity.removesuffix(', relative').capitalize()}: {_ranges(found[quantity], 'less', 'more')}."
        for quantity in PASSES
    ]
    always = all(spread[2] > 1 for quantity in PASSES for points in found[quantity].values() for spread in points.values())
    speed = "the recurrent layers take longer" if always else "which layer is faster depends on cell, batch and length"
    return f"{' '.join(sentences)} So on one core {speed}; what a device with many cores makes of fewer steps is not measured."


def _ranges(series: Mapping[str, Mapping[float, Sequence[float]]], below: str, above: str) -> str:
    """Which cells need less than the Transformer layer with every length and seed, which more, and which either."""
    groups: dict[str, list[str]] = {above: [], below: [], DEPENDS: []}
    for cell, points in series.items():
        low, high = min(spread[2] for spread in points.values()), max(spread[3] for spread in points.values())
        groups[above if low > 1 else below if high < 1 else DEPENDS].append(f"{cell} ({low:.2g} to {high:.2g})")
    return "; ".join(f"{word} {', '.join(cells)}" for word, cells in groups.items() if cells)


CLAIM = Claim(
    "A recurrent layer steps through its tokens, a Transformer layer takes them at once and is faster",
    "tokens",
    measure,
    verdict,
)
if __name__ == "__main__":
    main(CLAIM)
