"""Incremental decoding: the keys and values of earlier tokens are cached, so a step computes the new tokens only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from ..errors import Diagnostic, InputError
from .cpu.packed_weight import SearchProducts, searching
from .graph_execution import GraphExecutor
from .model_plan import ModelPlan
from .outputs import Outputs
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState
from .runtime.input_checks import check_ids, check_places, check_segments
from .runtime.padding import step_padding
from .site_backends import AttentionNode, SiteBackends


def target_of(plan: ModelPlan, inputs: Mapping[str, Tensor], target: str | None) -> str:
    """The input node to decode: `target`, or the only one that is not given.

    Raises:
        InputError: not exactly one input is left, or it cannot be decoded step by step.
    """
    missing = [name for name in plan.inputs if name not in inputs]
    target = target or (missing[0] if len(missing) == 1 else "")
    if missing != [target]:
        given = ", ".join(inputs) or "none"
        message = f"inputs given: {given}; of the inputs {', '.join(plan.inputs)} one must be left to decode"
        raise InputError(Diagnostic("TFK073", message))
    if reason := plan.undecodable.get(target):
        raise InputError(Diagnostic("TFK075", f"`{target}` cannot be decoded step by step: {reason}"))
    return target


def batch_of(inputs: Mapping[str, Tensor], batch: int | None, capacity: int) -> int:
    """The number of rows to decode: that of the inputs, or `batch` for a model without another input.

    Raises:
        InputError: the number is missing, below 1 or not that of the inputs; or the capacity is below 1.
    """
    if capacity < 1:
        raise InputError(Diagnostic("TFK073", f"capacity is {capacity}", "reserve at least one position"))
    rows = next((ids.shape[0] for ids in inputs.values()), batch)
    if rows is None:
        raise InputError(Diagnostic("TFK073", "a model without another input needs `batch`", "start(batch=...)"))
    if rows < 1 or batch not in (None, rows):
        raise InputError(Diagnostic("TFK070", f"`batch` is {batch}, the inputs have {rows} rows", "leave `batch` out"))
    return rows


def start(
    executor: GraphExecutor, context: ForwardContext, target: str, batch: int, capacity: int, products: SearchProducts
) -> DecodingState:
    """Run every node that does not depend on `target`, and keep the outputs that the other nodes read."""
    state = DecodingState(target, batch, capacity, products=products)
    following = executor.plan.followers[target]
    before = [name for name in executor.plan.wires if name not in following]
    with searching(products):
        node_outputs = executor.run(before, context, {})
    still_read = set().union(*(executor.reads(name) for name in following))
    state.node_outputs.update({name: output for name, output in node_outputs.items() if name in still_read})
    return state


def step(
    executor: GraphExecutor,
    state: DecodingState,
    ids: Tensor,
    visible: Tensor | Literal[True] | None,
    wanted: frozenset[str],
    segments: Tensor | None,
    parameter: nn.Parameter | None,
) -> Outputs:
    """Run the nodes that depend on the target for its next ids (B, n); see `Model.step`."""
    target, rule = state.target, executor.plan.token_rule(state.target)
    check_ids(target, ids, rule.vocab_size)
    check_places(parameter, {f"`{target}`": ids})
    if ids.shape[0] != state.batch:
        message = f"`{target}` has shape {tuple(ids.shape)}, but the decoding state has {state.batch} rows"
        raise InputError(Diagnostic("TFK070", message))
    if state.tree is not None and ids.shape[1] != 1:
        message = f"`{target}` has shape {tuple(ids.shape)}, but beams that share prefixes grow by one token"
        raise InputError(Diagnostic("TFK070", message, "give ids (rows, 1) after `branch`"))
    padding = step_padding(state, ids, visible, rule)
    if segments is not None:
        check_segments(target, segments, ids, rule.segments)
    own_segments = {} if segments is None else {target: segments}
    context = ForwardContext({target: ids}, {target: padding}, own_segments, state, wanted)
    following = executor.plan.followers[target]
    with searching(state.products):
        node_outputs = executor.run(following, context, state.node_outputs)
    state.remember(ids, None if padding.visible is None else padding.visible[:, state.length :])
    return executor.outputs({name: node_outputs[name] for name in following}, context)


def can_share_prefixes(executor: GraphExecutor, backends: SiteBackends, state: DecodingState) -> bool:
    """Whether beams may share the rows of their sentence.

    A memory then has one row per sentence and the sequence one per beam, so only attention sites may read the memory. Every
    site with a cache needs a backend that supports the mask of the beams.
    """
    for name in executor.plan.followers[state.target]:
        node = executor.nodes[name]
        only_attended = isinstance(node, AttentionNode) and node.memory_only_attended
        if not only_attended and executor.reads(name) & state.node_outputs.keys():
            return False
    uses = {use.site: use for use in backends.uses()}
    return all(
        site in uses and uses[site].attention.supports_tree_attention(uses[site].application, cache)
        for site, cache in state.caches.items()
    )
