"""Every built-in backend against the float64 reference and the rules A1-A10, as far as it declares them."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest
import torch

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention.entries import EAGER, ENTRIES as ALL, FLEX, SDPA, SdpaOptions
from tfkit.inspection import check_request
from tfkit.plugin import AttentionInputs, AttentionRequest, Mask, shapes_of
from tfkit.plugin.model_parts import load
from tfkit_conformance.attention.compare import error_ratios, gradients_of, leaves_of, request_of
from tfkit_conformance.attention.reference import visible_pairs
from tfkit_conformance.attention.table import CASES
from tiers import EVERY_CASE

ENTRIES = [entry for entry in ALL if any(device.kind == "cpu" for device in entry.capabilities.devices)]
DTYPES = {"eager": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
          "sdpa": (torch.float32, torch.bfloat16, torch.float16, torch.float64), "flex": (torch.float32,)}  # fmt: skip
MASKED = [case for case in CASES if case.bias is None and case.softcap is None]
FLEX_PROBES = (
    "causal_masked_rows",
    "decode_ragged",
    "window_lengths",
    "no_queries",
    "segments_causal",
    "visible_heads",
    "one_group",
)
PROBED = [
    pytest.param(entry, case, id=f"{entry.name}-{case.name}")
    for entry in ENTRIES
    for case in MASKED
    if entry is not FLEX or case.name in FLEX_PROBES
]
over_entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
with_backward = pytest.mark.parametrize("entry", [EAGER, SDPA], ids=lambda entry: entry.name)


def call(entry, inputs):
    return load(entry.attend)(inputs, entry.options())


def has_backward(entry):
    return check_request(entry, AttentionRequest(device="cpu", gradients=True), entry.options()).accepted


def accepts(entry, inputs):
    return check_request(entry, request_of(inputs, inputs.query.requires_grad), entry.options()).accepted


@pytest.mark.exhaustive
@over_entries
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a2_output_and_gradients_are_within_the_bound(entry, case):
    """In two of four dtypes, the others for the next case; or in all of them."""
    dtypes = DTYPES[entry.name]
    for dtype in dtypes if EVERY_CASE or len(dtypes) == 1 else dtypes[CASES.index(case) % 2 :: 2]:
        inputs = typed(case, dtype, gradients=has_backward(entry)).inputs()
        inputs = replace(inputs, return_lse=entry.capabilities.lse)
        if not accepts(entry, inputs):
            assert entry is SDPA
            assert case.softcap
            return
        ratios = error_ratios(
            load(entry.attend), entry.options(), entry.capabilities.numerics, inputs, typed(case, dtype).grad_output()
        )
        assert max(ratios.values()) <= 1, (dtype, ratios)
        assert len(ratios) == 1 + entry.capabilities.lse + has_backward(entry) * len(leaves_of(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right_padded", "softcap_bias"])
def test_a8_flex_accumulates_halves_in_float32(name):
    inputs = typed(BY_NAME[name], torch.bfloat16, gradients=False).inputs()
    ratios = error_ratios(call_flex, None, FLEX.capabilities.numerics, inputs, BY_NAME[name].grad_output(torch.bfloat16))
    assert ratios["output"] <= 1


def call_flex(inputs, options):
    return call(FLEX, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "case"), PROBED)
def test_a4_one_hot_values_read_out_the_mask_exactly(entry, case):
    case = replace(case, D=case.K, V=case.K)
    inputs = typed(case, gradients=False).inputs()
    codes = 2.0 ** torch.arange(case.B * case.G).view(case.B, case.G, 1, 1)
    inputs = replace(inputs, query=inputs.query * 1e-3, value=torch.eye(case.K) * codes)
    output = call(entry, inputs).output
    shown = visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K)
    assert torch.equal(output > 0, shown)
    own = codes.repeat_interleave(case.H // case.G, 1).expand(case.B, case.H, case.Q, 1)[..., 0]
    torch.testing.assert_close(output.sum(-1), torch.where(shown.any(-1), own, 0.0))


@with_backward
@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
def test_a4_one_hot_gradients_read_out_the_mask_of_the_backward_pass(entry, case):
    case = replace(case, D=case.Q, V=case.Q)
    inputs = typed(case).inputs()
    inputs = replace(inputs, query=(inputs.query * 1e-3).detach().requires_grad_())
    eye = torch.eye(case.Q).expand(case.B, case.H, case.Q, case.Q)
    found = gradients_of(call(entry, inputs).output, inputs, eye)["value"]
    shown = visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K)
    by_group = shown.view(case.B, case.G, -1, case.Q, case.K).any(2)
    assert torch.equal(found > 0, by_group.mT)


@pytest.mark.slow
@over_entries
@pytest.mark.parametrize("name", ["no_keys", "causal_masked_rows", "window_lengths", "no_queries", "segments", "right_padded"])
def test_a5_blind_rows_give_zeros_whatever_their_gradient(entry, name):
    case = BY_NAME[name]
    inputs = typed(case, gradients=has_backward(entry)).inputs()
    masked = ~visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K).any(-1)
    assert masked.any()
    output = call(entry, inputs).output
    assert (output[masked] == 0).all()
    assert output.isfinite().all()
    if not has_backward(entry):
        return
    gradient = typed(case).grad_output()
    quiet = gradients_of(output, inputs, gradient.masked_fill(masked[..., None], 0.0))
    loud = gradients_of(call(entry, inputs).output, inputs, gradient.masked_fill(masked[..., None], torch.inf))
    for leaf in quiet:
        assert torch.equal(quiet[leaf], loud[leaf])
    assert (loud["query"][masked] == 0).all()


@pytest.mark.slow
@over_entries
@pytest.mark.parametrize(
    "name", ["key_lengths", "left_padded", "right_padded", "causal_more_keys", "visible_heads", "no_queries"]
)
def test_a6_keys_that_no_query_sees_change_no_bit(entry, name):
    case = replace(BY_NAME[name])
    inputs = typed(case, gradients=has_backward(entry)).inputs()
    hidden = ~visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K).any(2)
    assert hidden.any()
    poisoned = replace(
        inputs,
        key=inputs.key.detach().masked_fill(hidden[..., None], 3e7).requires_grad_(has_backward(entry)),
        value=inputs.value.detach().masked_fill(hidden[..., None], -2e9).requires_grad_(has_backward(entry)),
    )
    clean, dirty = call(entry, inputs).output, call(entry, poisoned).output
    assert torch.equal(clean, dirty)
    if has_backward(entry):
        gradient = typed(case).grad_output()
        wanted, found = gradients_of(clean, inputs, gradient), gradients_of(dirty, poisoned, gradient)
        assert all(torch.equal(wanted[leaf], found[leaf]) for leaf in wanted)
        assert (found["key"][hidden] == 0).all()
        assert (found["value"][hidden] == 0).all()


@pytest.mark.slow
@over_entries
def test_a1_any_strides_are_read_right_and_nothing_is_written_to(entry):
    case = BY_NAME["right_padded"]
    inputs = typed(case, gradients=False).inputs()
    contiguous = call(entry, inputs).output
    strided = [
        inputs.query.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([inputs.key, inputs.key], -1)[..., : case.D],
        inputs.value.mT.contiguous().mT,
    ]
    before = [tensor.clone() for tensor in strided]
    output = call(entry, replace(inputs, query=strided[0], key=strided[1], value=strided[2])).output
    torch.testing.assert_close(output, contiguous)
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(strided, before, strict=True))
    assert not {output.untyped_storage().data_ptr()} & {tensor.untyped_storage().data_ptr() for tensor in strided}
    shared = [inputs.key[:, :1].expand(-1, case.H, -1, -1), inputs.value[:, :1].expand(-1, case.H, -1, -1)]
    torch.testing.assert_close(
        call(entry, replace(inputs, key=shared[0], value=shared[1])).output,
        call(entry, replace(inputs, key=inputs.key[:, :1], value=inputs.value[:, :1])).output,
    )


@pytest.mark.slow
@over_entries
@pytest.mark.parametrize(
    "name", ["plain", "right_padded", "left_padded", "distance_bias_padded", "linear_bias", "visible_queries"]
)
def test_prepared_masks_and_biases_change_nothing(entry, name):
    inputs = typed(BY_NAME[name], gradients=False).inputs()
    for bias in {inputs.bias, None}:
        prepared = load(entry.prepare)(inputs.mask, bias, shapes_of(inputs), entry.options())
        assert torch.equal(call(entry, replace(inputs, prepared=prepared)).output, call(entry, inputs).output)


@with_backward
def test_a7_one_draw_serves_forward_and_backward_and_survivors_are_scaled(entry):
    case = replace(BY_NAME["causal_offset"], D=7, V=7, G=3)
    inputs = replace(typed(case).inputs(), dropout=0.4)
    torch.manual_seed(5)
    read = call(entry, replace(inputs, value=torch.eye(7).expand(case.B, 3, 7, 7))).output
    weights = call(EAGER, replace(inputs, dropout=0.0, return_weights=True)).weights
    drawn = torch.where(read > 0, 1 / 0.6, 0.0)
    torch.testing.assert_close(read, weights * drawn)
    kept = (drawn > 0)[weights > 0].float().mean()
    assert 0.45 < kept < 0.75

    def attend(inputs, options):
        torch.manual_seed(5)
        return call(entry, inputs)

    ratios = error_ratios(attend, None, entry.capabilities.numerics, inputs, typed(case).grad_output(), drawn)
    assert max(ratios.values()) <= 1, ratios


@over_entries
def test_a7_without_dropout_nothing_is_random(entry):
    inputs = typed(BY_NAME["plain"], gradients=False).inputs()
    state = torch.get_rng_state()
    assert torch.equal(call(entry, inputs).output, call(entry, inputs).output)
    assert torch.equal(torch.get_rng_state(), state)


@with_backward
def test_a10_every_wanted_gradient_arrives_when_it_is_the_only_one(entry):
    for name in ("dense_bias_heads", "linear_bias", "distance_bias_padded"):
        inputs = typed(BY_NAME[name]).inputs()
        for wanted in leaves_of(inputs):
            fresh = typed(BY_NAME[name]).inputs()
            for leaf, tensor in leaves_of(fresh).items():
                tensor.requires_grad_(leaf == wanted)
            output = call(entry, fresh).output
            assert output.requires_grad
            assert gradients_of(output, fresh, torch.ones_like(output))[wanted].abs().sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.capabilities.compile and entry is not FLEX],
                         ids=lambda entry: entry.name)  # fmt: skip
@pytest.mark.parametrize("name", ["right_padded", "window_lengths", "distance_bias_offsets"])
def test_compiled_calls_are_one_graph_and_give_the_same(entry, name):
    attend, options = load(entry.attend), entry.options()
    inputs, gradient = typed(BY_NAME[name]).inputs(), typed(BY_NAME[name]).grad_output()
    compiled = torch.compile(lambda inputs: attend(inputs, options).output, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    found, wanted = compiled(inputs), attend(inputs, options).output
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients_of(found, inputs, gradient), gradients_of(wanted, inputs, gradient))


class Padded(torch.nn.Module):
    def __init__(self, entry):
        super().__init__()
        self.entry = entry

    def forward(self, query, key, value, lengths):
        mask = Mask(causal=True, offset=0, key_lengths=lengths, query_lengths=lengths)
        return call(self.entry, AttentionInputs(query, key, value, mask, 0.3)).output


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.capabilities.export], ids=lambda entry: entry.name)
def test_exported_calls_serve_other_sizes(entry):
    from torch.export import Dim, export

    inputs = typed(BY_NAME["right_padded"], gradients=False).inputs()
    batch, length = Dim("batch"), Dim("length")
    sizes = {0: batch, 2: length}
    program = export(
        Padded(entry),
        (inputs.query, inputs.key, inputs.value, inputs.mask.key_lengths),
        dynamic_shapes=(sizes, sizes, sizes, {0: batch}),
    )
    other = [torch.randn(3, 6, 11, 8) for _ in range(3)]
    lengths = torch.tensor([11, 4, 0])
    torch.testing.assert_close(program.module()(*other, lengths), Padded(entry)(*other, lengths))


@cache
def requested_backends():
    """Every single feature that a call can ask for, alone, with the field of the capabilities that grants it."""
    plain = AttentionRequest(device="cpu", dtype="float32", head_dim=8, value_dim=8, queries=5, keys=7, gradients=False)
    flags = {"tensor_offset": "tensor_offset", "dropout": "dropout", "lse": "lse", "grouped": "grouped_queries",
             "softcap": "softcap", "exported": "export"}  # fmt: skip
    single = [(replace(plain, **{requested: True}), granted) for requested, granted in flags.items()]
    single += [(replace(plain, weights=True), "weights"), (replace(plain, value_dim=4), "value_dim_differs")]
    return plain, single


@over_entries
def test_a3_a11_undeclared_features_are_refused_and_declared_ones_are_not(entry):
    plain, single = requested_backends()
    assert check_request(entry, plain, entry.options()).accepted
    for request, granted in single:
        declared = getattr(entry.capabilities, granted) not in (False, "none")
        assert check_request(entry, request, entry.options()).accepted == declared, granted
    for name, allowed in (("additive", entry is EAGER), ("dot", True)):
        assert check_request(entry, replace(plain, score=name), entry.options()).accepted == allowed


@over_entries
def test_asking_for_less_never_adds_a_reason(entry):
    full = AttentionRequest(
        device="cuda", cuda_capability=(9, 0), dtype="float32", head_dim=8, value_dim=4, queries=5, keys=7,
        mask_terms=frozenset({"key_lengths", "causal"}), bias="dense", bias_gradient=True, dropout=True, gradients=True,
        deterministic=True, compiled=True, exported=True, softcap=True, weights=True, lse=True,
    )  # fmt: skip
    kernels = [SdpaOptions(kernel=kernel) for kernel in ("default", "flash", "cudnn")] if entry is SDPA else [entry.options()]
    for options in kernels:
        for device in ("cuda", "cpu"):
            asked = replace(full, device=device)
            reasons = set(entry.unsupported(asked, options))
            for field in fields(full):
                if field.name not in ("device", "cuda_capability", "score"):
                    less = replace(asked, **{field.name: field.default})
                    assert set(entry.unsupported(less, options)) <= reasons, field.name


def test_auto_knows_eager_everywhere_and_flex_nowhere():
    for device in ("cpu", "cuda"):
        for dtype in EAGER.capabilities.dtypes:
            request = AttentionRequest(device=device, dtype=dtype, queries=3, keys=9, gradients=True)
            assert [row.relative_time for row in EAGER.auto if row.covers(request)] == [1.0]
    assert FLEX.auto == ()


def test_no_class_of_calls_has_two_rows():
    for queries in (1, 32, 100, 256, 4096):
        for dtype in SDPA.capabilities.dtypes:
            for gradients, dropout, bias in (
                (False, False, False),
                (True, False, False),
                (True, True, False),
                (True, False, True),
            ):
                request = AttentionRequest(
                    device="cpu",
                    dtype=dtype,
                    queries=queries,
                    keys=queries,
                    gradients=gradients,
                    dropout=dropout,
                    bias_gradient=bias,
                )
                assert sum(row.covers(request) for row in SDPA.auto) == (dtype != "float64"), request
