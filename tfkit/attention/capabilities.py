"""The capabilities that an attention backend declares, and the request of an attention site.

Every field of `Capabilities` defaults to "no". The check of a spec, `auto`, `tfkit plan`, the table of docs/guides/backends.md
and the conformance tests all read this object: a declared feature must work, and any other feature is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ..slots.options import Options

MASK_TERMS = ("causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible")
"""The terms a mask may have, in the order of `tfkit.attention.types.Mask`."""

BIAS_KINDS = ("dense", "linear", "distance")
"""The kinds of bias a call may have."""


def _frozen(value: Any) -> Any:
    """Converts a list or a set to a frozen set. Pydantic rejects any other value later."""
    try:
        return value if isinstance(value, str) else frozenset(value)
    except TypeError:
        return value


Names = Annotated[frozenset[str], BeforeValidator(_frozen)]


class Range(Options):
    """The multiples of `multiple` from `minimum` to `maximum`.

    Args:
        minimum: the smallest number.
        maximum: the largest number; None for no limit.
        multiple: a divisor of all numbers.
    """

    minimum: int = 1
    maximum: int | None = None
    multiple: int = 1

    def __contains__(self, number: int) -> bool:
        return self.minimum <= number <= (self.maximum or number) and number % self.multiple == 0

    def __str__(self) -> str:
        end = f"to {self.maximum}" if self.maximum else "up"
        return f"{self.minimum} {end}" + (f", multiples of {self.multiple}" if self.multiple > 1 else "")


class Device(Options):
    """A kind of device.

    Args:
        kind: `cpu` or `cuda`.
        minimum_capability: the lowest compute capability of a CUDA device; (9, 0) is Hopper. None for any.
    """

    kind: str
    minimum_capability: tuple[int, int] | None = None


class Numerics(Options):
    """Where a backend rounds, and what it makes of scores that are not finite. The error bound of the conformance suite is
    computed from this.

    Args:
        scores: whether scores stay in the accumulation type or are rounded to the storage type.
        probabilities: the same for the attention weights.
        gradients: the same for the sums of gradients.
        query_prescaled: scale * query is rounded to the storage type before the product with the key.
        tf32: float32 products may use TF32 if torch's own switch allows it.
        nan_as_zero: kinds of device on which a query without a softmax may get zeros instead of NaN: one with a score of NaN or
            +inf, or with scores of -inf alone.
        grade: an accuracy guarantee beyond the bound: the root-mean-square error is at most 1.5 (A) or 3 (B) times that of a
            kernel that computes in float32 and rounds once. The suite checks it only for backends that claim it; `eager`
            claims A.
    """

    scores: Literal["accumulation", "storage"] = "accumulation"
    probabilities: Literal["accumulation", "storage"] = "storage"
    gradients: Literal["accumulation", "storage"] = "accumulation"
    query_prescaled: bool = False
    tf32: bool = False
    nan_as_zero: Names = frozenset()
    grade: Literal["A", "B"] | None = None


class Capabilities(Options):
    """The features that a backend supports. Every field defaults to "no".

    Args:
        devices: devices it runs on.
        dtypes: dtypes of query, key and value, by torch's names.
        head_dim: values of D.
        value_dim_differs: V may differ from D.
        query_length: values of Q.
        key_length: values of K.
        mask_terms: terms of a mask, from `MASK_TERMS`.
        tensor_offset: the offset may be a tensor (B,).
        bias_kinds: kinds of bias, from `BIAS_KINDS`.
        bias_gradient: kinds of bias that get a gradient.
        dropout: dropout of the weights.
        weights: whether it returns attention weights, and whether these carry gradients.
        lse: it returns the log-sum-exp.
        grouped_queries: G may be smaller than H.
        softcap: soft capping of the scores.
        scores: names of score functions; `*` for all.
        backward: gradients.
        double_backward: gradients of gradients.
        deterministic_backward: equal gradients in every run.
        batch_invariant: a row's result does not depend on the other rows, bit for bit.
        compile: it works under torch.compile.
        export: it works under torch.export.
        numerics: where it rounds.
    """

    devices: Annotated[tuple[Device, ...], BeforeValidator(tuple)] = ()
    dtypes: Names = frozenset()
    head_dim: Range | None = None
    value_dim_differs: bool = False
    query_length: Range | None = None
    key_length: Range | None = None
    mask_terms: Names = frozenset()
    tensor_offset: bool = False
    bias_kinds: Names = frozenset()
    bias_gradient: Names = frozenset()
    dropout: bool = False
    weights: Literal["none", "detached", "differentiable"] = "none"
    lse: bool = False
    grouped_queries: bool = False
    softcap: bool = False
    scores: Names = frozenset({"dot"})
    backward: bool = False
    double_backward: bool = False
    deterministic_backward: bool = False
    batch_invariant: bool = False
    compile: bool = False
    export: bool = False
    numerics: Numerics = Numerics()


@dataclass(frozen=True)
class AttentionRequest:
    """The requirements of one attention site, for one class of calls. None means: not known before the call.

    Args:
        device: kind of device.
        cuda_capability: compute capability of a CUDA device.
        dtype: dtype of query, key and value, by torch's name.
        head_dim: features of a query and key head D.
        value_dim: features of a value head V.
        queries: number of queries Q.
        keys: number of keys K.
        mask_terms: terms of the mask, from `MASK_TERMS`.
        tensor_offset: the offset is a tensor (B,).
        bias: kind of bias, from `BIAS_KINDS`; None for no bias.
        bias_gradient: the bias needs a gradient.
        dropout: dropout of the weights.
        weights: the attention weights are needed.
        lse: the log-sum-exp is needed.
        grouped: G is smaller than H.
        softcap: soft capping of the scores.
        score: name of the score function.
        gradients: query, key or value need a gradient.
        deterministic: gradients must be equal in every run.
        compiled: the call runs under torch.compile.
        exported: the call runs under torch.export.
        scores: number of scores B H Q K.
    """

    device: str | None = None
    cuda_capability: tuple[int, int] | None = None
    dtype: str | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    queries: int | None = None
    keys: int | None = None
    mask_terms: frozenset[str] = frozenset()
    tensor_offset: bool = False
    bias: str | None = None
    bias_gradient: bool = False
    dropout: bool = False
    weights: bool = False
    lse: bool = False
    grouped: bool = False
    softcap: bool = False
    score: str = "dot"
    gradients: bool | None = None
    deterministic: bool = False
    compiled: bool = False
    exported: bool = False
    scores: int | None = None
