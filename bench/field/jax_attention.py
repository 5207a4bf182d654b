"""Functions of JAX arrays, called with NumPy arrays: flax, equinox, haiku, keras. bench/field_report.py runs them, and
`jax.nn.dot_product_attention` by its name."""

from __future__ import annotations

from typing import Any

import equinox
import flax.linen
import flax.nnx
import jax
import keras


def linen(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> Any:
    """flax.linen's function."""
    return flax.linen.dot_product_attention(*map(jax.numpy.asarray, (query, key, value)), bias, mask)


def nnx(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, is_causal: bool = False) -> Any:
    """flax.nnx's function."""
    return flax.nnx.dot_product_attention(*map(jax.numpy.asarray, (query, key, value)), bias, mask, is_causal=is_causal)


def equinox_one(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """equinox' function of one head, mapped over heads and batch."""
    B, Q, H, _ = query.shape
    if key.shape[2] != H:
        raise NotImplementedError("one head count")
    mask = jax.numpy.ones((B, H, Q, key.shape[1]), bool) if mask is None else jax.numpy.broadcast_to(mask, (B, H, Q, key.shape[1]))
    over_heads = jax.vmap(equinox.nn._attention.dot_product_attention, in_axes=(1, 1, 1, 0), out_axes=1)
    return jax.vmap(over_heads)(query, key, value, mask)


def keras_ops(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, scale: float | None = None,
              is_causal: bool = False) -> Any:  # fmt: skip
    """keras.ops.dot_product_attention with the backend of KERAS_BACKEND."""
    return keras.ops.convert_to_numpy(keras.ops.dot_product_attention(query, key, value, bias, mask, scale, is_causal))
