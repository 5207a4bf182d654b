"""Recurrent encoders and decoders, Cho et al. 2014, Bahdanau et al. 2015, Luong et al. 2015

    encoder              s_t = cell(x_t, s_{t-1})
    context vector       s_t = cell([x_t; c], s_{t-1})                                        Cho: c is the same at every step
    before the cell      c_t = attend(s_{t-1}),   s_t = cell([x_t; c_t], s_{t-1})             Bahdanau
    between two cells    s' = cell(x_t, s_{t-1}),  c_t = attend(s'),  s_t = cell_2(c_t, s')    conditional GRU
    after the cell       s_t = cell(x_t, s_{t-1}),  c_t = attend(s_t)                         Luong
    input feeding        s_t = cell([x_t; r_{t-1}], s_{t-1}),  r_t = readout(s_t, x_t, c_t)

In the layers above the first one, x is the output of the layer below. Only where the attention feeds the recurrence (before,
between, input feeding) are the steps a loop; otherwise every layer reads the whole sequence in one call, and one attention
call serves all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .layers import Dropout
from .multi_head import MultiHeadAttention
from .readout import InitialState, Readout
from .recurrent_layer import RecurrentLayer, State, held
from .runtime.context import ForwardContext, StackContext, use
from .runtime.node_output import NodeOutput


@dataclass(frozen=True)
class Steps:
    """The steps of a decoder, before the read-out.

    Args:
        outputs: (B, L, N) outputs of the top layer.
        previous: (B, L, N) the top layer's output one step earlier, if the read-out reads it.
        contexts: (B, L, C), or (B, 1, C) if it is the same at every step, or None.
        readout: (B, L, R) the read-outs, if the steps needed them.
        states: the states of all layers after the last step.
        layers: (B, L, N) outputs of every layer before dropout, if they are kept.
    """

    outputs: Tensor
    previous: Tensor | None
    contexts: Tensor | None
    readout: Tensor | None
    states: list[State]
    layers: list[Tensor]


class Recurrent(nn.Module):
    """(B, L, M) -> (B, L, N), (B, L, 2 N) if bidirectional, or (B, L, R) with a read-out.

    Args:
        name: name of the node.
        layers: the layers, each on the output of the one before.
        d_state: features N of a state.
        states: tensors in the state of a layer.
        attend: `before_cell`, `between_cells`, `after_cell`, or "" without attention.
        attention: attention to the memory; its queries, keys and values are the states as they are.
        context_cell: the second cell of `between_cells`.
        reads_memory: the memory is one vector that enters every step.
        feeding: the read-out is an input of the next step.
        initial: the first states from the memory, None for zeros; `copies`: they are the last states of the encoder.
        readout: the layer after the recurrence, or None.
        reads_previous: the read-out reads the state of the step before.
        dropout: dropout of the outputs of every layer; nothing is dropped inside the recurrence.
        keep_layers: the output holds what the cells of every layer give, before dropout.
    """

    layers: Any
    context_cell: Any
    initial: Any
    readout: Any

    def __init__(
        self,
        name: str,
        layers: list[RecurrentLayer],
        d_state: int,
        states: int,
        *,
        attend: str,
        attention: MultiHeadAttention | None,
        context_cell: nn.Module | None,
        reads_memory: bool,
        feeding: bool,
        initial: InitialState | None,
        copies: bool,
        readout: Readout | None,
        reads_previous: bool,
        dropout: float,
        keep_layers: bool,
    ) -> None:
        super().__init__()
        self.name, self.d_state, self.states = name, d_state, states
        self.layers = nn.ModuleList(layers)
        self.attend, self.cross_attention, self.context_cell = attend, attention, context_cell
        self.reads_memory, self.feeding, self.copies = reads_memory, feeding, copies
        self.initial, self.readout, self.reads_previous = initial, readout, reads_previous
        self.dropout = Dropout(dropout) if dropout > 0.0 else None
        self.memory_only_attended, self.keep_layers = not reads_memory, keep_layers
        self.loops = feeding or attend in ("before_cell", "between_cells")  # the attention feeds the recurrence

    def attention_sites(self) -> Iterable[tuple[int, MultiHeadAttention]]:
        """The one attention to the memory, if there is one."""
        return [] if self.cross_attention is None else [(0, self.cross_attention)]

    def forward(self, context: ForwardContext, input: NodeOutput, memory: NodeOutput | None = None) -> NodeOutput:
        """Read the sequence, or its new tokens while decoding.

        Args:
            context: the current call of the model.
            input: (B, L, M) with its padding.
            memory: (B, K, C) what the attention reads, or (B, C) a vector that enters every step.
        """
        x, offset = input.tensor, 0 if context.state is None else context.state.length
        L = x.shape[1]
        visible = input.padding.as_visible(offset + L)
        visible, lengths, longest = (None, None, L) if visible is None else _trimmed(visible[:, offset:], context.state is None)
        x = x[:, :longest].contiguous()  # products of equal layout have equal bits
        states, fed = self._first(context, x, memory)
        attended = context.stack_context(self.name, input, True, memory, repeats=True)
        constant = memory.tensor.unsqueeze(1) if self.reads_memory and memory is not None else None  # (B, 1, C)
        if self.loops:
            steps = self._loop(x, states, fed, attended, visible, lengths)
        else:
            steps = self._sequences(x, states, constant, attended, visible, lengths)
        outputs, *layers = (_untrimmed(y, visible, L) for y in (self._read_out(x, steps), *steps.layers))
        last = tuple(tensor for state in steps.states for tensor in state)
        if context.state is not None:
            new_feed = () if steps.readout is None else (steps.readout[:, -1],)
            context.state.recurrent_new[self.name] = (*last, *new_feed)
        return NodeOutput(outputs, input.padding, input.ids, tuple(layers) if self.keep_layers else None, last)

    def _first(self, context: ForwardContext, x: Tensor, memory: NodeOutput | None) -> tuple[list[State], Tensor | None]:
        """The states before the first new token, and the read-out that is fed to it."""
        B, count = x.shape[0], len(self.layers) * self.states
        known = None if context.state is None else context.state.recurrent.get(self.name)
        if known is not None:
            flat, fed = known[:count], known[count] if self.feeding else None
        else:
            flat = self._initial_states(memory, x, count)
            if flat[0].shape[0] != B:  # hypotheses that share the memory of their sentence
                flat = tuple(tensor.repeat_interleave(B // tensor.shape[0], 0) for tensor in flat)
            fed = x.new_zeros(B, self.readout.width) if self.feeding and self.readout is not None else None
            if context.state is not None:
                context.state.recurrent[self.name] = flat if fed is None else (*flat, fed)
        return [flat[i : i + self.states] for i in range(0, count, self.states)], fed

    def _initial_states(self, memory: NodeOutput | None, x: Tensor, count: int) -> State:
        if self.copies and memory is not None:
            assert memory.states is not None
            return memory.states
        if self.initial is not None and memory is not None:
            first: Tensor = self.initial(memory)
            return first.to(x.dtype).chunk(count, 1)
        return (x.new_zeros(x.shape[0], self.d_state),) * count

    def _sequences(
        self,
        x: Tensor,
        states: list[State],
        constant: Tensor | None,
        attended: StackContext,
        visible: Tensor | None,
        lengths: Tensor | None,
    ) -> Steps:
        """Layer after layer over the whole sequence, then one attention call for all steps."""
        first, inputs = states[-1][0], [x] if constant is None else [x, constant]
        outputs, last, layers = self._upper(inputs, 0, states, visible, lengths)
        contexts = constant
        if self.cross_attention is not None:
            contexts = self.cross_attention(outputs, attended, 0)
        return Steps(outputs, self._shifted(first, outputs), contexts, None, last, layers)

    def _upper(
        self, inputs: Sequence[Tensor], start: int, states: list[State], visible: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, list[State], list[Tensor]]:
        """The layers from `start` on over the whole sequence: their output, last states, and kept outputs."""
        outputs, last, layers = inputs[0], [], []
        for number in range(start, len(self.layers)):
            outputs, state = self.layers[number](
                "read", inputs if number == start else [outputs], states[number], visible, lengths
            )
            last.append(state)
            if self.keep_layers:
                layers.append(outputs)
            outputs = self._dropped(outputs)
        return outputs, last, layers

    def _loop(
        self,
        x: Tensor,
        states: list[State],
        fed: Tensor | None,
        attended: StackContext,
        visible: Tensor | None,
        lengths: Tensor | None,
    ) -> Steps:
        """Step after step. Before and between cells the attention feeds the first layer alone, so that the layers above it
        read whole sequences."""
        looped = len(self.layers) if self.attend == "after_cell" else 1
        first = states[-1][0]
        projected = self.layers[0]("project", x, 0).unbind(1)  # L of (B, E)
        tokens = x.unbind(1)
        seen: Sequence[Tensor | None] = [None] * len(tokens) if visible is None else visible.unsqueeze(2).unbind(1)
        outputs: list[list[Tensor]] = []
        contexts: list[Tensor] = []
        readouts: list[Tensor] = []
        weights: list[Tensor] = []
        states = list(states)
        for t, token in enumerate(tokens):
            before, context = states[-1][0], None
            if self.attend == "after_cell":
                self._step_all(projected[t], fed, states, seen[t])
                context = self._attend(states[-1][0], attended, weights)
            elif self.attend == "before_cell":
                context = self._attend(states[0][0], attended, weights)
                inner = projected[t] + self.layers[0]("project", context, 1)
                states[0] = held(self.layers[0]("step", inner, states[0]), states[0], seen[t])
            else:
                middle = self.layers[0]("step", projected[t], states[0])
                context = self._attend(middle[0], attended, weights)
                after = use(self.context_cell, "step", use(self.context_cell, "project", context, 0), middle)
                states[0] = held(after, states[0], seen[t])
            outputs.append([state[0] for state in states[:looped]])
            contexts.append(context)
            if self.feeding and self.readout is not None:
                state = self._dropped(before if self.reads_previous else states[-1][0])
                new = self.readout({"state": state, "input": token, "context": context})
                fed = held((new,), (new if fed is None else fed,), seen[t])[0]
                readouts.append(fed)
        if weights:
            attended.model.weights[self._site] = torch.cat(weights, 2)
        kept = list(zip(*outputs, strict=True))[0 if self.keep_layers else -1 :]
        layers = [torch.stack(steps, 1) for steps in kept]
        result = self._dropped(layers[-1])
        if looped < len(self.layers):
            result, states[1:], upper = self._upper([result], 1, states, visible, lengths)
            layers += upper
        read = torch.stack(readouts, 1) if readouts else None
        return Steps(
            result, self._shifted(first, result), torch.stack(contexts, 1), read, states, layers if self.keep_layers else []
        )

    def _step_all(self, projected: Tensor, fed: Tensor | None, states: list[State], seen: Tensor | None) -> None:
        """One step of every layer, in place in `states`; the first one reads the fed read-out (B, R) too."""
        for number, layer in enumerate(self.layers):
            if number:
                below = self._dropped(states[number - 1][0])
                projected = layer("project", below, 0)
            elif fed is not None:
                projected = projected + layer("project", fed, 1)
            states[number] = held(layer("step", projected, states[number]), states[number], seen)

    def _attend(self, state: Tensor, attended: StackContext, weights: list[Tensor]) -> Tensor:
        """The context (B, C) of one state (B, N); stores the attention weights if the caller wants them."""
        assert self.cross_attention is not None
        context: Tensor = self.cross_attention(state.unsqueeze(1), attended, 0).squeeze(1)
        if self._site in attended.model.wanted:
            weights.append(attended.model.weights[self._site])
        return context

    @property
    def _site(self) -> str:
        return f"{self.name}.0.cross_attention"

    def _dropped(self, outputs: Tensor) -> Tensor:
        return outputs if self.dropout is None else self.dropout(outputs)

    def _shifted(self, first: Tensor, outputs: Tensor) -> Tensor | None:
        """(B, L, N): the output one step earlier."""
        return torch.cat([first.unsqueeze(1), outputs[:, :-1]], 1) if self.reads_previous else None

    def _read_out(self, x: Tensor, steps: Steps) -> Tensor:
        if self.readout is None or steps.readout is not None:
            return steps.outputs if steps.readout is None else steps.readout
        contexts = steps.contexts if steps.contexts is None else steps.contexts.expand(-1, x.shape[1], -1)
        state = steps.outputs if steps.previous is None else steps.previous
        read: Tensor = self.readout({"state": state, "input": x, "context": contexts})
        return read


def _untrimmed(outputs: Tensor, visible: Tensor | None, L: int) -> Tensor:
    """(B, L, N) from the outputs up to the last token of all rows, with zeros at padding."""
    if visible is not None:
        outputs = outputs.masked_fill(~visible.unsqueeze(2), 0.0)
    return nn.functional.pad(outputs, (0, 0, 0, L - outputs.shape[1])) if outputs.shape[1] < L else outputs


def _trimmed(visible: Tensor, may_wait: bool) -> tuple[Tensor | None, Tensor | None, int]:
    """Padding, without what follows the last token of all rows: no bit of a result depends on how much that is.

    Args:
        visible: (B, L) bool, False for padding.
        may_wait: whether the values may be read, which waits for a device.

    Returns:
        Which tokens are visible (B, longest), None if all are; the lengths (B,) on the CPU, if all padding is on the right and
        no row is empty; and the longest length.
    """
    L = visible.shape[1]
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if not may_wait or traced or visible.is_meta:
        return visible, None, L
    places = torch.arange(1, L + 1, device=visible.device)
    longest = max(int((visible * places).max()), 1)
    visible = visible[:, :longest]
    counts = visible.sum(1).cpu()
    if int(counts.min()) == longest:
        return None, None, longest
    right = bool((visible == (places[:longest] <= counts.to(visible.device)[:, None])).all())
    return visible, counts if right and int(counts.min()) > 0 else None, longest
