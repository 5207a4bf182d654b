"""The products that `sdpa` takes for few queries or keys on a CPU equal its kernel to rounding.

They are used where they are faster.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tfkit.builtin.attention.entries import SDPA, SdpaOptions
from tfkit.builtin.attention.sdpa import attend, prepare
from tfkit.cpu import few_queries
from tfkit.plugin import AttentionInputs, DenseBias, LinearBias, Mask, shapes_of
from tfkit_conformance.attention.table import CASES
from tfkit_conformance.suite.again import replay

B, H, D = 70, 4, 16


def call(Q: int, K: int, G: int = H, dtype: torch.dtype = torch.float32, **more) -> AttentionInputs:
    generator = torch.Generator().manual_seed(Q * K)
    query, key, value = (torch.randn(B, L, heads, D, generator=generator, dtype=dtype) for L, heads in ((Q, H), (K, G), (K, G)))
    # Queries as a projection leaves them, keys and values as a cache does: views of longer buffers.
    held = [torch.cat([each.transpose(1, 2), each.new_full((B, G, 5, D), torch.nan)], 2)[:, :, :K] for each in (key, value)]
    return AttentionInputs(query.transpose(1, 2), *held, more.pop("mask", Mask()), 0.3, **more)


RAGGED = torch.arange(B) % 3 + 30
SCATTERED = torch.rand(B, 1, 5, 37, generator=torch.Generator().manual_seed(1)) < 0.7
CALLS = {
    "plain": call(1, 37),
    "beams": call(5, 37),
    "few of both": call(8, 7),
    "one query, few keys": call(1, 12, mask=Mask(key_lengths=torch.arange(B) % 12 + 1)),
    "one of each": call(1, 1),
    "few keys": call(30, 7, mask=Mask(key_lengths=torch.arange(B) % 7 + 1)),
    "grouped": call(2, 37, G=2),
    "many grouped": call(5, 20, G=2),
    "double": call(1, 37, dtype=torch.float64),
    "dense bias": call(4, 33, bias=DenseBias(torch.randn(1, H, 1, 33))),
    "visible": call(1, 37, mask=Mask(key_visible=(torch.arange(37) % 5 > 0).expand(B, -1))),
    "lengths": call(1, 37, mask=Mask(key_lengths=RAGGED)),
    "a fully masked row": call(1, 37, mask=Mask(key_lengths=RAGGED - 30)),
    "causal": call(3, 37, mask=Mask(causal=True, offset=34)),
    "window and bias": call(3, 37, mask=Mask(causal=True, offset=34, window=(9, 0)), bias=LinearBias(torch.ones(H))),
    "a tree": call(5, 37, mask=Mask(visible=SCATTERED)),
}


@pytest.fixture
def calls(monkeypatch):
    """The calls of attention that these products compute."""
    found, inner = [], few_queries.attend
    monkeypatch.setattr(few_queries, "attend", lambda *given: found.append(given) or inner(*given))
    return found


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_products_are_the_kernel(name, prepared, calls):
    inputs = CALLS[name]
    with torch.no_grad():
        due = attend(inputs, SdpaOptions(kernel="math")).output
        if prepared:
            made = prepare(inputs.mask, inputs.bias, shapes_of(inputs), SdpaOptions())
            inputs = AttentionInputs(inputs.query, inputs.key, inputs.value, inputs.mask, 0.3, inputs.bias, prepared=made)
        found = attend(inputs, SdpaOptions()).output
    assert calls
    torch.testing.assert_close(found, due)


def test_biases_side_by_side_by_vmap():
    """Only the bias has the mapped axis: the scores may not be added to in place."""
    inputs, biases = call(4, 33), torch.randn(3, 1, H, 1, 33, generator=torch.Generator().manual_seed(0))

    def output(values):
        return attend(replace(inputs, bias=DenseBias(values)), SdpaOptions()).output

    assert few_queries.products_are_faster(inputs, None)
    torch.testing.assert_close(torch.func.vmap(output)(biases), torch.stack([output(values) for values in biases]))


@pytest.mark.parametrize(
    ("change", "used"),
    [
        ({}, True),
        ({"Q": 9}, False),
        ({"Q": 9, "K": 15}, True),
        ({"K": 12}, True),
        ({"Q": 2, "K": 12}, False),
        ({"dtype": torch.bfloat16}, False),
        ({"dropout": 0.5}, False),
    ],
)
def test_products_are_used_if_they_are_faster(change, used):
    assert few_queries.products_are_faster(call(**{"Q": 1, "K": 37, **change}), None) == used


def test_few_rows_gradients_and_a_kernel_that_is_named_are_the_kernels(calls):
    given = call(1, 37)
    attend(replace(given, query=given.query[:15], key=given.key[:15], value=given.value[:15]), SdpaOptions())
    attend(replace(given, query=given.query.clone().requires_grad_()), SdpaOptions())
    attend(replace(given, bias=DenseBias(torch.zeros(1, 1, 1, 37, requires_grad=True))), SdpaOptions())
    attend(given, SdpaOptions(kernel="flash"))
    assert not calls


KERNELS = ("causal_square", "right_padded")  # masks that `is_causal` says
FEW = [
    case for case in CASES
    if (case.Q <= 8 or case.K < 16) and case.name not in KERNELS and case.softcap is None and not (case.weights or case.lse)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", FEW, ids=[case.name for case in FEW])
def test_they_keep_the_contract(case, monkeypatch, calls):
    """The named calls pass all layers of the conformance suite with the products used for every call of few queries or keys."""
    for bound in ("MIN_MATRICES", "MIN_PRODUCTS"):
        monkeypatch.setattr(few_queries, bound, 1)
    for dtype in ("float32", "float64"):
        assert replay(SDPA, replace(case, dtype=dtype, gradients=False, bias_gradient=False, dropout=0.0)) == "passed"
    assert calls
