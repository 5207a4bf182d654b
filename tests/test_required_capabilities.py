"""`require_capabilities` refuses every feature that is not declared, names all of them at once, and lets the rest through."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tfkit import BackendRefused, plugin
from tfkit.inspection import MASK_TERMS
from tfkit.plugin import AttentionInputs, Capabilities, DenseBias, DistanceBias, LinearBias, Mask, Range, require_capabilities
from tfkit_conformance.attention.compare import request_of
from tfkit_conformance.attention.table import CASES

LITTLE = Capabilities(dtypes={"float32"}, head_dim=Range(minimum=8, maximum=64, multiple=8))
ALL = Capabilities(
    dtypes={"float32", "float64"}, head_dim=Range(), mask_terms=frozenset(MASK_TERMS), tensor_offset=True,
    bias_kinds={"dense", "linear", "distance"}, bias_gradient={"dense", "linear", "distance"}, dropout=True, weights="detached",
    lse=True, grouped_queries=True, softcap=True, value_dim_differs=True, scores={"*"},
)  # fmt: skip


def call(H=4, G=4, D=8, V=8, dtype=torch.float32, **fields):
    query, key, value = (
        torch.zeros(2, H, 3, D, dtype=dtype),
        torch.zeros(2, G, 5, D, dtype=dtype),
        torch.zeros(2, G, 5, V, dtype=dtype),
    )
    return AttentionInputs(query, key, value, fields.pop("mask", Mask()), 1.0, **fields)


LENGTHS = torch.tensor([1, 2])
SLOPES = torch.ones(4, requires_grad=True)
UNDECLARED = {
    "softcap": (call(softcap=1.0), {"softcap": True}),
    "dropout": (call(dropout=0.1), {"dropout": True}),
    "attention weights": (call(return_weights=True), {"weights": "detached"}),
    "the log-sum-exp": (call(return_lse=True), {"lse": True}),
    "fewer key/value heads than query heads": (call(G=2), {"grouped_queries": True}),
    "a value dim other than head_dim": (call(V=16), {"value_dim_differs": True}),
    "score functions": (call(score=lambda query, key: query @ key.mT), {"scores": {"*"}}),
    "an offset per batch row": (call(mask=Mask(offset=LENGTHS)), {"tensor_offset": True}),
    "a dense bias": (call(bias=DenseBias(torch.zeros(3, 5))), {"bias_kinds": {"dense"}}),
    "a linear bias": (call(bias=LinearBias(torch.ones(4)), mask=Mask(offset=0)), {"bias_kinds": {"linear"}}),
    "a distance bias": (call(bias=DistanceBias(torch.ones(4, 3), -1), mask=Mask(offset=0)), {"bias_kinds": {"distance"}}),
    "dtypes other than float32": (call(dtype=torch.float64), {"dtypes": {"float32", "float64"}}),
    "head_dim outside 8 to 64, multiples of 8": (call(D=12, V=12), {"head_dim": Range()}),
    **{
        term: (call(mask=mask), {"mask_terms": {term}})
        for term, mask in {
            "causal": Mask(causal=True, offset=0),
            "window": Mask(window=(1, 1), offset=0),
            "key_lengths": Mask(key_lengths=LENGTHS),
            "query_lengths": Mask(query_lengths=LENGTHS),
            "key_visible": Mask(key_visible=torch.ones(2, 5, dtype=torch.bool)),
            "segments": Mask(query_segments=torch.zeros(2, 3), key_segments=torch.zeros(2, 5)),
            "visible": Mask(visible=torch.ones(3, 5, dtype=torch.bool)),
        }.items()
    },
}


@pytest.mark.parametrize("feature", UNDECLARED)
def test_a_feature_is_refused_by_name_unless_it_is_declared(feature):
    inputs, declaring = UNDECLARED[feature]
    with pytest.raises(BackendRefused) as raised:
        require_capabilities("acme.flash", LITTLE)(inputs)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "TFK060"
    feature_name = f"mask terms {', '.join(sorted(MASK_TERMS))}" if feature in MASK_TERMS else feature
    assert diagnostic.message == f"`acme.flash` does not declare {feature_name}"
    require_capabilities("acme.flash", Capabilities(**{**LITTLE.model_dump(), **declaring}))(inputs)


@pytest.mark.parametrize(
    "bias",
    [
        DenseBias(torch.zeros(3, 5, requires_grad=True)),
        LinearBias(SLOPES),
        DistanceBias(torch.ones(4, 3, requires_grad=True), -1),
    ],
    ids=["dense", "linear", "distance"],
)  # fmt: skip
def test_the_gradient_of_a_bias_is_a_feature_of_its_own(bias):
    kind = type(bias).__name__.removesuffix("Bias").lower()
    inputs = call(bias=bias, mask=Mask(offset=0))
    with pytest.raises(BackendRefused, match=f"does not declare the gradient of a {kind} bias"):
        require_capabilities("x", LITTLE.model_copy(update={"bias_kinds": {kind}}))(inputs)
    require_capabilities("x", LITTLE.model_copy(update={"bias_kinds": {kind}, "bias_gradient": {kind}}))(inputs)


def test_one_message_names_every_undeclared_feature():
    inputs = call(
        G=2, V=16, dropout=0.1, softcap=2.0, return_lse=True, return_weights=True, bias=LinearBias(SLOPES),
        mask=Mask(causal=True, offset=LENGTHS), dtype=torch.float16,
    )  # fmt: skip
    with pytest.raises(BackendRefused) as raised:
        require_capabilities("acme.flash", LITTLE)(inputs)
    assert len(raised.value.diagnostics) == 1
    assert raised.value.diagnostics[0].message == (
        "`acme.flash` does not declare an offset per batch row, dropout, attention weights, the log-sum-exp, fewer key/value "
        "heads than query heads, softcap, a value dim other than head_dim, mask terms causal, key_lengths, key_visible, "
        "query_lengths, segments, visible, window, a linear bias, dtypes other than float32"
    )


def test_a_plain_call_passes():
    require_capabilities("x", LITTLE)(call())
    require_capabilities("x", LITTLE)(call(H=1, G=1, D=64, V=64))
    require_capabilities("x", LITTLE)(call(mask=Mask(offset=3)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_declared_features_pass(case):
    inputs = case.inputs()
    require_capabilities("x", ALL)(inputs)
    require_capabilities("x", ALL)(
        replace(inputs, dropout=0.5, return_lse=True, return_weights=True, score=lambda query, key: query @ key.mT)
    )
    if request_of(inputs).mask_terms or inputs.bias is not None or case.G != case.H or case.V != case.D or case.softcap:
        with pytest.raises(BackendRefused):
            require_capabilities("x", LITTLE)(inputs)


@pytest.mark.slow
def test_a_declaration_and_its_guard_import_no_torch():
    """A plugin's entries name `require_capabilities` from `tfkit.plugin`; its kernels use it when first called."""
    code = (
        "import sys; from tfkit.plugin import AttentionBackend, Capabilities, Device, Range; "
        "AttentionBackend(name='x', summary='x', attend='x:y', capabilities=Capabilities(head_dim=Range())); "
        "print('torch' in sys.modules); from tfkit.plugin import require_capabilities; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_plugins_find_it():
    assert plugin.require_capabilities is require_capabilities
    assert "require_capabilities" in plugin.__all__
