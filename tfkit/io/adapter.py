"""Models that are saved as an adapter: what LoRA adds to the weights of another saved model, in peft's format.

adapter_config.json         peft's `LoraConfig`: rank, alpha, the adapted layers, the directory of the base model
adapter_model.safetensors   `base_model.model.LAYER.lora_A.weight` (r, in) and `...lora_B.weight` (out, r) of each adapted
                            layer, and `base_model.model.NAME` of each tensor that the base model does not give

The weights of such a model are those of the base model, and W + alpha / r * B A for an adapted layer.
https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import Diagnostic, StoreError, TfkitError
from ..errors.control_characters import shown
from ..errors.elsewhere import without_quotes
from ..files import FileModel, check_digest, read_header, read_model
from .layout import ADAPTER, ADAPTER_CONFIG, WEIGHTS, model_in
from .replacing import describe
from .saved_files import read_versions

PREFIX = "base_model.model."
"""What peft writes before each name of the model."""
_FACTOR = re.compile(r"(?P<layer>.+)\.lora_(?P<factor>[AB])\.weight")
MAX_HEADER = 64 << 20
"""The most bytes of the header of an adapter's file."""


NOT_READ = {
    "task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "runtime_config", "target_modules",
    "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern", "lora_dropout", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size",
    "ensure_weight_tying",
}  # fmt: skip
"""Keys of peft that change nothing once an adapter is trained: the names of its tensors say which layers it adapts."""


class AdapterConfig(FileModel):
    """What tfkit reads of peft's `adapter_config.json`. A key that may change the equation is off, also one of a later peft."""

    model_config = ConfigDict(extra="allow")
    peft_type: Literal["LORA"]
    base_model_name_or_path: Annotated[str, Field(min_length=1, max_length=4096)]
    r: Annotated[int, Field(ge=1)]
    lora_alpha: Annotated[float, Field(gt=0)]
    bias: Literal["none"] = "none"
    fan_in_fan_out: Literal[False] = False
    use_rslora: Literal[False] = False
    use_dora: Literal[False] = False
    lora_bias: Literal[False] = False
    layer_replication: None = None
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal", "mica"] = True
    rank_pattern: Annotated[dict[str, Any], Field(max_length=0)] = {}
    alpha_pattern: Annotated[dict[str, Any], Field(max_length=0)] = {}

    @model_validator(mode="after")
    def _plain(self) -> AdapterConfig:
        for key, value in (self.model_extra or {}).items():
            if value and key not in NOT_READ:
                raise ValueError(f"`{key[:40]}` may change the equation of LoRA, and is not read")
        return self

    def adapts(self, layer: str) -> bool:
        """Whether the lists of modules name a layer, and do not exclude it. Patterns are not matched."""
        targets, excluded = ((self.model_extra or {}).get(f"{name}_modules") for name in ("target", "exclude"))

        def named(names: Any) -> bool:
            return any(isinstance(name, str) and f".{layer}".endswith(f".{name}") for name in names)

        return (not isinstance(targets, list) or named(targets)) and not (isinstance(excluded, list) and named(excluded))

    def missing(self, tensors: Collection[str]) -> str:
        """The first module of `modules_to_save` that has no tensor, empty if all have one."""
        saved = (self.model_extra or {}).get("modules_to_save")
        names = [f".{name}" for name in tensors if not _FACTOR.fullmatch(name)]
        for module in map(str, saved if isinstance(saved, list) else ()):
            if not any(f".{module}." in name for name in names):
                return module
        return ""


