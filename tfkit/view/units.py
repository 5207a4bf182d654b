"""Seconds, rates and bytes as people read them, three digits each."""

from __future__ import annotations


def seconds_in_words(seconds: float) -> str:
    """`12.3 us`, `4.56 ms`, `7.89 s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} us"


def flops_in_words(rate: float) -> str:
    """`648 TFLOP/s`, `83.8 GFLOP/s`."""
    return f"{_digits(rate / 1e12)} TFLOP/s" if rate >= 1e12 else f"{_digits(rate / 1e9)} GFLOP/s"


def speed_in_words(rate: float) -> str:
    """`3.35 TB/s`, `25.4 GB/s`."""
    return f"{_digits(rate / 1e12)} TB/s" if rate >= 1e12 else f"{_digits(rate / 1e9)} GB/s"


def bytes_in_words(size: float) -> str:
    """`512 B`, `36 MiB`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{_digits(size / (1 << power))} {unit}"
    return f"{size:.0f} B"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
