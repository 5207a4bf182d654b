"""Records one call of a model: inputs and outputs of every node, layer, sub-layer and attention site.

Forward hooks record modules, and wrapped backends record attention. Only this model changes, until the call returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Model
from tfkit.inspection import BoundBackend, Stack
from tfkit.plugin import AttentionInputs, AttentionOutput
from tfkit.plugin.model_parts import MultiHeadAttention, NodeOutput

from ..site_hooks import replaced_backends
from .batch import Batch


@dataclass
class Call:
    """One call of a module: its arguments and its output; `x` is the first argument."""

    module: nn.Module
    arguments: tuple[Any, ...]
    output: Any = None

    @property
    def x(self) -> Tensor:
        return self.arguments[0]  # type: ignore[no-any-return]


@dataclass
class SiteCall:
    """One call of attention: the layer, its application's index, and inputs and output of its backend."""

    attention: MultiHeadAttention
    index: int
    inputs: AttentionInputs
    backend: BoundBackend
    output: Tensor


@dataclass
class LayerCall:
    """One application of a layer: its own call and those of its direct parts, by their names in the layer."""

    call: Call
    parts: dict[str, list[Call]] = field(default_factory=dict)


@dataclass
class Recording:
    """The record: `nodes` by name, `layers` by (stack, index), `sites` by name. A loop over steps calls its site at each."""

    batch: Batch
    nodes: dict[str, Call] = field(default_factory=dict)
    layers: dict[tuple[str, int], LayerCall] = field(default_factory=dict)
    sites: dict[str, list[SiteCall]] = field(default_factory=dict)
    final_norms: dict[str, Call] = field(default_factory=dict)
    inner: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    """Calls of norms and positions directly below a node that is no stack."""
    names: dict[int, str] = field(default_factory=dict)
    """The name of every module of the model, by `id`."""

    def weight_of(self, module: nn.Module) -> str:
        """A module's weight as messages name it."""
        return f"`{self.names[id(module)]}.weight`" if id(module) in self.names else "a weight of its own"


LAYER_PARTS = ("branches", "norms")
PROJECTIONS = ("query", "key", "value", "output", "gate")


@torch.no_grad()
def record(model: Model, batch: Batch, by_lengths: bool = False) -> Recording:
    """Records one call of a model in evaluation mode. `by_lengths`: padding is on the right, and given by lengths."""
    recording = Recording(batch, names={id(module): name for name, module in model.named_modules()})
    keywords = batch.call(dtype=model.dtype, by_lengths=by_lengths)
    with ExitStack() as undo:
        for name, node in model.nodes.items():
            undo.enter_context(_noted(node, lambda call, name=name: recording.nodes.__setitem__(name, call)))
            if isinstance(node, Stack):
                undo.enter_context(_stack_noted(node, recording))
            else:
                for below, module in node.named_children():
                    undo.enter_context(_noted(module, recording.inner.setdefault((name, below), []).append))
        sites = {site: (attention, index) for attention, index, site in model.attention_sites()}

        def recorded(site: str, backend: BoundBackend) -> BoundBackend:
            def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
                answer = backend.attend(inputs, options)
                recording.sites.setdefault(site, []).append(SiteCall(*sites[site], inputs, backend, answer.output))
                return answer

            return replace(backend, attend=attend)

        undo.enter_context(replaced_backends(model, recorded))
        model(**keywords)
    return recording


@contextmanager
def _stack_noted(stack: Stack, recording: Recording) -> Iterator[None]:
    """Every application of every layer of a stack; the parts of a layer are noted with the application they belong to."""
    current: list[LayerCall] = []
    started = [0]

    def begin(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        current.append(LayerCall(Call(module, (*arguments, *keywords.values()))))

    def end(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        call = current.pop()
        call.call.output = output
        recording.layers[stack.name, started[0]] = call
        started[0] += 1

    def part(name: str) -> Any:
        return lambda call: current[-1].parts.setdefault(name, []).append(call)

    with ExitStack() as undo:
        for layer in stack.layers:
            undo.callback(layer.register_forward_pre_hook(begin, with_kwargs=True).remove)
            undo.callback(layer.register_forward_hook(end).remove)
            for name, module in _parts(layer):
                undo.enter_context(_noted(module, part(name)))
        if stack.final_norm is not None:
            undo.enter_context(_noted(stack.final_norm, lambda call: recording.final_norms.__setitem__(stack.name, call)))
        yield


def _parts(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The sub-layers and norms of a layer by the names their weights have, and the projections of its attentions."""
    for kind in LAYER_PARTS:
        for name, module in dict(layer.named_children()).get(kind, nn.ModuleDict()).named_children():
            yield f"{kind}.{name}", module
            if isinstance(module, MultiHeadAttention):
                for projection, part in module.named_children():
                    if projection in PROJECTIONS:
                        yield f"{kind}.{name}.{projection}", part


@contextmanager
def _noted(module: nn.Module, note: Any) -> Iterator[None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        note(Call(module, (*arguments, *keywords.values()), output))

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def node_outputs(model: Model) -> Iterator[dict[str, list[Tensor]]]:
    """What every node gives while the block runs, call by call; and of ports that the model returns, (B, L, layers + 1, M)."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in (*model.nodes, *model.plan.outputs)}

    def noting(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: NodeOutput) -> None:
            outputs[name].append(output.tensor)
            if output.layers is not None and f"{name}.layers" in outputs:
                outputs[f"{name}.layers"].append(torch.stack(output.layers, 2))

        return hook

    handles = [node.register_forward_hook(noting(name)) for name, node in model.nodes.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def run(model: Model, batch: Batch, by_lengths: bool = False) -> dict[str, Tensor]:
    """The output of every node, by name, and what the model returns, in the place of the outputs of its nodes."""
    with node_outputs(model) as outputs:
        returned = model(**batch.call(dtype=model.dtype, by_lengths=by_lengths))
    return {name: without_hidden(tensors[0]) for name, tensors in outputs.items()} | as_recorded(returned)


def as_recorded(returned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model returns, with the axes of a recording: the layers of a stack are the first axis of an output, and the third
    here."""
    return {name: without_hidden(tensor.movedim(0, 2) if "." in name else tensor) for name, tensor in returned.items()}


def without_hidden(tensor: Tensor) -> Tensor:
    """A tensor whose logits of positions that cannot be chosen are 0: as the smallest numbers of their dtypes they would be the
    size of the output. `spans` checks them."""
    return tensor.masked_fill(tensor == torch.finfo(tensor.dtype).min, 0.0)
