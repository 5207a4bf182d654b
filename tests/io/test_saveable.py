"""What `save` writes, `load` reads: dtypes are restored, and a model that its spec does not describe is refused unwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import tfkit
from tfkit import Model


def linear_of(model: Model) -> nn.Linear:
    """The first linear map of the encoder's feed-forward layer."""
    return next(
        module for name, module in model.nodes["encoder"].named_modules() if isinstance(module, nn.Linear) and "ffn" in name
    )


def with_lora(model: Model) -> None:
    peft = pytest.importorskip("peft")
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=names[:2]), model)


def with_another_head(model: Model) -> None:
    model.nodes["logits"].extra = nn.Linear(3, 3)


def wider(model: Model) -> None:
    linear = linear_of(model)
    linear.weight = nn.Parameter(torch.zeros(linear.out_features + 1, linear.in_features))


def quantised(model: Model) -> None:
    linear_of(model).weight = nn.Parameter(linear_of(model).weight.to(torch.float8_e4m3fn), requires_grad=False)


CHANGES: dict[str, tuple[Callable[[Model], Any], str]] = {
    "lora": (with_lora, r"`nodes\.\S+` has an adapter of peft.*merge_and_unload\(\)"),
    "spectral norm": (lambda model: parametrizations.spectral_norm(linear_of(model)),
                      r"`nodes\.encoder\S+` is parametrised.*remove_parametrizations\(.*, \"weight\"\)"),
    "weight norm": (lambda model: parametrizations.weight_norm(linear_of(model)), "is parametrised.*remove_parametrizations"),
    "prune": (lambda model: prune.l1_unstructured(linear_of(model), "weight", 0.5),
              r"is pruned.*prune\.remove\(.*\"weight\"\)"),
    "older spectral norm": (lambda model: nn.utils.spectral_norm(linear_of(model)), "has spectral norm.*remove_spectral_norm"),
    "buffer": (lambda model: model.nodes["encoder"].register_buffer("calls", torch.zeros(1)),
               r"`nodes\.encoder` has an added parameter or buffer: `nodes\.encoder\.calls`"),
    "buffer that is not persistent": (
        lambda model: model.nodes["encoder"].register_buffer("calls", torch.zeros(1), persistent=False),
        "added parameter or buffer",
    ),
    "parameter": (lambda model: model.register_parameter("gain", nn.Parameter(torch.zeros(1))), "added parameter.*`gain`"),
    "head": (with_another_head, r"`nodes\.logits\.extra` has an added parameter"),
    "missing": (lambda model: linear_of(model).register_parameter("weight", None), "of the spec is missing from the model"),
    "another width": (wider, r"is \(\d+, \d+\), and \(\d+, \d+\) in the spec"),
    "another dtype": (quantised, "is float8_e4m3fn, which no saved model holds"),
}  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_its_spec_does_not_describe_is_refused_before_anything_is_written(
    change: str, model: Model, tmp_path: Path
) -> None:
    act, message = CHANGES[change]
    good = tfkit.save(model, tmp_path / "good")
    before = contents(good)
    act(model)
    for place, overwrite in ((good, True), (tmp_path / "new", False)):
        with pytest.raises(tfkit.StoreError, match=f"TFK081 {'.*' if not message.startswith('`') else ''}{message}"):
            tfkit.save(model, place, overwrite=overwrite)
    assert contents(good) == before
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_what_the_message_says_makes_it_saveable(model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]) -> None:
    linear = linear_of(model)
    parametrizations.spectral_norm(linear)
    prune.l1_unstructured(model.nodes["decoder"].get_submodule(next(
        name for name, module in model.nodes["decoder"].named_modules() if isinstance(module, nn.Linear)
    )), "weight", 0.5)  # fmt: skip
    with pytest.raises(tfkit.StoreError) as refused:
        tfkit.save(model, tmp_path / "out")
    for diagnostic in refused.value.diagnostics:
        call = diagnostic.fix.removeprefix("call ").removesuffix(" first")
        eval(call, {"torch": torch, "model": model})
    want = logits_of(model)
    assert torch.equal(logits_of(tfkit.load(tfkit.save(model, tmp_path / "out"))), want)


def test_a_merged_adapter_is_saved(model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]) -> None:
    peft = pytest.importorskip("peft")
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    adapted = peft.PeftModel(model, peft.LoraConfig(target_modules=names[:2], init_lora_weights=False))
    with pytest.raises(tfkit.StoreError, match=r"TFK081 a PeftModel is not a model.*merge_and_unload\(\)"):
        tfkit.save(adapted, tmp_path / "out")
    merged = adapted.merge_and_unload()
    assert torch.equal(logits_of(tfkit.load(tfkit.save(merged, tmp_path / "out"))), logits_of(merged))


@pytest.mark.parametrize("first", [False, True])
def test_each_weight_is_loaded_with_its_dtype(first: bool, model: Model, tmp_path: Path) -> None:
    """Norms in float32 in a model of 16 bits; and a first weight of another dtype than most."""
    model.bfloat16()
    for name, module in model.named_modules():
        if name.endswith("norm"):
            module.float()
    if first:
        next(model.parameters()).data = next(model.parameters()).data.double()
    state = model.state_dict()
    assert len({tensor.dtype for tensor in state.values()}) == 2 + first
    loaded = tfkit.load(tfkit.save(model, tmp_path / "out"))
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == state[name].dtype
        assert torch.equal(tensor, state[name])
    again = tfkit.save(loaded, tmp_path / "again")
    assert contents(again) == contents(tmp_path / "out")
    with pytest.raises(tfkit.BuildError, match=r"TFK047.*several dtypes"):
        tfkit.load(again, precision="int8")


def test_a_model_of_one_dtype_lists_no_others(model: Model, tmp_path: Path) -> None:
    assert "dtypes" not in json.loads((tfkit.save(model, tmp_path / "out") / "versions.json").read_text())


@pytest.mark.parametrize(("name", "dtype"), [("nodes.nothing.weight", "float32"), (None, "int8"), (None, "float64")])
def test_altered_dtypes_are_found(name: str | None, dtype: str, model: Model, tmp_path: Path) -> None:
    versions = tfkit.save(model, tmp_path / "out") / "versions.json"
    content = json.loads(versions.read_text())
    content["dtypes"] = {name or next(iter(model.state_dict())): dtype}
    versions.write_text(json.dumps(content))
    with pytest.raises(tfkit.StoreError, match="TFK082"):
        tfkit.load(tmp_path / "out")
