"""Everything that going on needs, in a directory that appears whole or not at all.

model.safetensors        the weights
optimiser.safetensors    its moments by parameter, `NAME/exp_avg` and the like
average.safetensors      the moving average of the weights, where there is one
generators.safetensors   the states of torch's generators
state.json               progress, gradient scaler, digests of the recipe, the data and the tokenisers
manifest.json            size and SHA-256 of the other files
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import Fault, StoreError
from ..store import check_file, file_facts, read_json

MODEL, OPTIMISER, AVERAGE, GENERATORS = (f"{name}.safetensors" for name in ("model", "optimiser", "average", "generators"))
STATE, MANIFEST = "state.json", "manifest.json"
Tensors = Mapping[str, Tensor]


def write_checkpoint(directory: Path, tensors: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
    """Write tensors by file and the state, atomically. Raises StoreError, and then nothing was changed."""
    draft = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".draft", dir=directory.parent))
        for name, values in tensors.items():
            save_file({key: value.detach().contiguous() for key, value in values.items()}, draft / name)
        (draft / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        facts = {path.name: file_facts(path) for path in sorted(draft.iterdir())}
        (draft / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for path in [*draft.iterdir(), draft]:
            _sync(path)
        shutil.rmtree(directory, ignore_errors=True)
        draft.rename(directory)
        _sync(directory.parent)
    except (OSError, SafetensorError, RuntimeError) as reason:
        words = getattr(reason, "strerror", None) or str(reason)
        raise StoreError(Fault("TFK081", f"{directory} could not be written: {words}", "nothing was changed")) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def read_checkpoint(directory: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by file and the state. Raises StoreError for a file that is missing, cut off or altered."""
    manifest = read_json(directory / MANIFEST)
    if not manifest.keys() >= {MODEL, OPTIMISER, GENERATORS, STATE}:
        raise StoreError(Fault("TFK082", f"{directory / MANIFEST} does not list the files of a checkpoint", "it was altered"))
    for name, expected in manifest.items():
        check_file(directory / name, expected)
    try:
        tensors = {name: load_file(directory / name) for name in manifest if name.endswith(".safetensors")}
    except SafetensorError as reason:
        raise StoreError(Fault("TFK082", f"{directory} cannot be read: {reason}")) from None
    return tensors, read_json(directory / STATE)


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints of a run, the latest last."""
    found = [path for path in directory.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """The tensors that an optimiser keeps, by parameter; `names` by the id of the parameter."""
    return {
        f"{names[id(parameter)]}/{key}": value
        for parameter, kept in optimiser.state.items()
        for key, value in kept.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: Mapping[int, str], tensors: Tensors) -> None:
    """Put back what `optimiser_tensors` gave, into memory of its own."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            prefix = f"{names[id(parameter)]}/"
            found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            optimiser.state[parameter] = {
                key: value.clone() if key == "step" and not _steps_on_device(optimiser) else value.clone().to(parameter.device)
                for key, value in found.items()
            }


def _steps_on_device(optimiser: torch.optim.Optimizer) -> bool:
    return bool(optimiser.defaults.get("fused") or optimiser.defaults.get("capturable"))


def generator_tensors(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that training draws from."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_generators(device: torch.device, tensors: Tensors) -> None:
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
