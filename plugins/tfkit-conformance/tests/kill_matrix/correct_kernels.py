"""Correct implementations of the contract that differ as real kernels do. The suite must pass all of them.

Each differs from the others where real kernels do: in the size and order of its blocks, in the base of its exponentials, in how
often it rounds. What it says of itself in `Numerics` is what the bound evaluates it by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionBackend, AttentionInputs, AttentionOutput, Capabilities, Numerics, require_capabilities
from tfkit_conformance.mutants.kernel import entry_of, stages
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES, Kernel, refuse_undeclared

Attend = Callable[[AttentionInputs, Any], AttentionOutput]


@dataclass(frozen=True)
class CorrectKernel:
    """A correct backend. `tf32`: it rounds to TF32 by itself, on every device, so that its bound is the one for TF32."""

    name: str
    summary: str
    attend: Attend
    capabilities: Capabilities = CAPABILITIES
    tf32: bool = False

    @property
    def entry(self) -> AttentionBackend:
        """Its declaration, as a plugin would offer it."""
        return entry_of(self.name, self.summary, self.capabilities)


def classed(numerics: Numerics, **declared: Any) -> Capabilities:
    """The kernel's capabilities with another numerics class."""
    numerics = numerics.model_copy(update={"nan_as_zero": CAPABILITIES.numerics.nan_as_zero})
    return CAPABILITIES.model_copy(update={"numerics": numerics, **declared})


def whole(call: AttentionInputs, options: Any = None) -> AttentionOutput:
    """The equation on the whole score matrix in float32 or wider, differentiated by autograd."""
    return _whole(call, torch.promote_types(call.query.dtype, torch.float32))


def whole_in_storage(call: AttentionInputs, options: Any = None) -> AttentionOutput:
    """The same with every matrix in the query's dtype; only the softmax is wider."""
    return _whole(call, call.query.dtype)


def _whole(call: AttentionInputs, dtype: torch.dtype) -> AttentionOutput:
    refuse_undeclared(call)
    heads, wide = call.query.shape[1], torch.promote_types(call.query.dtype, torch.float32)
    distance = stages.distances(call, stages.positions(call))
    key, value = (stages.read_heads(tensor.to(dtype), heads) for tensor in (call.key, call.value))
    scores = call.query.to(dtype) @ key.mT * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        added = stages.BIASES[type(call.bias)](call, distance, stages.bias_values(call.bias).to(wide))
        scores = (scores + added).to(dtype)
    terms = [stages.TERMS[name](call, distance) for name in sorted(call.mask.terms())]
    shown = stages.all_of(terms).expand_as(scores) if terms else torch.ones_like(scores, dtype=torch.bool)
    rows = shown.any(-1, keepdim=True)
    scores = scores.masked_fill(~(shown | ~rows), -torch.inf)
    weights = torch.softmax(scores, -1, dtype=wide)
    drawn = stages.draw(call)
    output = (weights if drawn is None else weights * drawn).to(dtype) @ value
    lse = torch.logsumexp(scores.detach().to(wide), -1, keepdim=True)
    return AttentionOutput(
        torch.where(rows, output, 0.0).to(call.query.dtype),
        torch.where(rows, weights, 0.0).to(call.query.dtype) if call.return_weights else None,
        torch.where(rows, lse, -torch.inf).squeeze(-1).float() if call.return_lse else None,
    )


def rounded_sum(leaf: str, total: Tensor, term: Tensor, columns: slice, call: AttentionInputs) -> Tensor:
    """Gradients accumulated in the query's dtype, block by block."""
    return (total + term).to(call.query.dtype).to(total.dtype)


def causal_only(call: AttentionInputs, options: Any = None) -> AttentionOutput:
    """The kernel for plain and causal calls; everything else is refused."""
    require_capabilities("causal_only", NARROW)(call)
    return Kernel(block=32)(call, options)


IN_STORAGE = Numerics(probabilities="storage", gradients="storage", tf32=True)
NARROW = Capabilities(
    devices=CAPABILITIES.devices,
    dtypes=CAPABILITIES.dtypes,
    head_dim=CAPABILITIES.head_dim,
    query_length=CAPABILITIES.query_length,
    key_length=CAPABILITIES.key_length,
    mask_terms=frozenset({"causal"}),
    value_dim_differs=True,
    grouped_queries=True,
    backward=True,
    deterministic_backward=True,
    numerics=CAPABILITIES.numerics,
)

CORRECT_KERNELS = (
    CorrectKernel("whole", "The whole score matrix in float32 or wider, differentiated by autograd.", whole,
             classed(Numerics(probabilities="accumulation", tf32=True), weights="differentiable", double_backward=True)),
    CorrectKernel("online_16", "Online softmax, 16 keys at a time, powers of 2.", Kernel(block=16)),
    CorrectKernel("online_64", "Online softmax, 64 keys at a time, powers of e.", Kernel(block=64, base2=False)),
    CorrectKernel("online_128", "Online softmax, 128 keys at a time, powers of 2.", Kernel(block=128, query_block=128)),
    CorrectKernel("online_wide", "Online softmax whose probabilities are never rounded.",
             Kernel(block=32, base2=False, probabilities="accumulation"),
             classed(Numerics(probabilities="accumulation", tf32=True))),
    CorrectKernel("split_4", "Keys in four parts, each with its own softmax, merged by their maxima.", Kernel(split=4)),
    CorrectKernel("tf32", "float32 products of factors rounded to TF32.", Kernel(block=32, tf32=True), tf32=True),
    CorrectKernel("query_prescaled", "The query times the scale, rounded to the storage type, before its product with the key.",
             Kernel(block=32, prescaled=True), classed(Numerics(query_prescaled=True, tf32=True))),
    CorrectKernel("scores_in_storage", "Every matrix in the storage type, only the softmax wider.", whole_in_storage,
             classed(Numerics(scores="storage", tf32=True), weights="differentiable", double_backward=True)),
    CorrectKernel("gradients_in_storage", "Gradients rounded to the storage type after every block.",
             Kernel(block=32, query_block=32, add=rounded_sum), classed(IN_STORAGE)),
    CorrectKernel("causal_only", "Plain and causal calls; everything else is refused.", causal_only, NARROW),
)  # fmt: skip
"""The correct backends."""
