"""From a directory of Hugging Face transformers to a model of tfkit: first a plan from headers alone, then tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError, StoreError
from ..files import FileRecord, not_finite, write_tensors
from ..graph import check_sublayers, graph_of
from ..slots.node import InputRule
from ..spec import ModelSpec
from .config_template import configuration, ignored_keys, spec_of, unknown_keys, with_flags
from .huggingface_directory import CONFIG, GENERATION, HuggingFaceDirectory
from .views import CONSTANTS, TOLERANCE, Array, contiguous, converted, real
from .weight_map import MapFile, TensorRule, find_map, parameter_shapes, rules_of, shipped_maps, tensor_rules

ORIGIN = "huggingface.json"
"""The file of an imported model that keeps its configuration, for the way back."""
MOST_ERRORS = 20
"""At most this many errors of one kind are listed."""
OLD_LEAVES = {"gamma": "weight", "beta": "bias"}
"""Names of the parameters of norms in old files."""


@dataclass
class ImportPlan:
    """What an import will do.

    Args:
        directory: where the tensors are.
        architecture: the class of transformers.
        spec: the spec of the configuration.
        prefix: the prefix of the common tensors as the files spell it.
        rules: every tensor that is read.
        spelling: by the map's name of a tensor, its name in the files.
        tied: tensors in the files that must be equal to another, and that one.
        ignored: tensors that are not read, and why.
        ignored_keys: keys of the configuration that are known and not read, and why.
        unknown: keys of the configuration that the map does not know.
        dtype: the dtype of the model.
        texts: further files of the model by name: tokenisers, and the original files of the directory.
    """

    directory: HuggingFaceDirectory
    map_file: MapFile
    architecture: str
    spec: ModelSpec
    prefix: str
    rules: list[TensorRule]
    spelling: dict[str, str]
    tied: dict[str, str]
    ignored: dict[str, str]
    ignored_keys: dict[str, str]
    unknown: list[str]
    dtype: str
    texts: dict[str, str | bytes] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        return {
            "directory": str(self.directory.path),
            "map": self.map_file.name,
            "architecture": self.architecture,
            "parameters": graph_of(self.spec).parameters(),
            "dtype": self.dtype,
            "files": len(self.directory.shards) or 1,
            "tensors": {"read": len(self.rules), "written": sum(len(rule.ours) for rule in self.rules)},
            "tied": self.tied,
            "ignored": self.ignored,
            "ignored_keys": self.ignored_keys,
            "unknown_keys": self.unknown,
            "files_beside": sorted(self.texts),
        }


def plan_import(
    path: Path, catalogue: Catalogue, dtype: str | None = None, allow_pickle: bool = False, large: bool = False
) -> ImportPlan:
    """Plan an import from the configuration and the headers.

    Args:
        path: a directory that `save_pretrained` wrote.
        catalogue: the maps, and the entries of specs.
        dtype: the dtype of the model; by default that of the files.
        allow_pickle: read pickled weights.
        large: plan a model of any number of sub-layers.

    Raises:
        SpecError: the model has more sub-layers than are made without `large`.
        InputError: no map fits, or the configuration says what no spec can say.
        StoreError: tensors are missing, surplus or of another shape, all of them at once; or a file is damaged.
    """
    directory = HuggingFaceDirectory(path, allow_pickle)
    architectures = directory.config.get("architectures") or [None]
    where = str(path / CONFIG)
    map_file, architecture = find_map(shipped_maps(catalogue), directory.config.get("model_type"), architectures[0], where)
    config = with_flags(map_file, architecture, directory.config, directory.places)
    spec = spec_of(map_file, architecture, config, catalogue, where)
    if not large:
        check_sublayers(spec, graph_of(spec))
    prefix = map_file.architectures[architecture].prefix
    if prefix and not any(name.startswith(prefix) for name in directory.places):
        prefix = ""
    rules, without = rules_for(map_file, architecture, spec, prefix, directory.config)
    spelling = _spelling(directory.places)
    matched = _Matched(directory, map_file, architecture, prefix, spelling)
    matched.check(rules, without)
    kinds = {directory.places[spelling[rule.theirs]][1].dtype for rule in rules}
    if dtype is None and len(kinds) != 1:
        message = f"the tensors of {path} have several dtypes: {', '.join(sorted(kinds))}"
        raise StoreError(Diagnostic("TFK143", message, "choose one with --dtype"))
    unknown = unknown_keys(map_file, directory.config)
    return ImportPlan(
        directory,
        map_file,
        architecture,
        spec,
        prefix,
        rules,
        spelling,
        matched.tied,
        matched.ignored,
        ignored_keys(directory.config, architecture),
        unknown,
        dtype or kinds.pop(),
    )


def vocabulary_sizes(spec: ModelSpec) -> dict[str, int]:
    """The number of ids of each input of a model that reads tokens, by the name of its node."""
    rules = {node.name: node.kind.input_rule(node.options, node.context) for node in graph_of(spec).inputs()}  # type: ignore[misc]
    return {name: rule.vocab_size for name, rule in rules.items() if isinstance(rule, InputRule)}


def rules_for(
    map_file: MapFile, architecture: str, spec: ModelSpec, prefix: str, config: Mapping[str, Any]
) -> tuple[list[TensorRule], list[str]]:
    """The rules of every tensor of an architecture, and our parameters that have none."""
    rules = [*rules_of(map_file.architectures[architecture].weights), *rules_of(map_file.weights, prefix)]
    values = configuration(map_file, config)
    return tensor_rules(rules, parameter_shapes(graph_of(spec)), {**config, **values})


def _spelling(names: Iterable[str]) -> dict[str, str]:
    """By the map's spelling of a name, the spelling in the files. Raises StoreError if the files hold both."""
    spelling: dict[str, str] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        new = f"{module}.{OLD_LEAVES[leaf]}" if leaf in OLD_LEAVES else name
        if new in spelling:
            message = f"the files hold `{new}` under two names, `{spelling[new]}` and `{name}`"
            raise StoreError(Diagnostic("TFK143", message, "remove the one that is not the model's"))
        spelling[new] = name
    return spelling


