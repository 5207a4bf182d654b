"""The data that `tfkit diff --json` prints.

equal       whether the models are the same: no row of `fields`, `tensors` and, of two saved models, `saved`
a, b        file, name (of the model), changed (values of --set), saved (whether it is a saved model), dtype (float32 for a
            spec), batch (size and lengths for the costs)
fields      field, a, b (values of the resolved specs, null where the field is not set), where (the places: nodes, layers
            `encoder.0-5`, sub-layers `encoder.0-5.ffn`); name, reference, description and expect are not compared
tensors     name (of equal layers together, `nodes.encoder.layers.0-5.norms.ffn.weight`; of a module that only one model has,
            `nodes.decoder.*`); a and b: shape, trainable, tensors, parameters, or null
saved       of two saved models: dtype and weights (the SHA-256 of their file), where they differ: name, a, b
counts      name, a, b: parameters, frozen_parameters, flops (of one forward pass), activation_bytes (kept for the backward
            pass, in float32), weight_bytes
nodes       the trainable parameters of each node in which they differ: name, a, b (null where there is no such node)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..graph import Batch, Graph, node_costs
from ..graph.costs import total_elements, total_flops
from ..spec import ModelSpec
from .diff_fields import differing_fields
from .diff_tensors import differing_tensors

FLOAT32 = 4
"""Bytes of a float32 activation."""


@dataclass(frozen=True)
class Side:
    """One of two models.

    Args:
        file: the file or directory as it was named.
        spec: its spec.
        graph: its graph.
        batch: the batch for the costs.
        changed: the values that `--set` changed.
        dtype: dtype of the weights.
        item_size: bytes of one weight.
        digest: the SHA-256 of the weights; None for a spec.
    """

    file: str
    spec: ModelSpec
    graph: Graph
    batch: Batch
    changed: tuple[str, ...] = ()
    dtype: str = "float32"
    item_size: int = 4
    digest: str | None = None


def diff_data(a: Side, b: Side) -> dict[str, Any]:
    """Everything in which two models differ. Raises BuildError if one has too many tensors."""
    fields, tensors = differing_fields(a.spec, b.spec), differing_tensors(a.graph, b.graph)
    both = a.digest is not None and b.digest is not None
    pairs = (("dtype", a.dtype, b.dtype), ("weights", a.digest, b.digest)) if both else ()
    saved = [{"name": name, "a": one, "b": two} for name, one, two in pairs if one != two]
    names = dict.fromkeys([*a.graph.nodes, *b.graph.nodes])
    nodes = [
        (name, *(side.graph.nodes[name].count() if name in side.graph.nodes else None for side in (a, b))) for name in names
    ]
    ours, theirs = _counts(a), _counts(b)
    return {
        "equal": not (fields or tensors or saved),
        "a": _side(a),
        "b": _side(b),
        "fields": fields,
        "tensors": tensors,
        "saved": saved,
        "counts": [{"name": name, "a": ours[name], "b": theirs[name]} for name in ours],
        "nodes": [{"name": name, "a": one, "b": two} for name, one, two in nodes if one != two],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "file": side.file,
        "name": side.spec.name,
        "changed": list(side.changed),
        "saved": side.digest is not None,
        "dtype": side.dtype,
        "batch": {"size": side.batch.size, "lengths": dict(side.batch.lengths)},
    }


def _counts(side: Side) -> dict[str, int]:
    costs = node_costs(side.graph, side.batch)
    trained, frozen = side.graph.parameters(), side.graph.parameters(trainable=False)
    return {
        "parameters": trained,
        "frozen_parameters": frozen,
        "flops": total_flops(costs),
        "activation_bytes": total_elements(costs) * FLOAT32,
        "weight_bytes": (trained + frozen) * side.item_size,
    }
