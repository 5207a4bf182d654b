"""Cross-entropy with smoothed labels, summed over the labels of a batch.

uniform   (1 - e) nll(label) + e / V sum_v nll(v)                          Szegedy et al. 2016, section 7; torch
others    (1 - e) nll(label) + e / (V - 1) sum_{v != label} nll(v)         fairseq

nll(v) = log sum_u exp(logits[u]) - logits[v].   https://arxiv.org/abs/1512.00567
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..cpu.products import add_gradient_of_weight, gradient_of_input, linear
from ..data import NO_LABEL
from ..nn.layers import Embedding, Linear
from ..nn.model import Model
from ..nn.tokens import TokenLogits
from ..recipe import Recipe


class LossSums(NamedTuple):
    """Sums over the labels of a batch, float32 scalars: the smoothed `loss` with its gradient, and the `nll` in nats,
    unsmoothed and without gradient."""

    loss: Tensor
    nll: Tensor


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, kind: str, ignore_index: int) -> LossSums:
    """The loss of logits against labels.

    Args:
        logits: (..., V), any floating dtype.
        labels: (...) int64.
        smoothing: e of the equations above.
        kind: `uniform` or `others`.
        ignore_index: The label of positions to ignore.

    Returns:
        The sums over the labels.
    """
    size = logits.shape[-1]
    label, every = weights_of(smoothing, kind, size)
    return LossSums(*_Smoothed.apply(logits.reshape(-1, size), labels.reshape(-1), label, every, ignore_index))  # type: ignore[no-untyped-call]


def weights_of(smoothing: float, kind: str, size: int) -> tuple[float, float]:
    """Both variants are a weight of the label and a weight of every id."""
    every = smoothing / size if kind == "uniform" else smoothing / (size - 1)
    return 1 - smoothing - (0.0 if kind == "uniform" else every), every


SMALLEST = 1e-9
"""An attention weight below it has the logarithm of this number, and no gradient."""


def alignment_loss(weights: Tensor, links: Tensor, head: int) -> Tensor:
    """The cross-entropy of attention weights and links, summed over target tokens.

        - sum_t 1 / |S_t| sum_{s in S_t} log A[t, s],   S_t the source tokens that t is linked with

    Args:
        weights: (B, H, T, S) attention weights A.
        links: (N, 3) int64, row, target token and source token of each link.
        head: The head.

    Returns:
        The sum, a float32 scalar.

    Reference:
        https://aclanthology.org/D19-1453/, section 5.2
    """
    row, target, source = links.unbind(1)
    counts = torch.zeros(weights.shape[0], weights.shape[2], device=links.device)
    counts.index_put_((row, target), torch.ones(len(links), device=links.device), accumulate=True)
    chosen = weights[row, head, target, source].float().clamp(min=SMALLEST)
    return -(chosen.log() / counts[row, target]).sum()


BLOCK = 2**18
"""Logits that a CPU processes at a time, so that temporary tensors stay in its cache."""


DEVICE_BLOCK = 2**26
"""Logits that another device processes at a time: it holds 256 MiB of them in float32, and not all."""


def _blocks(logits: Tensor) -> list[slice]:
    """Rows of logits (N, V) to process at a time."""
    count, size = logits.shape
    rows = max(1, (BLOCK if logits.is_cpu else DEVICE_BLOCK) // size)
    return [slice(first, first + rows) for first in range(0, count, rows)]


class _Smoothed(torch.autograd.Function):
    """label * nll(y) + every * sum_v nll(v), with the gradient (label + every V) softmax - label [v = y] - every.

    The gradient takes one pass over the logits, which are the largest tensor of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, label: float, every: float, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        real = labels != ignore_index
        labels = labels * real
        total, sums = torch.empty(2, len(logits), dtype=torch.float32, device=logits.device)
        for rows in _blocks(logits):
            wide = logits[rows].float()
            total[rows] = wide.logsumexp(1)
            if every:
                sums[rows] = wide.sum(1)
        nll = (total - logits.gather(1, labels[:, None]).squeeze(1).float()) * real
        loss = label * nll.sum()
        if every:
            loss = loss + every * ((total * logits.shape[1] - sums) * real).sum()
        ctx.save_for_backward(logits, labels, total, real)
        ctx.label, ctx.every = label, every
        total_nll = nll.sum()
        ctx.mark_non_differentiable(total_nll)
        return loss, total_nll

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, labels, total, real = ctx.saved_tensors
        result = torch.empty_like(logits)
        for rows in _blocks(logits):
            weighted = (logits[rows].float() - total[rows, None]).exp_()
            weighted.mul_(ctx.label + ctx.every * logits.shape[1]).sub_(ctx.every)
            weighted[torch.arange(len(weighted), device=labels.device), labels[rows]] -= ctx.label
            result[rows] = weighted.mul_((gradient * real[rows])[:, None])
        return result, None, None, None, None


