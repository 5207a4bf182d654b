"""A backend in a hurry: `acme.draft` has a mistake in its mask, `acme.fixed` is correct."""

from __future__ import annotations

from tfkit.plugin import AttentionBackend, Capabilities, Device, Range, hookimpl

CAPABILITIES = Capabilities(
    devices=(Device(kind="cpu"),),
    dtypes=frozenset({"float32"}),
    head_dim=Range(),
    query_length=Range(),
    key_length=Range(),
    mask_terms=frozenset({"causal"}),
    tensor_offset=True,
    backward=True,
)


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name=f"acme.{name}",
            summary="Causal attention in plain torch, for a tutorial.",
            attend=f"acme_attention.kernel:{name}",
            capabilities=CAPABILITIES,
        )
        for name in ("draft", "fixed")
    ]
