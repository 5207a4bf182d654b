"""The formula of a recurrent node: one step after the other, as in the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin.model_parts import NodeContext

from .formulas import State, of, sigmoid
from .sublayers import attend
from .values import Value, Weights, linear


def rnn(options: Any, context: NodeContext, weights: Weights, inputs: Mapping[str, Value]) -> Value:
    """An encoder, a language model or a decoder.

    Bahdanau et al. 2014, appendix A (https://arxiv.org/abs/1409.0473): `before_cell`, `maxout` of the previous state
    Luong et al. 2015, section 3 (https://arxiv.org/abs/1508.04025): `after_cell`, input feeding, local-p
    Sennrich et al. 2017, section 4.2 (https://arxiv.org/abs/1703.04357): `between_cells`
    Padding changes no state, and its output is zero, as in torch's packed sequences.
    """
    read = inputs["input"]
    if options.bidirectional:
        value = _bidirectional(options, weights, read)
    else:
        value = _Decoder(options, weights, read, inputs.get("memory"), context).run()
    tensor, *layers = (y.masked_fill(~read.shown()[..., None], 0.0) for y in (value.tensor, *value.layers))
    return replace(value, tensor=tensor, layers=tuple(layers))


def _zeros(options: Any, like: Tensor) -> State:
    """The state of one layer before the first token."""
    return tuple(like.new_zeros(like.shape[0], options.d_state) for _ in range(options.cell.entry.states))


def _kept(visible: Tensor, new: State, old: State) -> State:
    """The new state where the token is real, (B,) bool, else the old one."""
    return tuple(torch.where(visible[:, None], a, b) for a, b in zip(new, old, strict=True))


def _bidirectional(options: Any, weights: Weights, read: Value) -> Value:
    """Every layer reads [forward; backward] of the one below, Schuster and Paliwal 1997."""
    step, visible = of("cell", options.cell), read.shown()
    x, states, layers = read.tensor, [], []
    for number in range(options.num_layers):
        sides = []
        for side in ("cell", "backward_cell"):
            cell_weights = weights.under(f"layers.{number}.{side}")
            order = range(x.shape[1]) if side == "cell" else reversed(range(x.shape[1]))
            state, outputs = _zeros(options, x), {}
            for t in order:
                state = _kept(visible[:, t], step(cell_weights, (x[:, t],), state), state)
                outputs[t] = state[0]
            sides.append(torch.stack([outputs[t] for t in range(x.shape[1])], 1))
            states.append(state)
        x = torch.cat(sides, -1)
        layers.append(x)
    return Value(x, read.visible, tuple(layers), tuple(states))


class _Decoder:
    """One direction: layers, attention to a memory, read-out."""

    def __init__(self, options: Any, weights: Weights, read: Value, memory: Value | None, context: NodeContext) -> None:
        self.options, self.weights, self.read, self.memory, self.context = options, weights, read, memory, context
        self.step = of("cell", options.cell)
        self.attention = options.cross_attention

    def run(self) -> Value:
        x, visible = self.read.tensor, self.read.shown()
        states, outputs, layers = self.first_states(), [], []
        fed = x.new_zeros(x.shape[0], self.options.readout.d_model) if self.options.readout is not None else None
        for t in range(x.shape[1]):
            new, output, fed_next = self.one(x[:, t], states, fed)
            states = [_kept(visible[:, t], a, b) for a, b in zip(new, states, strict=True)]
            if self.options.readout is None:
                output = states[-1][0]
            elif fed is not None:
                fed = torch.where(visible[:, t, None], fed_next, fed)
            outputs.append(output)
            layers.append(torch.stack([state[0] for state in states]))
        return Value(torch.stack(outputs, 1), self.read.visible, torch.stack(layers, 2).unbind(0), tuple(states))

    def one(self, x: Tensor, states: list[State], fed: Tensor | None) -> tuple[list[State], Tensor, Tensor]:
        """One token: the new states, the output, and what the next step is fed with."""
        attention = self.attention
        attend = attention.attend if attention is not None else ""
        context: Tensor | None = None
        extra: tuple[Tensor, ...] = ()
        if attend == "before_cell":
            context = self.attended(states[0][0])
            extra = (context,)
        elif attention is not None and attention.input_feeding:
            assert fed is not None
            extra = (fed,)
        elif attention is None and self.memory is not None and self.memory.tensor.dim() == 2:
            context = self.memory.tensor
            extra = (context,)
        new = [self.step(self.weights.under("layers.0.cell"), (x, *extra), states[0])]
        if attend == "between_cells":
            context = self.attended(new[0][0])
            new[0] = self.step(self.weights.under("context_cell"), (context,), new[0])
        for number in range(1, self.options.num_layers):
            cell = self.weights.under(f"layers.{number}.cell")
            new.append(self.step(cell, (new[-1][0],), states[number]))
        if attend == "after_cell":
            context = self.attended(new[-1][0])
        output = new[-1][0]
        if self.options.readout is not None:
            output = self.read_out(states[-1][0], output, x, context)
        return new, output, output

    def read_out(self, previous: Tensor, new: Tensor, x: Tensor, context: Tensor | None) -> Tensor:
        """W [state; input; context] + b, its tanh, or the larger one of each pair (Bahdanau, appendix A.2.2)."""
        readout = self.options.readout
        parts = {"state": previous if readout.state == "previous" else new, "input": x}
        if context is not None:
            parts["context"] = context
        y = linear(self.weights, "readout.linear", torch.cat([parts[name] for name in readout.reads or tuple(parts)], -1))
        if readout.kind == "maxout":
            return torch.maximum(y[..., 0::2], y[..., 1::2])
        return torch.tanh(y) if readout.kind == "tanh" else y

    def attended(self, state: Tensor) -> Tensor:
        """The context: the memory, weighted by softmax(score(state, memory)). The memory is key and value."""
        memory, visible, attention = self._memory(), self._memory_shown(), self.attention
        scale = 1.0
        if attention.score.kind == "dot":
            scale = attention.scale if isinstance(attention.scale, float) else self.options.d_state**-0.5
        score = of("score", attention.score)
        site_weights = self.weights.under("cross_attention")
        scores = scale * score(site_weights.under("score"), state[:, None, None, :], memory[:, None])
        if attention.local is None:
            return attend(scores, memory[:, None], visible[:, None, None, :])[:, 0, 0]
        return self._local(state, scores, memory, visible, site_weights)

    def _local(self, state: Tensor, scores: Tensor, memory: Tensor, visible: Tensor, site_weights: Weights) -> Tensor:
        """Luong's local-p, equations 9 and 10: the centre is p = S sigmoid(v . tanh(W h)); the softmax over the keys of
        [p - D, p + D] is multiplied by exp(-(s - p)^2 / (2 (D / 2)^2)). The real tokens are numbered s = 1 .. S, as
        the words x_1 .. x_S of the paper."""
        D = self.attention.local.half_width
        length = visible.sum(1, keepdim=True).to(memory.dtype)
        centre = length * sigmoid(
            torch.tanh(state @ site_weights["local.query.weight"].mT) @ site_weights["local.out.weight"].mT
        )
        s = visible.long().cumsum(1).to(memory.dtype)
        near = visible & ((s - centre).abs() <= D)
        gauss = torch.exp(-((s - centre) ** 2) / (2 * (D / 2) ** 2))
        return attend(scores, (gauss[..., None] * memory)[:, None], near[:, None, None, :])[:, 0, 0]

    def first_states(self) -> list[State]:
        """The state of each layer before the first token."""
        options, take = self.options, self.options.initial_state.take
        if take == "zeros":
            return [_zeros(options, self.read.tensor) for _ in range(options.num_layers)]
        assert self.memory is not None
        if take == "states":
            return list(self.memory.states)
        initial = torch.tanh(linear(self.weights, "initial.linear", self.summary(take)))
        by_layer = initial.reshape(-1, options.num_layers, options.cell.entry.states, options.d_state)
        return [tuple(by_layer[:, layer].unbind(1)) for layer in range(options.num_layers)]

    def summary(self, take: str) -> Tensor:
        """The vector of the memory that the first state comes from."""
        memory = self._memory()
        if self.memory is not None and self.memory.tensor.dim() == 2:
            return memory
        visible = self._memory_shown()
        if take == "mean":
            return mean(memory, visible)
        if take == "last":
            return at(memory, last(visible))
        encoder = self.context.targets.get("memory")
        width = options_width(self.options, encoder, memory)
        return at(memory, first(visible))[..., -width:]

    def _memory(self) -> Tensor:
        assert self.memory is not None
        return self.memory.tensor

    def _memory_shown(self) -> Tensor:
        assert self.memory is not None
        return self.memory.shown()


def options_width(options: Any, encoder: Any, memory: Tensor) -> int:
    """How many of the memory's last features are the state of its backward cell."""
    if options.initial_width is not None:
        return int(options.initial_width)
    return int(getattr(encoder, "d_state", memory.shape[-1]))


def first(visible: Tensor) -> Tensor:
    """The index of the first real token of each row, (B,)."""
    return visible.long().argmax(1)


def last(visible: Tensor) -> Tensor:
    """The index of the last real token of each row, (B,)."""
    return visible.shape[1] - 1 - visible.flip(1).long().argmax(1)


def at(x: Tensor, index: Tensor) -> Tensor:
    """x (B, L, M) at one position of each row: (B, M)."""
    return x[torch.arange(len(x), device=x.device), index]


def mean(x: Tensor, visible: Tensor) -> Tensor:
    """The mean of x (B, L, M) over the real tokens."""
    return x.masked_fill(~visible[..., None], 0.0).sum(1) / visible.sum(1, keepdim=True)