# The loss of token logits that are never held for all tokens.
#
# The logits x W^T + b of a batch, tokens x vocabulary, are the largest tensor of a step on text: they are written once and read
# five times. Here the logits of a few hundred tokens are computed, and in place of them their gradient
#
#     dlogits = (label + every V) softmax(logits) - label [v = y] - every
#
# while they are in the cache; dx = dlogits W, dW = sum dlogits^T x and db = sum dlogits are complete when the loss is. Tokens
# without a label take no part. `label` and `every` are the weights of `loss.py`.

CHUNK = 2**20
"""Logits of a chunk: 4 MiB in float32."""
MIN_ROWS = 256
"""Tokens of a chunk at least. With fewer, reading W and adding to dW would bound its products."""
MIN_LOGITS = 2**20
"""Logits of a batch from which chunks pay (bench/chunked_loss.py)."""


def chunked_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, kind: str, ignore_index: int,
    softcap: float | None = None,
) -> LossSums:  # fmt: skip
    """The loss of the logits x W^T + b against labels: the sums of `smoothed_cross_entropy`, in other order.

    Under autocast the products are computed in its dtype, and everything else in float32.

    Args:
        x: (..., M).
        weight: (V, M).
        bias: (V,), or None.
        labels: (...) int64.
        smoothing: as in `smoothed_cross_entropy`.
        kind: as in `smoothed_cross_entropy`.
        ignore_index: the label of positions to ignore.
        softcap: c in c * tanh(logit / c), or None.

    Returns:
        The sums over the labels. The gradient of the loss cannot be differentiated again.
    """
    label, every = weights_of(smoothing, kind, len(weight))
    rows = (labels != ignore_index).reshape(-1).nonzero().squeeze(1)
    parts = x.reshape(-1, x.shape[-1])[rows], weight, bias, labels.reshape(-1)[rows]
    return LossSums(*_Chunked.apply(*parts, label, every, softcap))  # type: ignore[no-untyped-call]


