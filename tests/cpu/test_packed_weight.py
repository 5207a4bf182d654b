"""Packed copies of weights are the weights: never older than them, never too many, and shared by the batches of a search."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import tfkit
from small_translator import SOURCES, small
from tfkit.cpu import packed_weight, products, small_batch
from tfkit.cpu.packed_weight import PackedWeight, SearchProducts, searching
from tfkit.cpu.small_batch import ANY, Rule
from tfkit.plugin.model_parts import Linear


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every weight that is packed, with a rule that packs at the second use, on every make of processor."""
    pack = products.probe_packing()
    if pack is None:
        pytest.skip("not run: this torch packs no weights")
    weights: list[Tensor] = []
    monkeypatch.setattr(products, "PACK", lambda weight, rows: (weights.append(weight), pack(weight, rows))[1])
    for name, value in (("PRODUCTS_WITH_FEW", 2), ("PRODUCTS_WITH_MANY", 2), ("PAYS", 4)):
        monkeypatch.setattr(packed_weight, name, value)
    monkeypatch.setattr(small_batch, "RULE", Rule(packed=(1, ANY)))
    monkeypatch.setattr(PackedWeight, "bytes", 0)
    return weights


@torch.no_grad()
def multiplied(linear: Linear, x: Tensor, search: SearchProducts) -> Tensor:
    with searching(search):
        return linear(x)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_weight_is_packed_when_it_is_used_again(rows: int, packed: list[Tensor]) -> None:
    linear, x, search = Linear(33, 70), torch.randn(rows, 1, 33), SearchProducts()
    exact = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double())
    for use in range(4):
        torch.testing.assert_close(multiplied(linear, x, search), exact.float())
        assert len(packed) == (use > 0 and rows > 1)  # one row wins nothing
    assert PackedWeight.bytes == (70 * 33 * 4 if rows > 1 else 0)


def test_few_rows_win_more() -> None:
    assert packed_weight.PRODUCTS_WITH_FEW < packed_weight.PRODUCTS_WITH_MANY
    if products.PACK is None:
        pytest.skip("not run: this torch packs no weights")
    weight, search = torch.randn(8, 8), SearchProducts()
    for rows, count in ((5, packed_weight.PRODUCTS_WITH_FEW), (100, packed_weight.PRODUCTS_WITH_MANY)):
        copies = PackedWeight()
        plain = [copies.for_onednn(weight, rows, search) is None for _ in range(count)]
        assert plain == [True] * (count - 1) + [False]


