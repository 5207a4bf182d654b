"""A model as programs with flat lists of named tensors: what ONNX, `torch.export` and AOTInductor can hold.

    forward    inputs                    -> outputs              a model that is not decoded step by step
    encode     source                    -> memory               once per sentence
    step       new ids, memory, past     -> outputs, present     once per token, or once for all tokens of a prompt

`memory` is what the decoder reads of the source, `past` the state of decoding. Every `past.NAME` has a `present.NAME`, the
`past.NAME` of the next step. See state_tensors.py for the names.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor, nn

from ..nn.model import Model
from ..nn.runtime.context import ForwardContext
from ..nn.runtime.decoding_state import DecodingState
from ..nn.runtime.inputs import check_inputs
from ..nn.runtime.node_output import Padding
from .state_tensors import ConcatenatedCache, Named, caches_of, memory_of, recurrent_of, state_of


class Program(nn.Module):
    """A part of a model. `forward` takes the tensors of `example` in that order.

    Args:
        model: the model.
        example: tensors by name.
    """

    name: str

    def __init__(self, model: Model, example: Named) -> None:
        super().__init__()
        self.model, self.example = model, example

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.run(dict(zip(self.example, tensors, strict=True))).values())

    def run(self, tensors: Named) -> Named:
        """The outputs by name, from the inputs by name."""
        raise NotImplementedError


class Forward(Program):
    """The whole model at once."""

    name = "forward"

    def run(self, tensors: Named) -> Named:
        inputs, masks, segments = _arguments(self.model, tensors)
        return dict(self.model(masks=masks, segments=segments, **inputs))


class Encode(Program):
    """What does not depend on the target.

    Args:
        model: the model.
        example: tensors by name.
        target: the input that is decoded.
        read: the outputs that `step` reads.
    """

    name = "encode"

    def __init__(self, model: Model, example: Named, target: str, read: Container[str]) -> None:
        super().__init__(model, example)
        self.target, self.read = target, read

    def run(self, tensors: Named) -> Named:
        state = encoded(self.model, tensors, self.target)
        outputs = {**memory_of(state), **recurrent_of(state.recurrent)}
        return {name: tensor for name, tensor in outputs.items() if name in self.read}


class Step(Program):
    """The next tokens of the target.

    Args:
        model: the model.
        example: tensors by name.
        like: a state with the names of those that the program reads.
    """

    name = "step"

    def __init__(self, model: Model, example: Named, like: DecodingState) -> None:
        super().__init__(model, example)
        self.like = like

    def run(self, tensors: Named) -> Named:
        state = state_of(tensors, self.like)
        visible = torch.cat([tensors["past.visible"], tensors["visible"]], 1)
        outputs = decoded(self.model, state, tensors["ids"], Padding(visible))
        past = {"past.visible": visible, **caches_of(state), **recurrent_of(state.recurrent_new)}
        return {**outputs, **{name.replace("past", "present", 1): tensor for name, tensor in past.items()}}


def encoded(model: Model, tensors: Named, target: str) -> DecodingState:
    """The state before the first token, with the keys and values of the memory and the first recurrent states.

    The first step of a decoder computes these. It is run for them here; what else it computes is not used.
    """
    plan, executor, following = model.plan, model.executor, model.plan.followers[target]
    inputs, masks, segments = _arguments(model, tensors)
    others = [name for name in plan.inputs if name != target]
    padding = check_inputs(plan, others, inputs, masks, {}, segments, next(model.parameters(), None))
    before = [name for name in plan.wires if name not in following]
    outputs = executor.run(before, ForwardContext(inputs, padding, segments), {})
    read = set().union(*(executor.reads(name) for name in following))
    batch = next((each.shape[0] for each in inputs.values()), 1)
    state = DecodingState(target, batch, 1, node_outputs={name: outputs[name] for name in outputs if name in read})
    state.caches = {site: ConcatenatedCache() for site in model.sites if site not in model.memory_sites}
    decoded(model, state, torch.zeros(batch, 1, dtype=torch.int64, device=model.device), Padding())
    state.caches = {site: cache for site, cache in state.caches.items() if cache.key is not None}
    return state


def decoded(model: Model, state: DecodingState, ids: Tensor, padding: Padding) -> Named:
    """The outputs for the next ids. Caches and `recurrent_new` of the state change."""
    context = ForwardContext({state.target: ids}, {state.target: padding}, {}, state)
    following = model.plan.followers[state.target]
    outputs = model.executor.run(following, context, state.node_outputs)
    return dict(model.executor.outputs({name: outputs[name] for name in following}, context))


def _arguments(model: Model, tensors: Named) -> tuple[Named, Named, Named]:
    """Inputs, masks and segments of a call of the model."""
    inputs = {name: tensors[name] for name in model.plan.inputs if name in tensors}
    masks = {name: tensors[f"{name}.visible"] for name in inputs if f"{name}.visible" in tensors}
    segments = {name: tensors[f"{name}.segments"] for name in inputs if f"{name}.segments" in tensors}
    return inputs, masks, segments
