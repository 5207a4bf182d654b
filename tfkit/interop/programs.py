"""A model as programs with flat lists of named tensors: what ONNX, `torch.export` and AOTInductor can hold.

    forward    inputs                    -> outputs              a model that is not decoded step by step
    encode     source                    -> memory               once per sentence
    step       new ids, memory, past     -> outputs, present     once per token, or once for all tokens of a prompt

`memory` is what the decoder reads of the source, `past` the state of decoding. Every `past.NAME` has a `present.NAME`, the
`past.NAME` of the next step. See state_tensors.py for the names.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from ..nn.convolutions import Convolutions
from ..nn.model import Model
from ..nn.recurrent import Recurrent
from ..nn.recurrent_sublayers import Recurrence
from ..nn.runtime.context import ForwardContext
from ..nn.runtime.decoding_state import DecodingState, KeyValueCache
from ..nn.runtime.inputs import check_inputs
from ..nn.runtime.node_output import NodeOutput, Padding
from ..slots.node import AnyInputRule, FeatureRule, ImageRule

# A decoding state as named tensors, and back.
#
# memory.SITE.key, .value                          keys (B, G, K, D) and values (B, G, K, V) of a cross-attention site
# memory.NODE, .visible, .ids, .layers.I, .states.I      what the decoder reads of another node
# past.SITE.key, .value                            keys (B, G, P, D) and values (B, G, P, V) of P earlier tokens
# past.NODE.I                                      recurrent states (B, N) after the P tokens
# past.visible                                     (B, P) bool, False for padding

Named = dict[str, Tensor]


class ConcatenatedCache(KeyValueCache):
    """A cache that makes new tensors. `KeyValueCache` writes into buffers, which a program does not have."""

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__(1)
        self.key, self.value = key, value

    def write(self, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.key = key if self.key is None else torch.cat([self.key, key], 2)
        self.value = value if self.value is None else torch.cat([self.value, value], 2)
        return self.key, self.value


def memory_of(state: DecodingState) -> Named:
    """The tensors that a decoder reads and no step changes."""
    named = {}
    for site, (key, value) in state.crossed.items():
        named.update({f"memory.{site}.key": key, f"memory.{site}.value": value})
    for node, output in state.node_outputs.items():
        named.update(_fields(node, output))
    return named


def caches_of(state: DecodingState) -> Named:
    """The keys and values of the self-attention sites."""
    named = {}
    for site, cache in state.caches.items():
        assert cache.key is not None
        assert cache.value is not None
        named.update({f"past.{site}.key": cache.key, f"past.{site}.value": cache.value})
    return named


def recurrent_of(states: dict[str, tuple[Tensor, ...]]) -> Named:
    """The recurrent states."""
    return {f"past.{node}.{index}": tensor for node, tensors in states.items() for index, tensor in enumerate(tensors)}


def state_of(tensors: Named, like: DecodingState) -> DecodingState:
    """The decoding state of these tensors, which have `past.visible`, with the names of the state `like`. What they do not have
    of the memory is taken from it."""
    batch, length = tensors["past.visible"].shape
    state = DecodingState(like.target, batch, 1, length)
    for site in like.caches:
        state.caches[site] = ConcatenatedCache(tensors[f"past.{site}.key"], tensors[f"past.{site}.value"])
    for site in like.crossed:
        state.crossed[site] = tensors[f"memory.{site}.key"], tensors[f"memory.{site}.value"]
    for node, states in like.recurrent.items():
        state.recurrent[node] = tuple(tensors[f"past.{node}.{index}"] for index in range(len(states)))
    for node, output in like.node_outputs.items():
        state.node_outputs[node] = _output(node, {**_fields(node, output), **tensors})
    return state


def _fields(node: str, output: NodeOutput) -> Named:
    single = {"": output.tensor, ".visible": output.padding.visible, ".ids": output.ids}
    named = {f"memory.{node}{name}": tensor for name, tensor in single.items() if tensor is not None}
    for name, tensors in (("layers", output.layers), ("states", output.states)):
        named.update({f"memory.{node}.{name}.{index}": tensor for index, tensor in enumerate(tensors or ())})
    return named


def _output(node: str, fields: Named) -> NodeOutput:
    """The inverse of `_fields`."""
    name = f"memory.{node}"
    layers, states = (
        tuple(tensor for field, tensor in fields.items() if field.startswith(f"{name}.{several}.")) or None
        for several in ("layers", "states")
    )
    return NodeOutput(fields[name], Padding(fields.get(f"{name}.visible")), fields.get(f"{name}.ids"), layers, states)


class Program(nn.Module):
    """A part of a model. `forward` takes the tensors of `example` in that order."""

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
    """What does not depend on the target, the input that is decoded. `read` are the outputs that `step` reads."""

    name = "encode"

    def __init__(self, model: Model, example: Named, target: str, read: Container[str]) -> None:
        super().__init__(model, example)
        self.target, self.read = target, read

    def run(self, tensors: Named) -> Named:
        state = encoded(self.model, tensors, self.target)
        outputs = {**memory_of(state), **recurrent_of(state.recurrent)}
        return {name: tensor for name, tensor in outputs.items() if name in self.read}


class Step(Program):
    """The next tokens of the target. `like` is a state with the names of those that the program reads."""

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
    padding = check_inputs(plan, others, inputs, {"masks": masks, "segments": segments}, next(model.parameters(), None))
    before = [name for name in plan.wires if name not in following]
    outputs = executor.run(before, ForwardContext(inputs, padding, segments), {})
    read = set().union(*(executor.reads(name) for name in following))
    batch = next((tensor.shape[0] for tensor in inputs.values()), 1)
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


# Examples of the inputs of programs, and the sizes that vary.
#
# Every program is run with two examples. A size that differs between them varies, and the pair of sizes is its name.


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that a program reads or returns: its name, dtype as numpy spells it, and sizes; a name stands for a size that
    varies."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class ProgramFacts:
    """A program with the facts of its inputs and outputs, in order."""

    program: Program
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]


def programs_of(model: Model) -> list[ProgramFacts]:
    """The programs of a model: `forward`; or `step`, after `encode` if the model has other inputs than its target."""
    targets = targets_of(model)
    sizes = _sizes(model, targets[0] if targets else "")
    names = {pair: name for name, pair in sizes.items()}
    with torch.no_grad():
        target = targets[0] if targets else ""
        small = _programs(model, target, {name: pair[0] for name, pair in sizes.items()})
        large = _programs(model, target, {name: pair[1] for name, pair in sizes.items()}, small[-1])
        return [
            ProgramFacts(
                one,
                _facts(one.example, other.example, names),
                _facts(one.run(one.example), other.run(other.example), names),
            )
            for one, other in zip(small, large, strict=True)
        ]


def targets_of(model: Model) -> list[str]:
    """The inputs that can be decoded step by step."""
    return [name for name in model.plan.inputs if name not in model.plan.undecodable]


def shortest_inputs(model: Model) -> dict[str, int]:
    """The least length of each input whose length a convolution divides: two vectors remain. Other inputs may have length 1."""
    convolutions = [
        convolution for node in model.nodes.values() if isinstance(node, Convolutions) for convolution in node.convolutions
    ]
    stride = prod(convolution.stride[0] for convolution in convolutions if isinstance(convolution, nn.Conv1d))
    frames = [name for name, rule in model.plan.inputs.items() if isinstance(rule, FeatureRule)]
    return dict.fromkeys(frames, 1 + stride) if stride > 1 else {}


def _sizes(model: Model, target: str) -> dict[str, tuple[int, int]]:
    """The sizes of both examples by name. All pairs differ. None holds 0 or 1, which tracing would keep as they are."""
    plan = model.plan
    sizes = {"batch": (2, 3)}
    if target:
        parts = (module for name in plan.followers[target] for module in model.nodes[name].modules())
        looped = any(isinstance(module, (Recurrent, Recurrence)) for module in parts)
        new = (1, 1) if looped else (2, 5)  # tracing unrolls a recurrence
        sizes |= {"new": new, "past": (5, 11), "past + new": (5 + new[0], 11 + new[1])}
    for index, (name, rule) in enumerate(plan.inputs.items()):
        if name != target and not isinstance(rule, ImageRule):
            limit = plan.max_input_lengths.get(name, 99)
            small, large = min(16 + 3 * index, limit), min(29 + 7 * index, limit)
            sizes |= {f"{name}/{stride}": (-(-small // stride), -(-large // stride)) for stride in (8, 4, 2)}
            sizes[name] = small, large
    return sizes


def _programs(model: Model, target: str, sizes: Mapping[str, int], alike: Program | None = None) -> list[Program]:
    """The programs with an example of some sizes; `alike` is the last of them with another example, if it is known already."""
    example: Named = {}
    for name, rule in model.plan.inputs.items():
        if name != target:
            example.update(_example(name, rule, sizes, model))
    if not target:
        return [Forward(model, example)]
    like = encoded(model, example, target)
    ids = torch.ones(sizes["batch"], sizes["new"], dtype=torch.int64, device=model.device)
    tensors = {"ids": ids, "visible": ids.bool(), **memory_of(like)}
    tensors["past.visible"] = torch.ones(sizes["batch"], sizes["past"], dtype=torch.bool, device=model.device)
    for name, tensor in caches_of(like).items():
        tensors[name] = tensor[:1].expand(sizes["batch"], -1, sizes["past"], -1).contiguous()
    for name, tensor in recurrent_of(like.recurrent).items():
        tensors[name] = tensor[:1].expand(sizes["batch"], -1).contiguous()
    read = set(alike.example) if alike is not None else _read(Step(model, tensors, like))
    step = Step(model, {name: tensor for name, tensor in tensors.items() if name in read}, like)
    return [Encode(model, example, target, step.example), step] if example else [step]


def _read(program: Program) -> set[str]:
    """The names of the tensors that the program reads."""
    traced = torch.export.export(program, tuple(program.example.values()), strict=False)
    nodes = {node.name: node for node in traced.graph.nodes}
    inputs = traced.graph_signature.user_inputs
    return {name for name, node in zip(program.example, inputs, strict=True) if nodes[node].users}


def _example(name: str, rule: AnyInputRule, sizes: Mapping[str, int], model: Model) -> Named:
    batch, device = sizes["batch"], model.device
    if isinstance(rule, ImageRule):
        return {name: torch.zeros(batch, rule.channels, rule.size, rule.size, dtype=model.dtype, device=device)}
    ids = torch.ones(batch, sizes[name], dtype=torch.int64, device=device)
    visible = {f"{name}.visible": ids.bool()}
    if isinstance(rule, FeatureRule):
        return {name: torch.zeros(*ids.shape, rule.size, dtype=model.dtype, device=device), **visible}
    token = next(candidate for candidate in (rule.end_id, 1, 0) if candidate is not None and candidate != rule.pad_id)
    segments = {f"{name}.segments": torch.zeros_like(ids)} if rule.segments else {}
    return {name: token * ids, **({} if rule.marks_padding else visible), **segments}


def _facts(one: Named, other: Named, names: Mapping[tuple[int, int], str]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(a if a == b else names[a, b] for a, b in zip(tensor.shape, other[name].shape, strict=True)),
        )
        for name, tensor in one.items()
    )
