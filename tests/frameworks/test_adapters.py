"""LoRA adapters of peft act on every part, learn, and are what merging makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import tfkit
from frameworks.small_models import KINDS, build, inputs, searches
from tfkit import Recipe
from tfkit.nn.layers import Embedding
from tfkit.train.loss import losses_in_chunks

ATTENTION, FFN = ["query", "key", "value", "output"], ["ffn.input", "ffn.gate", "ffn.output"]
TARGETS = {
    "attention": ATTENTION,
    "ffn": FFN,
    "embedding": ["embedding"],
    "head": ["logits.logits"],
    "score": ["score.query", "score.key"],
}
CASES = [
    *((kind, part) for kind in ("tied", "untied", "decoder") for part in ("attention", "ffn", "embedding")),
    ("untied", "head"),
    ("recurrent", "score"),
    ("recurrent", "embedding"),
    ("recurrent", "head"),
]


def adapted(model: tfkit.Model, targets: list[str]) -> Any:
    torch.manual_seed(3)
    config = LoraConfig(r=2, lora_alpha=1, target_modules=targets, init_lora_weights=False, lora_dropout=0.0)
    return get_peft_model(model, config).to(torch.float64).eval()


# peft warns that adapters of a tied table may need care: here the head follows the table, so they do not.
@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning", "ignore:.*tied weights.*:UserWarning")
@pytest.mark.parametrize(("kind", "part"), CASES)
def test_an_adapter_moves_the_output_learns_and_equals_its_merge(kind: str, part: str) -> None:
    model = build(kind)
    given = inputs(model)
    before = model(**given).logits
    peft = adapted(model, TARGETS[part])
    outputs = peft(**given, labels=next(reversed(given.values())))
    assert (outputs.logits - before).abs().max().item() > 1e-3
    outputs.loss.backward()
    adapters = {name: parameter for name, parameter in peft.named_parameters() if parameter.requires_grad}
    assert adapters
    assert [name for name, parameter in adapters.items() if parameter.grad is None or not parameter.grad.any()] == []
    ids, logits = searches(model), model(**given).logits
    merged = peft.merge_and_unload()
    assert type(merged) is tfkit.Model
    torch.testing.assert_close(merged(**given).logits, logits, rtol=0, atol=1e-12)
    assert searches(merged) == ids


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning", "ignore:.*tied weights.*:UserWarning")
@pytest.mark.parametrize(
    ("kind", "part"), [("tied", "attention"), ("tied", "embedding"), ("untied", "head"), ("recurrent", "score")]
)
def test_an_adapter_acts_and_learns_in_a_compiled_and_an_exported_model(kind: str, part: str) -> None:
    model = build(kind, layers=1)
    given = inputs(model)
    peft = adapted(model, TARGETS[part])
    adapters = [parameter for parameter in peft.parameters() if parameter.requires_grad]

    def gradients(run: Any) -> list[torch.Tensor]:
        loss = run(**given)["logits"].pow(2).mean()
        return list(torch.autograd.grad(loss, adapters))

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    eager, expected = model(**given).logits, gradients(model)
    torch.testing.assert_close(compiled(**given)["logits"], eager, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(compiled), expected, rtol=1e-9, atol=1e-12)
    exported = torch.export.export(model, (), given).module()
    torch.testing.assert_close(exported(**given)["logits"], eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "part"), [("untied", "head"), ("tied", "embedding")])
def test_the_loss_of_training_goes_through_an_adapted_head(kind: str, part: str, chunked_from: Callable[[int], None]) -> None:
    chunked_from(1)
    recipe = Recipe.model_construct(loss=None)
    model = build(kind)
    labels = {"logits": inputs(model)["target"]}
    with losses_in_chunks(model, labels, recipe, -100) as others:
        assert not others  # the plain head takes the chunks
    adapted(model, TARGETS[part])
    with losses_in_chunks(model, labels, recipe, -100) as others:
        assert list(others) == ["logits"]


WATCHES: dict[str, Callable[[tfkit.Model, list[torch.Size]], Any]] = {
    "hook": lambda model, sizes: model.register_forward_hook(lambda *call: sizes.append(call[2].logits.shape)),
    "forward": lambda model, sizes: setattr(model, "forward", _watched(model.forward, sizes)),
}


def _watched(forward: Callable[..., Any], sizes: list[torch.Size]) -> Callable[..., Any]:
    def watched(*arguments: Any, **keywords: Any) -> Any:
        outputs = forward(*arguments, **keywords)
        sizes.append(outputs.logits.shape)
        return outputs

    return watched


@pytest.mark.parametrize("watch", WATCHES)
def test_what_watches_the_calls_of_the_model_in_training_gets_logits(watch: str, chunked_from: Callable[[int], None]) -> None:
    chunked_from(1)
    model = build("tied")
    given, sizes = inputs(model), list[torch.Size]()
    WATCHES[watch](model, sizes)
    with losses_in_chunks(model, {"logits": given["target"]}, Recipe.model_construct(loss=None), -100) as others:
        model(**given)
    assert list(others) == ["logits"]
    assert sizes == [(3, 6, 53)]


def test_every_kind_has_tables_that_adapters_find() -> None:
    for kind in KINDS:
        assert any(isinstance(module, Embedding) for module in build(kind).modules())


@pytest.mark.slow
def test_the_example_of_the_guide_runs(shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    block = shown("peft").replace('"adapted/"', f'"{tmp_path}/adapted"')
    exec(compile(block, "docs/guides/other-tools.md", "exec"), {})
    assert tfkit.load(tmp_path / "adapted").spec.name == "transformer-tiny"
