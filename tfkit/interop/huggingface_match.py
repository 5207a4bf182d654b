"""Which class of Hugging Face transformers a directory holds, and what becomes of each tensor there.

Every tensor in the files is a parameter, equal to another tensor (tied), known to be no weight (ignored), a part of another
class of the map (left out), or an error. Every parameter of the spec has a tensor, is zero where a file lacks it, or belongs
to a node of which the files have no tensor (missing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError, SpecError, StoreError
from ..graph import check_sublayers, graph_of
from ..spec import ModelSpec
from ..spec.located import short
from .config_template import configuration, spec_of, with_flags
from .huggingface_directory import CONFIG, HuggingFaceDirectory
from .weight_map import MapFile, TensorRule, find_map, parameter_shapes, rules_of, shipped_maps, tensor_rules

MAX_ERRORS = 8
"""At most this many errors of one kind are listed."""
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
MAX_TENSORS = 20_000
"""A class is derived from the names of at most this many tensors."""
OLD_LEAVES = {"gamma": "weight", "beta": "bias"}
"""Names of the parameters of norms in old files."""
BUFFERS = {"position_ids": "the class counts positions itself", "token_type_ids": "the class has zeros there itself"}
"""By last part of their names, tensors that files of earlier releases of transformers hold beside the weights of any class."""


@dataclass
class Match:
    """How the tensors of a directory fit a class of transformers.

    Args:
        prefix: the prefix of the common tensors as the files spell it.
        rules: every tensor of the class.
        spelling: by the map's name of a tensor, its name in the files.
        tied: tensors in the files that must be equal to another, and that one.
        ignored: tensors that are no weights, and why.
        left_out: tensors of parts that the class does not have, and a class that has them.
        zeros: tensors that the files lack, and that are zero then.
        missing: by node, its tensors, if the files have none of them.
        problems: every tensor that is missing, surplus or of another shape.
    """

    directory: HuggingFaceDirectory
    map_file: MapFile
    architecture: str
    spec: ModelSpec
    prefix: str
    rules: list[TensorRule]
    spelling: dict[str, str]
    tied: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    missing: dict[str, list[TensorRule]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def absent(self) -> set[str]:
        """The tensors of the class that the files do not have."""
        return self.zeros | {rule.theirs for rules in self.missing.values() for rule in rules}

    def _of_wrapper(self) -> list[str]:
        """The one problem that explains all others: the names have the prefix of a wrapper, as DataParallel writes it."""
        first = next(iter(self.spelling), "")
        prefix = first[: first.find(".") + 1]
        if not self.problems or not prefix or not all(name.startswith(prefix) for name in self.spelling):
            return []
        names = {name.removeprefix(prefix) for name in self.spelling}
        for one in self.map_file.architectures.values():
            names |= {name.removeprefix(one.prefix) for name in names if one.prefix}
        if 2 * sum(rule.theirs in names for rule in self.rules) < len(self.rules):
            return []
        return [f"all names begin with `{prefix}`, which a wrapper of training writes; save the tensors without it"]

    def refuse(self, initialise: bool) -> None:
        """Raises StoreError with all problems. Nodes without any tensor are one unless they are to be initialised."""
        where, problems = self.directory.path, self._of_wrapper() or self.problems
        more = [f"{len(problems) - MAX_ERRORS} more tensors do not fit"] if len(problems) > MAX_ERRORS else []
        diagnostics = [Diagnostic("TFK143", f"{where}: {problem}") for problem in [*problems[:MAX_ERRORS], *more]]
        if not initialise:
            for node, rules in self.missing.items():
                names = ", ".join(f"`{rule.theirs}` {rule.stored}" for rule in rules[:4])
                names += f" and {len(rules) - 4} more" if len(rules) > 4 else ""
                others = ", ".join(name for name in self.map_file.architectures if name != self.architecture)
                fix = f"--initialise draws new weights for `{node}`"
                fix += f"; --class imports another class: {others}" if others else ""
                message = f"{where} has no tensor of the part `{node}` of {self.architecture}: {names}"
                diagnostics.append(Diagnostic("TFK143", message, fix))
        if diagnostics:
            raise StoreError(diagnostics)


def match_directory(directory: HuggingFaceDirectory, catalogue: Catalogue, chosen: str | None, large: bool) -> Match:
    """The class of a directory, or the `chosen` class of transformers, with the tensors compared. `large` takes a model of any
    number of sub-layers.

    Raises:
        InputError: no map fits, or several do, or the configuration says what no spec can say.
        SpecError: the model has more sub-layers than are made without `large`.
        StoreError: the files hold a tensor under two names.
    """
    maps, where = shipped_maps(catalogue), str(directory.path / CONFIG)
    model_type = directory.config.get("model_type")
    architecture = (directory.config.get("architectures") or [None])[0] if chosen is None else chosen
    if architecture is None:
        same = {name: one for name, one in maps.items() if model_type is None or model_type in one.model_types}
        if same:
            return _derived(directory, same, catalogue, large)
    if model_type is None:
        having = [one for one in maps.values() if architecture in one.architectures]
        if not having:
            known = ", ".join(sorted(name for one in maps.values() for name in one.architectures))
            message = f"{where}: no map has the class `{short(str(architecture))}`"
            raise InputError(Diagnostic("TFK141", message, f"choose one with --class: {known}"))
        model_type = having[0].model_types[0]
    map_file, architecture = find_map(maps, model_type, architecture, where)
    return _match(directory, map_file, architecture, catalogue, large)


def _derived(directory: HuggingFaceDirectory, maps: Mapping[str, MapFile], catalogue: Catalogue, large: bool) -> Match:
    """The one class that all tensors fit. Raises InputError if none does, or several."""
    where, model_type = directory.path / CONFIG, directory.config.get("model_type")
    lacking = "`architectures`" if model_type else "`model_type` and `architectures`"
    names = [name for one in maps.values() for name in one.architectures]
    if len(directory.places) > MAX_TENSORS:
        message = f"{where} lacks {lacking}, and {len(directory.places):,} tensors are too many to tell the class"
        raise InputError(Diagnostic("TFK141", message, f"choose one with --class: {', '.join(names)}"))
    matches: list[Match] = []
    for map_file in maps.values():
        for name in map_file.architectures:
            if model_type not in (None, map_file.model_type_of(name)):
                continue
            try:
                matches.append(_match(directory, map_file, name, catalogue, large))
            except (InputError, SpecError):
                continue  # the configuration is not one of this class
    fitting = [match for match in matches if not match.problems and not match.missing]
    whole = [match for match in fitting if not match.left_out] or fitting
    if len(whole) == 1:
        return whole[0]
    if whole:
        classes = ", ".join(match.architecture for match in whole)
        message = f"{where} lacks {lacking}, and the tensors fit {len(whole)} classes: {classes}"
        raise InputError(Diagnostic("TFK141", message, "choose one with --class"))
    message = f"{where} lacks {lacking}, and the tensors fit no class"
    if matches:
        nearest = max(matches, key=lambda match: sum(rule.theirs in match.spelling for rule in match.rules))
        reasons = [*nearest.problems, *(f"`{name}` is missing" for name in sorted(nearest.absent))]
        message += f"; the nearest is {nearest.architecture}: {reasons[0]}"
        message += f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    raise InputError(Diagnostic("TFK141", message, "choose one with --class, which lists all that does not fit"))


def _match(directory: HuggingFaceDirectory, map_file: MapFile, architecture: str, catalogue: Catalogue, large: bool) -> Match:
    config = with_flags(map_file, architecture, directory.config, directory.places)
    spec = spec_of(map_file, architecture, config, catalogue, str(directory.path / CONFIG))
    if not large:
        check_sublayers(spec, graph_of(spec))
    prefixes = dict.fromkeys(one.prefix for one in (map_file.architectures[architecture], *map_file.architectures.values()))
    prefix = next((one for one in prefixes if one and any(name.startswith(one) for name in directory.places)), "")
    rules, without = rules_for(map_file, architecture, spec, prefix, directory.config)
    match = Match(directory, map_file, architecture, spec, prefix, rules, _spelling(directory.places))
    match.problems = [f"no tensor of the map is our `{name}`" for name in without]
    _compare_parameters(match)
    _explain_surplus(match, catalogue)
    return match


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


def _compare_parameters(match: Match) -> None:
    """Every tensor of the class is in the files with its shape, or is zero, or its node is missing as a whole."""
    expected = {rule.theirs for rule in match.rules}
    for name, other in _tied(match).items():  # files hold a tied tensor under any of its names
        if other not in match.spelling and name in match.spelling and name not in expected:
            match.spelling[other] = match.spelling.pop(name)
    zeros = set(_spelt(match, match.map_file.zeros))
    present = {_node(rule) for rule in match.rules if rule.theirs in match.spelling}
    missing: dict[str, list[TensorRule]] = {}
    whole: dict[str, list[str]] = {}
    for rule in match.rules:
        try:
            needed = rule.stored
        except ValueError as reason:
            match.problems.append(f"`{rule.theirs}` cannot hold our {_named(rule)}: {reason}")
            continue
        if rule.theirs in match.spelling:
            place = match.directory.places[match.spelling[rule.theirs]][1]
            if place.shape != needed:
                message = f"`{rule.theirs}` is {place.shape}, and the configuration needs {needed}"
                match.problems.append(f"{message}{_keys(match, rule, place.shape, needed)}; it is our {_named(rule)}")
            if place.dtype not in FLOATING:
                whole.setdefault(place.dtype, []).append(rule.theirs)
        elif rule.theirs in zeros:
            match.zeros.add(rule.theirs)
        elif _node(rule) in present:
            match.problems.append(f"`{rule.theirs}` {needed} is missing; it is our {_named(rule)}")
        else:
            missing.setdefault(_node(rule), []).append(rule)
    for dtype, names in whole.items():
        more = f" and {len(names) - 1:,} more tensors are" if len(names) > 1 else " is"
        match.problems.append(f"`{names[0]}`{more} of {dtype}, and a weight is of {', '.join(sorted(FLOATING))}")
    drawn = sum(_count(rule) for rules in missing.values() for rule in rules)
    if 2 * drawn > sum(map(_count, match.rules)):  # another model, or a part of one
        for rule in (rule for rules in missing.values() for rule in rules):
            match.problems.append(f"`{rule.theirs}` {rule.stored} is missing; it is our {_named(rule)}")
    else:
        match.missing = missing


def _keys(match: Match, rule: TensorRule, shape: tuple[int, ...], needed: tuple[int, ...]) -> str:
    """Which keys of the configuration have the sizes that a tensor does not have."""
    sizes = {want for have, want in zip(shape, needed, strict=False) if have != want}
    labels = {"num_labels": match.directory.config.get("num_labels")}
    values = {**configuration(match.map_file, match.directory.config), **labels}
    values = {key: value for key, value in values.items() if type(value) is int}
    keys = [f"`{key}` is {value}" for key, value in values.items() if value in sizes and not key.endswith("_id")]
    if "attention" in _named(rule) and (width := values.get("head_dim")):
        heads = [(key, values[key]) for key in ("num_attention_heads", "num_key_value_heads") if key in values]
        keys = [f"`{key}` is {count} and `head_dim` {width}" for key, count in heads if count * width in sizes] or keys
    return f", as {' and '.join(keys)}" if keys else ""


def _explain_surplus(match: Match, catalogue: Catalogue) -> None:
    """Every further tensor is tied, no weight, or a part of another class of the map."""
    map_file, expected = match.map_file, {rule.theirs for rule in match.rules}
    prefixes = {*(one.prefix for one in map_file.architectures.values()), ""}

    def bare(name: str) -> str:
        return _general(name.removeprefix(max(filter(name.startswith, prefixes), key=len)))

    tied = _tied(match)
    computed = {bare(name) for name in map_file.constants}
    reasons = {bare(name): reason for name, reason in map_file.ignored.items()}
    others: Mapping[str, tuple[str, tuple[int, ...] | None]] | None = None
    surplus: list[str] = []
    for name, there in match.spelling.items():
        shape = match.directory.places[there][1].shape
        if name in expected:
            continue
        if name in tied:
            match.tied[name] = tied[name]
        elif bare(name) in computed:
            match.ignored[name] = "it is computed"
        elif reason := reasons.get(bare(name)) or BUFFERS.get(name.rpartition(".")[2]):
            match.ignored[name] = reason
        else:
            others = _parts_of_others(match, catalogue) if others is None else others
            who, needed = others.get(name, ("", ()))
            if who and needed in (None, shape):
                match.left_out[name] = f"{who} has it, and {match.architecture} does not"
            else:
                surplus.append(f"`{name}` {shape}")
    if surplus:
        more = f" and {len(surplus) - 4:,} more" if len(surplus) > 4 else ""
        has = "has" if len(surplus) == 1 else "have"
        message = f"{', '.join(surplus[:4])}{more} {has} no place in {match.architecture} with this configuration"
        match.problems.append(f"{message}: is it of another class (--class), or of code of the model's own?")


def _parts_of_others(match: Match, catalogue: Catalogue) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    """The tensors that other classes of the map have with this configuration: the class, and the shape of parts of the body. A
    head may have any number of classes."""
    parts: dict[str, tuple[str, tuple[int, ...] | None]] = {}
    for other in match.map_file.architectures:
        if other == match.architecture:
            continue
        try:
            config = with_flags(match.map_file, other, match.directory.config, match.directory.places)
            spec = spec_of(match.map_file, other, config, catalogue, "")
            heads = tuple(match.map_file.architectures[other].weights)
            for rule in rules_for(match.map_file, other, spec, match.prefix, match.directory.config)[0]:
                parts.setdefault(rule.theirs, (other, None if rule.theirs.startswith(heads) else rule.stored))
        except (InputError, SpecError, ValueError):
            continue  # the configuration is not one of that class
    return parts


def _tied(match: Match) -> dict[str, str]:
    """By name, the tensor that one of the map is equal to."""
    absent = match.map_file.absent
    return dict(zip(_spelt(match, absent), _spelt(match, absent.values()), strict=True))


def _spelt(match: Match, names: Iterable[str]) -> Iterator[str]:
    """Names of a map with the prefix of the files."""
    theirs = match.map_file.architectures[match.architecture].prefix
    for name in names:
        yield match.prefix + name.removeprefix(theirs) if theirs and name.startswith(theirs) else name


def _node(rule: TensorRule) -> str:
    return rule.ours[0].split(".")[1]


def _count(rule: TensorRule) -> int:
    return sum(map(prod, rule.shapes))


def _named(rule: TensorRule) -> str:
    return ", ".join(f"`{name}` {shape}" for name, shape in zip(rule.ours, rule.shapes, strict=True))


def _general(name: str) -> str:
    return ".".join("{i}" if part.isdecimal() else part for part in name.split("."))
