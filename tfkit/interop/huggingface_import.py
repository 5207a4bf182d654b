"""From a directory of Hugging Face transformers to a model of tfkit: first a plan from headers alone, then tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError, StoreError
from ..files import Content, FileRecord, not_finite, write_tensors
from ..graph import graph_of
from ..slots.node import InputRule
from ..spec import ModelSpec
from .config_template import configuration, ignored_keys, unknown_keys
from .huggingface_directory import BITS, CONFIG, GENERATION, HuggingFaceDirectory
from .huggingface_match import Match, match_directory
from .views import TOLERANCE, Array, constant, constant_shape, contiguous, converted, real
from .weight_map import TensorRule

ORIGIN = "huggingface.json"
"""The file of an imported model that keeps its configuration, for the way back."""


@dataclass
class ImportPlan:
    """What an import will do: the class, the spec and what becomes of each tensor; keys of the configuration that are not read
    and why, and those that the map does not know; the dtype of the model, and those of the tensors that are read; and further
    files by name: tokenisers, and the original files of the directory."""

    match: Match
    ignored_keys: dict[str, str]
    unknown: list[str]
    dtype: str
    dtypes: tuple[str, ...]
    texts: dict[str, Content] = field(default_factory=dict)

    @property
    def directory(self) -> HuggingFaceDirectory:
        return self.match.directory

    @property
    def spec(self) -> ModelSpec:
        return self.match.spec

    @property
    def initialised(self) -> dict[str, list[TensorRule]]:
        """By node, the tensors that the files lack, and that are drawn."""
        return self.match.missing

    def as_data(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        match = self.match
        read = len(match.rules) - len(match.absent)
        return {
            "directory": str(self.directory.path),
            "map": match.map_file.name,
            "architecture": match.architecture,
            "parameters": graph_of(self.spec).parameters(),
            "dtype": self.dtype,
            "dtypes": list(self.dtypes),
            "files": len(self.directory.shards) or 1,
            "tensors": {"read": read, "written": sum(len(rule.ours) for rule in match.rules)},
            "tied": match.tied,
            "ignored": match.ignored,
            "left_out": match.left_out,
            "zeros": sorted(match.zeros),
            "initialised": {node: [name for rule in rules for name in rule.ours] for node, rules in match.missing.items()},
            "ignored_keys": self.ignored_keys,
            "unknown_keys": self.unknown,
            "files_beside": sorted(self.texts),
        }


def plan_import(
    path: Path,
    catalogue: Catalogue,
    dtype: str | None = None,
    allow_pickle: bool = False,
    large: bool = False,
    architecture: str | None = None,
    initialise: bool = False,
) -> ImportPlan:
    """Plan an import from the configuration and the headers of a directory that `save_pretrained` wrote. The dtype is by
    default that of the files, the widest of several; the class of transformers that of the configuration, or the one that the
    tensors fit. `allow_pickle` reads pickled weights, `large` takes any number of sub-layers, and `initialise` draws the
    weights of nodes of which the files have no tensor.

    Raises:
        SpecError: the model has more sub-layers than are made without `large`.
        InputError: no map fits, or the configuration says what no spec can say.
        StoreError: tensors are missing, surplus or of another shape, all of them at once; or a file is damaged.
    """
    directory = HuggingFaceDirectory(path, allow_pickle)
    match = match_directory(directory, catalogue, architecture, large)
    match.refuse(initialise)
    for name, function, there in _constants(match):
        expected = constant_shape(function, configuration(match.map_file, directory.config))
        shape = directory.places[there][1].shape
        if shape != expected:
            raise _other_constant(directory, f"`{name}` is {shape}, and {expected} by the configuration")
    places = (directory.places[match.spelling[rule.theirs]][1] for rule in match.rules if rule.theirs not in match.absent)
    dtypes = tuple(sorted({place.dtype for place in places}))
    ignored = ignored_keys(match.map_file, directory.config, match.architecture)
    return ImportPlan(match, ignored, unknown_keys(match.map_file, directory.config), dtype or widest(dtypes), dtypes)


def widest(dtypes: Sequence[str]) -> str:
    """The dtype that holds the numbers of all."""
    if len(dtypes) == 1:
        return dtypes[0]
    return "float64" if "float64" in dtypes else "float32"


def vocabulary_sizes(spec: ModelSpec) -> dict[str, int]:
    """The number of ids of each input of a model that reads tokens, by the name of its node."""
    rules = {node.name: node.kind.input_rule(node.options, node.context) for node in graph_of(spec).inputs()}  # type: ignore[misc]
    return {name: rule.vocab_size for name, rule in rules.items() if isinstance(rule, InputRule)}


def run_import(plan: ImportPlan, output: Path, catalogue: Catalogue, overwrite: bool = False, allow_nan: bool = False) -> Path:
    """Write the model of a plan, one tensor after the other, and return its absolute path. `overwrite` replaces a saved model;
    `allow_nan` writes weights that hold NaN or infinity too.

    Raises StoreError if a tied tensor is not equal to its other, a value does not fit the dtype, a weight holds NaN or
    infinity, or the model cannot be written.
    """
    from ..io.saving import ModelFiles, write_model  # torch
    from .kept_tensors import KEPT_FILE, pack

    _check_tied(plan)
    computed, other = _compared_constants(plan)
    buffers = [plan.match.spelling[name] for name in plan.match.ignored if plan.match.spelling[name] not in (*computed, *other)]
    kept = pack(plan.directory, other, buffers)
    shards = {} if len(plan.directory.shards) < 2 else {name: file for name, (file, _) in plan.directory.places.items()}
    if shards:
        shards |= dict.fromkeys(plan.match.absent, max(shards.values()))
        shards = {name: file for name, file in shards.items() if name not in plan.match.left_out}
    origin = {
        "architecture": plan.match.architecture,
        "prefix": plan.match.prefix,
        "spelling": {name: there for name, there in plan.match.spelling.items() if name != there},
        "tied": plan.match.tied,
        "files": sorted(name for name in plan.texts if (plan.directory.path / name).is_file()),
        "shards": shards,
        "computed": sorted(computed),
        CONFIG: plan.directory.config,
        GENERATION: plan.directory.generation,
    }
    graph = graph_of(plan.spec)
    backends = {name: [part.written() for part in site.backend] for name, site in graph.sites()}
    texts: dict[str, Content] = {
        **plan.texts,
        ORIGIN: json.dumps(origin, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if kept is not None:
        texts[KEPT_FILE] = kept
    contents = ModelFiles(plan.spec, backends, "cpu", plan.dtype, texts, lambda path: _write_weights(plan, path, allow_nan))
    return write_model(contents, output, catalogue, overwrite=overwrite)


def _check_tied(plan: ImportPlan) -> None:
    for name, other in plan.match.tied.items():
        if not np.array_equal(plan.directory.read(plan.match.spelling[name]), plan.directory.read(plan.match.spelling[other])):
            message = f"{plan.directory.path}: `{name}` is not equal to `{other}`, and {plan.match.architecture} ties them"
            untied = "tie_word_embeddings" in plan.match.map_file.choose
            fix = f"write `tie_word_embeddings: false` into {CONFIG} if the model was trained so" if untied else ""
            raise StoreError(Diagnostic("TFK143", message, fix))


def _constants(match: Match) -> Iterator[tuple[str, str, str]]:
    """The constants of a map that are in the files: their names, the functions that compute them, and their names there."""
    map_prefix = match.map_file.architectures[match.architecture].prefix
    for name, function in match.map_file.constants.items():
        there = match.spelling.get(match.prefix + name.removeprefix(map_prefix))
        if there is not None:
            yield name, function, there


def _other_constant(directory: HuggingFaceDirectory, fault: str) -> StoreError:
    fix = "this model was trained further, or has another configuration; it has no spec"
    return StoreError(Diagnostic("TFK143", f"{directory.path}: {fault}, and a spec has it as a constant", fix))


def _compared_constants(plan: ImportPlan) -> tuple[set[str], list[str]]:
    """The constants in the files that an export computes, and those with other last bits. Raises StoreError for others."""
    equal, other = set(), []
    for name, function, there in _constants(plan.match):
        computed = constant(function, configuration(plan.match.map_file, plan.directory.config))
        bits, dtype = plan.directory.read(there), plan.directory.places[there][1].dtype
        tolerance = max(TOLERANCE, 2.0**-7 if {dtype, plan.dtype} != {"float32"} else 0.0)
        if not np.allclose(real(bits, dtype), computed, rtol=0, atol=tolerance):
            raise _other_constant(plan.directory, f"`{name}` is not what the configuration gives")
        if dtype != plan.dtype or np.array_equal(bits, converted(computed.view(np.uint64), "float64", dtype)):
            equal.add(there)
        else:
            other.append(there)
    return equal, other


def _write_weights(plan: ImportPlan, path: Path, allow_nan: bool) -> FileRecord:
    by_name = {name: (rule, number) for rule in plan.match.rules for number, name in enumerate(rule.ours)}
    shapes = {name: (plan.dtype, rule.shapes[number]) for name, (rule, number) in by_name.items()}
    drawn = _drawn(plan)
    last: tuple[TensorRule, list[Array]] | None = None

    def read(name: str) -> memoryview:
        nonlocal last
        rule, number = by_name[name]
        if name in drawn:
            return contiguous(drawn[name]).data
        if last is None or last[0] is not rule:
            source = plan.match.spelling[rule.theirs]
            array = plan.directory.read(source)
            try:
                array = converted(array, plan.directory.places[source][1].dtype, plan.dtype)
            except ValueError as reason:
                raise InputError(Diagnostic("TFK143", f"`{rule.theirs}`: {reason}", "choose a wider --dtype")) from None
            if not allow_nan:
                _check_finite(plan, source, array)
            last = rule, rule.load(array)
        return contiguous(last[1][number]).data

    return write_tensors(path, shapes, read)


def _drawn(plan: ImportPlan) -> dict[str, Array]:
    """By our name, the bits of tensors that the files lack: zeros, or what the initialisers of the spec draw with seed 0."""
    match, whole = plan.match, np.dtype(BITS[plan.dtype])
    drawn = {
        name: np.zeros(shape, whole)
        for rule in match.rules
        if rule.theirs in match.zeros
        for name, shape in zip(rule.ours, rule.shapes, strict=True)
    }
    if plan.initialised:
        import torch

        from ..builder import build

        signed = {8: torch.int64, 4: torch.int32, 2: torch.int16}[whole.itemsize]  # torch gives NumPy these alone
        state = build(plan.spec, dtype=getattr(torch, plan.dtype), seed=0).state_dict()
        for name in (name for rules in plan.initialised.values() for rule in rules for name in rule.ours):
            drawn[name] = state[name].contiguous().view(signed).numpy().view(whole)
    return drawn


def _check_finite(plan: ImportPlan, name: str, bits: Array) -> None:
    """Raises StoreError if a tensor, in the dtype of the plan, holds NaN or infinity."""
    values = real(bits, plan.dtype)
    if not np.isfinite(values).all():
        diagnostic = not_finite(
            plan.directory.file_of(name), name, int(np.isnan(values).sum()), int(np.isinf(values).sum()), values.size
        )
        raise StoreError(replace(diagnostic, fix="get another copy of the model, or write --allow-nan to import it as it is"))
