"""The memory of one rank while a model trains, from its graph.

P trainable weights, W ranks, c bytes of a number in a product (4, or 2 under autocast):

part           ddp                zero2       fsdp
weights        4 P                4 P / W     4 P / W     float32: the master weights of mixed precision
gradients      4 P                4 P / W     4 P / W     float32
optimiser      8 P                8 P / W     8 P / W     Adam's two moments, float32
average        4 P                4 P / W     4 P / W     the moving average of the weights, if there is one
gathered       -                  c P         root only   weights that stay gathered from the forward to the backward pass
casts          c P                root only   root only   copies of the weights of products, which autocast makes and keeps
activations    the same for all; see `tfkit.slots.cost`
working        the larger of what exists for a moment only: the loss, or the backward pass of one layer
validation     4 P, if averaged   4 P         4 P         `tfkit train` validates a copy of the whole model

Rajbhandari et al. 2020, sections 3 and 5 (https://arxiv.org/abs/1910.02054): `zero2` shards gradients and optimiser state, and
here the float32 weights too, because FSDP2 keeps them sharded and gathers them once a step (`reshard_after_forward=False`).
`fsdp` frees the weights of each layer after its forward pass and gathers them again: https://arxiv.org/abs/2304.11277.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod

from ...slots.cost import FLOAT32_BYTES, Kept, Numbers, kept_by_costs
from ...slots.layer import leaves
from ...slots.parameter import Parameter
from ..costs import Batch, node_costs, sizes_of
from ..model_graph import Graph, base, layers_of

TABLES = frozenset({"embedding", "segment_table", "position_table", "relative_table"})
"""Roles of weights that are looked up, and no operand of a product."""
MOMENTS = {"adadelta": 2, "adam": 2, "adamw": 2, "sgd": 0}
"""Tensors of the size of a weight in the state of an optimiser. Algorithm 1 of https://arxiv.org/abs/1412.6980."""
SHARDINGS = ("ddp", "zero2", "fsdp")


