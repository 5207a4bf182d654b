"""Weight maps: one data file per architecture, which says how its `config.json` maps to a spec and its
tensors to tfkit's parameters.

    config        every key that matters, with the value that transformers takes where it is absent
    spec          a spec in which `$key` stands for the value of a key
    weights       their tensor: ours; blocks name a common place; `{i}` is the number of a layer
    architectures the classes of transformers, each with what it adds
    extends       another map, from which comes what is not written here

Both directions read the same file: see `config_template` for the spec, `tensor_rules` for the tensors.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError, PluginError
from ..files import FileModel, refusals
from ..graph import Graph
from ..spec.located import short
from .views import VIEWS, Array, Shape, View, from_stored, make_view, stored_shape, to_stored


class Architecture(FileModel):
    """What a class of transformers adds to the common part.

    Args:
        prefix: before the names of the common tensors; files without it are read too.
        spec: merged into the common spec; null removes.
        weights: further tensors, without the prefix.
        config: values of keys that its configuration does not have.
    """

    prefix: str = ""
    config: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    weights: dict[str, Any] = {}


class Flag(FileModel):
    """A key that no configuration has: whether a tensor is in the files. It is false where the key `unless` is true."""

    tensor: str
    unless: str


class Derived(FileModel):
    """A value of the spec that several keys give: see `derived`."""

    function: str
    node: str = ""
    keys: list[str]


class MapFile(FileModel):
    """The content of a weight map.

    Args:
        extends: a map whose values are merged with these, but for those of `KEYS_NOT_INHERITED`.
        without: keys of its `config` that these configurations do not have.
        model_types: the `model_type` of configurations.
        config: keys with their defaults.
        fallback: for a key that is null: another key, or `4 * key`.
        values: by key, their value and ours; the name of a common table, or a table.
        only: by key, the one value that the spec has.
        unused: keys without an effect on what the model computes.
        choose: by key and value, a part that is merged into the spec. `a == b` is a key that says whether two keys are equal.
        probe: by key that may be null, a value that shows where it stands in the spec.
        flags: by key, what the files say beside the configuration.
        derived: by name, values made from several keys.
        absent: tensors that are missing, or equal to another: tied ones.
        ignored: tensors that are not read, with the reason.
        zeros: tensors that are zero where the files lack them.
        constants: tensors that are computed: the name of a function in `constants`.
        refused: by class of transformers, why no spec can say it.
    """

    format: Literal[1]
    extends: str | None = None
    without: list[str] = []
    name: Annotated[str, Field(pattern=r"^[a-z0-9_.]+$")]
    reference: str
    model_types: list[str]
    config: dict[str, Any]
    fallback: dict[str, str] = {}
    values: dict[str, Any] = {}
    only: dict[str, Any] = {}
    unused: list[str] = []
    choose: dict[str, dict[Any, Any]] = {}
    probe: dict[str, Any] = {}
    flags: dict[str, Flag] = {}
    derived: dict[str, Derived] = {}
    spec: dict[str, Any]
    weights: dict[str, Any]
    absent: dict[str, str] = {}
    ignored: dict[str, str] = {}
    zeros: list[str] = []
    constants: dict[str, Literal["whisper_positions", "marian_positions"]] = {}
    refused: dict[str, str] = {}
    architectures: dict[str, Architecture]

    def model_type_of(self, architecture: str) -> str:
        """The `model_type` of configurations of a class of transformers."""
        name = architecture.lower()
        return next((kind for kind in self.model_types if name.startswith(kind.replace("-", ""))), self.model_types[0])


@dataclass(frozen=True)
class Rule:
    """One tensor of the external file, or one per layer.

    Args:
        ours: tfkit's tensors, or modules for all their tensors; `{i}` is the number of a layer.
        views: from ours to theirs, as the map writes them.
        when: by key of the configuration, the values with which the rule holds.
    """

    ours: tuple[str, ...]
    theirs: str
    views: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] | None = None

    def holds(self, config: Mapping[str, Any]) -> bool:
        return all(config.get(key) in values for key, values in (self.when or {}).items())


def read_map(name: str, read: Callable[[str], str]) -> MapFile:
    """The weight map of a name, with all that it takes from others. Raises ValueError with every reason why it is no map."""
    try:
        map_file = MapFile.model_validate(_extended(name, read, ()))
        for weights in (map_file.weights, *(one.weights for one in map_file.architectures.values())):
            _check_rules(rules_of(weights), name)
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: {error}") from None
    except ValidationError as error:
        raise ValueError(f"{name}: {'; '.join(refusals(error))}") from None
    return map_file


KEYS_NOT_INHERITED = ("extends", "without", "name", "reference", "model_types", "architectures", "refused")
"""Keys that a map does not take from another."""


def _extended(name: str, read: Callable[[str], str], below: tuple[str, ...]) -> Any:
    """The content of a map, merged with that of the map it extends."""
    written = yaml.load(read(name), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(written, dict) or not isinstance(base := written.get("extends"), str):
        return written
    if base in (name, *below):
        raise ValueError(f"{name}: `extends: {base}` makes a cycle")
    inherited = _extended(base, read, (name, *below))
    config = {key: value for key, value in inherited["config"].items() if key not in written.get("without", ())}
    inherited = {key: value for key, value in inherited.items() if key not in KEYS_NOT_INHERITED}
    return merged(inherited, written) | {"config": {**config, **written.get("config", {})}}


def merged(base: Any, over: Any) -> Any:
    """Mappings are merged by key; another `kind` replaces; null removes."""
    if not isinstance(base, dict) or not isinstance(over, dict) or base.get("kind") != over.get("kind", base.get("kind")):
        return over
    combined = {**base}
    for key, value in over.items():
        if value is None:
            combined.pop(key, None)
        else:
            combined[key] = merged(combined.get(key), value)
    return combined


def _check_rules(rules: Iterable[Rule], name: str) -> None:
    for rule in rules:
        for view in rule.views:
            kind = next(iter(view)) if isinstance(view, dict) else view
            if kind not in VIEWS:
                raise ValueError(f"{name}: `{rule.theirs}` has the view `{kind}`; views are {', '.join(VIEWS)}")


def rules_of(weights: Mapping[str, Any], prefix: str = "") -> Iterator[Rule]:
    """The rules of a table of weights, with `prefix` before their names."""
    for theirs, ours in weights.items():
        yield from _rules(f"{prefix}{theirs}", ours)


def _rules(theirs: str, ours: Any) -> Iterator[Rule]:
    if isinstance(ours, str):
        yield Rule((ours,), theirs)
    elif "of" in ours:
        of = ours["of"] if isinstance(ours["of"], list) else [ours["of"]]
        yield Rule(tuple(of), theirs, tuple(ours.get("view", ())), _when(ours))
    else:
        place = ours["in"]
        for name, inner in ours.items():
            if name not in ("in", "when"):
                for rule in _rules(f"{theirs}.{name}", inner):
                    inside = tuple(f"{place}.{parameter}" for parameter in rule.ours)
                    yield Rule(inside, rule.theirs, rule.views, {**(_when(ours) or {}), **(rule.when or {})} or None)


def _when(written: Mapping[str, Any]) -> dict[str, tuple[Any, ...]] | None:
    return {key: tuple(values) for key, values in written["when"].items()} if "when" in written else None


def shipped_maps(catalogue: Catalogue) -> dict[str, MapFile]:
    """Every map of the catalogue by name. Raises PluginError for a map that cannot be read."""
    entries = {entry.name: entry for entry in catalogue.entries("weight_map")}

    def read(name: str) -> str:
        if name not in entries:
            raise ValueError(f"no map is called `{short(name)}`")
        package, _, path = entries[name].file.partition(":")
        return files(package).joinpath(path).read_text(encoding="utf-8")

    maps = {}
    for name in entries:
        try:
            maps[name] = read_map(name, read)
        except (OSError, ValueError, ModuleNotFoundError) as reason:
            who = catalogue.registered["weight_map"][name].distribution
            raise PluginError(Diagnostic("TFK140", f"{who}: the weight map `{name}` cannot be read: {reason}")) from None
    return maps


def find_map(maps: Mapping[str, MapFile], model_type: Any, architecture: Any, where: str) -> tuple[MapFile, str]:
    """The map of a configuration, and its architecture. Raises InputError with the nearest name or the reason."""
    for map_file in maps.values():
        if model_type in map_file.model_types:
            if architecture in map_file.architectures:
                return map_file, architecture
            if reason := map_file.refused.get(str(architecture)):
                raise InputError(Diagnostic("TFK141", f"{where}: a spec cannot say `{architecture}`: {reason}"))
            fix = f"choose one with --class: {', '.join(map_file.architectures)}; tensors that it does not have are left out"
            message = f"{where}: the model type `{short(str(model_type))}` has no map of the class `{short(str(architecture))}`"
            raise InputError(Diagnostic("TFK141", message, fix))
    if reason := UNSUPPORTED.get(str(model_type)):
        raise InputError(Diagnostic("TFK141", f"{where}: a spec cannot say `{short(str(model_type))}`: {reason}"))
    known = sorted({name for map_file in maps.values() for name in map_file.model_types})
    near = difflib.get_close_matches(str(model_type), known, 1)
    fix = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
    raise InputError(Diagnostic("TFK141", f"{where}: `model_type` is `{short(str(model_type))}`, which has no map", fix))


_REASONS = {
    "it routes tokens to experts": "mixtral qwen2_moe qwen3_moe gpt_oss deepseek_v3 olmoe switch_transformers nllb-moe",
    "its attention scores mix contents and relative positions": "deberta deberta-v2",
    "it has no attention but a recurrence of its own": "mamba mamba2 rwkv falcon_mamba",
    "its attention has global tokens": "longformer big_bird led bigbird_pegasus",
    "its attention runs over two streams or earlier segments": "xlnet transfo-xl",
    "it reads text and images in one sequence": "gemma3n llava paligemma mllama",
}
UNSUPPORTED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Model types that are known, and why no spec can say them."""


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the external file, and tfkit's tensors in it; the views are from ours to theirs."""

    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    theirs: str
    views: tuple[View, ...]

    @property
    def stored(self) -> Shape:
        """The shape in their file. Raises ValueError if our tensors do not fit the views."""
        return stored_shape(self.views, self.shapes)

    def export(self, arrays: Sequence[Array]) -> Array:
        """Their tensor from ours."""
        return to_stored(self.views, arrays)

    def load(self, array: Array) -> list[Array]:
        """Our tensors from theirs."""
        return from_stored(self.views, array, self.shapes)


