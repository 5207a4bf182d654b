"""The two passes of `kernel`, block by block, in the order of FlashAttention-2 (https://arxiv.org/abs/2307.08691).

    forward, for each block of keys (algorithm 1)
        m' = max(m, rowmax S)    f = exp(m - m')    p = exp(S - m')    l = f l + rowsum p    o = f o + round(p Z) v
        output = o / l    lse = m + log l           parts of a split are merged by exp(m - max m)
    backward, for each block of keys and queries (algorithm 2)
        p = exp(S - lse)         D = rowsum(dO O)   dS = p (Z dO v^T - D)    dR = dS slope
        dv += round(p Z)^T dO    dq += scale round(dR) k                     dk += scale round(dR)^T q

Notation of `reference`; everything in float32 or wider but what is rounded on the way into a product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tfkit.inspection import MASK_TERMS
from tfkit.plugin import AttentionInputs

from . import stages
from .design import KernelDesign

LOG2E = math.log2(math.e)
Kept = tuple[Tensor, Tensor, Tensor, "Tensor | None"]
"""What the backward pass keeps: log-sum-exp and sum l (B,H,Q,1), what is visible, the draw."""


@dataclass(frozen=True)
class _Call:
    """A call as both passes read it: wide tensors, key and value repeated to H heads."""

    kernel: KernelDesign
    call: AttentionInputs
    query: Tensor
    key: Tensor
    value: Tensor
    factor: float
    bias: Tensor | float

    def scores(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor | float]:
        """The scores of some queries and keys before masking, and their slope by what the softcap takes."""
        products = self.factor * self.product(self.query[:, :, rows], self.key[:, :, columns].mT)
        bias = self.bias[:, :, rows, columns] if isinstance(self.bias, Tensor) else self.bias
        return self.kernel.score(products, bias, self.call)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        return _tf32(left) @ _tf32(right) if self.kernel.tf32 and left.dtype == torch.float32 else left @ right

    def rounded(self, tensor: Tensor) -> Tensor:
        """As it enters a product: probabilities and gradients of scores in the storage type, unless they stay wide."""
        return tensor.to(self.call.query.dtype).to(tensor.dtype) if self.kernel.probabilities == "storage" else tensor

    def exp(self, scores: Tensor, highest: Tensor) -> Tensor:
        """exp(scores - highest)."""
        if self.kernel.base2:
            return torch.exp2((scores - highest) * LOG2E)
        return torch.exp(scores - highest)


def forward_pass(kernel: KernelDesign, call: AttentionInputs) -> tuple[Tensor, Tensor | None, Tensor | None, Kept]:
    """Output, weights, log-sum-exp and what the backward pass needs."""
    read, visible, drawn = _read(kernel, call), _visible(kernel, call), kernel.draw(call)
    K, every = call.key.shape[2], slice(0, call.query.shape[2])
    ends = [round(K * part / kernel.split) for part in range(kernel.split + 1)]
    parts = [_online(read, visible, drawn, start, stop) for start, stop in pairwise(ends)]

    highest = torch.stack([part[0] for part in parts]).amax(0)
    weights = (
        [kernel.merge(read.exp(part[0], finite(highest))) for part in parts] if len(parts) > 1 else [torch.ones_like(highest)]
    )
    total = torch.stack([weight * part[1] for weight, part in zip(weights, parts, strict=True)]).sum(0)
    output = torch.stack([weight * part[2] for weight, part in zip(weights, parts, strict=True)]).sum(0)

    rows = total > 0
    output = kernel.masked(output / torch.where(rows, total, 1.0), rows, read.value)
    lse = torch.where(rows, finite(highest) + torch.log(torch.where(rows, total, 1.0)), -math.inf)
    returned = None
    if call.return_weights:
        scores, _ = read.scores(every, slice(0, K))
        returned = read.exp(kernel.hide(scores, visible), finite(lse)).to(call.query.dtype)
    reported = kernel.report(lse, total).squeeze(-1).float() if call.return_lse else None
    return output.to(call.query.dtype), returned, reported, (lse, total, visible, drawn)


def backward_pass(
    kernel: KernelDesign, call: AttentionInputs, grad_output: Tensor, output: Tensor, kept: Kept, with_bias: bool
) -> dict[str, Tensor]:
    """The gradients of query, key, value and, where asked, of the bias's own tensor, in the accumulation type."""
    read = _read(kernel, call)
    lse, total, visible, drawn = kept
    rows, wide = total > 0, read.query.dtype
    lse, visible = finite(kernel.lse_again(lse, total)), kernel.see_again(visible, call)
    grad_output = kernel.incoming(grad_output, rows).to(wide)
    row_sums = kernel.row_sums(grad_output, output.to(wide))
    drawn = None if drawn is None else kernel.draw_again(drawn, call)
    Q, K = visible.shape[2:]
    query, scale = call.query.to(wide), kernel.scale(call)
    dq, dk, dv = torch.zeros_like(read.query), torch.zeros_like(read.key), torch.zeros_like(read.value)
    pulled = torch.zeros(visible.shape if with_bias else (), dtype=wide, device=query.device)

    for columns in _blocks(0, K, kernel.block):
        key, value = read.key[:, :, columns], read.value[:, :, columns]
        for some in _blocks(0, Q, kernel.query_block):
            dO = grad_output[:, :, some]
            scores, slope = read.scores(some, columns)
            p = torch.where(rows[:, :, some], read.exp(kernel.hide(scores, visible[:, :, some, columns]), lse[:, :, some]), 0.0)
            z = 1.0 if drawn is None else drawn[:, :, some, columns]
            dp = z * read.product(dO, value.mT)
            ds = kernel.grad_scores(p, dp, row_sums[:, :, some], columns, K)
            if with_bias:
                pulled[:, :, some, columns] = ds
            dr = read.rounded(ds * kernel.slope(slope))
            dv[:, :, columns] = kernel.add("value", dv[:, :, columns], read.product(read.rounded(p * z).mT, dO), columns, call)
            dk[:, :, columns] = kernel.add(
                "key", dk[:, :, columns], scale * read.product(dr.mT, query[:, :, some]), columns, call
            )
            dq[:, :, some] = kernel.add("query", dq[:, :, some], scale * read.product(dr, key), columns, call)

    gradients = {"query": dq, "key": kernel.gather(dk, call.key.shape[1]), "value": kernel.gather(dv, call.key.shape[1])}
    if with_bias:
        distance = stages.distances(call, kernel.bias_positions(call))
        gradients["bias"] = kernel.bias_gradients[type(call.bias)](call, distance, pulled)
    return kernel.gradients(gradients, call)


