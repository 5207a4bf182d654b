"""What `check_beam_top_k` does not draw: arguments, threads, and that a search uses the kernel."""

from __future__ import annotations

import pytest
import tfkit_simd as plugin
import torch
from tfkit_simd import beams

import tfkit
from tfkit.generate.top_k import best_continuations, fastest

pytestmark = pytest.mark.skipif(not plugin.AVX2, reason="not run: this processor has no AVX2")


@pytest.mark.parametrize(
    ("logits", "totals", "count", "words"),
    [
        (torch.zeros(5, 8), torch.zeros(2, 2), 3, r"\(5, 8\) torch.float32 on cpu, expected \(4, V\)"),
        (torch.zeros(4, 8).double(), torch.zeros(2, 2), 3, "torch.float64"),
        (torch.zeros(4, 8), torch.zeros(2, 2).double(), 3, "as the totals"),
        (torch.zeros(4, 8), torch.zeros(2, 2), 0, "0 of 8 tokens"),
        (torch.zeros(4, 0), torch.zeros(2, 2), 1, "1 of 0 tokens"),
    ],
)
def test_wrong_arguments_are_refused(logits, totals, count, words):
    with pytest.raises(ValueError, match=words):
        beams.select_avx2(logits, totals, count)


def test_strided_logits():
    logits, totals = torch.randn(6, 2, 400), torch.zeros(3, 2)
    found, expected = beams.select_avx2(logits[:, 1], totals, 5), best_continuations(logits[:, 1].clone(), totals, 5)
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize(
    "logits", [torch.zeros(2, 8).double(), torch.zeros(2, 0), torch.zeros(8), torch.zeros(2, 8, device="meta")]
)
def test_greedy_decoding_refuses_wrong_arguments(logits):
    with pytest.raises(ValueError, match=r"expected \(R, V\) torch.float32 on cpu"):
        beams.greedy_avx2(logits)


def test_greedy_decoding_of_strided_logits_and_no_rows():
    logits = torch.randn(6, 2, 400)
    assert torch.equal(beams.greedy_avx2(logits[:, 1]), logits[:, 1].argmax(1))
    assert beams.greedy_avx2(logits[:0, 1]).shape == (0,)


def test_greedy_decoding_uses_the_kernel(monkeypatch):
    model = tfkit.build("specs/transformer-tiny.yaml", seed=0).eval()
    calls, source, kernel = [], torch.randint(4, 100, (2, 5)), beams.most_probable
    monkeypatch.setattr(beams, "most_probable", lambda *arguments: calls.append(arguments[3:]) or kernel(*arguments))
    tfkit.greedy(model, source=source, max_new_tokens=3)
    tfkit.sample(model, source=source, max_new_tokens=2, temperature=0.0)
    assert calls == [(2, 10_000)] * 5
    tfkit.greedy(model.double(), source=source, max_new_tokens=3)
    assert len(calls) == 5


def test_threads_change_no_bit():
    logits, totals, threads = torch.randn(40, 9000), torch.zeros(8, 5), torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append((*beams.select_avx2(logits, totals, 10), beams.greedy_avx2(logits)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_search_uses_the_kernel_for_float32_only(monkeypatch):
    model = tfkit.build("specs/transformer-tiny.yaml", seed=0).eval()
    kernel = fastest(model.beam_top_k)
    assert kernel in (beams.select_avx2, beams.select_avx512)
    calls = []

    def counted(*arguments):
        calls.append(arguments[0].dtype)
        return best_continuations(*arguments)

    monkeypatch.setattr("tfkit.generate.beam.fastest", lambda kernels: counted)
    source = torch.randint(4, 100, (2, 5))
    tfkit.beam_search(model, source=source, beams=2, max_new_tokens=3)
    assert calls == [torch.float32] * 3
    tfkit.beam_search(model.double(), source=source, beams=2, max_new_tokens=3)
    assert len(calls) == 3
