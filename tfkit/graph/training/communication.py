"""Bytes that one rank sends in a step, by ring algorithms: W ranks, P trainable weights, c bytes of a gathered number.

all-reduce                 2 (W - 1) / W bytes for each byte of data
all-gather, reduce-scatter   (W - 1) / W bytes for each byte of the whole tensor

Patarasuk and Yuan 2009, section 3 (https://doi.org/10.1016/j.jpdc.2008.09.002); ZeRO, section 7 (https://arxiv.org/abs/1910.02054)
"""

from __future__ import annotations

from ...slots.cost import FLOAT32_BYTES
from .memory import Regime, Step, Weights


def sent_per_step(weights: Weights, step: Step, regime: Regime, batches: int = 1) -> dict[str, int]:
    """What a rank sends in one step of the optimiser.

    Args:
        weights: the weights of the model.
        step: what the rank computes for a batch.
        regime: how the model is spread.
        batches: batches of a rank in a step. Gradients are reduced once, weights are gathered for every batch.

    Returns:
        Bytes by collective: `all_reduce` of gradients for DDP; `all_gather` of weights and `reduce_scatter` of gradients, both
        for FSDP2. Gradients are float32, weights of layers have the dtype of products, other weights are float32.
    """
    ranks = regime.ranks
    trained = FLOAT32_BYTES * weights.elements(trainable=True)
    if regime.sharding == "ddp":
        return {"all_reduce": 2 * trained * (ranks - 1) // ranks}
    layers = step.product * sum(unit.times * unit.elements() for unit in weights.layers)
    passes = 2 if regime.sharding == "fsdp" else 1
    gathered = (layers * passes + FLOAT32_BYTES * weights.root.elements()) * batches
    return {"all_gather": gathered * (ranks - 1) // ranks, "reduce_scatter": trained * (ranks - 1) // ranks}
