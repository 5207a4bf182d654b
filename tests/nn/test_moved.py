"""A model that was moved after it was built is checked on its present device."""

from __future__ import annotations

import torch

import tfkit
from tfkit.plugin import AttentionBackend, hookimpl

SPEC = """
tfkit: 1
name: small
nodes:
  source: {kind: tokens, d_model: 8, vocab_size: 9}
  encoder: {kind: stack, input: source, num_layers: 1, placement: pre, norm: layer_norm, attention: {num_heads: 2},
            ffn: {d_ff: 8, activation: relu}}
outputs: [encoder]
"""


class Narrow:
    """A plugin with a backend for bfloat16 alone."""

    def __init__(self, eager: AttentionBackend) -> None:
        self.eager = eager

    @hookimpl
    def tfkit_attention_backends(self) -> list[AttentionBackend]:
        can = self.eager.capabilities.model_copy(update={"dtypes": frozenset({"bfloat16"})})
        return [AttentionBackend(name="acme.narrow", summary="bfloat16 only", attend=self.eager.attend, capabilities=can)]


def test_casting_a_model_chooses_a_backend_for_the_new_dtype() -> None:
    catalogue = tfkit.load_catalogue()
    catalogue = catalogue.with_plugin(Narrow(catalogue.find("backend", "eager")), "acme")
    model = tfkit.build(tfkit.parse_spec(SPEC, catalogue), catalogue).bfloat16()
    model.set_backend("acme.narrow")
    assert model.sites == {"encoder.0.self_attention": "acme.narrow"}
    assert model(source=torch.tensor([[1, 2]]))["encoder"].dtype == torch.bfloat16
