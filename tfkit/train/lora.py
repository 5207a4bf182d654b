"""Low-rank adapters of linear maps, by peft: y = W x + alpha / rank * B A x, in which A and B are trained.

https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..catalogue import Catalogue
from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError
from ..files import FileRecord, file_record
from ..io.adapter import PREFIX
from ..io.layout import ADAPTER_CONFIG, WEIGHTS
from ..io.saved_files import read_versions
from ..io.saving import ModelFiles, write_model
from ..nn.model import Model
from ..recipe import Recipe

if TYPE_CHECKING:
    from peft import LoraConfig

NAME = "default"
"""What peft calls the adapter in the names of its tensors."""
MAX_LISTED = 12


def check_lora(recipe: Recipe) -> None:
    """Raises InputError if a recipe has adapters of no model, BuildError if peft is not installed."""
    if recipe.lora is None:
        return
    if recipe.pretrained is None:
        message = "adapters change the weights of another model, and the recipe names none"
        raise InputError(recipe.diagnostic("TFK132", "lora", message, "write `pretrained`, or give `--from DIR`"))
    if find_spec("peft") is None:
        raise BuildError(Diagnostic("TFK097", "`lora` needs the package peft, not installed here", install_line("lora")))


def check_targets(recipe: Recipe, model: Model) -> None:
    """Raises InputError if the adapters of a recipe do not fit its model: a target is no linear map, or its weight is narrower
    than the rank."""
    lora = recipe.lora
    if lora is None:
        return
    if statistics := [name for name, _ in model.named_buffers()]:
        message = f"adapters are saved without `{statistics[0]}`, which training changes"
        raise InputError(recipe.diagnostic("TFK132", "lora", message, "train all weights, or a model without such a norm"))
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    diagnostics = []
    for target in lora.targets:
        if adapted := _matched(linear, target):
            shapes = {name: tuple(model.get_parameter(f"{name}.weight").shape) for name in adapted}
            narrow = [name for name in adapted if min(shapes[name]) < lora.rank]
            if narrow:
                shape = shapes[narrow[0]]
                message = f"`{narrow[0]}` has a weight {shape}, whose rank is at most {min(shape)}, less than {lora.rank}"
                diagnostics.append(recipe.diagnostic("TFK132", "lora.rank", message, f"write at most {min(shape)}"))
            continue
        others = _matched([name for name in modules if name], target)
        kind = type(modules[others[0]]).__name__ if others else ""
        what = f"`{target}` is {_article(kind)} {kind}, and no linear map" if others else f"there is no `{target}`"
        endings = _endings(linear)
        near = difflib.get_close_matches(target, endings, 1)
        known = ", ".join(f"`{name}`" for name in _shortest(endings)[:MAX_LISTED])
        fix = f"did you mean `{near[0]}`?" if near else f"linear maps of `{model.plan.name}`: {known}"
        diagnostics.append(recipe.diagnostic("TFK132", "lora.targets", what, fix))
    if diagnostics:
        raise InputError(diagnostics)


def _article(word: str) -> str:
    return "an" if word[:1] in "AEIOU" else "a"


def _matched(names: Iterable[str], target: str) -> list[str]:
    """The names that are a target, or end with it after a dot, as peft matches them."""
    return [name for name in names if f".{name}".endswith(f".{target}")]


def _endings(names: Iterable[str]) -> list[str]:
    """The last part of each name, its last two parts, and so on."""
    ends = {".".join(name.split(".")[at:]): None for name in names for at in range(name.count(".") + 1)}
    return list(ends)


def _shortest(endings: Iterable[str]) -> list[str]:
    return sorted(name for name in endings if "." not in name)


def add_adapters(model: Model, recipe: Recipe, loaded: Collection[str]) -> LoraConfig:
    """Put adapters around the linear maps of a model, in place. Nothing else is trained, except for modules with a tensor that
    is not among those `loaded` from the pretrained model. The seed of the recipe is that of the first values of A."""
    from peft import LoraConfig, inject_adapter_in_model

    lora = recipe.lora
    assert lora is not None, "the recipe has adapters"
    parameters = [name for name, _ in model.named_parameters()]
    modules = {name.rpartition(".")[0] for name in parameters if name not in set(loaded)}
    new = {name for name in parameters for module in modules if name.startswith(f"{module}.")}  # peft saves whole modules
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    targets = {name for target in lora.targets for name in _matched(linear, target) if f"{name}.weight" not in new}
    config = LoraConfig(
        r=lora.rank, lora_alpha=cast("int", lora.alpha or lora.rank), lora_dropout=lora.dropout, target_modules=sorted(targets)
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if names.get(id(parameter)) in new:
            parameter.requires_grad_(True)
    config.target_modules = sorted(targets)  # peft writes a set of shorter names, in an order that varies
    return config


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model in training.

    Attributes:
        config: Their configuration.
        base: The directory of the model that has the other weights.
    """

    config: LoraConfig
    base: Path

    def save(self, model: Model, directory: Path, catalogue: Catalogue, texts: Mapping[str, str | bytes]) -> None:
        """Save them, with further files of the model by name, as a model, which is loaded with its base; a saved model there is
        replaced. Raises StoreError."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter_tensors(model)}

        def write_weights(path: Path) -> FileRecord:
            save_file(tensors, path, {"format": "pt"})
            return FileRecord(**file_record(path))

        written: dict[str, Any] = self.config.to_dict()  # type: ignore[no-untyped-call]
        written |= {"base_model_name_or_path": str(self.base), "inference_mode": True}
        whole = {name.removeprefix(PREFIX).rpartition(".")[0] for name in tensors if ".lora_" not in name}
        written["modules_to_save"] = sorted(whole) or None
        contents = ModelFiles(
            model.spec,
            model.requested_backends,
            next(model.parameters()).device.type,
            str(next(model.parameters()).dtype).removeprefix("torch."),
            {**texts, ADAPTER_CONFIG: json.dumps(written, indent=1, allow_nan=False) + "\n"},
            write_weights,
            base=read_versions(self.base).files[WEIGHTS],
        )
        write_model(contents, directory, catalogue, overwrite=True)


def adapter_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The trained tensors of a model, by their names in peft's file."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = name.replace(f".lora_A.{NAME}.", ".lora_A.").replace(f".lora_B.{NAME}.", ".lora_B.")
            yield PREFIX + plain.replace(".base_layer.", "."), parameter
