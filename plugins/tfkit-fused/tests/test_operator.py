"""The operators as torch knows them: schema, fake tensors, autograd, torch.compile, checkpointing, autocast."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tfkit_fused
import torch
from torch.utils.checkpoint import checkpoint
from where import DEVICE, runs

from tfkit.plugin import AttentionInputs, Mask
from tfkit_conformance.attention.case import Case

pytestmark = runs
SMALL = tfkit_fused.FusedOptions(tile_queries=16, tile_keys=16)
CASE = Case(B=2, H=2, G=1, Q=18, K=20, D=8, V=8, gradients=True, causal=True, offset=2)


def arguments(**changes):
    inputs = CASE.inputs(DEVICE)
    made = dict.fromkeys(
        ("offsets", "key_lengths", "query_lengths", "key_visible", "query_segments", "key_segments", "visible")
    )
    made = {
        "query": inputs.query,
        "key": inputs.key,
        "value": inputs.value,
        **made,
        "bias": None,
        "seed": None,
        "bias_kind": "",
    }
    made |= {"bias_low": 0, "offset": 2, "left": None, "right": 0, "scale": 0.3, "softcap": None, "dropout": 0.0}
    made |= {"tile_queries": 16, "tile_keys": 16, "tuned": "off", "atomic": False, **changes}
    return tuple(made.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": torch.rand(2, 5).requires_grad_(), "bias_kind": "distance", "bias_low": -2},
        {"key_lengths": torch.tensor([20, 5])},
        {"atomic": True},
    ],
    ids=["plain", "table", "lengths", "atomic"],
)
def test_torch_finds_nothing_wrong_with_the_operator(changes):
    """torch.library.opcheck: schema, autograd registration, fake tensors, and ahead-of-time autograd with dynamic shapes."""
    from tfkit_fused.operator import attend

    moved = {name: each.detach().to(DEVICE).requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
             for name, each in changes.items()}  # fmt: skip
    torch.library.opcheck(attend, arguments(**moved))


def test_a_compiled_call_gives_the_same_with_its_gradients():
    from tfkit_fused.attend import attend

    def step(inputs):
        return attend(inputs, SMALL).output

    inputs = CASE.inputs(DEVICE)
    leaves, grad = [inputs.query, inputs.key, inputs.value], CASE.grad_output(DEVICE)
    plain = step(inputs)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(inputs)
    assert torch.equal(plain, compiled)
    for one, other in zip(torch.autograd.grad(plain, leaves, grad), torch.autograd.grad(compiled, leaves, grad), strict=True):
        assert torch.equal(one, other)


def test_fake_gradients_lie_in_memory_as_real_ones_do():
    """Inductor relies on it: a bias may be a permuted view."""
    from tfkit_fused.operator import attend, attend_backward
    from torch._subclasses.fake_tensor import FakeTensorMode

    bias = torch.rand(18, 20, 2).permute(2, 0, 1).to(DEVICE)
    given = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments(bias=bias, bias_kind="dense")]
    output, lse = attend(*given)
    real = attend_backward(*given, output, lse, output, None, True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in (*given, output, lse, output)]
        made = attend_backward(*fake, None, True)
    assert [each.stride() for each in made] == [each.stride() for each in real]


def test_an_exported_call_takes_other_lengths():
    from tfkit_fused.attend import attend

    class Model(torch.nn.Module):
        def forward(self, query, key, lengths):
            mask = Mask(causal=True, offset=key.shape[2] - query.shape[2], key_lengths=lengths)
            return attend(AttentionInputs(query, key, key, mask, 0.3), SMALL).output

    lengths = torch.tensor([9, 4], device=DEVICE)
    made = [torch.randn(2, 4, length, 8).to(DEVICE) for length in (5, 9)]
    axes = ({2: torch.export.Dim("Q")}, {2: torch.export.Dim("K")}, None)
    program = torch.export.export(Model(), (*made, lengths), dynamic_shapes=axes).module()
    for queries, keys in ((5, 9), (3, 20), (7, 7)):
        others = [torch.randn(2, 4, length, 8).to(DEVICE) for length in (queries, keys)]
        assert torch.equal(program(*others, lengths), Model()(*others, lengths))


@pytest.mark.parametrize("bias", [None, "distance", "dense"])
def test_around_the_operators_or_through_them_is_the_same(bias, monkeypatch):
    from tfkit_fused import operator
    from tfkit_fused.attend import attend

    case = replace(CASE, bias=bias, bias_gradient=bias is not None)
    grad, through = case.grad_output(DEVICE), []

    def found():
        inputs = case.inputs(DEVICE)
        leaves = [inputs.query, inputs.key, inputs.value] + ([inputs.bias.values] if bias else [])
        output = attend(inputs, SMALL).output
        return [output, *torch.autograd.grad(output, leaves, grad)]

    around = found()
    monkeypatch.setattr(operator, "attend", lambda *arguments, op=operator.attend: (through.append(1), op(*arguments))[1])
    monkeypatch.setattr(operator, "_is_plain", lambda tensors: False)
    assert all(map(torch.equal, found(), around))
    assert through


def test_a_checkpointed_call_with_dropout_gives_the_same_gradients():
    from tfkit_fused.attend import attend

    inputs = replace(CASE.inputs(DEVICE), dropout=0.4)
    leaves, grad = [inputs.query, inputs.key, inputs.value], CASE.grad_output(DEVICE)

    def step(query, key, value):
        return attend(replace(inputs, query=query, key=key, value=value), SMALL).output

    torch.manual_seed(3)
    wanted = torch.autograd.grad(step(*leaves), leaves, grad)
    torch.manual_seed(3)
    got = torch.autograd.grad(checkpoint(step, *leaves, use_reentrant=False), leaves, grad)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_dropout_is_drawn_from_torchs_generator_and_depends_on_nothing_else():
    from tfkit_fused.attend import attend

    identity = torch.eye(32).expand(2, 2, 32, 32).contiguous().to(DEVICE)
    draws = []
    for tiles, seed in ((16, 1), (32, 1), (16, 2)):
        torch.manual_seed(seed)
        query = torch.randn(2, 2, 32, 32, generator=torch.Generator().manual_seed(tiles)).to(DEVICE)
        options = tfkit_fused.FusedOptions(tile_queries=tiles, tile_keys=tiles)
        output = attend(AttentionInputs(query, identity * 0, identity, Mask(), 1.0, dropout=0.3), options).output
        torch.testing.assert_close(output[output > 0], torch.full_like(output[output > 0], 1 / 32 / 0.7))
        draws.append(output > 0)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert abs(draws[0].float().mean().item() - 0.7) < 5 * (0.21 / draws[0].numel()) ** 0.5
    assert not torch.equal(draws[0][0, 0], draws[0][0, 1])
    assert not torch.equal(draws[0][0], draws[0][1])
