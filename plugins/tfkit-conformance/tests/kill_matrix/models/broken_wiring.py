"""Errors between parts: wrong tensors, masks, positions or tables, and backends that change a call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Model
from tfkit.inspection import Padding, SharedTable, Stack, Tokens
from tfkit.plugin import AttentionInputs, AttentionOutput
from tfkit.plugin.model_parts import ForwardContext, MultiHeadAttention, NodeOutput, PositionRange, StackContext

from .tampering import attentions, each, stack, swap, with_run


def cross_reads_target(model: Model) -> Model:
    def forward(self: MultiHeadAttention, x: Tensor, run: StackContext, index: int) -> Tensor:
        return MultiHeadAttention.forward(self, x, run.changed(memory=NodeOutput(x, run.padding), memo={}), index)

    swap(attentions(model, True)[0], "forward", forward)
    return model


def memory_padding_ignored(model: Model) -> Model:
    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        assert run.memory is not None
        return run.changed(memory=NodeOutput(run.memory.tensor, Padding()))

    with_run(attentions(model, True)[-1], change)
    return model


def masked(**how: Callable[[Any], Any]) -> Callable[[Model], Model]:
    """Change fields of the self-attention mask in the last layer."""

    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        mask = run.self_mask(self.config.window)
        changed = replace(mask, **{name: turn(getattr(mask, name)) for name, turn in how.items()})
        return run.changed(memo={("self", self.config.window): changed})

    def apply(model: Model) -> Model:
        with_run(attentions(model, False)[-1], change)
        return model

    return apply


def first_row(visible: Tensor | None) -> Tensor | None:
    return None if visible is None else visible[:1].expand_as(visible)


def no_position(model: Model) -> Model:
    for module in each(model, Tokens):
        if module.position is not None:
            swap(module.position, "embed", lambda self, x, span: x)
    return model


def no_rotation(model: Model) -> Model:
    for scheme in stack(model, True).positions:
        swap(scheme, "rotate", lambda self, query, key, tables: (query, key))
    return model


def keys_not_rotated(model: Model) -> Model:
    def rotate(self: Any, query: Tensor, key: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        return type(self).rotate(self, query, key, tables)[0], key

    for scheme in stack(model, True).positions:
        swap(scheme, "rotate", rotate)
    return model


def copied_table(kind: type[nn.Module]) -> Callable[[Model], Model]:
    def forward(self: Any, run: ForwardContext, *arguments: Any, table: Any = None, **keywords: Any) -> NodeOutput:
        copied = None if table is None else SharedTable(copy.deepcopy(table.embedding).requires_grad_(False))
        return type(self).forward(self, run, *arguments, table=copied, **keywords)  # type: ignore[no-any-return]

    def apply(model: Model) -> Model:
        for module in each(model, kind):
            swap(module, "forward", forward)
        return model

    return apply


def positions_stop(last: int) -> Callable[[Model], Model]:
    """Embeddings from position `last` on have the position before theirs."""

    def embed(self: Any, x: Tensor, span: Any) -> Tensor:
        added = type(self).embed(self, torch.zeros_like(x), span)
        late = span.offset + torch.arange(x.shape[1], device=x.device) >= last
        return x + torch.where(late[:, None], added.roll(1, 1) if x.shape[1] > 1 else 0.0 * added, added)

    def apply(model: Model) -> Model:
        for module in each(model, Tokens):
            if module.position is not None:
                swap(module.position, "embed", embed)
        return model

    return apply


def rotation_changes(first: int) -> Callable[[Model], Model]:
    """Queries from position `first` on of a whole sequence are rotated by the angles of the position before."""

    def rotate(self: Any, query: Tensor, key: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        right, keys = type(self).rotate(self, query, key, tables)
        if query.shape[2] <= first:
            return right, keys
        before = type(self).rotate(self, query.roll(-1, 2), key, tables)[0].roll(1, 2)
        late = torch.arange(query.shape[2], device=query.device) >= first
        return torch.where(late[:, None], before, right), keys

    def apply(model: Model) -> Model:
        for scheme in stack(model, True).positions:
            swap(scheme, "rotate", rotate)
        return model

    return apply


def _without_lengths(padding: Padding) -> Padding:
    return Padding() if padding.visible is None else padding


def memory_lengths_ignored(model: Model) -> Model:
    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        assert run.memory is not None
        return run.changed(memory=replace(run.memory, padding=_without_lengths(run.memory.padding)))

    for attention in attentions(model, True):
        with_run(attention, change)
    return model


def lengths_ignored(model: Model) -> Model:
    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        return run.changed(padding=_without_lengths(run.padding))

    with_run(attentions(model, False)[0], change)
    return model


def undivided(cross: bool) -> Callable[[Model], Model]:
    """All self-attentions, or all cross-attentions, see no documents."""

    def whole(padding: Padding) -> Padding:
        return replace(padding, documents=None)

    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        memory = None if run.memory is None else replace(run.memory, padding=whole(run.memory.padding))
        return run.changed(padding=whole(run.padding), memory=memory)

    def apply(model: Model) -> Model:
        for attention in attentions(model, cross):
            with_run(attention, change)
        return model

    return apply


def positions_go_on(model: Model) -> Model:
    def positions(self: Tokens, *arguments: Any) -> PositionRange:
        return replace(Tokens._positions(self, *arguments), rows=None)

    for tokens in each(model, Tokens):
        swap(tokens, "_positions", positions)
    return model


def row_wrong(row: int) -> Callable[[Model], Model]:
    def forward(self: Model, *arguments: Any, **keywords: Any) -> Any:
        made = Model.forward(self, *arguments, **keywords)
        for name, tensor in dict(made).items() if isinstance(made, dict) else ():
            if isinstance(tensor, Tensor) and tensor.dim() and len(tensor) > row:
                made[name] = torch.cat([tensor[:row], tensor[row - 1 : row], tensor[row + 1 :]])
        return made

    def apply(model: Model) -> Model:
        swap(model, "forward", forward)
        return model

    return apply


def row_of_stack_wrong(row: int) -> Callable[[Model], Model]:
    def forward(self: Stack, *arguments: Any, **keywords: Any) -> NodeOutput:
        made = Stack.forward(self, *arguments, **keywords)
        factor = 1.0 + 0.01 * (torch.arange(len(made.tensor)) == row).to(made.tensor)
        return replace(made, tensor=made.tensor * factor[:, None, None])

    def apply(model: Model) -> Model:
        swap(stack(model, False), "forward", forward)
        return model

    return apply


def detached_memory(which: int) -> Callable[[Model], Model]:
    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        assert run.memory is not None
        return run.changed(memory=replace(run.memory, tensor=run.memory.tensor.detach()))

    def apply(model: Model) -> Model:
        with_run(attentions(model, True)[which], change)
        return model

    return apply


def detached_keys(model: Model) -> Model:
    attention = attentions(model, True)[-1]
    swap(attention.key, "forward", lambda self, x, *more: type(self).forward(self, x.detach(), *more))
    return model


def scale_dropped(model: Model) -> Model:
    next(each(model, Tokens)).scale = 1.0
    return model


def ruled(**how: Any) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        last = attentions(model, False)[-1]
        last.config = replace(last.config, **how)
        return model

    return apply


def heads_reversed(model: Model) -> Model:
    attention = attentions(model, False)[0]

    def split(self: MultiHeadAttention, x: Tensor, heads: int) -> Tensor:
        made = MultiHeadAttention._split(self, x, heads)
        return made.flip(1) if heads == self.config.num_kv_heads else made

    swap(attention, "_split", split)
    return model


def rows_coupled(model: Model) -> Model:
    def forward(self: Stack, *arguments: Any, **keywords: Any) -> NodeOutput:
        made = Stack.forward(self, *arguments, **keywords)
        return replace(made, tensor=made.tensor - 0.01 * made.tensor.mean(0, keepdim=True))

    swap(stack(model, True), "forward", forward)
    return model


def padding_remembered(model: Model) -> Model:
    """The padding of the first call is used in all others of the same shape."""
    kept: dict[Any, Padding] = {}

    def change(self: MultiHeadAttention, run: StackContext) -> StackContext:
        shown = run.padding.visible
        if shown is None:
            return run
        return run.changed(padding=kept.setdefault(tuple(shown.shape), Padding(shown.roll(1, 0))))

    with_run(attentions(model, False)[0], change)
    return model


def tampered_backends(change: Callable[[AttentionInputs], AttentionInputs]) -> Callable[[Model], Model]:
    """Every backend of every site sees changed inputs."""

    def wrap(attend: Any) -> Any:
        def tampered(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            return attend(replace(change(inputs), prepared=None), options)  # type: ignore[no-any-return]

        return tampered

    def apply(model: Model) -> Model:
        for attention, index, _ in model.attention_sites():
            choice = attention.choices[index]
            choice.candidates = tuple(replace(each, attend=wrap(each.attend)) for each in choice.candidates)
        return model

    return apply