def parameter_shapes(graph: Graph) -> dict[str, Shape]:
    """Every parameter of a model by its name in `model.safetensors`."""
    return {
        f"nodes.{name}.{parameter.name}": parameter.shape
        for name, node in graph.nodes.items()
        for parameter in node.parameters()
    }


def tensor_rules(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], config: dict[str, Any]
) -> tuple[list[TensorRule], list[str]]:
    """The rules of every tensor, and our parameters that have none.

    A rule for one layer precedes a rule for all. A rule whose parameters the spec does not have says nothing.
    """
    places = _places(shapes)
    ordered = sorted((rule for rule in rules if rule.holds(config)), key=lambda rule: "{i" in rule.ours[0])
    expanded: list[TensorRule] = []
    claimed: set[str] = set()
    for rule in ordered:
        views = tuple(make_view(view, config) for view in rule.views)
        for number, leaf in places[rule.ours[0]]:
            ours = tuple(_filled(name, number) + leaf for name in rule.ours)
            if claimed.isdisjoint(ours) and all(name in shapes for name in ours):
                claimed.update(ours)
                expanded.append(
                    TensorRule(ours, tuple(shapes[name] for name in ours), _filled(rule.theirs, number) + leaf, views)
                )
    return expanded, sorted(set(shapes) - claimed)


def _places(names: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """By template, the numbers of layers and the leaves (`.weight`) with which it is one of the names."""
    places: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        module, _, leaf = name.rpartition(".")
        for template, rest in ((name, ""), (module, f".{leaf}")):
            places[template].append((0, rest))
            general, number = _generalised(template)
            if number is not None:
                places[general].append((number, rest))
    return places


def _generalised(name: str) -> tuple[str, int | None]:
    """The name with `{i}` for the number after `layers`, and the number."""
    parts = name.split(".")
    for before, part in enumerate(parts[1:]):
        if parts[before] == "layers" and part.isdecimal():
            return ".".join([*parts[: before + 1], "{i}", *parts[before + 2 :]]), int(part)
    return name, None


def _filled(template: str, number: int) -> str:
    return template.replace("{i}", str(number)).replace("{i-1}", str(number - 1))
