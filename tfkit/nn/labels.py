"""The loss of a call with labels.

    loss = 1/N sum_n [(1 - e) nll_n(label_n) + e/V sum_v nll_n(v)],    nll_n(v) = log sum_u exp(logits_n[u]) - logits_n[v]

over the N labels that are not ignored; e is `smoothing`, V the size of the vocabulary or the number of classes. This is
torch.nn.functional.cross_entropy with label_smoothing=e (Szegedy et al. 2016, section 7, https://arxiv.org/abs/1512.00567).

The meaning of labels depends on the model, as for Hugging Face's models:

decoder-only       labels (B, L) are the input ids: the logits at t predict the label at t + 1 of the same document
encoder-decoder    labels (B, L) are the target: the logits at t predict the label at t. If the decoder's input is not given, it
                   is a start token followed by the labels (teacher forcing), in each document
encoder-only       labels (B, L) are at the positions of their tokens: masked tokens, or classes of tokens
classes            labels (B,) of a model with one row of logits per sequence
spans              labels (B, 2) are the first and the last position of the span in each row

Labels of -100 are ignored. So is the `pad_id` of the tokens node of the vocabulary, unless it is also that node's `end_id`,
which the model must learn. If all labels are ignored, the loss is NaN, as in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import Diagnostic, InputError
from ..slots.node import AnyInputRule, InputRule
from .model_plan import LabelRule
from .runtime.inputs import check_tensor

IGNORED = -100
Labels = Tensor | Mapping[str, Tensor]


def label_rule(rule: InputRule | None, tokens: str | None, decodable: bool, alone: bool) -> LabelRule:
    """The rule of an output of logits.

    Args:
        rule: the rule of the input `tokens`, None if the logits are not over a vocabulary.
        tokens: the input node of the vocabulary.
        decodable: the logits follow this input step by step.
        alone: the model has no other input.
    """
    if rule is None:
        return LabelRule("here")
    pad_id = rule.pad_id if rule.marks_padding else None
    return LabelRule(("next" if alone else "target") if decodable else "here", tokens, pad_id)


def by_output(labels: Labels, rules: Mapping[str, LabelRule]) -> dict[str, Tensor]:
    """Labels by output. Raises InputError if the output is not clear."""
    outputs = ", ".join(rules) or "none"
    if not isinstance(labels, Mapping):
        if len(rules) != 1:
            fix = (
                f"give labels by output: {outputs}" if rules else "end the model in `token_logits`, `classify` or `span_logits`"
            )
            raise InputError(Diagnostic("TFK073", f"labels are given, and the outputs that are logits are: {outputs}", fix))
        labels = {next(iter(rules)): labels}
    for name, output_labels in labels.items():
        if name not in rules:
            raise InputError(Diagnostic("TFK073", f"labels name `{name}`", f"outputs that are logits: {outputs}"))
        check_tensor(f"the labels of `{name}`", output_labels)
        if output_labels.dtype not in (torch.int64, torch.int32):
            message = f"the labels of `{name}` have dtype {output_labels.dtype}"
            raise InputError(Diagnostic("TFK071", message, "labels are int64 or int32"))
    return dict(labels)


def with_targets(
    labels: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    rules: Mapping[str, LabelRule],
    known: Mapping[str, AnyInputRule],
    documents: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The inputs with missing decoder inputs: a start token, then the labels, shifted by one position. `documents` (B, L) by
    input: each document starts with a start token."""
    completed = dict(inputs)
    for name, output_labels in labels.items():
        rule = rules[name]
        if rule.kind != "target" or rule.tokens is None or rule.tokens in inputs:
            continue
        tokens = known[rule.tokens]
        assert isinstance(tokens, InputRule), "labels are tokens of an input of token ids"
        if tokens.start_id is None or tokens.pad_id is None:
            missing = "start_id" if tokens.start_id is None else "pad_id"
            message = f"`{rule.tokens}` is not given, and without a {missing} it cannot be made from the labels"
            raise InputError(Diagnostic("TFK073", message, f"write `{missing}` at the node, or give `{rule.tokens}` too"))
        if output_labels.dim() != 2:
            raise InputError(
                Diagnostic("TFK070", f"the labels of `{name}` have shape {tuple(output_labels.shape)}", "labels are (B, L)")
            )
        _check_range(name, output_labels, tokens.vocab_size)
        start = output_labels.new_full((output_labels.shape[0], 1), tokens.start_id)
        shifted = output_labels[:, :-1].masked_fill(output_labels[:, :-1] == IGNORED, tokens.pad_id)
        numbers = documents.get(rule.tokens)
        if isinstance(numbers, Tensor) and numbers.shape == output_labels.shape:
            ignored = (output_labels[:, 1:] == IGNORED) | (output_labels[:, 1:] == rule.pad_id)
            first = torch.where(ignored, tokens.pad_id, tokens.start_id)
            shifted = torch.where(numbers[:, 1:] != numbers[:, :-1], first, shifted)
        completed[rule.tokens] = torch.cat([start, shifted], 1)  # (B, L)
    return completed


