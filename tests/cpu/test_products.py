"""Linear maps of training: torch's numbers and torch's behaviour, with every implementation."""

import itertools

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tfkit.cpu import products
from tfkit.cpu.products import linear
from tfkit.plugin.model_parts import Linear

SHAPES = {"wide": (12, 40), "narrow": (40, 12), "square": (24, 24)}


@pytest.fixture(autouse=True)
def calls(onednn_products):
    """Requests the shared fixture for every test here."""
    return onednn_products


def parts(inner=12, outer=40, rows=(5, 7), bias=True):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*rows, inner, generator=draw, requires_grad=True)
    weight = torch.randn(outer, inner, generator=draw, requires_grad=True)
    return x, weight, torch.randn(outer, generator=draw, requires_grad=True) if bias else None


def close(found, exact, magnitude, terms):
    """Within what sums of so many products can lose in float32: half a unit each time, of the sum of magnitudes."""
    assert found.dtype is torch.float32
    assert bool(((found - exact).abs() <= (terms + 2) * 2.0**-24 * magnitude).all())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (61,), (5, 7), (2, 3, 4)])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_forward_and_gradients_are_those_of_float64(shape, rows, bias, calls):
    x, weight, offset = parts(*SHAPES[shape], rows, bias)
    inner, outer = SHAPES[shape]
    count = x.numel() // inner
    upstream = torch.randn(*rows, outer)
    y = linear(x, weight, offset)
    y.backward(upstream)
    assert len(calls) == 3
    wide, W, g = x.detach().double().view(-1, inner), weight.detach().double(), upstream.double().view(-1, outer)
    b = torch.zeros(outer).double() if offset is None else offset.detach().double()
    close(y.view(-1, outer), wide @ W.t() + b, wide.abs() @ W.abs().t() + b.abs(), inner)
    close(x.grad.view(-1, inner), g @ W, g.abs() @ W.abs(), outer)
    close(weight.grad, g.t() @ wide, g.abs().t() @ wide.abs(), count)
    assert weight.grad.is_contiguous()
    if offset is not None:
        close(offset.grad, g.sum(0), g.abs().sum(0), count)


def test_any_strides_and_an_expanded_gradient():
    x, weight, bias = parts()
    wide = torch.randn(7, 5, 2 * 12).transpose(0, 1)[..., ::2].requires_grad_()
    for given in (wide, x.detach()[:, ::2].requires_grad_()):
        linear(given, weight, bias).sum().backward()  # its gradient is one number with strides of 0
        torch.testing.assert_close(given.grad, weight.detach().sum(0).expand_as(given))
    column = torch.randn(12, 40).t().requires_grad_()
    torch.testing.assert_close(linear(x, column, bias), functional.linear(x, column, bias))


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)))
def test_only_the_gradients_that_are_wanted(needed, calls):
    given = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(parts(), needed, strict=True)]
    found = linear(*given)
    assert found.requires_grad == any(needed)
    if any(needed):
        found.sum().backward()
    assert [tensor.grad is not None for tensor in given] == list(needed)
    assert len(calls) == 1 + sum(needed[:2])


def test_the_same_bits_wherever_the_numbers_lie():
    """A run that resumes after a kill has its numbers at other addresses."""

    def moved(tensor, offset):
        raw = torch.empty(tensor.numel() + 32)
        at = raw[offset : offset + tensor.numel()].view(tensor.shape)
        return at.copy_(tensor.detach()).requires_grad_()

    def run(*given):
        y = linear(*given)
        y.square().sum().backward()
        return [y.detach(), *(tensor.grad for tensor in given)]

    given = parts(33, 70, (123,))
    want = run(*(moved(tensor, 0) for tensor in given))
    for offset in (1, 3, 4, 8, 17):
        for place in itertools.product([0, offset], repeat=3):
            found = run(*(moved(tensor, shift) for tensor, shift in zip(given, place, strict=True)))
            assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


def test_second_derivatives_and_batches_of_gradients_are_torchs():
    x, weight, bias = (tensor.detach().requires_grad_() for tensor in parts(3, 4, (2,)))

    def second(way):
        y = way(x, weight, bias)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, weight, bias))

    for one, other in zip(second(linear), second(functional.linear), strict=True):
        torch.testing.assert_close(one, other)
    y = linear(x, weight, bias)
    rows = torch.eye(y.numel()).view(-1, *y.shape)
    (batched,) = torch.autograd.grad(y, weight, rows, is_grads_batched=True, retain_graph=True)
    for number, row in enumerate(rows):
        torch.testing.assert_close(batched[number], torch.autograd.grad(y, weight, row, retain_graph=True)[0])


