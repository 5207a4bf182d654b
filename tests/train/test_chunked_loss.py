"""The loss without all logits, against the formula in float64 and torch's own derivatives, and in a step of training."""

import itertools

import pytest
import torch
from peft import LoraConfig, get_peft_model

import tfkit.train.loss as room
from tfkit import build, load_recipe, load_spec
from tfkit.data import prepare
from tfkit.train.loss import chunked_cross_entropy, smoothed_cross_entropy
from tfkit.train.step import TrainStep
from translation_task import write_task

WAYS = list(itertools.product(("uniform", "others"), (0.0, 0.1), (None, 2.0), (True, False)))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(room, "CHUNK", 1)
    monkeypatch.setattr(room, "MIN_ROWS", 4)


def parts(bias=True, dtype=torch.float64, rows=(3, 6), size=11, width=5):
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((*rows, width), (size, width)))
    own = torch.randn(size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    labels = torch.randint(1, size, rows, generator=draw)
    labels[0, 2:] = 0
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), own, labels


def formula(x, weight, bias, labels, smoothing, kind, softcap):
    logits = x @ weight.t() if bias is None else x @ weight.t() + bias
    every = -(logits if softcap is None else softcap * torch.tanh(logits / softcap)).log_softmax(-1)
    own = every.gather(-1, labels[..., None]).squeeze(-1)
    rest = every.mean(-1) if kind == "uniform" else (every.sum(-1) - own) / (len(weight) - 1)
    real = labels != 0
    return (((1 - smoothing) * own + smoothing * rest) * real).sum(), (own * real).sum()


@pytest.mark.parametrize(("kind", "smoothing", "softcap", "bias"), WAYS)
def test_it_is_the_formula_and_its_gradients_in_float64(kind, smoothing, softcap, bias):
    *given, labels = parts(bias)
    wanted = formula(*given, labels, smoothing, kind, softcap)
    found = chunked_cross_entropy(*given, labels, smoothing, kind, 0, softcap)
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-13, atol=0)
    assert not found.nll.requires_grad
    wrt = [each for each in given if each is not None]
    for mine, exact in zip(torch.autograd.grad(found.loss, wrt), torch.autograd.grad(wanted[0], wrt), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck(softcap):
    *given, labels = parts()
    assert torch.autograd.gradcheck(lambda *own: chunked_cross_entropy(*own, labels, 0.1, "others", 0, softcap).loss, given)


@pytest.mark.parametrize("plain", [True, False])
def test_float32_differs_by_rounding_only_with_either_product(plain, request):
    if not plain:
        request.getfixturevalue("onednn_products")
    *given, labels = parts(dtype=torch.float32)
    found = chunked_cross_entropy(*given, labels, 0.1, "uniform", 0)
    exact = [each.detach().double().requires_grad_() for each in given]
    wanted, _ = formula(*exact, labels, 0.1, "uniform", None)
    torch.testing.assert_close(found.loss.double(), wanted, rtol=1e-6, atol=0)
    for mine, theirs in zip(torch.autograd.grad(found.loss, given), torch.autograd.grad(wanted, exact), strict=True):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)


def test_labels_are_ignored_one_by_one_and_all():
    x, weight, bias, labels = parts()
    found = chunked_cross_entropy(x, weight, bias, labels, 0.1, "uniform", 0)
    (of_x,) = torch.autograd.grad(found.loss, x)
    assert not of_x[labels == 0].any()
    assert of_x[labels != 0].any(-1).all()
    nothing = chunked_cross_entropy(x, weight, bias, torch.zeros_like(labels), 0.1, "uniform", 0)
    assert float(nothing.loss.detach()) == 0
    assert all(not each.any() for each in torch.autograd.grad(nothing.loss, (x, weight, bias)))


