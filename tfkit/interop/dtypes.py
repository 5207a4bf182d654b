"""Conversion of elements between dtypes, on their bits. numpy has no bfloat16: it is the upper half of float32."""

from __future__ import annotations

import numpy as np

from .views import Array


def converted(bits: Array, source: str, target: str) -> Array:
    """The bits of elements in another dtype, rounded to the nearest, ties to even; to bfloat16 through float32.

    Args:
        bits: elements as whole numbers of their size.
        source: their dtype, by torch's name.
        target: the dtype of the result.

    Returns:
        The bits of the result; the same array where the dtypes are equal.

    Raises:
        ValueError: a dtype is not one of real numbers, or a finite value is too large for the target.
    """
    if source == target:
        return bits
    values = real(bits, source)
    if target == "bfloat16":
        single = values.astype(np.float32).view(np.uint32)
        upper = ((single + 0x7FFF + ((single >> 16) & 1)) >> 16).astype(np.uint16)
        found = np.where(np.isnan(values), np.uint16(0x7FC0), upper)
    else:
        with np.errstate(over="ignore"):
            found = values.astype(target)
        found = found.view(f"u{found.dtype.itemsize}")
    lost = np.isfinite(values) & ~np.isfinite(real(found, target))
    if lost.any():
        raise ValueError(f"{int(lost.sum()):,} values, such as {float(values[lost].flat[0]):.3g}, are too large for {target}")
    return found


def real(bits: Array, dtype: str) -> Array:
    """Elements from their bits. Raises ValueError for a dtype that is not one of real numbers."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype not in ("float64", "float32", "float16"):
        raise ValueError(f"{dtype} is not a dtype of weights")
    return bits.view(dtype)
