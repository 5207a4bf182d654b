"""The matrices of one attention head, as views into the parameters of all heads.

q = x W_h^Q^T + b_h^Q      k = y W_g^K^T + b_g^K      v = y W_g^V^T + b_g^V      g = h // (H // G)
head_h = softmax(scale q k^T, masked) v
output = sum_h head_h W_h^O^T + b^O
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import Diagnostic, InputError
from .multi_head import MultiHeadAttention


@dataclass(frozen=True)
class AttentionHead:
    """The matrices of one query head, and of the key/value head that it reads.

    All are views: a change under `torch.no_grad()` changes the model. Grouped heads share `key`, `value` and their biases. What
    acts after these matrices is not part of them: a norm of queries and keys, a rotation, a score function, a sink, a value
    residual, an output gate. A matrix that is shared is in each of its places.

    Args:
        query: (D, M).
        key: (D, N), N = M or the width of the memory.
        value: (V, N).
        output: (M, V), the columns of the output projection that this head meets; None without one.
        query_bias: (D,), or None.
        key_bias: (D,), or None.
        value_bias: (V,), or None.
        output_bias: (M,), or None; the output of all heads together has it once.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    output_bias: Tensor | None


def head_of(attention: MultiHeadAttention, site: str, head: int) -> AttentionHead:
    """Head `head` of an attention site.

    Raises:
        InputError: the site has no such head, or no projections.
    """
    config = attention.config
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < config.num_heads:
        message = f"`{site}` has no head {head!r}"
        raise InputError(Diagnostic("TFK073", message, f"heads are 0..{config.num_heads - 1}"))
    group = head // (config.num_heads // config.num_kv_heads)
    query, query_bias = _rows(attention.query, site, head, config.num_heads)
    keys = attention.key or attention.query
    key, key_bias = _rows(keys, site, group, config.num_kv_heads)
    value, value_bias = _rows(attention.value or keys, site, group, config.num_kv_heads)
    output, output_bias = None, None
    if isinstance(attention.output, nn.Linear):
        width = attention.output.in_features // config.num_heads
        output, output_bias = attention.output.weight[:, head * width : (head + 1) * width], attention.output.bias
    return AttentionHead(query, key, value, output, query_bias, key_bias, value_bias, output_bias)


def _rows(module: nn.Module, site: str, head: int, heads: int) -> tuple[Tensor, Tensor | None]:
    """The rows of one head in a projection to all heads, and their bias."""
    projection = _linear(module, site)
    width = projection.out_features // heads
    rows = slice(head * width, (head + 1) * width)
    bias: Tensor | None = projection.bias
    return projection.weight[rows], None if bias is None else bias[rows]


def _linear(module: nn.Module, site: str) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        message = f"`{site}` has no projection matrices: its queries, keys and values are states as they are"
        raise InputError(Diagnostic("TFK073", message, "name a site of a stack"))
    return module
