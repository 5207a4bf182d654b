"""`tfkit export --to hf`: a model as a directory that `from_pretrained` of Hugging Face transformers reads.

A model that was imported goes out with its own configuration and names, byte for byte. For another one, the map is searched
whose configuration gives its spec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, ValidationError, field_validator

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, InputError, StoreError
from ..files import (
    LABELS,
    PAIR_LABELS,
    TOKENISER_BYTES,
    TOKENISER_VALUES,
    Content,
    FileModel,
    FileRecord,
    child,
    content_bytes,
    parse_json,
    refusals as refusals_of,
    write_content,
    write_tensors,
)
from ..graph import graph_of
from ..nn.model import Model
from ..spec import ModelSpec, parse_spec, resolved
from .config_template import config_of, configuration
from .huggingface_directory import CONFIG, GENERATION, INDEX, WEIGHTS
from .huggingface_import import ORIGIN
from .huggingface_match import rules_for
from .kept_tensors import altered, unpack
from .views import constant, contiguous, converted
from .weight_map import MapFile, shipped_maps

MOST_REASONS = 8
"""At most this many reasons per architecture are listed."""


MAX_KEPT_FILES = 64


class Origin(FileModel):
    """What an import kept for the way back. The file may come from anyone.

    Args:
        architecture: the class of transformers.
        prefix: the prefix of the common tensors in the files.
        spelling: by the map's name of a tensor, its name in the files.
        tied: tensors that were equal to another, and that one.
        files: further files of the directory, which the model has too.
        shards: the file of every tensor, if there were several.
        computed: constants that were in the files with the bits that an export computes; by default all.
        config: the content of config.json.
        generation: the content of generation_config.json.
    """

    architecture: str
    prefix: str
    spelling: dict[str, str]
    tied: dict[str, str]
    files: Annotated[list[str], Field(max_length=MAX_KEPT_FILES)]
    shards: dict[str, str]
    computed: list[str] | None = None
    config: Annotated[dict[str, Any], Field(alias=CONFIG)]
    generation: Annotated[dict[str, Any] | None, Field(alias=GENERATION)]

    @field_validator("files")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len({*names}) < len(names):
            raise ValueError("it names a file twice")
        return names

    @field_validator("spelling")
    @classmethod
    def _apart(cls, names: dict[str, str]) -> dict[str, str]:
        if len({*names.values()}) < len(names):
            raise ValueError("it gives two tensors one name")
        return names

    @field_validator("config")
    @classmethod
    def _classes(cls, config: dict[str, Any]) -> dict[str, Any]:
        written = config.get("architectures") or []
        if not isinstance(written, list) or not all(isinstance(name, str) for name in written):
            raise ValueError("`architectures` is a list of names")
        return config


def read_origin(texts: Mapping[str, Content]) -> Origin | None:
    """What an import kept, or None for another model. Raises StoreError."""
    if ORIGIN not in texts:
        return None
    try:
        return Origin.model_validate(parse_json(content_bytes(texts[ORIGIN])))
    except ValidationError as error:
        raise StoreError([_altered(reason) for reason in refusals_of(error)[:3]]) from None
    except ValueError as reason:
        raise StoreError(_altered(f"it is not valid JSON: {reason}")) from None


def _altered(reason: str) -> Diagnostic:
    return Diagnostic("TFK082", f"{ORIGIN}: {reason}", "it was altered; import the model again")


@dataclass(frozen=True)
class Target:
    """The form in which a model goes out: the class of transformers, by node of the map the node of the model, what the import
    kept, and the reasons why the configuration cannot say the spec."""

    map_file: MapFile
    architecture: str
    config: dict[str, Any]
    names: Mapping[str, str]
    origin: Origin | None
    reasons: list[str]


def find_target(spec: ModelSpec, texts: Mapping[str, Content], catalogue: Catalogue, architecture: str | None = None) -> Target:
    """The architecture, or only that class of transformers, whose configuration gives a spec, or the nearest one with the
    reasons. Raises InputError if no map has that class."""
    origin = read_origin(texts)
    asked = architecture or (origin.architecture if origin else None)
    maps = shipped_maps(catalogue)
    targets: list[Target] = []
    for map_file in maps.values():
        if origin and origin.config.get("model_type", map_file.model_types[0]) not in map_file.model_types:
            continue
        for name in map_file.architectures:
            if asked in (None, name) and (names := _same_kinds(spec, map_file, name, catalogue)) is not None:
                renamed = _renamed(spec, names, catalogue)
                config, reasons = config_of(map_file, name, renamed, catalogue, origin.config if origin else None)
                targets.append(Target(map_file, name, config, names, origin, reasons))
                if not reasons:
                    return targets[-1]
    if targets:
        return min(targets, key=lambda target: (not target.config, len(target.reasons)))
    known = [name for map_file in maps.values() for name in map_file.architectures]
    if architecture is not None and architecture not in known:
        raise InputError(Diagnostic("TFK141", f"no map has the class `{architecture}`", f"known: {', '.join(known)}"))
    kinds = ", ".join(part.kind for part in spec.nodes.values())
    where = f"`{asked}`" if asked else "any class of transformers with a map"
    return Target(next(iter(maps.values())), "", {}, {}, None, [f"the nodes ({kinds}) are not those of {where}"])


def _same_kinds(spec: ModelSpec, map_file: MapFile, architecture: str, catalogue: Catalogue) -> dict[str, str] | None:
    """By node of a map, the node of a spec of the same kind, in the order of the graph; None if the kinds differ."""
    nodes = dict(map_file.spec["nodes"])
    for name, node in (map_file.architectures[architecture].spec.get("nodes") or {}).items():
        nodes[name] = {**nodes.get(name, {}), **node}
    always = set(nodes)
    for choices in map_file.choose.values():
        for choice in choices.values():
            for name, node in (choice.get("nodes") or {}).items():
                nodes.setdefault(name, node)
    kinds: dict[str, list[str]] = {}
    for name, node in spec.nodes.items():
        kinds.setdefault(node.kind, []).append(name)
    names: dict[str, str] = {}
    for name, node in nodes.items():
        same = kinds.get(node["kind"], [])
        if name in same:
            names[name] = name
    for name, node in nodes.items():
        rest = [other for other in kinds.get(node["kind"], []) if other not in names.values()]
        if name not in names and rest:
            names[name] = rest[0]
    return names if always <= set(names) and len(names) == len(spec.nodes) else None


def _renamed(spec: ModelSpec, names: Mapping[str, str], catalogue: Catalogue) -> ModelSpec:
    """The spec with the node names of a map."""
    back = {ours: theirs for theirs, ours in names.items()}
    if all(ours == theirs for ours, theirs in back.items()):
        return spec
    data = resolved(spec)
    data.pop("expect", None)

    def rename(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: rename(nested, name) for name, nested in value.items()}
        if isinstance(value, list):
            return [rename(nested, key) for nested in value]
        if isinstance(value, str) and key in ("input", "inputs", "memory", "share", "tokens", "outputs"):
            node, dot, port = value.partition(".")
            return back.get(node, node) + dot + port
        return value

    nodes = {back[name]: rename(node, "") for name, node in data["nodes"].items()}
    return parse_spec({**data, "nodes": nodes, "outputs": rename(data["outputs"], "outputs")}, catalogue)


def refusals(model: Model, texts: Mapping[str, Content] | None = None, architecture: str | None = None) -> list[str]:
    """Why transformers cannot have a model, all reasons; none if it can."""
    target = find_target(model.spec, texts or {}, load_catalogue(), architecture)
    if not target.reasons:
        return []
    more = [f"{len(target.reasons) - MOST_REASONS} more differences"] if len(target.reasons) > MOST_REASONS else []
    nearest = f" ({target.architecture}, the nearest class)" if target.architecture else ""
    return [f"{reason}{nearest}" for reason in target.reasons[:MOST_REASONS]] + more


def write(
    model: Model,
    texts: Mapping[str, Content],
    directory: Path,
    *,
    architecture: str | None = None,
    shard_bytes: int = 5_000_000_000,
) -> dict[str, FileRecord]:
    """Write a model and its other files, tokenisers and what an import kept, into an empty directory; by default as the class
    of transformers that was imported, or the first that fits. Returns size and digest of the files of weights, none above
    `shard_bytes`. Raises InputError if transformers cannot have the model, and OSError."""
    catalogue = load_catalogue()
    target = find_target(model.spec, texts, catalogue, architecture)
    if target.reasons:
        raise InputError([Diagnostic("TFK127", reason) for reason in refusals(model, texts, architecture)])
    state = model.state_dict()
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    _write_json(directory / CONFIG, {**_configuration(target, texts), **({} if target.origin else {"dtype": dtype})})
    for name in target.origin.files if target.origin else ():
        if name not in texts:
            raise StoreError(_altered(f"it lists {name[:80]}, which the model does not have"))
        write_content(child(directory, name), texts[name])
    if "tokeniser.json" in texts and not target.origin:
        try:
            files = tokeniser_files(content_bytes(texts["tokeniser.json"], TOKENISER_BYTES), target.config)
        except (AttributeError, LookupError, TypeError, ValueError):
            message = "tokeniser.json holds no tokeniser that `tfkit train` wrote"
            raise StoreError(Diagnostic("TFK082", message, "it was altered")) from None
        for name, content in files.items():
            _write_json(directory / name, content)
    generation = target.origin.generation if target.origin else _generation(target, graph_of(model.spec))
    if generation:
        _write_json(directory / GENERATION, generation)
    kept = unpack(texts) if target.origin else {}
    return _write_weights(target, _renamed(model.spec, target.names, catalogue), state, dtype, kept, directory, shard_bytes)


def _configuration(target: Target, texts: Mapping[str, Content]) -> dict[str, Any]:
    """The configuration with the class that goes out, and the names of its labels."""
    config = {"model_type": target.map_file.model_type_of(target.architecture), **target.config}
    if (config.get("architectures") or [None])[0] != target.architecture:  # the import chose another class than the file
        config["architectures"] = [target.architecture]
    text = next((texts[name] for name in (LABELS, PAIR_LABELS) if name in texts), None)
    if text is None:
        return config
    try:
        names = {str(number): name for number, name in enumerate(parse_json(content_bytes(text)))}
    except (TypeError, ValueError):
        raise StoreError(Diagnostic("TFK082", "the file of labels holds no list of texts", "it was altered")) from None
    default = {number: f"LABEL_{number}" for number in names}
    if names == (config.get("id2label") or default) or (names == default and target.origin):
        return config
    config.pop("num_labels", None)
    return {**config, "id2label": names, "label2id": {name: int(number) for number, name in names.items()}}


def _write_json(path: Path, data: Any) -> None:
    """In the form of transformers, whose files go out as they came in."""
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n", encoding="utf-8")


def tokeniser_files(text: str | bytes, config: Mapping[str, Any]) -> dict[str, Any]:
    """A tokeniser that `tfkit train` wrote, as transformers reads it. One of its own ends a source with the end token."""
    tokeniser = parse_json(text, values=TOKENISER_VALUES)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if "tokenizer" in tokeniser:  # an imported one, which a model was trained with
        settings |= {f"{role}_token": token for role, token in tokeniser["roles"].items()}
        return {"tokenizer.json": tokeniser["tokenizer"], "tokenizer_config.json": settings}
    pieces = {token["id"]: token["content"] for token in tokeniser["added_tokens"]}
    special = {
        f"{name}_token": pieces[config[f"{name}_token_id"]]
        for name in ("pad", "bos", "eos")
        if config.get(f"{name}_token_id") in pieces
    }
    if config.get("is_encoder_decoder", "decoder_start_token_id" in config) and "eos_token" in special:
        end, number = special["eos_token"], config["eos_token_id"]
        tokeniser["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {end: {"id": end, "ids": [number], "tokens": [end]}},
        }
    return {"tokenizer.json": tokeniser, "tokenizer_config.json": {**settings, "unk_token": "<unk>", **special}}


def _generation(target: Target, graph: Any) -> dict[str, Any]:
    """The ids that generation needs, of a model that generates."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    causal = any(getattr(node.options, "causal", False) for node in graph.nodes.values())
    return {key: target.config[key] for key in keys if target.config.get(key) is not None} if causal else {}