def test_a_frozen_weight_has_no_gradient_and_the_same_loss():
    x, weight, bias, labels = parts()
    wanted = chunked_cross_entropy(x, weight, bias, labels, 0.1, "uniform", 0)
    found = chunked_cross_entropy(x, weight.detach(), bias.detach(), labels, 0.1, "uniform", 0)
    assert torch.equal(found.loss, wanted.loss)
    assert torch.equal(torch.autograd.grad(found.loss, x)[0], torch.autograd.grad(wanted.loss, x)[0])


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    *given, labels = parts(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked_cross_entropy(*given, labels, 0.1, "uniform", 0)
    exact = chunked_cross_entropy(*given, labels, 0.1, "uniform", 0)
    assert found.loss.dtype is torch.float32
    assert not torch.equal(found.loss, exact.loss)
    torch.testing.assert_close(found.loss, exact.loss, rtol=2**-7, atol=0)
    for mine, theirs in zip(torch.autograd.grad(found.loss, given), torch.autograd.grad(exact.loss, given), strict=True):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine, theirs, rtol=2**-5, atol=2**-5)


def test_the_gradient_is_not_differentiable():
    *given, labels = parts()
    loss = chunked_cross_entropy(*given, labels, 0.1, "uniform", 0).loss
    (gradient,) = torch.autograd.grad(loss, given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


@pytest.fixture
def step(tmp_path):
    """A step of a small translation model, with changes to its spec and adapters of peft."""

    def made(*changes, adapters=None):
        recipe = load_recipe(write_task(tmp_path), ["average=null"])
        data = prepare(recipe, tmp_path / "data", 90)
        model = build(load_spec(tmp_path / "small.yaml", overrides=["defaults.vocab_size=90", *changes]), seed=1)
        if adapters is not None:
            get_peft_model(model, adapters)
        return TrainStep(model, recipe, data)

    return made


def losses(step, enough, chunked_from, calls):
    """The sums and the gradients of a batch, and how many outputs went through chunks."""
    chunked_from(enough)
    calls.clear()
    step.model.zero_grad()
    torch.manual_seed(0)
    sums = step._losses(step.model.train(), step.batch(0), {step.roles.output: 2.0})
    sums.loss.backward()
    return sums, {name: each.grad for name, each in step.model.named_parameters()}, len(calls)


def test_a_step_of_training_with_a_tied_head(step, monkeypatch, chunked_from):
    made, calls = step(), []
    whole = room.chunked_cross_entropy
    monkeypatch.setattr(room, "chunked_cross_entropy", lambda *given: (calls.append(1), whole(*given))[1])
    wanted, gradients, none = losses(made, 2**62, chunked_from, calls)
    found, own, one = losses(made, 1, chunked_from, calls)
    assert (none, one) == (0, 1)
    torch.testing.assert_close(tuple(found), tuple(wanted), rtol=1e-6, atol=0)
    assert not found.nll.requires_grad
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[name], gradient, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    logits = made.model(**made.batch(0).arguments)["logits"]  # outside of a step the model gives logits again
    assert logits.shape[-1] == 90


def test_the_node_is_restored_after_an_error(step, chunked_from):
    made = step()
    chunked_from(1)

    def fail():
        with room.losses_in_chunks(made.model, {"logits": made.batch(0).labels}, made.recipe, -100):
            assert made.model.nodes["logits"].loss is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert made.model.nodes["logits"].loss is None


def test_the_old_loss_computes_the_same_in_float32():
    x, weight, bias, labels = parts(dtype=torch.float32)
    old = smoothed_cross_entropy(x @ weight.t() + bias, labels, 0.1, "others", 0)
    new = chunked_cross_entropy(x, weight, bias, labels, 0.1, "others", 0)
    torch.testing.assert_close(tuple(new), tuple(old), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning", "ignore:.*tied weights.*:UserWarning")
@pytest.mark.parametrize(
    ("head", "part"),
    [*itertools.product(["tied", "untied"], ["query", "embedding", "ffn.input"]), ("untied", "logits.logits")],
)
def test_a_step_of_training_moves_every_adapter_and_nothing_else(head, part, step, chunked_from):
    chunked_from(1)
    torch.manual_seed(0)
    untied = [] if head == "tied" else ["nodes.logits.share=null"]
    made = step(*untied, adapters=LoraConfig(r=2, target_modules=[part], init_lora_weights=False))
    before = {name: parameter.detach().clone() for name, parameter in made.model.named_parameters()}
    assert made.run().norm > 0
    adapters = {name: parameter for name, parameter in made.model.named_parameters() if "lora" in name}
    assert adapters
    assert [name for name, parameter in adapters.items() if parameter.grad is None or not parameter.grad.any()] == []
    moved = {name for name, parameter in made.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == set(adapters)