def test_a_tied_weight_gathers_both_gradients():
    x, weight, _ = parts(12, 12)
    linear(linear(x, weight, None), weight, None).sum().backward()
    found, weight.grad = weight.grad, None
    functional.linear(functional.linear(x, weight), weight).sum().backward()
    torch.testing.assert_close(found, weight.grad)


def test_a_weight_that_was_written_to_is_an_error_as_ever():
    x, weight, bias = parts()
    y = linear(x, weight, bias)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpoints_compute_again_to_the_bit():
    x, weight, bias = parts()
    linear(x, weight, bias).relu().sum().backward()
    want, x.grad = x.grad, None
    checkpoint(lambda x: linear(x, weight, bias).relu(), x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, want)


class _Sees(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.seen.append(function)
        return function(*arguments, **(keywords or {}))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, of its tracer and forward mode
def test_modes_and_subclasses_see_torchs_own_operators(calls):
    x, weight, bias = (tensor.detach() for tensor in parts())
    want = functional.linear(x, weight, bias)
    with FlopCounterMode(display=False) as counter:
        linear(x, weight, bias)
    assert counter.get_total_flops() == 2 * 35 * 12 * 40
    with _Sees() as sees:
        linear(x, weight, bias)
    assert functional.linear in sees.seen
    with torch.autocast("cpu"):
        assert linear(x, weight, bias).dtype is torch.bfloat16
    assert linear(x.double(), weight.double(), bias.double()).dtype is torch.float64
    assert linear(x.to("meta"), weight.to("meta"), bias.to("meta")).is_meta
    torch.testing.assert_close(torch.func.vmap(linear, (0, None, None))(x, weight, bias), want)
    torch.testing.assert_close(
        torch.func.jacrev(linear)(x[0, 0], weight, bias), torch.func.jacrev(functional.linear)(x[0, 0], weight, bias)
    )
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, torch.ones_like(x)), weight, bias)).tangent
    torch.testing.assert_close(tangent, weight.sum(1).expand_as(want))
    traced = torch.jit.trace(lambda x: linear(x, weight, bias), x, check_trace=False)
    assert torch.equal(traced(x), want)
    assert torch.equal(torch.compile(linear, backend="eager", fullgraph=True)(x, weight, bias), want)
    assert not calls
    with torch.inference_mode():
        torch.testing.assert_close(linear(x + 0, weight, bias), want)
    assert calls


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(torch._C, "_get_mkldnn_enabled", lambda: False), (products, "MIN_TRAINING_WORK", 10**9)],
    ids=["switched off", "small"],
)
def test_off_where_it_is_switched_off_or_small(owner, name, value, calls, monkeypatch):
    given = parts()
    linear(*given).sum().backward()
    assert calls
    calls.clear()
    monkeypatch.setattr(owner, name, value)
    linear(*given).sum().backward()
    assert not calls


def test_an_empty_batch_has_no_rows():
    x, weight, bias = parts()
    assert linear(x[:0], weight, bias).shape == (0, 7, 40)


def test_hooks_act_and_do_not_change_the_product(calls):
    x, seen = torch.randn(3, 5, 12, requires_grad=True), []
    module = Linear(12, 40)
    plain = module(x)
    assert calls.pop()
    for watch in (
        module.register_forward_hook,
        module.register_forward_pre_hook,
        module.register_full_backward_hook,
        module.register_full_backward_pre_hook,
        nn.modules.module.register_module_forward_hook,
    ):
        handle = watch(lambda *arguments: seen.append(1) or None)
        y = module(x)
        y.sum().backward()
        handle.remove()
        assert seen.pop() == 1
        assert torch.equal(y, plain)
        assert calls
        calls.clear()
    module.forward = lambda x: torch.zeros(1)
    assert module(x).shape == (1,)


@pytest.mark.parametrize(
    ("capability", "vendor", "wanted"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "HygonGenuine", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("AVX2", "GenuineIntel", False),
        ("DEFAULT", "AuthenticAMD", False),
        ("DEFAULT", "", False),
    ],
)
def test_the_measured_class_of_the_processor_decides(capability, vendor, wanted, processor):
    processor(vendor, capability)
    assert products.is_faster() is wanted


def test_a_torch_without_that_product_does_without(monkeypatch):
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert products.probe() is None
    monkeypatch.undo()
    monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    assert products.probe() is None