@dataclass(frozen=True)
class Unit:
    """Weights that FSDP2 gathers together: those of a layer, or of the rest of the model.

    Args:
        parameters: its weights.
        times: number of equal units.
    """

    parameters: tuple[Parameter, ...]
    times: int = 1

    def elements(self, ranks: int = 1, trainable: bool = False) -> int:
        """Elements in one rank. FSDP2 splits the first dimension, and the first rank has the largest part.

        Args:
            ranks: the ranks that share them.
            trainable: count only weights that training changes.

        Returns:
            Elements of one unit in the first rank.
        """
        return sum(
            -(-parameter.shape[0] // ranks) * prod(parameter.shape[1:])
            for parameter in self.parameters
            if parameter.trainable or not trainable
        )

    @property
    def product_elements(self) -> int:
        """Elements of the weights that are operands of products, which autocast casts."""
        return sum(parameter.size for parameter in self.parameters if len(parameter.shape) > 1 and parameter.role not in TABLES)


@dataclass(frozen=True)
class Weights:
    """The weights of a model, as FSDP2 gathers them.

    Args:
        layers: the layers of all stacks, one unit for each kind of layer.
        root: all other weights.
    """

    layers: tuple[Unit, ...]
    root: Unit

    def elements(self, ranks: int = 1, trainable: bool = False) -> int:
        """Elements of all weights in one rank.

        Args:
            ranks: the ranks that share them.
            trainable: count only weights that training changes.

        Returns:
            Elements in the first rank.
        """
        return sum(unit.times * unit.elements(ranks, trainable) for unit in (*self.layers, self.root))


def weights_of(graph: Graph) -> Weights:
    """The weights of a model by unit, without expanding its layers.

    Args:
        graph: the resolved model.

    Returns:
        The units. Layers of one kind are one unit with a number.
    """
    layers: dict[tuple[str, str], list[Parameter]] = defaultdict(list)
    times: dict[tuple[str, str], int] = {}
    root: list[Parameter] = []
    for name, node in graph.nodes.items():
        for group in node.parameter_groups:
            first = next(islice(group.prefixes(), 1))
            if first.startswith("layers.") and node.signal.depth:
                layers[name, first] += group.parameters
                times[name, first] = group.times
            else:
                root += group.expanded()
    return Weights(tuple(Unit(tuple(parameters), times[key]) for key, parameters in layers.items()), Unit(tuple(root)))


@dataclass(frozen=True)
class Step:
    """What a rank computes in a step.

    Args:
        batch: the batch of one rank.
        product: bytes of a number in a product: 4, or 2 under autocast.
        weighted: attention sub-layers whose backend keeps the attention weights, as `decoder.self_attention`.
        optimiser: its name, as in a recipe.
        average: whether there is a moving average of the weights.
    """

    batch: Batch
    product: int = FLOAT32_BYTES
    weighted: frozenset[str] = frozenset()
    optimiser: str = "adam"
    average: bool = False

    @property
    def autocast(self) -> bool:
        """Whether products have a half dtype."""
        return self.product < FLOAT32_BYTES

    def numbers(self, node: str) -> Numbers:
        """How a node computes."""
        return Numbers(self.product, frozenset(site.partition(".")[2] for site in self.weighted if base(site) == node))


@dataclass(frozen=True)
class Regime:
    """How a model is spread over ranks.

    Args:
        ranks: number of processes, one for each GPU.
        sharding: `ddp`, `zero2` or `fsdp`.
        checkpointing: whether the backward pass computes the activations of each layer again.
    """

    ranks: int = 1
    sharding: str = "ddp"
    checkpointing: bool = False


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank by purpose; see the top of this file. `step_peak` is that of a training step, which is not the sum of
    its parts: some never exist together."""

    weights: int
    gradients: int
    optimiser: int
    average: int
    gathered: int
    casts: int
    activations: int
    working: int
    validation: int
    step_peak: int

    @property
    def peak(self) -> int:
        """The larger of the peak of a step and the memory of a validation, beside which the gradients still exist."""
        return max(self.step_peak, self.weights + self.gradients + self.optimiser + self.average + self.validation)


def kept_by_node(graph: Graph, step: Step) -> Mapping[str, Kept]:
    """What each node keeps; an estimate by the elements of its costs where its kind does not say."""
    kept = {}
    for name, node in graph.nodes.items():
        if node.kind.kept is not None:
            kept[name] = node.kind.kept(node.options, node.context, sizes_of(node, step.batch), step.numbers(name))
        else:
            estimate = kept_by_costs(node_costs(Graph(graph.name, {name: node}, ()), step.batch)[name])
            kept[name] = Kept(estimate, estimate)
    return kept


def inexact(graph: Graph) -> list[str]:
    """The kinds of nodes and sub-layers with activations that do not say what they keep, so that it is estimated."""
    kinds: dict[str, None] = {}
    lengths = {node.name: 1 for node in graph.inputs()}
    for name, node in graph.nodes.items():
        if node.kind.kept is None and node_costs(Graph(name, {name: node}, ()), Batch(1, lengths))[name]:
            kinds[node.kind.name] = None
        for leaf in leaves(layers_of(node.options)):
            kinds |= {sublayer.entry.name: None for sublayer in leaf.layer.sublayers or () if sublayer.entry.kept is None}
    return list(kinds)


@dataclass(frozen=True)
class Output:
    """The largest output of the model, whose loss and products are a moment of their own.

    Args:
        logits: numbers of it, N V.
        kept: bytes that all outputs keep.
        weights: elements of the weights that make it.
        shared: elements of the table that it shares with embeddings; 0 if it has its own.
    """

    logits: int
    kept: int
    weights: int
    shared: int


def output_of(graph: Graph, step: Step, kept: Mapping[str, Kept]) -> Output:
    """The largest output of a model for a batch."""
    nodes = [graph.nodes[base(name)] for name in graph.outputs]
    with_width = [node for node in nodes if node.signal.has_width and not node.signal.depth]
    shared = max((kept[node.name].casts for node in nodes), default=0)
    return Output(
        max((step.batch.size * step.batch.length(node.signal) * node.signal.width for node in with_width), default=0),
        sum(kept[node.name].activations for node in with_width),
        max((node.count() for node in with_width), default=0) + shared,
        shared,
    )


def memory_of(graph: Graph, step: Step, regime: Regime) -> Memory:
    """The memory of the first rank, which has the largest shards. The peak of a step is the largest of these moments:

    forward    the end of the forward pass: activations, and the casts, which autocast frees then if layers are computed again
    loss       activations, casts, two float32 copies of the logits and their gradient (`tfkit/train/loss.py`)
    logits     activations, casts, the gradient of the logits, and that of their weights in both dtypes
    backward   activations without those of the outputs, and what the backward pass of a layer needs: with FSDP2 its weights,
               those of the next, its gradients, their float32 copy to be reduced, and the gradients of the root
    end        all gradients; with FSDP2 those of the root and of a layer before they are reduced; for a table that embeddings
               share with the logits, two further gradients of it, which are added

    Weights, optimiser state, average and gathered weights exist at all of them. So do gradients with DDP, whose buckets stay.

    Args:
        graph: the resolved model.
        step: what the rank computes.
        regime: how the model is spread.

    Returns:
        Bytes by purpose.
    """
    weights, kept, c = weights_of(graph), kept_by_node(graph, step), step.product
    sharded = regime.sharding != "ddp" and regime.ranks > 1
    replicated = regime.sharding == "ddp" and regime.ranks > 1
    ranks = regime.ranks if sharded else 1
    elements, trained = weights.elements(ranks), weights.elements(ranks, trainable=True)
    states = (
        FLOAT32_BYTES * elements,
        FLOAT32_BYTES * MOMENTS[step.optimiser] * trained,
        FLOAT32_BYTES * elements if step.average else 0,
    )
    gradients = FLOAT32_BYTES * trained
    activations = sum(node_kept.checkpointed if regime.checkpointing else node_kept.activations for node_kept in kept.values())
    output = output_of(graph, step, kept)
    unit = max(weights.layers, key=Unit.elements, default=Unit(()))

    root_products = weights.root.product_elements + output.shared
    root_casts = c * root_products if step.autocast else 0
    layer_casts = c * sum(layer.times * layer.product_elements for layer in weights.layers)
    layer_casts *= step.autocast and not sharded
    kept_casts = 0 if regime.checkpointing else layer_casts

    gathered = unreduced = 0
    backward = max((node_kept.layer for node_kept in kept.values()), default=0) if regime.checkpointing else 0
    if sharded:
        fetched = 0 if regime.sharding == "zero2" else 2 * c
        gathered = FLOAT32_BYTES * weights.root.elements()
        gathered += c * sum(layer.times * layer.elements() for layer in weights.layers) if not fetched else 0
        backward += (fetched + c + FLOAT32_BYTES) * unit.elements() + FLOAT32_BYTES * root_products
        unreduced = FLOAT32_BYTES * (weights.root.elements(trainable=True) + unit.elements(trainable=True))
    elif regime.checkpointing and step.autocast:
        backward += c * unit.product_elements
    loss = max((2 * FLOAT32_BYTES + c) * output.logits, c * output.logits + (c + FLOAT32_BYTES) * output.weights)
    moments = (
        activations + root_casts + layer_casts,
        activations + root_casts + kept_casts + loss,
        activations - output.kept + kept_casts + backward,
        unreduced + 2 * FLOAT32_BYTES * output.shared + (0 if replicated else gradients),
    )
    peak = sum(states) + gathered + (gradients if replicated else 0) + max(moments)
    validation = FLOAT32_BYTES * weights.elements() if sharded or step.average else 0
    casts = root_casts + (kept_casts or layer_casts)
    return Memory(states[0], gradients, *states[1:], gathered, casts, activations, max(loss, backward), validation, peak)