def _write_weights(
    target: Target,
    spec: ModelSpec,
    state: Mapping[str, Any],
    dtype: str,
    kept: Mapping[str, torch.Tensor],
    directory: Path,
    shard_bytes: int,
) -> dict[str, FileRecord]:
    map_prefix, origin = target.map_file.architectures[target.architecture].prefix, target.origin
    prefix = origin.prefix if origin else map_prefix
    rules, without = rules_for(target.map_file, target.architecture, spec, prefix, target.config)
    if without:
        raise InputError([Diagnostic("TFK127", f"`{name}` has no place in {target.architecture}") for name in without])
    spelling = origin.spelling if origin else {}
    tensors = {spelling.get(rule.theirs, rule.theirs): rule for rule in rules}
    if len(tensors) < len(rules):
        raise StoreError(_altered("`spelling` gives a tensor the name of another"))
    tied = {spelling.get(name, name): spelling.get(other, other) for name, other in (origin.tied if origin else {}).items()}
    values = configuration(target.map_file, target.config)
    constants = {
        prefix + name.removeprefix(map_prefix): constant(function, values)
        for name, function in target.map_file.constants.items()
    }
    if origin and origin.computed is not None:
        constants = {name: array for name, array in constants.items() if name in origin.computed}
    shapes = {name: rule.stored for name, rule in tensors.items()}
    if unknown := sorted(set(tied.values()) - set(shapes)):
        raise StoreError(_altered(f"it ties a tensor to {unknown[0][:80]}, which the model does not have"))
    shapes |= {name: shapes[other] for name, other in tied.items()} | {name: array.shape for name, array in constants.items()}

    if weights := sorted(kept.keys() & (tensors.keys() | tied.keys())):
        raise StoreError(altered(f"it holds {weights[0][:80]}, which is a weight of the model"))
    shapes |= {name: tuple(tensor.shape) for name, tensor in kept.items()}

    def read(name: str) -> memoryview:
        if name in kept:
            return _bytes(kept[name])
        if name in constants:
            bits = converted(constants[name].view(np.uint64), "float64", dtype)
            return np.ascontiguousarray(bits).data
        rule = tensors[tied.get(name, name)]
        return contiguous(rule.export([_bits(state[_ours(ours, target.names)]) for ours in rule.ours])).data

    shards = (origin.shards if origin else None) or _shards(shapes, dtype, shard_bytes)
    if missing := sorted(set(shapes) - set(shards)):
        raise StoreError(_altered(f"it names no file for {missing[0][:80]}"))
    records = {}
    for file in sorted(set(shards.values())):
        mine = {
            name: (str(kept[name].dtype).removeprefix("torch.") if name in kept else dtype, shapes[name])
            for name in shapes
            if shards[name] == file
        }
        records[file] = write_tensors(child(directory, file), mine, read, {"format": "pt"})
    if len(set(shards.values())) > 1:
        total = sum(int(np.prod(shape)) for shape in shapes.values())
        more = sum(tensor.nbytes - tensor.numel() * getattr(torch, dtype).itemsize for tensor in kept.values())
        size = total * getattr(torch, dtype).itemsize + more
        index = {"metadata": {"total_parameters": total, "total_size": size}, "weight_map": dict(sorted(shards.items()))}
        _write_json(directory / INDEX, index)
    return records


def _ours(name: str, names: Mapping[str, str]) -> str:
    """The name of a parameter below the model's own name of its node."""
    head, node, rest = name.split(".", 2)
    return f"{head}.{names.get(node, node)}.{rest}"


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def _bits(tensor: torch.Tensor) -> Any:
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    return tensor.detach().cpu().contiguous().view(whole).numpy()


def _shards(shapes: Mapping[str, tuple[int, ...]], dtype: str, limit: int) -> dict[str, str]:
    """The file of every tensor, filled in the order of their names."""
    size, parts, used = getattr(torch, dtype).itemsize, [[]], 0  # type: ignore[var-annotated]
    for name in sorted(shapes):
        bytes_ = int(np.prod(shapes[name])) * size
        if parts[-1] and used + bytes_ > limit:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += bytes_
    if len(parts) == 1:
        return dict.fromkeys(parts[0], WEIGHTS)
    return {name: f"model-{number:05}-of-{len(parts):05}.safetensors" for number, part in enumerate(parts, 1) for name in part}
