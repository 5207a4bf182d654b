"""What all kernels declare alike."""

from __future__ import annotations

from typing import Any

from tfkit.plugin import AttentionBackend, Capabilities, Device, NoOptions, Numerics, Range


def declared(module: str, summary: str, **more: Any) -> AttentionBackend:
    """The entry of a kernel with the function `attend`, and `prepare` where the summary of `more` says so. It takes every mask,
    bias and dtype on the CPU; `more` is what it can besides."""
    entry = {name: more.pop(name) for name in ("reference", "prepare") if name in more}
    kinds = frozenset({"dense", "linear", "distance"})
    can = {"bias_kinds": kinds, "bias_gradient": kinds, "numerics": Numerics(probabilities="accumulation")} | more
    return AttentionBackend(
        name=f"faults.{module}",
        summary=summary,
        contract=1,
        attend=f"{module}:attend",
        options=NoOptions,
        threads=True,
        capabilities=Capabilities(
            devices=(Device(kind="cpu"),),
            dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
            head_dim=Range(),
            value_dim_differs=True,
            query_length=Range(),
            key_length=Range(),
            mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible"}),
            tensor_offset=True,
            lse=True,
            grouped_queries=True,
            softcap=True,
            backward=True,
            **can,
        ),
        **entry,
    )
