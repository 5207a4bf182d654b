"""The backend by the conformance suite with each set of instructions, and what the suite does not draw."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import tfkit_simd as plugin
import torch
from tfkit_simd.attention import attend, prepare
from torch.utils.flop_counter import FlopCounterMode

from tfkit import BackendRefused
from tfkit.builtin.attention import eager
from tfkit.plugin import AttentionInputs, AttentionRequest, DenseBias, Mask, NoOptions, shapes_of
from tfkit_conformance import check_backend

INSTRUCTIONS = [
    pytest.param("avx2", marks=pytest.mark.skipif(not plugin.AVX2, reason="not run: this processor has no AVX2")),
    pytest.param("avx512", marks=pytest.mark.skipif(not plugin.AVX512_VNNI, reason="not run: this processor has no AVX-512")),
]


@pytest.mark.slow
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_it_is_conformant(instructions):
    options = plugin.SimdOptions(instructions=instructions)
    report = check_backend(plugin.SIMD, options=options, profile="quick")
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"


def drawn(B, H, G, Q, K, D, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(B, heads, L, D, generator=generator) for heads, L in ((H, Q), (G, K), (G, K)))
    return AttentionInputs(query, key, value, more.pop("mask", Mask()), D**-0.5, **more)


def as_eager(inputs):
    wide = replace(inputs, query=inputs.query.double(), key=inputs.key.double(), value=inputs.value.double())
    return eager.attend(wide, NoOptions()).output


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("D", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize(("Q", "K"), [(1, 1), (1, 15), (1, 16), (1, 33), (2, 7), (3, 40), (5, 65), (17, 17), (70, 70)])
def test_every_remainder_of_queries_keys_and_features(instructions, D, Q, K):
    inputs = drawn(2, 4, 2, Q, K, D)
    found = attend(inputs, plugin.SimdOptions(instructions=instructions)).output
    torch.testing.assert_close(found.double(), as_eager(inputs), rtol=0, atol=2e-6)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_keys_that_no_query_sees_are_not_read(instructions):
    """NaN in them would reach the output. The keys of beams that were given up lie anywhere."""
    seen = torch.rand(3, 1, 5, 50, generator=torch.Generator().manual_seed(1)) < 0.3
    seen[1, :, :, 20:] = False
    seen[2] = False  # a row without keys
    inputs = drawn(3, 4, 4, 5, 50, 64, mask=Mask(visible=seen))
    expected = as_eager(inputs)
    dead = ~seen.any(2)[:, 0]  # (B, K)
    for tensor in (inputs.key, inputs.value):
        tensor.masked_fill_(dead[:, None, :, None], torch.nan)
    found = attend(inputs, plugin.SimdOptions(instructions=instructions)).output
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    assert torch.equal(found[2], torch.zeros_like(found[2]))


def test_what_is_prepared_once_is_what_a_call_renders():
    mask = Mask(key_lengths=torch.tensor([3, 9, 6]))
    for bias in (None, DenseBias(torch.randn(1, 4, 2, 9))):
        inputs = drawn(3, 4, 4, 2, 9, 32, mask=mask, bias=bias)
        options = plugin.SimdOptions()
        prepared = prepare(mask, bias, shapes_of(inputs), options)
        assert torch.equal(attend(replace(inputs, prepared=prepared), options).output, attend(inputs, options).output)


def test_several_threads_compute_the_same_bits():
    inputs = drawn(40, 8, 8, 4, 60, 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attend(inputs, plugin.SimdOptions()).output
        torch.set_num_threads(3)
        together = attend(inputs, plugin.SimdOptions()).output
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms_see_operators_of_torch():
    seen = torch.rand(2, 1, 3, 7, generator=torch.Generator().manual_seed(2)) < 0.5
    seen[1, :, 2] = False
    bias = DenseBias(torch.randn(1, 4, 3, 7))
    inputs = drawn(2, 4, 2, 3, 7, 16, mask=Mask(visible=seen), bias=bias, return_lse=True)

    def output(query):
        found = attend(replace(inputs, query=query), plugin.SimdOptions())
        return found.output, found.lse

    tangent = torch.randn_like(inputs.query)
    queries = torch.stack([inputs.query, inputs.query + tangent])
    together = torch.func.vmap(output)(queries)
    for number, query in enumerate(queries):
        for found, expected in zip(together, output(query), strict=True):
            torch.testing.assert_close(found[number], expected, rtol=0, atol=2e-6)
    (plain, _), (moved, _) = torch.func.jvp(output, (inputs.query,), (tangent,))
    step = 1e-3
    expected = (as_eager(replace(inputs, query=inputs.query + step * tangent)) - as_eager(inputs)) / step
    torch.testing.assert_close(plain.double(), as_eager(inputs), rtol=0, atol=2e-6)
    torch.testing.assert_close(moved.double(), expected, rtol=0, atol=5e-3)
    values = torch.randn(2, 1, 4, 3, 7)
    biased = torch.func.vmap(lambda added: attend(replace(inputs, bias=DenseBias(added)), plugin.SimdOptions()).output)(values)
    for found, added in zip(biased, values, strict=True):
        expected = attend(replace(inputs, bias=DenseBias(added)), plugin.SimdOptions()).output
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    with FlopCounterMode(display=False) as counter:
        output(inputs.query)
    assert counter.get_total_flops() == 2 * 2 * (2 * 4 * 3 * 7 * 16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.requires_grad_(), "it has no backward"),
        (lambda t: t.to("meta"), "it computes float32 on a CPU"),
        (lambda t: t.double(), "dtypes other than float32"),
        (lambda t: t.half(), "dtypes other than float32"),
    ],
)
def test_a_tensor_that_the_kernel_cannot_read_is_refused(change, reason):
    inputs = drawn(1, 2, 2, 3, 4, 16)
    wrong = replace(inputs, query=change(inputs.query), key=change(inputs.key), value=change(inputs.value))
    with pytest.raises(BackendRefused, match=reason):
        attend(wrong, plugin.SimdOptions())
    with pytest.raises(BackendRefused, match="head_dim outside 16 to 256, multiples of 16"):
        attend(drawn(1, 2, 2, 3, 4, 24), plugin.SimdOptions())


def test_a_processor_without_the_instructions_is_refused(monkeypatch):
    request = AttentionRequest()
    monkeypatch.setattr(plugin, "AVX512_VNNI", False)
    assert plugin.unsupported(request, plugin.SimdOptions(instructions="avx512")) == (
        "this processor has no AVX-512 with VNNI",
    )
    assert plugin.unsupported(request, plugin.SimdOptions()) == ()
    monkeypatch.setattr(plugin, "AVX2", False)
    assert plugin.unsupported(request, plugin.SimdOptions()) == ("this processor has no AVX2",)
    monkeypatch.setattr("tfkit_simd.attention.AVX2", False)
    with pytest.raises(BackendRefused, match="this processor lacks its instructions"):
        attend(drawn(1, 2, 2, 3, 4, 16), plugin.SimdOptions())


def test_the_declaration_loads_no_kernel():
    """A plan needs neither torch nor OpenMP."""
    code = "import sys, tfkit_simd; print([name for name in ('torch', 'tfkit_simd._kernels') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
