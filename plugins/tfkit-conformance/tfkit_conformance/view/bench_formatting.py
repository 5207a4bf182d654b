"""Formats the machine, the cells and the figures of a report of `tfkit bench attention`, for the table and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfkit.commands import bytes_in_words, scaled, seconds_in_words

FORMULA = (
    "Rates count visible query-key pairs only, with 4 x head_dim floating-point operations forward and 10 x head_dim "
    "backward; decoding counts the bytes of query, key, value and output."
)
READING = (
    "Times are medians over rounds in which the backends take turns, ± half the interquartile range. Of ceiling: share of the "
    "rate of a large matrix product (decoding: of a large copy) in the same run. Best peer: time of the fastest other backend "
    "over this one's; above 1 this one is the fastest."
)


def machine_in_words(data: Mapping[str, Any]) -> str:
    """The device and what ran on it."""
    machine = data["machine"]
    capability = machine["capability"]
    threads = f", {machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    where = f" (sm_{capability[0]}{capability[1]})" if capability else threads
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{machine['device_name']}{where}, {data['settings']['dtype']}; {versions}"


def ceiling_in_words(data: Mapping[str, Any]) -> str:
    ceiling = data["ceiling"]
    if not ceiling:
        return "Ceilings: not measured."
    return f"Ceilings: {scaled(ceiling['flops'], 'FLOP/s')} (matrix product), {scaled(ceiling['bytes'], 'B/s')} (copy)."


def shape_in_words(row: Mapping[str, Any]) -> str:
    """`B2 H8 Q512 K512 D64`, with G where heads share keys."""
    shape = row["shape"]
    groups = f" G{shape['kv_heads']}" if shape["kv_heads"] != shape["heads"] else ""
    return f"B{shape['batch']} H{shape['heads']}{groups} Q{shape['queries']} K{shape['keys']} D{shape['head_dim']}"


def figures(backend: Mapping[str, Any], decode: bool) -> dict[str, str]:
    """Every figure as text, "" if it is missing."""
    rate = backend["bytes_per_second"] if decode else backend["flops_per_second"]
    share, peer, memory, median = backend["share"], backend["best_peer"], backend["peak_bytes"], backend["median"]
    return {
        "time": seconds_in_words(median) if median else "",
        "spread": _spread(backend) if median else "",
        "rate": scaled(rate, "B/s" if decode else "FLOP/s") if rate else "",
        "share": f"{100 * share:.1f} %" if share is not None else "",
        "memory": bytes_in_words(memory) if memory is not None else "not measured" if median else "",
        "peer": f"{peer:.2f} x" if peer is not None else "",
    }


def said(backend: Mapping[str, Any]) -> str:
    """What is said where no figure counts: the first reason, and how many more there are."""
    status, more = backend["status"], len(backend["reasons"]) - 1
    words = {"refused": "refused: ", "wrong": "WRONG, not timed: ", "failed": "failed: ", "slow": "slow: "}.get(status, "")
    return words + str(backend["reason"]) + (f" (and {more} more)" if more > 0 else "")


def _spread(backend: Mapping[str, Any]) -> str:
    if len(backend["seconds"]) == 1:
        return "once"
    return f"±{50 * (backend['high'] - backend['low']) / backend['median']:.0f} %"