def _read(kernel: KernelDesign, call: AttentionInputs) -> _Call:
    B, H, Q, _ = call.query.shape
    K = call.key.shape[2]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key, value = (tensor.to(wide) for tensor in (call.query, call.key, call.value))
    factor = kernel.scale(call)
    if kernel.prescaled:
        query, factor = (query * factor).to(call.query.dtype).to(wide), 1.0
    bias: Tensor | float = 0.0
    if call.bias is not None:
        distance = stages.distances(call, kernel.bias_positions(call))
        bias = kernel.biases[type(call.bias)](call, distance, stages.bias_values(call.bias).to(wide)).expand(B, H, Q, K)
    return _Call(kernel, call, query, kernel.read_keys(key, H), kernel.read_values(value, H), factor, bias)


def _visible(kernel: KernelDesign, call: AttentionInputs) -> Tensor:
    """The whole mask, bool (B,H,Q,K)."""
    B, H, Q, _ = call.query.shape
    distance = stages.distances(call, kernel.positions(call))
    terms = [kernel.terms[name](call, distance) for name in MASK_TERMS if name in call.mask.terms()]
    visible = kernel.join(terms) if terms else torch.ones((), dtype=torch.bool, device=call.query.device)
    return kernel.see(visible.expand(B, H, Q, call.key.shape[2]), call)


def _online(read: _Call, visible: Tensor, drawn: Tensor | None, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
    """Highest score, sum and unnormalised output over the keys from start to stop."""
    kernel, every = read.kernel, slice(0, visible.shape[2])
    highest = torch.full((*visible.shape[:3], 1), -math.inf, dtype=read.query.dtype, device=visible.device)
    total, output = torch.zeros_like(highest), torch.zeros((*visible.shape[:3], read.value.shape[-1])).to(highest)
    for columns in _blocks(start, stop, kernel.block):
        scores = kernel.hide(read.scores(every, columns)[0], visible[..., columns])
        raised = kernel.highest(highest, scores)
        p = read.exp(scores, finite(raised))
        total, output = kernel.fade(total, output, read.exp(highest, finite(raised)))
        entering = p if drawn is None else p * drawn[..., columns]
        total, output = kernel.keep(
            total + p.sum(-1, keepdim=True), output + read.product(read.rounded(entering), read.value[:, :, columns])
        )
        highest = raised
    return highest, total, output


def _blocks(start: int, stop: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]


def finite(tensor: Tensor) -> Tensor:
    """Zero where a row has seen no key so far."""
    return torch.where(tensor == -math.inf, 0.0, tensor)


def _tf32(tensor: Tensor) -> Tensor:
    """Rounded to 10 explicit bits, to nearest."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
