"""A case is pure data: through JSON and back, and the same tensors from the same seed, however they lie in memory."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from attention_calls import typed
from tfkit import InputError
from tfkit.builtin.attention.entries import EAGER
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import DTYPES, Case
from tfkit_conformance.attention.case_data import case_of
from tfkit_conformance.attention.compare import leaves_of, request_of
from tfkit_conformance.attention.elements import GRAD_LAYOUTS, LAYOUTS, REGIMES
from tfkit_conformance.attention.strategies import cases
from tfkit_conformance.attention.table import CASES

SUBJECT = backend_under_test(EAGER)
FULL = Case(B=2, H=6, G=3, Q=5, K=7, D=8, V=4, dtype="float64", gradients=True, bias="dense", bias_gradient=True)
CALM = settings(suppress_health_check=list(HealthCheck))
drawn_cases = st.sampled_from(list(DTYPES)).flatmap(lambda dtype: cases(SUBJECT, dtype))


@pytest.mark.slow
@settings(CALM, max_examples=60)
@given(drawn_cases)
def test_a_case_survives_json(case):
    assert case_of(json.loads(json.dumps(case.as_data()))) == case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_named_case_survives_json(case):
    assert case_of(json.loads(json.dumps(case.as_data()))) == case


def test_the_data_hold_what_differs_from_a_plain_call():
    data = Case(Q=3, window=(1, None), offset=(2,), seed=4).as_data()
    assert data == {"B": 1, "H": 1, "G": 1, "Q": 3, "K": 1, "D": 8, "V": 8, "window": (1, None), "offset": (2,), "seed": 4}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "a case is a mapping, not NoneType"),
        ([1, 2], "a case is a mapping, not list"),
        ("Case()", "a case is a mapping, not str"),
        ({"batch": 2}, "has no field `batch`"),
        ({3: 1}, "has no field `3`"),
        ({"H": 3, "G": 2}, "H 3 is no multiple of G 2"),
        ({"G": 0}, "`G` is 0; expected a whole number from 1 up"),
        ({"K": -4}, "`K` is -4"),
        ({"Q": "7"}, "`Q` is '7'"),
        ({"D": 8.0}, "`D` is 8.0"),
        ({"B": True}, "`B` is True"),
        ({"V": None}, "`V` is None"),
        ({"Q": 2**40, "K": 2**40}, "more than 4294967296"),
        ({"dtype": "int8"}, "`dtype` is 'int8'; expected one of float64, float32"),
        ({"regime": "wild"}, "`regime` is 'wild'; expected one of normal, small"),
        ({"regime": {"normal": 1}}, "`regime` is {'normal': 1}"),
        ({"layout": "diagonal"}, "`layout` is 'diagonal'"),
        ({"grad_layout": "sliced"}, "`grad_layout` is 'sliced'"),
        ({"seed": "0"}, "`seed` is '0'"),
        ({"seed": 2**70}, "`seed` is "),
        ({"causal": "yes"}, "`causal` is 'yes'; expected true or false"),
        ({"gradients": 1}, "`gradients` is 1"),
        ({"causal": True}, "need an `offset`"),
        ({"window": [1, 1]}, "need an `offset`"),
        ({"bias": "linear"}, "need an `offset`"),
        ({"window": [1], "offset": 0}, "`window` is (1,)"),
        ({"window": "ab", "offset": 0}, "`window` is 'ab'"),
        ({"window": [-1, None], "offset": 0}, "`window` is (-1, None)"),
        ({"offset": "near"}, "`offset` is 'near'"),
        ({"offset": [1, 2, 3], "B": 2}, "`offset` has 3 numbers for 2 batch rows"),
        ({"key_lengths": [1], "B": 2}, "`key_lengths` has 1 numbers for 2 batch rows"),
        ({"key_lengths": 3}, "`key_lengths` is 3"),
        ({"query_lengths": [0.5]}, "`query_lengths` is (0.5,)"),
        ({"key_visible": "centre"}, "`key_visible` is 'centre'"),
        ({"segments": 0}, "`segments` is 0"),
        ({"visible": "XY"}, "`visible` is 'XY'; expected axes out of BHQK"),
        ({"bias": "sparse"}, "`bias` is 'sparse'"),
        ({"bias": "distance", "bias_values": 0, "offset": 0}, "`bias_values` is 0"),
        ({"bias_dtype": "float16"}, "`bias_dtype` is 'float16'"),
        ({"softcap": -1.0}, "`softcap` is -1.0"),
        ({"softcap": "1.5"}, "`softcap` is '1.5'"),
        ({"scale": float("nan")}, "`scale` is nan"),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
        ({"name": 3}, "`name` is 3"),
    ],
    ids=str,
)
def test_invalid_cases_are_errors(data, words):
    with pytest.raises(InputError) as raised:
        case_of(data)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "TFK095"
    assert words in diagnostic.message
    assert diagnostic.fix


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 20)
    | st.floats(-4, 4)
    | st.sampled_from(
        [*REGIMES, *LAYOUTS, *DTYPES, *GRAD_LAYOUTS, "BHQK", "Q.K", "left", "dense", "distance", "query", "", "."]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=1),
    max_leaves=4,
)


@pytest.mark.slow
@settings(CALM, max_examples=80)
@given(drawn_cases, st.dictionaries(st.sampled_from([field.name for field in fields(Case)]), json_values, max_size=2))
def test_any_value_of_a_field_is_refused_or_runs(case, written):
    try:
        found = case_of({**json.loads(json.dumps(case.as_data())), **written})
    except InputError as refused:
        codes = [diagnostic.code for diagnostic in refused.diagnostics]
        found = None
    if found is None:
        assert codes == ["TFK095"]
        return
    assert found.inputs().query.shape == (found.B, found.H, found.Q, found.D)
    assert found.grad_output().shape == (found.B, found.H, found.Q, found.V)
    assert SUBJECT.evaluate(found.request()).accepted
    assert found.mask().terms() == found.terms()


def tensors_of(case):
    """Every tensor of a call, by name."""
    inputs = case.inputs()
    mask = {f"mask {field.name}": getattr(inputs.mask, field.name) for field in fields(inputs.mask)}
    tensors = {**leaves_of(inputs), **{name: held for name, held in mask.items() if isinstance(held, torch.Tensor)}}
    return {**tensors, "grad_output": case.grad_output()}


@pytest.mark.parametrize("regime", REGIMES)
def test_a_seed_gives_the_same_tensors_and_another_seed_others(regime):
    case = replace(FULL, regime=regime, Q=12, K=14, key_visible="coins", segments=3, visible="BHQK", seed=3)
    state = torch.get_rng_state()
    first = tensors_of(case)
    torch.manual_seed(99)
    again, other = tensors_of(case), tensors_of(replace(case, seed=4))
    torch.set_rng_state(state)
    assert len(first) == 9
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), name
        assert not torch.equal(tensor, other[name]) or (regime, name) == ("ties", "query"), name


def test_drawing_leaves_torchs_generator_alone():
    state = torch.get_rng_state()
    tensors_of(replace(FULL, key_visible="coins", segments=2, visible="BHQK"))
    assert torch.equal(torch.get_rng_state(), state)


LIES_AS = {
    "contiguous": lambda tensor: tensor.is_contiguous() and tensor.storage_offset() == 0,
    "heads_last": lambda tensor: tensor.transpose(1, 2).is_contiguous() and tensor.stride(1) < tensor.stride(2),
    "features_first": lambda tensor: tensor.mT.is_contiguous() and tensor.stride(3) > tensor.stride(2) == 1,
    "sliced": lambda tensor: (
        tensor.storage_offset() > 0
        and tensor.stride() == torch.empty([size + 2 for size in tensor.shape], device="meta").stride()
    ),
    "interleaved": lambda tensor: tensor.stride(2) == 3 * tensor.shape[1] * tensor.shape[3] and tensor.stride(3) == 1,
    "shifted": lambda tensor: tensor.is_contiguous() and tensor.storage_offset() == 5,
    "one_head": lambda tensor: tensor.stride(1) == 0 and tensor[:, 0].is_contiguous(),
    "expanded": lambda tensor: tensor.stride(0) == 0 and tensor[0].is_contiguous(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_strides_that_it_claims_and_the_same_numbers(layout):
    plain, laid = leaves_of(FULL.inputs()), leaves_of(replace(FULL, layout=layout).inputs())
    for name in ("query", "key", "value"):
        tensor = laid[name]
        assert LIES_AS[layout](tensor), (name, tensor.stride())
        assert sum(lies(tensor) for lies in LIES_AS.values()) == 1
        assert tensor.is_leaf
        assert tensor.requires_grad
        first = {"expanded": plain[name][:1], "one_head": plain[name][:, :1]}.get(layout, plain[name])
        wanted = first.expand_as(tensor)
        assert torch.equal(tensor, wanted)
    assert torch.equal(laid["bias"], plain["bias"])


@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_an_output_gradient_has_the_strides_that_it_claims(layout):
    plain, laid = FULL.grad_output(), replace(FULL, grad_layout=layout).grad_output()
    if layout == "contiguous":
        assert laid.is_contiguous()
    elif layout == "odd":
        assert laid.permute(2, 3, 0, 1).is_contiguous()
        assert not laid.is_contiguous()
    else:
        expanded = {"expanded": (0, 1, 2, 3), "expanded_features": (3,), "expanded_queries": (2,)}[layout]
        assert all((stride == 0) == (axis in expanded) for axis, stride in enumerate(laid.stride()))
        plain = plain[tuple(slice(0, 1 if axis in expanded else None) for axis in range(4))].expand_as(plain)
    assert torch.equal(laid, plain)


def test_shared_lengths_are_one_tensor():
    case = Case(B=2, Q=7, K=7, key_lengths=(7, 3), query_lengths=(7, 3))
    own, shared = case.mask(), replace(case, shared_lengths=True).mask()
    assert shared.key_lengths is shared.query_lengths
    assert own.key_lengths is not own.query_lengths
    assert torch.equal(own.key_lengths, own.query_lengths)
    differing = replace(case, query_lengths=(7, 4), shared_lengths=True).mask()
    assert differing.query_lengths.tolist() == [7, 4]


def test_padding_is_on_the_given_side():
    for seed in range(6):
        left, right = (Case(B=3, K=9, key_visible=side, seed=seed).mask().key_visible.int() for side in ("left", "right"))
        assert (left.diff() >= 0).all()
        assert (right.diff() <= 0).all()
    coins = Case(B=3, K=200, key_visible="coins").mask().key_visible.float().mean()
    assert 0.6 < coins < 0.8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_and_its_call_make_the_same_request(case):
    for gradients in (True, False):
        made = typed(case, torch.bfloat16, gradients=gradients)
        assert made.request() == request_of(made.inputs(), gradients)


def test_a_request_has_what_only_the_caller_knows():
    request = replace(FULL, gradients=False, dropout=0.1, lse=True, weights=True, softcap=2.0).request("cpu:0")
    assert (request.device, request.dropout, request.lse, request.weights, request.softcap) == ("cpu", True, True, True, True)
    assert request.gradients  # of the bias alone
    assert not replace(FULL, gradients=False, bias_gradient=False).request().gradients
    assert replace(FULL, H=3).request().grouped is False


@settings(CALM, max_examples=40)
@given(drawn_cases)
def test_a_drawn_call_requests_what_its_case_says(case):
    inputs = case.inputs()
    wanted = replace(request_of(inputs, case.gradients or case.bias_gradient), bias_gradient=case.bias_gradient)
    assert case.request() == wanted
    for name in ("query", "key", "value"):
        assert getattr(inputs, name).requires_grad == case.gradients
    assert inputs.scale == (case.scale or case.D**-0.5)
    assert (inputs.return_lse, inputs.return_weights) == (case.lse, case.weights)


@pytest.mark.parametrize("axes", ["QK", "BHQK", "Q.K"])
def test_patterns_of_visible(axes):
    case = Case(B=2, H=3, G=3, Q=40, K=50, visible=axes)
    triangle = replace(case, visible_pattern="triangle").mask().visible
    assert bool((triangle == torch.ones(40, 50, dtype=torch.bool).tril(10)).all())
    gap = replace(case, visible_pattern="gap").mask().visible
    assert int((~gap.reshape(-1, 50).any(0)).sum()) >= 25
    prefix = replace(case, visible_pattern="prefix", seed=3).mask().visible
    assert bool(prefix[..., 0, :].all())
    assert not bool(prefix.all())
    blocks = replace(case, visible_pattern="blocks").mask().visible
    assert bool((blocks[..., 0::2, 0::2] == blocks[..., 1::2, 1::2]).all())
    assert replace(case, visible="K", visible_pattern="triangle").mask().visible.shape == (1, 1, 1, 50)


def test_sorted_segments():
    mask = Case(B=3, Q=20, K=30, segments=5, segment_pattern="sorted").mask()
    for segments in (mask.query_segments, mask.key_segments):
        assert bool((segments.diff(dim=1) >= 0).all())