def loss_of(
    labels: Mapping[str, Tensor],
    outputs: Mapping[str, Any],
    rules: Mapping[str, LabelRule],
    smoothing: float,
    documents: Mapping[str, Tensor],
) -> Tensor:
    """The sum of the losses of all outputs with labels, in float32 or wider. Raises InputError for labels that do not fit."""
    if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)) or not 0.0 <= smoothing <= 1.0:
        raise InputError(Diagnostic("TFK073", f"smoothing is {smoothing!r}", "it is a number from 0 to 1"))
    losses = [
        _loss(name, output_labels, outputs[name], rules[name], smoothing, documents.get(rules[name].tokens or ""))
        for name, output_labels in labels.items()
    ]
    return torch.stack(losses).sum()


def _loss(name: str, labels: Tensor, logits: Tensor, rule: LabelRule, smoothing: float, documents: Tensor | None) -> Tensor:
    if rule.kind == "span":
        if smoothing:
            message = f"smoothing is {smoothing}, and `{name}` has logits of positions that cannot be chosen"
            raise InputError(Diagnostic("TFK073", message, "give no smoothing"))
        logits = logits.transpose(1, 2)  # (B, 2, L)
    if labels.shape != logits.shape[:-1]:
        message = f"the labels of `{name}` have shape {tuple(labels.shape)}, its logits {tuple(logits.shape)}"
        raise InputError(Diagnostic("TFK070", message, f"labels are {tuple(logits.shape[:-1])}"))
    if labels.device != logits.device:
        message = f"the labels of `{name}` are on {labels.device}, its logits on {logits.device}"
        raise InputError(Diagnostic("TFK071", message, "labels.to(model.device)"))
    if rule.kind == "next":
        logits, labels = logits[:, :-1], labels[:, 1:]
        if documents is not None:  # the last token of a document does not predict the first of the next
            labels = labels.masked_fill(documents[:, 1:] != documents[:, :-1], IGNORED)
    _check_range(name, labels, logits.shape[-1])
    if rule.pad_id is not None:
        labels = labels.masked_fill(labels == rule.pad_id, IGNORED)
    if not _unchecked(labels) and not bool((labels != IGNORED).any()):
        message = f"all labels of `{name}` are ignored, and a mean of no losses is NaN"
        raise InputError(Diagnostic("TFK073", message, "leave such a batch out"))
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(
        wide.reshape(-1, wide.shape[-1]), labels.reshape(-1).long(), ignore_index=IGNORED, label_smoothing=smoothing
    )


def _check_range(name: str, labels: Tensor, size: int) -> None:
    """Raises InputError for labels outside the classes. On CUDA torch reports these, without a sync."""
    if _unchecked(labels):
        return
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= size))
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        message = f"the labels of `{name}` hold {int(labels[tuple(place)])}, but its logits are {size}"
        raise InputError(Diagnostic("TFK072", message, f"labels are 0..{size - 1}, or {IGNORED} for labels to ignore"))


def _unchecked(labels: Tensor) -> bool:
    """Whether the numbers of labels are not read: while torch traces, and on a device, which would wait."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return traced or labels.device.type != "cpu"
