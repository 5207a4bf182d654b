"""torch's layers with the fastest kernels of this processor, `Linear`, `Embedding` and `Dropout`, and the feed-forward layer.

The kernel is chosen here, inside `forward`. So a model is the sum of its module calls: hooks, adapters, sharding,
`torch.compile` and `tfkit verify` see what runs. On other devices and in compiled models these are torch's own layers.

An embedding's table may also be the weight of logits, and its rows may be divided among ranks as a DTensor: a rank then looks
up the ids of its rows, with zeros for others, and the sum over the ranks is the embedding; logits are computed for the rows of
each rank and gathered (Shoeybi et al. 2019, section 3, https://arxiv.org/abs/1909.08053).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..cpu.packed_weight import PackedWeight, active
from ..cpu.products import linear
from ..cpu.small_batch import small_batch_linear
from ..errors import Diagnostic, InputError
from .runtime.context import StackContext


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None, packed: PackedWeight | None) -> Tensor:
    """x W^T + b with the fastest product for where and when it is computed.

    Args:
        x: (..., in).
        weight: (out, in).
        bias: (out,), or None.
        packed: the packed copies of the weight, which searches use; None for a weight that was computed for this call.

    Returns:
        (..., out)
    """
    search = active.products
    if search is None or packed is None or not x.is_cpu or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return linear(x, weight, bias)
    return small_batch_linear(x, weight, bias, packed, search)


@dataclass(frozen=True)
class Head:
    """What token logits compute with the weight (V, M) of a layer that they call.

    Args:
        bias: (V,), added to that of the layer; or None.
        product: takes x (..., M), W and b, and replaces x W^T + b; or None.
        ids: (C,) the ids whose logits `product` gives; None for all.
    """

    bias: Tensor | None = None
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    ids: Tensor | None = None

    def compute(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, packed: PackedWeight | None = None, divided: bool = False
    ) -> Tensor:
        """x (..., M), W (V, M), b (V,) or None -> (..., V), or what `product` returns. `divided`: W is a DTensor whose rows are
        divided among ranks."""
        if self.bias is not None:
            own_bias = self.bias if self.bias.dtype == weight.dtype else self.bias.to(weight.dtype)
            bias = own_bias if bias is None else bias + own_bias
        if self.product is not None:
            return self.product(x, weight, bias)
        return logits_of_divided(x, weight, bias) if divided else fast_linear(x, weight, bias, packed)


class Linear(nn.Linear):
    """`torch.nn.Linear` with the fastest product of this processor, (..., in) -> (..., out).

    Args:
        in_features: features of the input.
        out_features: features of the output.
        bias: whether a bias is added.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.packed = PackedWeight()
        self.divided = False

    def forward(self, input: Tensor, head: Head | None = None) -> Tensor:
        """The linear map.

        Args:
            input: x (..., in).
            head: what token logits compute with W and b instead; None for x W^T + b.

        Returns:
            (..., out)
        """
        parameters: dict[str, Any] = self._parameters  # where torch looks last for an attribute, which takes microseconds
        packed: PackedWeight | None = self.packed
        weight = parameters.get("weight")
        if weight is None:  # computed for this call: parametrised or pruned
            weight, packed = self.weight, None
        bias = parameters["bias"] if "bias" in parameters else self.bias  # noqa: SIM401
        if head is not None:
            return head.compute(input, weight, bias, packed, self.divided)
        return fast_linear(input, weight, bias, packed)

    def _refuse_qconfig(self, _: Any) -> None:
        """`quantize_dynamic` sets `qconfig` on every module, and quantises those of torch's class alone. A model makes its
        linear maps such modules first; a part of a model would stay as it is without a word."""
        message = "quantisation of a part of a model would find no linear map: it looks for the class `torch.nn.Linear` alone"
        fix = "quantise the whole model, or some of its linear maps by name: quantize_dynamic(model, {name: qconfig})"
        raise InputError(Diagnostic("TFK071", message, fix))

    qconfig = property(fset=_refuse_qconfig)

    def train(self, mode: bool = True) -> Linear:
        """As in `nn.Module`. Training frees the packed copies.

        Args:
            mode: training mode (True) or evaluation mode (False).

        Returns:
            The layer.
        """
        if mode:
            self.packed.clear()
        return super().train(mode)


