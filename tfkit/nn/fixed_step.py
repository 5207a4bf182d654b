"""A decoding step of fixed shapes, which can be captured as a CUDA graph and run at every position.

The step reads one id for each row and their position from tensors, writes one key and value into caches that keep their shape,
and attends to all of their positions, of which the causal mask hides the later ones. The keys and values of an encoded source
have a fixed length too, and a mask hides those behind its end. An ordinary step computes the same with tensors that grow: its
shapes and numbers differ from position to position, so that a capture of it could not be used again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..cpu.packed_weight import searching
from ..errors import Diagnostic, InputError
from .model import Model
from .multi_head import MultiHeadAttention
from .recurrent_sublayers import Recurrence
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState, FixedCache
from .runtime.node_output import NodeOutput, Padding
from .stack import Stack
from .tokens import TokenLogits, Tokens


class FixedStep:
    """A step for the rows of a decoding state, and for states with fewer rows and shorter memories.

    Args:
        model: The model.
        state: The state after the prompt.
        rows: Rows of a step, at least those of the state.
        capacity: Positions of the caches.
        memories: Positions of each memory, at least those of the state.
        output: The output node with the logits.
        reorders: Whether the rows change places before a step, as the hypotheses of a beam search do.

    Attributes:
        ids: (rows, 1) int64, the tokens of the step.
        place: (1,) int64, their position.
        order: (rows,) int64, the row that each row continues.

    Raises:
        InputError: The model has a part whose step has no fixed shapes.
    """

    def __init__(
        self, model: Model, state: DecodingState, rows: int, capacity: int, memories: Mapping[str, int], output: str,
        reorders: bool = False,
    ) -> None:  # fmt: skip
        if reasons := sorted(set(why_not_fixed(model, state))):
            message = f"a decoding step of this model cannot be captured: {'; '.join(reasons)}"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out"))
        self.model, self.output, self.reorders = model, output, reorders
        device = model.device
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.arange(rows, device=device)
        self.first_slots = capacity * self.order[:, None]
        self.slots = self.first_slots + torch.arange(capacity, device=device)
        self.state = DecodingState(state.target, rows, capacity, products=state.products, place=self.place)
        slots = self.slots if reorders else None
        self.caches = {site: FixedCache(cache, rows, capacity, self.place, slots) for site, cache in state.caches.items()}
        self.state.caches.update(self.caches)
        self.visible: dict[str, Tensor] = {}
        for name, memory in state.node_outputs.items():
            self.visible[name] = torch.zeros(rows, memories[name], dtype=torch.bool, device=device)
            # Attention reads the keys and values below, and of the memory its padding alone.
            nothing = memory.tensor.new_zeros(1, 1, 1).expand(rows, memories[name], memory.tensor.shape[2])
            self.state.node_outputs[name] = NodeOutput(nothing, Padding(self.visible[name]))
        lengths = {memory.tensor.shape[1]: memories[name] for name, memory in state.node_outputs.items()}
        for site, held in state.crossed.items():
            key, value = (tensor.new_zeros(rows, tensor.shape[1], lengths[tensor.shape[2]], tensor.shape[3]) for tensor in held)
            self.state.crossed[site] = key, value

    def load(self, state: DecodingState, order: Tensor | None = None) -> None:
        """Start after the tokens of an ordinary state: with its rows, or with the rows `order` (B',) of it."""
        rows = torch.arange(state.batch, device=self.place.device) if order is None else order
        for site, cache in self.caches.items():
            cache.load(state.caches[site], rows)
        for site, held in self.state.crossed.items():
            for fixed, tensor in zip(held, state.crossed[site], strict=True):
                fixed[: len(rows), :, : tensor.shape[2]] = tensor.index_select(0, rows)
        for name, visible in self.visible.items():
            memory = state.node_outputs[name]
            length = memory.tensor.shape[1]
            before = memory.padding.as_visible(length)
            visible.zero_()
            visible[: len(rows), :length] = True if before is None else before.index_select(0, rows)
        self.place.fill_(state.length)
        torch.arange(len(self.order), out=self.order)
        torch.arange(self.slots.numel(), out=self.slots.view(-1))

    def move_memories(self, rows: Tensor) -> None:
        """The first rows read the memories of the rows `rows` (B',) from now on."""
        for held in (*self.state.crossed.values(), tuple(self.visible.values())):
            for fixed in held:
                fixed[: len(rows)] = fixed.index_select(0, rows)

    def run(self) -> Tensor:
        """The logits (rows, V) after the tokens `ids`; their keys and values are cached at `place`."""
        target = self.state.target
        if self.reorders:
            self.slots.copy_(self.slots.index_select(0, self.order))
            self.slots.index_copy_(1, self.place, self.first_slots + self.place)
        context = ForwardContext({target: self.ids}, {target: Padding()}, {}, self.state)
        executor = self.model.executor
        following = executor.plan.followers[target]
        with searching(self.state.products):
            node_outputs = executor.run(following, context, self.state.node_outputs)
        logits: Tensor = executor.outputs({name: node_outputs[name] for name in following}, context)[self.output][:, -1]
        return logits


def why_not_fixed(model: Model, state: DecodingState) -> Iterator[str]:
    """Why a step of this model has no fixed shapes; nothing where it has."""
    if state.visible is not None:
        yield "its prompt holds padding"
    for name, memory in state.node_outputs.items():
        if memory.tensor.dim() != 3:
            yield f"`{name}` has no positions"
        if memory.layers is not None or memory.states is not None:
            yield f"the layers or states of `{name}` are read"
    for name in model.plan.followers[state.target]:
        node = model.executor.nodes[name]
        if not isinstance(node, (Tokens, Stack, TokenLogits)):
            yield f"`{name}` is neither tokens, nor a stack, nor logits over tokens"
        elif isinstance(node, Stack):
            yield from _why_not_stack(name, node)


def _why_not_stack(name: str, stack: Stack) -> Iterator[str]:
    for module in stack.layers.modules():
        kind = type(module)
        if isinstance(module, Recurrence):
            yield f"`{name}` holds a `{module.name}`, which keeps a state"
        if isinstance(module, MultiHeadAttention) and module.local is not None:
            yield f"`{name}` attends to a window around a predicted position"
        if isinstance(module, MultiHeadAttention) and module.config.cross and module.position_config is not None:
            yield f"`{name}` has positions in cross-attention"
        if not kind.__module__.startswith(("tfkit.", "torch.")) and _reads_context(module):
            yield f"`{name}` holds a `{kind.__name__}` of a plugin"


def _reads_context(module: nn.Module) -> bool:
    return "context" in inspect.signature(module.forward).parameters