class _Chunked(torch.autograd.Function):
    """x (N, M), weight (V, M), bias (V,) or None, labels (N,) -> loss and nll. The gradients are computed with the loss."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label: float, every: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.dtypes = x.dtype, weight.dtype
        device, wide = x.device.type, torch.promote_types(x.dtype, torch.float32)
        if torch.is_autocast_enabled(device):
            x, weight = x.to(torch.get_autocast_dtype(device)), weight.to(torch.get_autocast_dtype(device))
        wanted = ctx.needs_input_grad[:3]
        of_x = torch.empty(x.shape, dtype=wide, device=x.device) if wanted[0] else None
        of_weight = torch.zeros(weight.shape, dtype=wide, device=x.device) if wanted[1] else None
        of_bias = torch.zeros(len(weight), dtype=wide, device=x.device) if wanted[2] else None
        loss, total_nll = torch.zeros(2, dtype=wide, device=x.device)
        size = max(MIN_ROWS, CHUNK // len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(x), size):
                rows = slice(first, first + size)
                logits = linear(x[rows], weight, None).to(wide)
                if bias is not None:
                    logits += bias
                capped = None if softcap is None else logits.div_(softcap).tanh_().clone()
                if softcap is not None:
                    logits *= softcap
                sums = logits.sum(1) if every else None
                chosen = logits.gather(1, labels[rows, None]).squeeze(1)
                top = logits.amax(1, keepdim=True)
                weights = logits.sub_(top).exp_()
                total = weights.sum(1)
                logsumexp = total.log() + top.squeeze(1)
                nll = (logsumexp - chosen).sum()
                total_nll += nll
                loss += label * nll
                if sums is not None:
                    loss += every * (len(weight) * logsumexp - sums).sum()
                if not any(wanted):
                    continue
                gradient = weights.mul_(((label + every * len(weight)) / total)[:, None])
                if every:
                    gradient -= every
                gradient[torch.arange(len(gradient), device=x.device), labels[rows]] -= label
                if capped is not None:
                    gradient.mul_(capped.square_().neg_().add_(1))  # d tanh = 1 - tanh^2
                if of_bias is not None:
                    of_bias += gradient.sum(0)
                gradient = gradient.to(x.dtype)
                if of_x is not None:
                    of_x[rows] = gradient_of_input(gradient, weight)
                if of_weight is not None:
                    add_gradient_of_weight(gradient, x[rows], of_weight)
        ctx.save_for_backward(of_x, of_weight, of_bias)
        ctx.mark_non_differentiable(total_nll)
        return loss, total_nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, of_bias = (None if saved is None else saved * gradient for saved in ctx.saved_tensors)
        of_x = of_x if of_x is None else of_x.to(ctx.dtypes[0])
        of_weight, of_bias = (
            of_parameter if of_parameter is None else of_parameter.to(ctx.dtypes[1]) for of_parameter in (of_weight, of_bias)
        )
        return of_x, of_weight, of_bias, None, None, None, None


@contextmanager
def losses_in_chunks(
    model: Model, labels: Mapping[str, Tensor], recipe: Recipe, ignore_index: int
) -> Iterator[Mapping[str, Tensor]]:
    """Let the model give the sums of the loss, (2,), in place of token logits, for the outputs where that pays. Yields the
    labels (B, L) of the outputs that remain logits. The model is called in the context."""
    chosen = {
        name: model.nodes[name] for name, output_labels in labels.items() if _pays(model, name, output_labels, ignore_index)
    }
    try:
        for name, node in chosen.items():
            node.loss = partial(_sums, labels=labels[name], recipe=recipe, ignore_index=ignore_index)  # type: ignore[assignment]
        yield {name: output_labels for name, output_labels in labels.items() if name not in chosen}
    finally:
        for node in chosen.values():
            node.loss = None  # type: ignore[assignment]


def _sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, labels: Tensor, recipe: Recipe, ignore_index: int
) -> Tensor:
    smoothing, kind = recipe.loss.label_smoothing, recipe.loss.smoothing
    return torch.stack(chunked_cross_entropy(x, weight, bias, labels, smoothing, kind, ignore_index, softcap))


def _pays(model: Model, name: str, labels: Tensor, ignore_index: int) -> bool:
    """Whether chunks pay for an output: token logits on a CPU, of many labels, whose weight is whole, seen by nothing else."""
    node = model.nodes[name]
    if type(node) is not TokenLogits or not labels.is_cpu or node.low_precision is not None:
        return False
    owner = model.plan.wires[name].owner
    layer: Any = node.logits if owner is None else model.nodes[owner].embedding
    if type(layer) not in (Embedding, Linear) or any(_has_hooks(module) for module in (model, node, layer)):
        return False
    weight = layer.weight
    read = any(name in model.executor.reads(other) for other in model.plan.wires)
    enough = int((labels != ignore_index).sum()) * len(weight) >= MIN_LOGITS
    return type(weight) is nn.Parameter and weight.is_cpu and not read and enough


def _has_hooks(module: nn.Module) -> bool:
    """Whether something sees the calls of a module: a hook, or a replaced `forward`. It must get logits, not their loss."""
    hooks = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks
        or hooks._global_backward_pre_hooks
    )


# Logits of labelled tokens alone. Masked training labels 15 % of the tokens; logits of the others would be most of a step.

LARGEST_LABELLED_SHARE = 0.5
"""Largest share of labelled tokens for which the rows are gathered: gathering costs a copy."""


@contextmanager
def labelled_rows(nodes: nn.ModuleDict, labels: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """In this context, compute token logits for labelled tokens only, if they are few. Yields the labels to compare the outputs
    with: those of N labelled tokens, (N,), where the logits are (N, vocab_size)."""
    compared, handles = dict(labels), []
    for name, output_labels in labels.items():
        node, rows = nodes[name], output_labels != NO_LABEL
        if isinstance(node, TokenLogits) and 0 < int(rows.sum()) < LARGEST_LABELLED_SHARE * rows.numel():
            compared[name] = output_labels[rows]
            handles.append(node.register_forward_pre_hook(_gather(rows), with_kwargs=True))
    try:
        yield compared
    finally:
        for handle in handles:
            handle.remove()


def _gather(rows: Tensor) -> Any:
    """A hook that gives the node the rows (N, M) of its input (B, L, M) which are labelled."""

    def hook(node: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        input = keywords["input"]
        return arguments, {**keywords, "input": replace(input, tensor=input.tensor[rows])}

    return hook
