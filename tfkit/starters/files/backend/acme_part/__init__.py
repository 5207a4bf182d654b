"""The declaration: what tfkit reads to list the backend, check a spec against it, and refuse what it cannot do."""

from __future__ import annotations

from tfkit.plugin import AttentionBackend, Capabilities, Device, Numerics, Options, Range, Size, hookimpl


class OnlineOptions(Options):
    """`block` keys are looked at together."""

    block: Size = 64


ONLINE = AttentionBackend(
    name="acme.part",
    summary="Blockwise attention with the online softmax, in plain torch: an example to copy.",
    reference="https://arxiv.org/abs/1805.02867",
    contract=1,
    attend="acme_part.online:attend",
    options=OnlineOptions,
    threads=True,
    capabilities=Capabilities(
        devices=(Device(kind="cpu"), Device(kind="cuda")),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        head_dim=Range(),
        value_dim_differs=True,
        query_length=Range(),
        key_length=Range(),
        mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible"}),
        tensor_offset=True,
        bias_kinds=frozenset({"dense", "linear", "distance"}),
        bias_gradient=frozenset({"dense", "linear", "distance"}),
        lse=True,
        grouped_queries=True,
        softcap=True,
        backward=True,
        numerics=Numerics(probabilities="accumulation", tf32=True),
    ),
)


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return [ONLINE]
