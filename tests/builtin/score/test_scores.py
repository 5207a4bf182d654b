from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfkit.builtin.score.entries import ENTRIES
from tfkit.builtin.score.scores import tanh_sum
from tfkit.plugin.model_parts import ScoreSite, load

BY_NAME = {entry.name: entry for entry in ENTRIES}


def built(name: str, **options: int) -> torch.nn.Module:
    torch.manual_seed(0)
    module = load(BY_NAME[name].build)(BY_NAME[name].options(**options), ScoreSite(4, 3)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def one_score(name: str, module: torch.nn.Module, q: Tensor, k: Tensor) -> Tensor:
    if name == "general":
        return q @ (module.weight @ k)
    if name == "concat":
        return module.out.weight[0] @ torch.tanh(module.weight @ torch.cat((q, k)))
    return module.out.weight[0] @ torch.tanh(module.query.weight @ q + module.key.weight @ k)


@pytest.mark.parametrize(("name", "options"), [("general", {}), ("additive", {"d_score": 5}), ("concat", {"d_score": 5})])
def test_equals_the_equation_for_every_pair(name, options):
    module = built(name, **options)
    query, key = torch.randn(2, 4, 5, 3, dtype=torch.float64), torch.randn(2, 2, 6, 3, dtype=torch.float64)
    scores = module(query, module.map_keys(key))
    assert scores.shape == (2, 4, 5, 6)
    for b in range(2):
        for h in range(4):
            for i in range(5):
                for j in range(6):
                    expected = one_score(name, module, query[b, h, i], key[b, h // 2, j])
                    torch.testing.assert_close(scores[b, h, i, j], expected, rtol=1e-12, atol=1e-12)


def test_hidden_width_is_head_dim_unless_written():
    assert built("additive").out.weight.shape == (1, 3)
    assert built("concat", d_score=7).out.weight.shape == (1, 7)


def test_dot_is_the_contracts_own():
    assert BY_NAME["dot"].build is None
    assert BY_NAME["dot"].parameters(BY_NAME["dot"].options(), ScoreSite(4, 3)) == ()


@pytest.mark.parametrize("name", ["additive", "general", "concat"])
def test_half_queries_meet_float32_weights_as_under_autocast(name):
    """A backend runs with autocast off, so its query and key may be narrower than the weights of a score."""
    module = built(name).float()
    query, key = torch.randn(2, 4, 5, 3).bfloat16(), torch.randn(2, 2, 6, 3).bfloat16()
    mapped = module.map_keys(key)
    assert mapped.dtype == key.dtype
    torch.testing.assert_close(module(query, mapped), module(query.float(), mapped.float()), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "options"), [("additive", {"d_score": 5}), ("concat", {"d_score": 5}), ("general", {})])
def test_keys_may_have_another_width_than_queries(name, options):
    entry = BY_NAME[name]
    site = ScoreSite(2, 3, key_dim=7)
    module = load(entry.build)(entry.options(**options), site).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    query, key = torch.randn(2, 2, 4, 3, dtype=torch.float64), torch.randn(2, 1, 6, 7, dtype=torch.float64)
    scores = module(query, module.map_keys(key))
    expected = one_score(name, module, query[1, 1, 2], key[1, 0, 5])
    torch.testing.assert_close(scores[1, 1, 2, 5], expected, rtol=1e-12, atol=1e-12)
    declared = {parameter.name: parameter.shape for parameter in entry.parameters(entry.options(**options), site)}
    assert declared == {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("queries", [1, 3])
def test_hidden_layer_of_a_tanh_score_has_exact_gradients_and_second_gradients(queries):
    torch.manual_seed(0)
    tensors = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 2, queries, 3), (2, 2, 4, 3), (3,))
    ]
    assert torch.autograd.gradcheck(tanh_sum, tensors)
    assert torch.autograd.gradgradcheck(tanh_sum, tensors)


def test_training_keeps_no_tensor_of_pairs_and_features():
    query, key, v = (torch.randn(shape, requires_grad=True) for shape in ((2, 1, 50, 16), (2, 1, 40, 16), (16,)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor):
        tanh_sum(query, key, v)
    assert max(kept) <= 2 * 50 * 16
