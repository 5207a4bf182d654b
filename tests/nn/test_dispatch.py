"""Dispatch to a backend: invalid arguments are refused before the call, invalid results are reported after it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tfkit import InputError, PluginError
from tfkit.inspection import BoundBackend, attend
from tfkit.plugin import (
    AttentionBackend,
    AttentionInputs,
    AttentionOutput,
    Capabilities,
    DenseBias,
    DistanceBias,
    LinearBias,
    Mask,
)

B, H, G, Q, K, D, V = 2, 6, 3, 5, 7, 4, 8


def bound(function: Callable[..., Any]) -> BoundBackend:
    entry = AttentionBackend(name="test.mine", summary="", attend="nowhere:attend", capabilities=Capabilities())
    return BoundBackend(entry, None, function, None, "test.mine")


def right(inputs: AttentionInputs, options: object) -> AttentionOutput:
    return AttentionOutput(inputs.query.new_zeros(B, H, Q, V))


@pytest.fixture
def inputs() -> AttentionInputs:
    return AttentionInputs(torch.randn(B, H, Q, D), torch.randn(B, G, K, D), torch.randn(B, G, K, V), Mask(), 0.5)


def test_fitting_inputs_are_accepted(inputs: AttentionInputs) -> None:
    assert attend(bound(right), inputs).output.shape == (B, H, Q, V)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "three axes": ({"query": torch.zeros(B, Q, D)}, "four axes"),
    "heads": ({"query": torch.zeros(B, 4, Q, D)}, "key heads must divide query heads"),
    "head dim": ({"key": torch.zeros(B, G, K, D + 1)}, "head dim must agree"),
    "key length": ({"value": torch.zeros(B, G, K + 1, V)}, "key length"),
    "no queries": ({"query": torch.zeros(B, H, 0, D)}, "empty"),
    "dtype": ({"key": torch.zeros(B, G, K, D, dtype=torch.float64)}, "one dtype"),
    "causal without offset": ({"mask": Mask(causal=True)}, "need `mask.offset`"),
    "linear bias without offset": ({"bias": LinearBias(torch.ones(H))}, "need `mask.offset`"),
    "offset shape": ({"mask": Mask(causal=True, offset=torch.zeros(B + 1, dtype=torch.int64))}, "one integer per batch row"),
    "key_lengths": ({"mask": Mask(key_lengths=torch.ones(B + 1))}, r"mask.key_lengths has shape \(3,\) where \(2,\)"),
    "query_lengths": ({"mask": Mask(query_lengths=torch.ones(1))}, "mask.query_lengths"),
    "key_visible": ({"mask": Mask(key_visible=torch.ones(B, Q, dtype=torch.bool))}, "mask.key_visible"),
    "one segment": ({"mask": Mask(query_segments=torch.ones(B, Q))}, "together or not at all"),
    "visible": ({"mask": Mask(visible=torch.ones(Q, K + 1, dtype=torch.bool))}, "does not broadcast"),
    "dense bias": ({"bias": DenseBias(torch.zeros(H + 1, Q, K))}, "bias.values has shape"),
    "slopes": ({"bias": LinearBias(torch.ones(H + 1)), "mask": Mask(offset=0)}, "one slope per head"),
    "distances": ({"bias": DistanceBias(torch.zeros(H + 1, 9), -4), "mask": Mask(offset=0)}, "one row per head"),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_that_do_not_fit_are_refused_with_their_shapes(case: str, inputs: AttentionInputs) -> None:
    changes, rule = CASES[case]

    def never(*_: object) -> AttentionOutput:
        raise AssertionError("the backend was called")

    with pytest.raises(InputError, match=rule) as error:
        attend(bound(never), replace(inputs, **changes))
    assert "TFK070" in str(error.value)
    assert "query (" in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda inputs, options: inputs.query.new_zeros(B, H, Q, V),
        lambda inputs, options: AttentionOutput(inputs.query.new_zeros(B, H, 1, V)),
        lambda inputs, options: AttentionOutput(inputs.query.new_zeros(B, H, Q, V, dtype=torch.float64)),
    ],
    ids=["a tensor", "a shape that broadcasts", "a dtype"],
)
def test_an_invalid_output_names_the_backend(wrong: Callable[..., Any], inputs: AttentionInputs) -> None:
    with pytest.raises(PluginError, match=r"TFK056.*`test.mine` returned"):
        attend(bound(wrong), inputs)
