"""Activation checkpointing: the same gradients from fewer kept tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tfkit import Model

SCHEMES = ["sinusoidal", "rotary_half", "alibi", "{kind: relative_t5, buckets: 6}", "relative_shaw"]


def gradients(model: Model, source: Tensor, target: Tensor) -> tuple[list[Tensor], int]:
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(source=source, target=target)["logits"].logsumexp(2).mean()
    size = sum(kept.values())
    return list(torch.autograd.grad(loss, list(model.parameters()))), size


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("position", SCHEMES)
def test_gradients_are_the_same_and_less_is_kept(
    position: str, shared: bool, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    layers = f"[{{repeat: 4, shared: {str(shared).lower()}}}]"
    overrides = (
        f"encoder.layers={layers}",
        f"decoder.layers={layers}",
        "defaults.dropout=0.2",
        "defaults.attention.dropout=0.1",
    )
    plain = model_of("encoder-decoder", *overrides, position=position).train()
    again = model_of(
        "encoder-decoder", *overrides, "encoder.checkpoint=true", "decoder.checkpoint=true", position=position
    ).train()
    source, target = ids_of(3, 9, 1), ids_of(3, 8, 2)
    source[0, 5:] = 0
    wanted, whole = gradients(plain, source, target)
    got, kept = gradients(again, source, target)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
    assert kept < 0.6 * whole


def test_evaluation_without_gradients_is_untouched(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    plain, again = model_of(), model_of("encoder-decoder", "encoder.checkpoint=true", "decoder.checkpoint=true")
    source, target = ids_of(2, 5), ids_of(2, 4)
    with torch.no_grad():
        for mode in (True, False):
            want, got = (model.train(mode)(source=source, target=target)["logits"] for model in (plain, again))
            assert torch.equal(got, want)
