"""Counts, rates, seconds and bytes with three digits and a unit."""

from __future__ import annotations


def seconds_in_words(seconds: float) -> str:
    """A duration as text.

    Args:
        seconds: the duration.

    Returns:
        `12.3 us`, `4.56 ms` or `7.89 s`.
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} us"


STEPS = ("", "k", "M", "G", "T", "P", "E")


def scaled(number: float, unit: str) -> str:
    """A number with three digits and a decimal prefix.

    Args:
        number: the number.
        unit: its unit.

    Returns:
        `3.21 GFLOPs`, `25.4 GB/s`.
    """
    value, step = float(number), 0
    while value >= 999.5 and step < len(STEPS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {STEPS[step]}{unit}" if value < 1000 else f"{value:,.0f} {STEPS[step]}{unit}"


def bytes_in_words(size: float) -> str:
    """A size as text.

    Args:
        size: the size in bytes.

    Returns:
        `512 B`, `36 MiB`.
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{_digits(size / (1 << power))} {unit}"
    return f"{size:.0f} B"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
