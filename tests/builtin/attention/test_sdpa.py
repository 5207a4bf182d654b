"""How `sdpa` renders masks, so that torch's fused kernels stay usable, and how its kernels are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention import eager, sdpa
from tfkit.builtin.attention.entries import SDPA, SdpaOptions
from tfkit.inspection import check_request
from tfkit.plugin import AttentionInputs, AttentionRequest, DenseBias, LinearBias, Mask, NoOptions, shapes_of
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import gradients_of
from tfkit_conformance.suite.again import replay


@pytest.mark.parametrize(
    ("name", "shape", "causal", "rows"),
    [
        ("plain", None, False, None),
        ("causal_square", None, True, None),
        ("right_padded", None, True, (2, 1, 7, 1)),
        ("decode", None, False, None),
        ("causal_offset", (1, 1, 5, 7), False, None),
        ("key_lengths", (2, 1, 1, 7), False, (2, 1, 1, 1)),
        ("query_lengths", None, False, (2, 1, 5, 1)),
        ("no_queries", (2, 1, 1, 7), False, (2, 1, 5, 1)),
        ("visible_queries", (2, 1, 5, 7), False, (2, 1, 5, 1)),
        ("linear_bias", (1, 6, 5, 7), False, None),
        ("distance_bias_padded", (2, 6, 5, 7), False, (2, 1, 5, 1)),
    ],
)
def test_masks_are_rendered_as_small_as_they_can_be(name, shape, causal, rows):
    inputs = typed(BY_NAME[name]).inputs()
    mask, is_causal, selected = sdpa.prepare(inputs.mask, inputs.bias, shapes_of(inputs), SdpaOptions()).payload
    assert (None if mask is None else mask.shape) == shape
    assert is_causal == causal
    assert (None if selected is None else selected.shape) == rows
    assert mask is None or mask.stride(-1) == 1


def test_right_padding_equals_the_dense_mask_and_stays_on_the_fused_kernel():
    case = BY_NAME["right_padded"]
    inputs, gradient = typed(case).inputs(), typed(case).grad_output()
    dense = replace(inputs.mask, query_lengths=inputs.mask.query_lengths.clone())
    fast, slow = (sdpa.attend(replace(inputs, mask=mask), SdpaOptions()).output for mask in (inputs.mask, dense))
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(gradients_of(fast, inputs, gradient), gradients_of(slow, inputs, gradient))
    kernel = fast.grad_fn.next_functions
    assert any("FlashAttention" in node.name() for node, _ in kernel if node is not None)


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_a_kernel_asked_for_is_the_kernel_used(kernel):
    inputs = typed(BY_NAME["plain"]).inputs()
    output = sdpa.attend(inputs, SdpaOptions(kernel=kernel)).output
    assert ("FlashAttention" in output.grad_fn.name()) == (kernel == "flash")
    torch.testing.assert_close(output, sdpa.attend(inputs, SdpaOptions()).output)


class OnCuda:
    """Stands in for a query on CUDA: all that the choice of kernels looks at."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


def test_on_cuda_no_mask_meets_cudnn_and_a_wide_mask_only_the_math_kernel():
    query, options = OnCuda(torch.bfloat16), SdpaOptions()
    assert sdpa._kernels(options, None, query) is None
    for dtype in (torch.bool, torch.bfloat16):
        allowed = sdpa._kernels(options, torch.zeros(1, dtype=dtype), query)
        assert SDPBackend.CUDNN_ATTENTION not in allowed
        assert SDPBackend.EFFICIENT_ATTENTION in allowed
    assert sdpa._kernels(options, torch.zeros(1), query) == [SDPBackend.MATH]
    assert sdpa._kernels(SdpaOptions(kernel="cudnn"), torch.zeros(1), query) == [SDPBackend.CUDNN_ATTENTION]


@pytest.mark.parametrize(
    ("kernel", "requested", "refused"),
    [
        ("efficient", {"device": "cpu"}, True),
        ("cudnn", {"device": "cpu"}, True),
        ("flash", {"device": "cpu"}, False),
        ("flash", {"device": "cpu", "dropout": True}, True),
        ("flash", {"device": "cpu", "value_dim": 4}, True),
        ("flash", {"device": "cpu", "bias": "dense", "bias_gradient": True}, True),
        ("flash", {"device": "cuda", "dtype": "float32"}, True),
        ("flash", {"device": "cuda", "mask_terms": frozenset({"key_lengths"})}, True),
        ("default", {"device": "cuda", "gradients": True, "deterministic": True}, True),
        ("math", {"device": "cuda", "gradients": True, "deterministic": True}, False),
        ("math", {"device": "cpu", "dropout": True, "bias": "dense", "bias_gradient": True}, False),
    ],
)
def test_joint_limits_of_kernels(kernel, requested, refused):
    request = replace(
        AttentionRequest(dtype="bfloat16", head_dim=8, value_dim=8, queries=5, keys=7, gradients=False), **requested
    )
    assert check_request(SDPA, request, SdpaOptions(kernel=kernel)).accepted != refused