def read_adapted(directory: Path, shapes: Mapping[str, tuple[int, ...]], base: Path | None = None) -> dict[str, Tensor]:
    """The weights of a model that is saved as an adapter.

    Args:
        directory: the saved model, whose listed files are checked.
        shapes: the shape of each tensor of its spec, by name.
        base: the base model, if it is elsewhere than the adapter says.

    Returns:
        The tensors by name.

    Raises:
        StoreError: the adapter does not fit the spec, or its base model cannot be read or has changed.
    """
    config = read_model(directory / ADAPTER_CONFIG, AdapterConfig)
    path = directory / ADAPTER
    read_header(path, MAX_HEADER)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {describe(reason)}")) from None
    factors: dict[str, dict[str, Tensor]] = {}
    weights = _base_weights(directory, base or Path(config.base_model_name_or_path))
    weights = {name: tensor for name, tensor in weights.items() if shapes.get(name) == tuple(tensor.shape)}
    names = {written: written.removeprefix(PREFIX) for written in tensors}
    if len({*names.values()}) < len(names):
        raise _unfit(path, "a tensor is there twice, with and without the prefix of peft")
    if module := config.missing(names.values()):
        raise _unfit(path, f"it has no tensor of `{shown(module[:100])}`, a module of `modules_to_save` in {ADAPTER_CONFIG}")
    for written, tensor in tensors.items():
        name = names[written]
        if factor := _FACTOR.fullmatch(name):
            factors.setdefault(factor["layer"], {})[factor["factor"]] = tensor
        elif shapes.get(name) == tuple(tensor.shape):
            weights[name] = tensor
        else:
            raise _unfit(path, f"`{written}` {tuple(tensor.shape)} is no tensor of the spec")
    for layer, pair in factors.items():
        if not config.adapts(layer):
            raise _unfit(path, f"`{layer}` has factors, and `{ADAPTER_CONFIG}` leaves it out by its modules")
        weight = weights.get(f"{layer}.weight")
        shape = None if weight is None else [(config.r, weight.shape[-1]), (weight.shape[0], config.r)]
        if weight is None or weight.dim() != 2 or [tuple(pair[side].shape) for side in "AB" if side in pair] != shape:
            raise _unfit(path, f"`lora_A` and `lora_B` of `{layer}` are not two factors of rank {config.r} of its weight")
        if not pair["A"].is_floating_point() or pair["A"].dtype != pair["B"].dtype:
            dtypes = " and ".join(str(pair[side].dtype).removeprefix("torch.") for side in "AB")
            raise _unfit(path, f"`lora_A` and `lora_B` of `{layer}` are of {dtypes}, and they have one dtype of real numbers")
        weights[f"{layer}.weight"] = weight + (pair["B"] @ pair["A"]) * (config.lora_alpha / config.r)
    if missing := sorted(shapes.keys() - weights.keys()):
        raise _unfit(path, f"neither it nor the base model has `{missing[0]}` {shapes[missing[0]]}")
    return weights


def _unfit(path: Path, message: str) -> StoreError:
    return StoreError(Diagnostic("TFK082", f"{path}: {message}", "it is the adapter of another model"))


def _base_weights(adapter: Path, base: Path) -> dict[str, Tensor]:
    """The weights of a base model. Raises StoreError, which quotes nothing of its files, if they are not those of training."""
    record = read_versions(adapter).base
    fix = "`tfkit merge ... --base DIR` names the base model where it lies now"
    try:
        place = model_in(base)
        versions = read_versions(place)
        if WEIGHTS not in versions.files:
            raise StoreError(Diagnostic("TFK082", "it is an adapter itself", "merge it first"))
        if record is None or record != versions.files[WEIGHTS]:
            raise StoreError(Diagnostic("TFK082", f"it has other weights than the model that {adapter} was trained on"))
        check_digest(place / WEIGHTS, record)
        return load_file(place / WEIGHTS)
    except TfkitError as reason:
        first = without_quotes(reason.diagnostics[0])
        message = f"{adapter} is an adapter of {base}, which cannot be used: {first.message}"
        raise StoreError(Diagnostic("TFK082", message, fix)) from None
    except (SafetensorError, OSError) as reason:
        message = f"{adapter} is an adapter of {base}, which cannot be read: {describe(reason)}"
        raise StoreError(Diagnostic("TFK082", message, fix)) from None