class _Matched:
    """Compares the tensors that a map expects with those in the files."""

    def __init__(
        self, directory: HuggingFaceDirectory, map_file: MapFile, architecture: str, prefix: str, spelling: Mapping[str, str]
    ) -> None:
        self.directory, self.spelling = directory, spelling
        map_prefix = map_file.architectures[architecture].prefix

        def spelt(name: str) -> str:
            return prefix + name.removeprefix(map_prefix) if map_prefix and name.startswith(map_prefix) else name

        self.absent = {spelt(name): spelt(other) for name, other in map_file.absent.items()}
        self.reasons = {spelt(name): reason for name, reason in map_file.ignored.items()}
        self.constants = {spelt(name): function for name, function in map_file.constants.items()}
        self.tied: dict[str, str] = {}
        self.ignored: dict[str, str] = {}

    def check(self, rules: list[TensorRule], without: list[str]) -> None:
        """Raises StoreError with every tensor that is missing, surplus or of another shape."""
        problems = [f"no tensor of the map is our `{name}`" for name in without]
        expected = {rule.theirs: rule for rule in rules}
        for name, rule in expected.items():
            try:
                needed = rule.stored
            except ValueError as reason:
                problems.append(f"`{name}` cannot hold our {_named(rule)}: {reason}")
                continue
            if name not in self.spelling:
                problems.append(f"`{name}` {needed} is missing; it is our {_named(rule)}")
                continue
            place = self.directory.places[self.spelling[name]][1]
            if place.shape != needed:
                problems.append(f"`{name}` is {place.shape}, and the configuration needs {needed}; it is our {_named(rule)}")
        for name in self.spelling:
            if name in expected:
                continue
            if name in self.absent:
                self.tied[name] = self.absent[name]
            elif name in self.constants:
                self.ignored[name] = "it is computed"
            elif why := self.reasons.get(name) or self.reasons.get(_general(name)):
                self.ignored[name] = why
            else:
                place = self.directory.places[self.spelling[name]][1]
                problems.append(f"`{name}` {place.shape} has no place in the spec of the configuration")
        if problems:
            more = [f"{len(problems) - MOST_ERRORS} more tensors do not fit"] if len(problems) > MOST_ERRORS else []
            raise StoreError(
                [Diagnostic("TFK143", f"{self.directory.path}: {problem}") for problem in [*problems[:MOST_ERRORS], *more]]
            )


def _named(rule: TensorRule) -> str:
    return ", ".join(f"`{name}` {shape}" for name, shape in zip(rule.ours, rule.shapes, strict=True))


def _general(name: str) -> str:
    return ".".join("{i}" if part.isdecimal() else part for part in name.split("."))