def as_torch_linears(root: nn.Module) -> None:
    """Every `Linear` becomes a `torch.nn.Linear` with the same parameters, in place: some tools look for that class alone."""
    for module in root.modules():
        if type(module) is Linear:
            module.__class__ = nn.Linear  # type: ignore[assignment]


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`, ids (B, L) -> (B, L, M). Called with a `head`, its table is the weight of logits."""

    def __init__(self, num_embeddings: int, embedding_dim: int, weight: Tensor | None = None) -> None:
        super().__init__(num_embeddings, embedding_dim, _weight=weight)
        self.packed = PackedWeight()
        self.divided = False
        """Whether tensor parallelism divided the rows of the table among ranks, as a DTensor."""

    def forward(self, input: Tensor, head: Head | None = None) -> Tensor:
        """The rows of the ids; with `head`, what it computes with x (..., M) and the table (V, M)."""
        weight = self.weight
        if head is None:
            return rows_of_divided(input, weight) if self.divided else functional.embedding(input, weight)
        packed = self.packed if "weight" in self._parameters else None
        return head.compute(input, weight, None, packed, self.divided)

    def train(self, mode: bool = True) -> Embedding:
        """As in `nn.Module`. Training frees the packed copies."""
        if mode:
            self.packed.clear()
        return super().train(mode)


class SharedTable:
    """The table of an embedding that another node owns, used through calls of the embedding.

    Args:
        embedding: the embedding of the owner. One of another library, such as one with an adapter, takes ids alone.
        node: the owner, if it was changed after it was built, for instance into a unit of FSDP. Only a call of such a node
            gathers its weights, so it is called, with what the embedding takes as `lookup`.
    """

    def __init__(self, embedding: nn.Module, node: nn.Module | None = None) -> None:
        self.embedding, self.node = embedding, node

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of ids.

        Args:
            ids: (B, L).

        Returns:
            (B, L, M)
        """
        return self.embedding(ids) if self.node is None else self.node(None, lookup=(ids, None))  # type: ignore[no-any-return]

    def logits(self, x: Tensor, head: Head) -> Tensor:
        """The logits of x.

        Args:
            x: (..., M).
            head: its bias, and a product that replaces x W^T + b.

        Returns:
            (..., V), or what the product of `head` returns.
        """
        if self.node is not None:
            return self.node(None, lookup=(x, head))  # type: ignore[no-any-return]
        if isinstance(self.embedding, Embedding):
            return self.embedding(x, head)  # type: ignore[no-any-return]
        weight: Any = self.embedding.weight
        return head.compute(x, self.embedding(torch.arange(weight.shape[0], device=x.device)), None)


class Dropout(nn.Dropout):
    """x keep / (1 - p), keep ~ Bernoulli(1 - p) for every element, any shape.

    On a CPU torch draws a random number per element. This class draws 64 bits for two elements, which takes a third of the
    time. The probability differs from p by at most 2^-32.

    Reference: https://jmlr.org/papers/v15/srivastava14a.html
    """

    def forward(self, input: Tensor) -> Tensor:
        drops = self.training and 0.0 < self.p < 1.0
        transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if not drops or self.inplace or not input.is_cpu or transformed:
            return super().forward(input)
        count = input.numel()
        # Without an upper bound `random_` draws all 64 bits. Each int32 half is uniform on [-2^31, 2^31).
        words = torch.empty((count + 1) // 2, dtype=torch.int64, device=input.device)
        bits = words.random_(-(2**63), None).view(torch.int32)[:count]
        keep = bits >= round(self.p * 2**32) - 2**31
        return input * keep.view(input.shape).to(input.dtype).mul_(1 / (1 - self.p))


class FeedForward(nn.Module):
    """The position-wise feed-forward layer, (B, L, M) -> (B, L, M).

    Args:
        input: linear map M -> d_ff.
        gate: linear map M -> d_ff of a gated layer, None for a plain one.
        output: linear map d_ff -> M.
        activate: elementwise function of the inner features, or of the gate if there is one.
        dropout: probability that an inner feature is dropped in training.

    Reference: https://arxiv.org/abs/1706.03762, equation 2; gated: https://arxiv.org/abs/2002.05202
    """

    def __init__(
        self, input: nn.Linear, gate: nn.Linear | None, output: nn.Linear, activate: Callable[[Tensor], Tensor], dropout: float
    ) -> None:
        super().__init__()
        self.input, self.gate, self.output = input, gate, output
        self.activate = activate
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        """The layer at every position.

        Args:
            x: (B, L, M).
            context: the current call of the stack.
            index: which application of the layer this is; not used.

        Returns:
            (B, L, M)
        """
        features = self.input(x)  # (B, L, d_ff)
        features = self.activate(features) if self.gate is None else self.activate(self.gate(x)) * features
        if self.dropout is not None:
            features = self.dropout(features)
        return self.output(features)  # type: ignore[no-any-return]


def rows_of_divided(ids: Tensor, weight: Tensor) -> Tensor:
    """ids (B, L), weight (V, M) divided -> (B, L, M), whole on every rank."""
    return _whole(functional.embedding(_replicated(ids, weight), weight))


def logits_of_divided(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, L, M), weight (V, M) divided -> (B, L, V), whole on every rank."""
    logits = _whole(functional.linear(_replicated(x, weight), weight))
    return logits if bias is None else logits + bias


def _replicated(x: Tensor, weight: Any) -> Tensor:
    """A tensor that all ranks have as a DTensor. Its gradient is summed over the ranks."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(x, weight.device_mesh, [Replicate()], run_check=False)


def _whole(x: Any) -> Tensor:
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()]).to_local()  # type: ignore[no-any-return]