def test_a_float32_bias_is_not_rounded_to_a_half_query():
    inputs = typed(BY_NAME["plain"], torch.bfloat16, gradients=False).inputs()
    far = LinearBias(torch.full((6,), 100.0 + 2.0**-6))
    mask, _, _ = sdpa.prepare(Mask(offset=0), far, shapes_of(inputs), SdpaOptions()).payload
    assert mask.dtype == torch.float32
    exact = DenseBias(torch.zeros(1, dtype=torch.bfloat16))
    assert sdpa.prepare(Mask(), exact, shapes_of(inputs), SdpaOptions()).payload[0].dtype == torch.bfloat16


def test_a6_fully_masked_rows_stay_zero_with_hidden_keys_of_any_size():
    """A fully masked row is computed on hidden keys and dropped: scores near 1e18 made its gradient NaN, and that of a key."""
    case = Case(
        Q=12, K=12, D=16, V=16, dtype="float64", causal=True, offset=0, key_lengths=(1,), key_visible="left", scale=0.3,
        gradients=True,
    )  # fmt: skip
    assert replay(SDPA, case, check="R2 unseen_keys") == "passed"


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(2, 1, 5), (2, 40, 40), (300, 1, 5), (300, 4, 4), (2, 1, 600)])
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_query_without_a_softmax_is_nan_as_in_eager(number, where, sizes, dtype, gradients):
    """The fused kernels of the CPU give zeros, which hide a damaged model."""
    B, Q, K = sizes
    inputs = Case(
        B=B, H=2, G=2, Q=Q, K=K, D=8, V=8, dtype=dtype, causal=True, offset=K - Q, gradients=gradients, seed=5
    ).inputs()
    getattr(inputs, where).detach()[0, 0, 0] = number
    with torch.set_grad_enabled(gradients):
        found, wanted = (each.attend(inputs, options).output for each, options in ((sdpa, SdpaOptions()), (eager, NoOptions())))
    assert bool(wanted.isnan().any())
    assert torch.equal(found.isnan(), wanted.isnan())
    if gradients:
        leaves = (inputs.query, inputs.key, inputs.value)
        for mine, other in zip(*(torch.autograd.grad(each.sum(), leaves) for each in (found, wanted)), strict=True):
            assert bool(mine.isnan().any()) == bool(other.isnan().any())


def test_zeros_of_values_are_zeros():
    inputs = Case(B=2, H=2, G=2, Q=5, K=7, D=8, V=8, gradients=True, seed=5).inputs()
    inputs = replace(inputs, value=torch.zeros_like(inputs.value))
    assert not bool(sdpa.attend(inputs, SdpaOptions()).output.any())


def test_dropout_is_drawn_once_where_it_leaves_no_key():
    inputs = replace(Case(B=2, H=2, G=2, Q=5, K=1, D=8, V=8, seed=5).inputs(), dropout=0.5)
    torch.manual_seed(0)
    output = sdpa.attend(inputs, SdpaOptions()).output
    after = torch.get_rng_state()
    torch.manual_seed(0)
    torch.nn.functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, dropout_p=0.5, scale=inputs.scale)
    assert torch.equal(torch.get_rng_state(), after)
    assert bool((output == 0).all(-1).any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [5, 70])  # two products, and the kernel
def test_gradients_of_a_shared_head_are_added_up_in_float32(keys: int, dtype: torch.dtype):
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, keys, 8, generator=draw).to(dtype) for heads in (129, 1, 1))

    def gradients(*tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs = AttentionInputs(*(tensor.requires_grad_() for tensor in tensors), Mask(causal=True), 8**-0.5)
        output = sdpa.attend(inputs, SdpaOptions()).output
        found = torch.autograd.grad((0.9 * output).sum(), tensors)
        return [gradient.double() for gradient in found]

    exact = gradients(query.double(), key.double(), value.double())
    for found, wanted in zip(gradients(query, key, value), exact, strict=True):
        assert float((found - wanted).abs().max()) < 4 * torch.finfo(dtype).eps * float(wanted.abs().max())


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_scale_that_is_not_above_zero_beside_a_causal_flag(scale, gradients):
    case = Case(Q=8, K=8, D=8, V=8, causal=True, offset=0, scale=scale, gradients=gradients, dtype="float64")
    inputs = case.inputs()
    got, want = (module.attend(inputs, options).output for module, options in ((sdpa, SdpaOptions()), (eager, NoOptions())))
    torch.testing.assert_close(got, want)
    if gradients:
        one, other = (gradients_of(output, inputs, case.grad_output()) for output in (got, want))
        torch.testing.assert_close(one, other)