CHANGES = {
    "in place": lambda linear: linear.weight[3].add_(1.0),
    "another tensor": lambda linear: setattr(linear, "weight", nn.Parameter(linear.weight + 1.0)),
    "moved": lambda linear: setattr(linear.weight, "data", linear.weight + 1.0),
}
UNCOUNTED = {
    "data": lambda linear: linear.weight.data[3].add_(1.0),
    "data, one number": lambda linear: linear.weight.data[29, 19].mul_(1 + 2**-20),
    "data, signs": lambda linear: linear.weight.data.neg_(),
    "data, rows in another order": lambda linear: linear.weight.data.copy_(linear.weight.data.flip(0).clone()),
    "data, columns in another order": lambda linear: linear.weight.data.copy_(linear.weight.data.flip(1).clone()),
    "numpy": lambda linear: linear.weight.detach().numpy().__setitem__(2, 1.0),
    "foreach": lambda linear: torch._foreach_copy_([linear.weight.data], [linear.weight.data * 0.5]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_packed_again_at_once(change: str, packed: list[Tensor]) -> None:
    linear, x, search = Linear(20, 30), torch.randn(4, 1, 20), SearchProducts()
    for _ in range(3):
        before = multiplied(linear, x, search)
    with torch.no_grad():
        CHANGES[change](linear)
    for _ in range(3):
        after = multiplied(linear, x, search)
        assert not torch.equal(after, before)
        torch.testing.assert_close(after, nn.functional.linear(x, linear.weight, linear.bias).detach())
    assert len(packed) == 2
    assert PackedWeight.bytes == 20 * 30 * 4


@pytest.mark.parametrize("inner", [20, 21])
@pytest.mark.parametrize("change", UNCOUNTED)
def test_a_write_that_torch_does_not_count_is_seen_by_the_next_search(change: str, inner: int, packed: list[Tensor]) -> None:
    linear, x, search = Linear(inner, 30), torch.randn(4, 1, inner), SearchProducts()
    for _ in range(3):
        multiplied(linear, x, search)
    version = linear.weight._version
    UNCOUNTED[change](linear)
    assert linear.weight._version == version
    search = SearchProducts()
    for _ in range(3):
        after = multiplied(linear, x, search)
        torch.testing.assert_close(after, nn.functional.linear(x, linear.weight, linear.bias).detach(), rtol=1e-6, atol=1e-6)
    assert len(packed) == 2


def test_the_next_search_uses_the_copies_of_the_one_before(packed: list[Tensor]) -> None:
    linear, x = Linear(20, 30), torch.randn(4, 1, 20)
    results = [[multiplied(linear, x, search) for _ in range(3)] for search in (SearchProducts(), SearchProducts())]
    assert len(packed) == 1
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)  # the bits of a search do not depend on the searches before


def test_copies_of_a_layer_own_copies_of_their_own_and_training_frees_them(packed: list[Tensor]) -> None:
    linear, x, search = Linear(20, 30), torch.randn(4, 1, 20), SearchProducts()
    for _ in range(3):
        multiplied(linear, x, search)
    twin = copy.deepcopy(linear)
    with torch.no_grad():
        twin.weight.mul_(2)
    for _ in range(3):
        torch.testing.assert_close(multiplied(twin, x, search), nn.functional.linear(x, twin.weight, twin.bias).detach())
    assert PackedWeight.bytes == 2 * 20 * 30 * 4
    linear.train()
    assert PackedWeight.bytes == 20 * 30 * 4
    del twin
    assert PackedWeight.bytes == 0
    assert set(linear.state_dict()) == {"weight", "bias"}


def test_they_take_no_more_than_they_may(packed: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weight, "MAX_BYTES", 2 * 20 * 30 * 4)
    search, x = SearchProducts(), torch.randn(4, 1, 20)
    linears = [Linear(20, 30) for _ in range(3)]
    for linear in linears * 3:
        torch.testing.assert_close(multiplied(linear, x, search), linear(x).detach())
    assert len(packed) == 2
    assert PackedWeight.bytes == packed_weight.MAX_BYTES


def test_numbers_without_a_version_and_computed_weights_are_not_packed(packed: list[Tensor]) -> None:
    search, x = SearchProducts(), torch.randn(4, 1, 20)
    with torch.inference_mode():
        linear = Linear(20, 30)
        for _ in range(3):
            torch.testing.assert_close(multiplied(linear, x, search), linear(x))
    normed = torch.nn.utils.parametrizations.weight_norm(Linear(20, 30))
    for _ in range(3):
        torch.testing.assert_close(multiplied(normed, x, search), normed(x).detach())
    assert not packed


@pytest.mark.slow
def test_batches_share_them_and_find_the_same(packed: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().eval()
    model.float32_kernels = ()  # whose layout is not oneDNN's
    search = tfkit.Search(beams=3, extra_length=9)
    together = tfkit.generate_batched(model, SOURCES, search, batch_tokens=1)
    assert 0 < len(packed) <= sum(1 for parameter in model.parameters() if parameter.dim() == 2)
    monkeypatch.setattr(products, "PACK", None)
    plain = tfkit.generate_batched(model, SOURCES, search, batch_tokens=1)
    for one, other in zip(together, plain, strict=True):
        assert [hypothesis.ids.tolist() for hypothesis in one] == [hypothesis.ids.tolist() for hypothesis in other]
        assert [hypothesis.score for hypothesis in one] == pytest.approx([hypothesis.score for hypothesis in other], rel=1e-5)


def test_a_search_ends_where_it_fails(packed: list[Tensor]) -> None:
    with pytest.raises(tfkit.InputError):
        tfkit.generate_batched(small(), [[5, 99]])
    assert packed_weight.active.products is None


@pytest.mark.parametrize("block", [2**17, 100])
@pytest.mark.parametrize("size", [64, 33])
def test_numbers_that_change_places_are_seen_by_the_next_search(
    size: int, block: int, packed: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weight, "BLOCK", block)
    linear, x = Linear(size, size, bias=False), torch.arange(3.0 * size).view(3, size)
    with torch.no_grad():
        nn.init.eye_(linear.weight)
    before = SearchProducts()
    for _ in range(4):
        assert torch.equal(multiplied(linear, x, before), x)
    assert packed
    for one in range(size):  # the sums of all rows and columns stay
        rows = torch.arange(size)
        rows[one], rows[one - 2] = one - 2, one
        linear.weight.data.copy_(torch.eye(size)[rows])
        search = SearchProducts()
        for _ in range(4):
            assert torch.equal(multiplied(linear, x, search), x[:, rows])


def test_nan_is_the_same_weight_in_the_next_search(packed: list[Tensor]) -> None:
    linear, x = Linear(32, 32), torch.randn(3, 32)
    with torch.no_grad():
        linear.weight[0, 0] = torch.nan
    for search in (SearchProducts(), SearchProducts()):
        for _ in range(4):
            multiplied(linear, x, search)
    assert len(packed) == 1
