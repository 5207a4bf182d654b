"""A decoding step of fixed shapes, which can be captured as a CUDA graph and run at every position.

The step reads one id for each row and their position from tensors, writes one key and value into caches that keep their shape,
and attends to all of their positions, of which the causal mask hides the later ones. An ordinary step computes the same with
tensors that grow: its shapes and numbers differ from position to position, so that a capture of it could not be used again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..cpu.packed_weight import searching
from ..errors import Diagnostic, InputError
from .model import Model
from .multi_head import MultiHeadAttention
from .recurrent_sublayers import Recurrence
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState, FixedCache
from .runtime.node_output import Padding
from .stack import Stack
from .tokens import TokenLogits, Tokens


class FixedStep:
    """A step for the rows of a decoding state.

    Args:
        model: The model.
        state: The state after the prompt.
        capacity: Positions of the caches.
        output: The output node with the logits.

    Attributes:
        ids: (B, 1) int64, the tokens of the step.
        place: (1,) int64, their position.

    Raises:
        InputError: The model has a part whose step has no fixed shapes.
    """

    def __init__(self, model: Model, state: DecodingState, capacity: int, output: str) -> None:
        if reasons := sorted(set(why_not_fixed(model, state))):
            message = f"a decoding step of this model cannot be captured: {'; '.join(reasons)}"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out"))
        self.model, self.output, self.capacity = model, output, capacity
        device = model.device
        self.ids = torch.zeros(state.batch, 1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.caches = {site: FixedCache(cache, capacity, self.place) for site, cache in state.caches.items()}
        self.state = DecodingState(state.target, state.batch, capacity, products=state.products, place=self.place)
        self.state.caches.update(self.caches)

    def load(self, state: DecodingState) -> None:
        """Start after the tokens of an ordinary state with as many rows."""
        for site, cache in self.caches.items():
            cache.load(state.caches[site])
        self.place.fill_(state.length)

    def run(self) -> Tensor:
        """The logits (B, V) after the tokens `ids`; their keys and values are cached at `place`."""
        target = self.state.target
        context = ForwardContext({target: self.ids}, {target: Padding()}, {}, self.state)
        executor = self.model.executor
        with searching(self.state.products):
            outputs = executor.outputs(executor.run(executor.plan.followers[target], context, {}), context)
        logits: Tensor = outputs[self.output][:, -1]
        return logits


def why_not_fixed(model: Model, state: DecodingState) -> Iterator[str]:
    """Why a step of this model has no fixed shapes; nothing where it has."""
    if len(model.plan.inputs) > 1:
        yield f"it has the inputs {', '.join(model.plan.inputs)}, and one alone can be captured"
    if state.visible is not None:
        yield "its prompt holds padding"
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
        if not kind.__module__.startswith(("tfkit.", "torch.")) and _reads_context(module):
            yield f"`{name}` holds a `{kind.__name__}` of a plugin"


def _reads_context(module: nn.Module) -> bool:
    return "context" in inspect.signature(module.forward).parameters
