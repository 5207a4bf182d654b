"""Packed weights are the weights: never older than them, never too many, and shared where searches follow one another."""

from __future__ import annotations

from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import tfkit
from small_translator import SOURCES, small
from tfkit.nn.cpu import onednn
from tfkit.nn.cpu import prepacked as prepacked
from tfkit.nn.cpu import small_batch as thin
from tfkit.nn.cpu.prepacked import PrepackedWeights
from tfkit.nn.cpu.small_batch import ANY, Rule, project, small_batch_linear


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every weight that is packed, with a rule that packs at the second use, on every make of processor."""
    pack = onednn.probe_packing()
    if pack is None:
        pytest.skip("not run: this torch packs no weights")
    found: list[Tensor] = []
    monkeypatch.setattr(onednn, "PACK", lambda weight, rows: (found.append(weight), pack(weight, rows))[1])
    for name in ("AFTER_FEW", "AFTER_MANY"):
        monkeypatch.setattr(prepacked, name, 2)
    monkeypatch.setattr(thin, "RULE", Rule(packed=(1, ANY)))
    return found


def multiplied(linear: nn.Linear, x: Tensor, weights: PrepackedWeights) -> Tensor:
    with torch.no_grad():
        return project(linear, x, weights)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_weight_is_packed_when_it_is_used_again(rows: int, made: list[Tensor]) -> None:
    linear, x, weights = nn.Linear(33, 70), torch.randn(rows, 1, 33), PrepackedWeights()
    exact = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double())
    for use in range(4):
        torch.testing.assert_close(multiplied(linear, x, weights), exact.float())
        assert len(made) == (use > 0 and rows > 1)  # one row wins nothing
    assert weights.bytes == (70 * 33 * 4 if rows > 1 else 0)


def test_few_rows_win_more() -> None:
    assert prepacked.AFTER_FEW < prepacked.AFTER_MANY
    weight, weights = torch.randn(8, 8), PrepackedWeights()
    if onednn.PACK is None:
        pytest.skip("not run: this torch packs no weights")
    asked = [weights.of(weight, 5) is weight for _ in range(prepacked.AFTER_FEW)]
    assert asked == [True] * (prepacked.AFTER_FEW - 1) + [False]
    weights = PrepackedWeights()
    asked = [weights.of(weight, 100) is weight for _ in range(prepacked.AFTER_MANY)]
    assert asked == [True] * (prepacked.AFTER_MANY - 1) + [False]


@pytest.mark.parametrize("change", ["in place", "another tensor", "moved"])
def test_a_changed_weight_is_packed_again(change: str, made: list[Tensor]) -> None:
    linear, x, weights = nn.Linear(20, 30), torch.randn(4, 1, 20), PrepackedWeights()
    for _ in range(3):
        before = multiplied(linear, x, weights)
    with torch.no_grad():
        if change == "in place":
            linear.weight[3] += 1.0
        elif change == "another tensor":
            linear.weight = nn.Parameter(linear.weight + 1.0)
        else:
            linear.weight.data = linear.weight + 1.0
    for _ in range(3):
        found = multiplied(linear, x, weights)
        assert not torch.equal(found, before)
        torch.testing.assert_close(found, nn.functional.linear(x, linear.weight, linear.bias).detach())
    assert len(made) == 2
    assert weights.bytes <= 2 * 20 * 30 * 4


def test_a_weight_that_is_gone_is_not_kept(made: list[Tensor]) -> None:
    weights, x = PrepackedWeights(), torch.randn(4, 1, 20)
    with torch.no_grad():
        gone = [
            ref(weight) for _ in range(3) if small_batch_linear(x, weight := torch.randn(30, 20), None, weights) is not None
        ]
    del weight
    assert [each() for each in gone] == [None] * 3
    assert not made


def test_they_take_no_more_than_they_may(made: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked, "MAX_BYTES", 2 * 20 * 30 * 4)
    weights, x = PrepackedWeights(), torch.randn(4, 1, 20)
    linears = [nn.Linear(20, 30) for _ in range(3)]
    for linear in linears * 3:
        torch.testing.assert_close(multiplied(linear, x, weights), linear(x).detach())
    assert len(made) == 2
    assert weights.bytes == prepacked.MAX_BYTES


def test_numbers_without_a_version_are_not_packed(made: list[Tensor]) -> None:
    with torch.inference_mode():
        linear, weights, x = nn.Linear(20, 30), PrepackedWeights(), torch.randn(4, 1, 20)
        for _ in range(3):
            torch.testing.assert_close(project(linear, x, weights), linear(x))
    assert not made


@pytest.mark.slow
def test_batches_share_them_and_find_the_same(made: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().eval()
    model.float32_kernels = ()  # whose layout is not oneDNN's
    search = tfkit.Search(beams=3, extra_length=9)
    found = tfkit.generate_batched(model, SOURCES, search, batch_tokens=1)
    shared = len(made)
    assert 0 < shared <= sum(1 for each in model.parameters() if each.dim() == 2)
    assert model.prepacked is None
    made.clear()
    for source in SOURCES:
        tfkit.generate_batched(model, [source], search)
    assert len(made) > shared
    monkeypatch.setattr(onednn, "PACK", None)
    plain = tfkit.generate_batched(model, SOURCES, search, batch_tokens=1)
    for mine, its in zip(found, plain, strict=True):
        assert [each.ids.tolist() for each in mine] == [each.ids.tolist() for each in its]
        assert [each.score for each in mine] == pytest.approx([each.score for each in its], rel=1e-5)


def test_shared_prepacked_weights_end_with_the_searches() -> None:
    model, weights = small(), PrepackedWeights()
    with model.shared_prepacked(weights):
        assert model.start("target", source=torch.tensor([[5, 2]])).prepacked is weights
    with pytest.raises(tfkit.InputError):
        tfkit.generate_batched(model, [[5, 99]])
    assert model.prepacked is None
    assert model.start("target", source=torch.tensor([[5, 2]])).prepacked is not weights
