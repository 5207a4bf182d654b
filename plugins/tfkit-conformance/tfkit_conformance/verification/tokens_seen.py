"""Dependence on tokens: none on later tokens in a causal stack, none on padding, some on every input that is read.

R19   causal independence: other tokens after t leave every output up to t as it was, to the bit, at one shape
A6    ids under padding change nothing that is real, to the bit
      every output depends on each of its inputs: nothing is read from elsewhere
"""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin.model_parts import ImageRule, InputRule

from ..finding import Violation
from .batch import other_values, where_shown
from .expected import is_causal, memories, stepwise_chain, tokens_of
from .model_under_test import ModelUnderTest
from .recording import run
from .row import NotApplicable, Reported, same


def causal_independence(subject: ModelUnderTest) -> None:
    """R19, for every causal node and several t."""
    any_causal, hidden = False, ""
    for tokens, rule in subject.model.plan.inputs.items():
        chain = stepwise_chain(subject.graph, tokens)
        causal = [name for name in chain if is_causal(subject.graph.nodes[name])]
        if not causal:
            continue
        ids = subject.batch.ids[tokens]
        L = ids.shape[1]
        if L < 2:
            continue
        any_causal = True
        for number, t in enumerate(sorted({0, L // 2, L - 2})):
            later = (torch.arange(L, device=ids.device) > t).expand(ids.shape[:2])
            if isinstance(rule, InputRule) and rule.end_id is not None:
                later = later & (ids != rule.end_id)  # a pooled node may look for it
            changed = where_shown(later, other_values(rule, ids, subject.generator(number)), ids)
            after = run(subject.model, subject.batch.with_ids(tokens, changed))
            for name in chain:
                words = f"tokens of `{tokens}` after position {t} must not change earlier positions"
                same("causal", after[name][:, : t + 1], subject.baseline[name][:, : t + 1], words, f"`{name}`")
            last = causal[-1]
            differ = (changed != ids) & subject.batch.visible[tokens]  # end tokens and padding stay
            if differ.any() and torch.equal(after[last][:, t + 1 :], subject.baseline[last][:, t + 1 :]):
                hidden = f"`{last}` does not change with the tokens of `{tokens}` after position {t} at all"
                if not subject.half:
                    raise Violation("causal", hidden)
    if hidden:
        raise Reported(f"{hidden}, which rounding may do in a half dtype")
    if not any_causal:
        raise NotApplicable("no causal node over two positions or more")


def padding_content(subject: ModelUnderTest) -> None:
    """A6: real outputs do not change with ids under padding."""
    hidden = [name for name, visible in subject.batch.visible.items() if not bool(visible.all())]
    if not hidden:
        raise NotApplicable("no input is long enough to be padded")
    for number, name in enumerate(hidden):
        ids, visible = subject.batch.ids[name], subject.batch.visible[name]
        others = other_values(subject.model.plan.inputs[name], ids, subject.generator(number))
        after = run(subject.model, subject.batch.with_ids(name, where_shown(visible, ids, others)))
        where = subject.shown()
        for node in subject.baseline:
            words = f"ids of `{name}` under padding must change nothing that is real"
            same("padding", after[node], subject.baseline[node], words, f"`{node}`", where.get(node))


def inputs_matter(subject: ModelUnderTest) -> None:
    """Every row of every output changes with each input that it follows, and every stack with each memory that it reads."""
    for number, (name, rule) in enumerate(subject.model.plan.inputs.items()):
        if isinstance(rule, ImageRule):
            ids = subject.batch.images[name]
            changed = other_values(rule, ids, subject.generator(number))
        else:
            ids, visible = subject.batch.ids[name], subject.batch.visible[name]
            changed = where_shown(visible, other_values(rule, ids, subject.generator(number)), ids)
        if isinstance(rule, InputRule) and rule.vocab_size < 3:
            continue
        if isinstance(rule, InputRule) and rule.end_id is not None:
            changed = torch.where(ids == rule.end_id, ids, changed)
        after = run(subject.model, subject.batch.with_ids(name, changed))
        where = subject.shown()
        for node in subject.following(name):
            differs = _rows_that_differ(after[node], subject.baseline[node], where.get(node)) | (changed == ids).flatten(1).all(
                1
            )
            if not bool(differs.all()) and not _selects(subject, node):
                message = f"batch row {int((~differs).nonzero()[0])} of `{node}` does not change with `{name}`"
                if subject.half:
                    raise Reported(f"{message}, which rounding may do in a half dtype")
                raise Violation("dependence", message)


def _rows_that_differ(got: Tensor, want: Tensor, visible: Tensor | None) -> Tensor:
    differs = got != want
    if visible is not None:
        differs = differs & visible.reshape(*visible.shape, *([1] * (differs.dim() - 2)))
    return differs.flatten(1).any(1)


def _selects(subject: ModelUnderTest, node: str) -> bool:
    """Whether a pooled node may rest on a token that was kept, such as the end token of a row of one."""
    return tokens_of(subject.graph, node) is None and not memories_anywhere(subject)


def memories_anywhere(subject: ModelUnderTest) -> set[str]:
    stacks = [name for name, node in subject.graph.nodes.items() if getattr(node.options, "layers", None)]
    return {memory for stack in stacks for memory in memories(subject.graph, stack)}
