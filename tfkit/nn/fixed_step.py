"""A decoding step of fixed shapes, which can be captured as a CUDA graph and run at every position.

The step reads one id for each row and their position from tensors, writes one key and value into caches that keep their shape,
and attends to all of their positions, of which the causal mask hides the later ones. The keys and values of an encoded source
have a fixed length too, and a mask hides those behind its end. An ordinary step computes the same with tensors that grow: its
shapes and numbers differ from position to position, so that a capture of it could not be used again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ..cpu.packed_weight import SearchProducts, searching
from ..errors import Diagnostic, InputError
from .layers import Linear
from .model import Model
from .multi_head import MultiHeadAttention
from .runtime.beam_tree import SentenceRows
from .runtime.context import ForwardContext
from .runtime.decoding_state import DecodingState, FixedCache, KeyValueCache
from .runtime.head_columns import HeadColumns, ListedColumns
from .runtime.node_output import NodeOutput, Padding
from .stack import Stack
from .tokens import TokenLogits, Tokens


class FixedStep:
    """A step for the rows of a decoding state, and for states with fewer rows and shorter memories.

    Args:
        model: The model.
        state: The state after the prompt.
        rows: Rows of a step, at least those of the state; with `beams`, a multiple of them.
        capacity: Positions of the caches.
        memories: Positions of each memory, at least those of the state.
        output: The output node with the logits.
        beams: The hypotheses of each sentence of a beam search, which change places before a step and share a memory. 0 in
            other searches.
        columns: The length of the lists of ids whose logits are computed, of which the step reads and selects places; 0 for all
            ids.

    Attributes:
        ids: (rows, 1) int64, the tokens of the step.
        place: (1,) int64, their position.
        order: (rows,) int64, the row that each row continues.

    Raises:
        InputError: The model has a part whose step has no fixed shapes.
    """

    def __init__(
        self, model: Model, state: DecodingState, rows: int, capacity: int, memories: Mapping[str, int], output: str,
        beams: int = 0, columns: int = 0,
    ) -> None:  # fmt: skip
        if reasons := sorted(set(why_not_fixed(model, state))):
            message = f"a decoding step of this model cannot be captured: {'; '.join(reasons)}"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out"))
        self.model, self.output, self.beams = model, output, beams
        device, sentences = model.device, rows // max(beams, 1)
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.arange(rows, device=device)
        self.first_slots = capacity * self.order[:, None]
        self.slots = self.first_slots + torch.arange(capacity, device=device)
        self.state = DecodingState(state.target, rows, capacity, products=state.products, place=self.place)
        self.state.memory_rows = SentenceRows(beams) if beams else None
        slots = self.slots if beams else None
        self.caches = {site: FixedCache(cache, rows, capacity, self.place, slots) for site, cache in state.caches.items()}
        self.state.caches.update(self.caches)
        self.visible: dict[str, Tensor] = {}
        for name, memory in state.node_outputs.items():
            self.visible[name] = torch.zeros(sentences, memories[name], dtype=torch.bool, device=device)
            # Attention reads the keys and values below, and of the memory its padding alone.
            nothing = memory.tensor.new_zeros(1, 1, 1).expand(sentences, memories[name], memory.tensor.shape[2])
            self.state.node_outputs[name] = NodeOutput(nothing, Padding(self.visible[name]))
        lengths = {memory.tensor.shape[1]: memories[name] for name, memory in state.node_outputs.items()}
        for site, held in state.crossed.items():
            key, value = (
                tensor.new_zeros(sentences, tensor.shape[1], lengths[tensor.shape[2]], tensor.shape[3]) for tensor in held
            )
            self.state.crossed[site] = key, value
        self.columns: ListedColumns | None = None
        if columns:
            head = model.executor.nodes[output]
            if not isinstance(head, TokenLogits) or not isinstance(head.logits, Linear | None):
                message = f"the logits of `{output}` are computed by a `{type(head.logits).__name__}`"
                raise InputError(Diagnostic("TFK063", message, "leave the shortlist out"))
            self.columns = self.state.columns = ListedColumns(head, sentences, columns, device)
        for site, states in state.recurrent.items():
            self.state.recurrent[site] = tuple(tensor.new_zeros(rows, *tensor.shape[1:]) for tensor in states)

    def load(self, state: DecodingState, order: Tensor | None = None) -> None:
        """Start after the tokens of an ordinary state: with its rows, or with the rows `order` (B',) of it."""
        rows = torch.arange(state.batch, device=self.place.device) if order is None else order
        for site, cache in self.caches.items():
            cache.load(state.caches[site], rows)
        for site, states in self.state.recurrent.items():
            for fixed, tensor in zip(states, state.recurrent[site], strict=True):
                fixed[: len(rows)] = tensor.index_select(0, rows)
        sentences = rows[:: self.beams or 1]
        if self.columns is not None:
            assert isinstance(state.columns, HeadColumns)
            assert state.columns.lists is not None
            self.columns.load(state.columns.lists.index_select(0, sentences))
        for site, held in self.state.crossed.items():
            for fixed, tensor in zip(held, state.crossed[site], strict=True):
                fixed[: len(sentences), :, : tensor.shape[2]] = tensor.index_select(0, sentences)
        for name, visible in self.visible.items():
            memory = state.node_outputs[name]
            length = memory.tensor.shape[1]
            before = memory.padding.as_visible(length)
            visible.zero_()
            visible[: len(sentences), :length] = True if before is None else before.index_select(0, sentences)
        self._begin(state.length)

    def take_over(self, other: FixedStep, rows: Tensor) -> None:
        """Go on with the rows `rows` (B',) of a step with the same positions, before it reads `ids`."""
        sentences, rows = rows[:: self.beams or 1] // (self.beams or 1), other.order[rows]
        for site, cache in self.caches.items():
            cache.take_over(other.caches[site], rows)
        for site, states in self.state.recurrent.items():
            for fixed, tensor in zip(states, other.state.recurrent[site], strict=True):
                fixed[: len(rows)] = tensor.index_select(0, rows)
        if self.columns is not None:
            assert other.columns is not None
            self.columns.load(other.columns.lists.index_select(0, sentences))
        for site, held in self.state.crossed.items():
            for mine, tensor in zip(held, other.state.crossed[site], strict=True):
                mine[: len(sentences)] = tensor.index_select(0, sentences)
        for name, visible in self.visible.items():
            visible.zero_()
            visible[: len(sentences)] = other.visible[name].index_select(0, sentences)
        self._begin(int(other.place))

    def _begin(self, length: int) -> None:
        self.place.fill_(length)
        torch.arange(len(self.order), out=self.order)
        torch.arange(self.slots.numel(), out=self.slots.view(-1))

    def move_memories(self, rows: Tensor) -> None:
        """The first rows of a beam search read the memories of the rows `rows` (B',) from now on."""
        sentences = rows[:: self.beams] // self.beams
        for held in (*self.state.crossed.values(), tuple(self.visible.values())):
            for fixed in held:
                fixed[: len(sentences)] = fixed.index_select(0, sentences)

    def run(self) -> Tensor:
        """The logits (rows, V) after the tokens `ids`; their keys and values are cached at `place`."""
        if self.beams:
            self.slots.copy_(self.slots.index_select(0, self.order))
            self.slots.index_copy_(1, self.place, self.first_slots + self.place)
            for tensor in (tensor for states in self.state.recurrent.values() for tensor in states):
                tensor.copy_(tensor.index_select(0, self.order))
        logits = self.logits()
        for site, states in self.state.recurrent.items():
            for tensor, new in zip(states, self.state.recurrent_new[site], strict=True):
                tensor.copy_(new)
        return logits

    def logits(self) -> Tensor:
        """As `run`, but recurrent sub-layers keep the states that they have."""
        target, ids = self.state.target, self.ids if self.columns is None else self.columns.ids_at(self.ids)
        context = ForwardContext({target: ids}, {target: Padding()}, {}, self.state)
        executor = self.model.executor
        following = executor.plan.followers[target]
        with searching(self.state.products):
            node_outputs = executor.run(following, context, self.state.node_outputs)
        logits: Tensor = executor.outputs({name: node_outputs[name] for name in following}, context)[self.output][:, -1]
        return logits


class FixedStart:
    """The first pass of a search, of fixed shapes: the nodes that do not depend on the target, and its start token.

    Args:
        model: The model. All its inputs but the target are one source of ids.
        state: The state after an ordinary first pass.
        rows: Rows of the pass, at least those of its searches.
        length: Positions of the source, at least those of its searches.
        output: The output node with the logits.
        start_id: The start token.

    Attributes:
        ids: (rows, length) int64, the source.
        visible: (rows, length) bool, False for padding.

    Raises:
        InputError: The model has a part whose step has no fixed shapes, or an output of another length than the source.
    """

    def __init__(self, model: Model, state: DecodingState, rows: int, length: int, output: str, start_id: int) -> None:
        self.executor, [self.source] = model.executor, [name for name in model.plan.inputs if name != state.target]
        following = model.plan.followers[state.target]
        self.before = [name for name in model.plan.wires if name not in following]
        reasons = set(_why_not_nodes(model, self.before))
        lengths = {memory.tensor.shape[1] for memory in state.node_outputs.values()}
        reasons |= {"its memories differ in length"} if len(lengths) != 1 else set()
        if reasons:
            message = f"the first pass of this model cannot be captured: {'; '.join(sorted(reasons))}"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out"))
        self.step = FixedStep(model, state, rows, 1, dict.fromkeys(state.node_outputs, length), output)
        self.step.ids.fill_(start_id)
        self.ids = torch.zeros(rows, length, dtype=torch.int64, device=model.device)
        self.visible = torch.zeros(rows, length, dtype=torch.bool, device=model.device)

    def run(self) -> tuple[Tensor, ...]:
        """The logits (rows, V) of the first new token, then the memories and their keys and values, which `state` copies."""
        state = self.step.state
        context = ForwardContext({self.source: self.ids}, {self.source: Padding(self.visible)}, {})
        with searching(state.products):
            node_outputs = self.executor.run(self.before, context, {})
        state.node_outputs = {name: node_outputs[name] for name in state.node_outputs}
        state.crossed.clear()
        state.recurrent.clear()
        logits = self.step.logits()
        memories = [memory.tensor for memory in state.node_outputs.values()]
        held = (*state.crossed.values(), *state.recurrent_new.values())
        return logits, *memories, *(tensor for tensors in held for tensor in tensors)

    def load(self, ids: Tensor, visible: Tensor | None) -> None:
        """Set the source: ids (B, L) and their padding."""
        B, L = ids.shape
        self.visible.zero_()
        self.visible[:B, :L] = True if visible is None else visible
        self.ids[:B, :L] = ids

    def state(self, batch: int, length: int, capacity: int, padding: Padding, products: SearchProducts) -> DecodingState:
        """An ordinary state after the pass, for the first rows and positions. It shares no memory with this one."""
        mine = self.step.state
        state = DecodingState(mine.target, batch, capacity, products=products)
        for name, memory in mine.node_outputs.items():
            state.node_outputs[name] = NodeOutput(memory.tensor[:batch, :length].clone(), padding)
        for site, (key, value) in mine.crossed.items():
            state.crossed[site] = key[:batch, :, :length].clone(), value[:batch, :, :length].clone()
        for site, cache in self.step.caches.items():
            assert cache.key is not None
            assert cache.value is not None
            state.caches[site] = KeyValueCache(capacity)
            state.caches[site].write(0, cache.key[:batch], cache.value[:batch])
        state.remember(self.step.ids[:batch], None)
        state.recurrent = {
            site: tuple(tensor[:batch].clone() for tensor in states) for site, states in mine.recurrent_new.items()
        }
        return state


def why_not_fixed(model: Model, state: DecodingState) -> Iterator[str]:
    """Why a step of this model has no fixed shapes; nothing where it has."""
    if state.visible is not None:
        yield "its prompt holds padding"
    for name, memory in state.node_outputs.items():
        if memory.tensor.dim() != 3:
            yield f"`{name}` has no positions"
        if memory.layers is not None or memory.states is not None:
            yield f"the layers or states of `{name}` are read"
    yield from _why_not_nodes(model, model.plan.followers[state.target])


def _why_not_nodes(model: Model, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        node = model.executor.nodes[name]
        if not isinstance(node, (Tokens, Stack, TokenLogits)):
            yield f"`{name}` is neither tokens, nor a stack, nor logits over tokens"
        elif isinstance(node, Stack):
            yield from _why_not_stack(name, node)


def _why_not_stack(name: str, stack: Stack) -> Iterator[str]:
    for module in stack.layers.modules():
        kind = type(module)
        if isinstance(module, MultiHeadAttention) and module.local is not None:
            yield f"`{name}` attends to a window around a predicted position"
        if isinstance(module, MultiHeadAttention) and module.config.cross and module.position_config is not None:
            yield f"`{name}` has positions in cross-attention"
        if not kind.__module__.startswith(("tfkit.", "torch.")) and _reads_context(module):
            yield f"`{name}` holds a `{kind.__name__}` of a plugin"


def _reads_context(module: nn.Module) -> bool:
    return "context" in inspect.signature(module.forward).parameters