def run_import(plan: ImportPlan, output: Path, catalogue: Catalogue, overwrite: bool = False, allow_nan: bool = False) -> Path:
    """Write the model of a plan, one tensor after the other.

    Args:
        plan: from `plan_import`.
        output: the directory of the model.
        catalogue: the entries of the spec.
        overwrite: replace a saved model.
        allow_nan: write weights that hold NaN or infinity too.

    Returns:
        The absolute path of the model.

    Raises:
        StoreError: a tied tensor is not equal to its other, a value does not fit the dtype, a weight holds NaN or infinity, or
            the model cannot be written.
    """
    from ..io.saving import ModelFiles, write_model  # torch
    from .kept_tensors import KEPT_FILE, pack

    _check_tied(plan)
    computed, other = _compared_constants(plan)
    buffers = [plan.spelling[name] for name in plan.ignored if plan.spelling[name] not in (*computed, *other)]
    kept = pack(plan.directory, other, buffers)
    origin = {
        "architecture": plan.architecture,
        "prefix": plan.prefix,
        "spelling": {name: there for name, there in plan.spelling.items() if name != there},
        "tied": plan.tied,
        "files": sorted(name for name in plan.texts if (plan.directory.path / name).is_file()),
        "shards": {} if len(plan.directory.shards) < 2 else {name: file for name, (file, _) in plan.directory.places.items()},
        "computed": sorted(computed),
        CONFIG: plan.directory.config,
        GENERATION: plan.directory.generation,
    }
    graph = graph_of(plan.spec)
    backends = {name: [part.written() for part in site.backend] for name, site in graph.sites()}
    texts: dict[str, str | bytes] = {
        **plan.texts,
        ORIGIN: json.dumps(origin, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if kept is not None:
        texts[KEPT_FILE] = kept
    contents = ModelFiles(plan.spec, backends, "cpu", plan.dtype, texts, lambda path: _write_weights(plan, path, allow_nan))
    return write_model(contents, output, catalogue, overwrite=overwrite)


def _check_tied(plan: ImportPlan) -> None:
    for name, other in plan.tied.items():
        if not np.array_equal(plan.directory.read(plan.spelling[name]), plan.directory.read(plan.spelling[other])):
            message = f"{plan.directory.path}: `{name}` is not equal to `{other}`, and the configuration ties them"
            fix = f"write `tie_word_embeddings: false` into {CONFIG} if the model was trained so"
            raise StoreError(Diagnostic("TFK143", message, fix))


def _compared_constants(plan: ImportPlan) -> tuple[set[str], list[str]]:
    """The constants in the files that an export computes, and those with other last bits. Raises StoreError for others."""
    map_prefix = plan.map_file.architectures[plan.architecture].prefix
    equal, other = set(), []
    for name, function in plan.map_file.constants.items():
        there = plan.spelling.get(plan.prefix + name.removeprefix(map_prefix))
        if there is None:
            continue
        computed = CONSTANTS[function](configuration(plan.map_file, plan.directory.config))
        bits, dtype = plan.directory.read(there), plan.directory.places[there][1].dtype
        tolerance = max(TOLERANCE, 2.0**-7 if plan.dtype != "float32" else 0.0)
        if bits.shape != computed.shape or not np.allclose(real(bits, dtype), computed, rtol=0, atol=tolerance):
            message = f"{plan.directory.path}: `{name}` is not what the configuration gives, and a spec has it as a constant"
            raise StoreError(Diagnostic("TFK143", message, "this model was trained further; it has no spec"))
        if dtype != plan.dtype or np.array_equal(bits, converted(computed.view(np.uint64), "float64", dtype)):
            equal.add(there)
        else:
            other.append(there)
    return equal, other


def _write_weights(plan: ImportPlan, path: Path, allow_nan: bool) -> FileRecord:
    by_name = {name: (rule, number) for rule in plan.rules for number, name in enumerate(rule.ours)}
    shapes = {name: (plan.dtype, rule.shapes[number]) for name, (rule, number) in by_name.items()}
    last: tuple[TensorRule, list[Array]] | None = None

    def read(name: str) -> memoryview:
        nonlocal last
        rule, number = by_name[name]
        if last is None or last[0] is not rule:
            source = plan.spelling[rule.theirs]
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


def _check_finite(plan: ImportPlan, name: str, bits: Array) -> None:
    """Raises StoreError if a tensor, in the dtype of the plan, holds NaN or infinity."""
    values = real(bits, plan.dtype)
    if not np.isfinite(values).all():
        diagnostic = not_finite(
            plan.directory.file_of(name), name, int(np.isnan(values).sum()), int(np.isinf(values).sum()), values.size
        )
        raise StoreError(replace(diagnostic, fix="get another copy of the model, or write --allow-nan to import it as it is"))
