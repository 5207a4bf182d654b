"""From `config.json` to a spec, by the template of a weight map, and back.

The template is a spec in which `$key` stands for a value. For the way back it is filled with some configuration and resolved.
Each value of a resolved spec knows where it was written. So the place of every `$key` is found, and the given spec is read
there. The configuration that was read is then made a spec once more. All its differences from the given spec are reasons to
refuse that one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError, SpecError
from ..graph import graph_of
from ..spec import ModelSpec, parse_spec, resolved
from ..spec.located import Located, short
from .derived import PAIRS, label_count
from .weight_map import MapFile, merged

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu",
    "relu2": "relu_squared", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "tanh": "tanh",
}  # fmt: skip
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
TABLES: Mapping[str, Mapping[Any, Any]] = {"activations": ACTIVATIONS, "gated": GATED}
"""Tables of values that several maps name."""
_COMMON = (
    "architectures model_type _name_or_path transformers_version torch_dtype dtype use_cache output_attentions return_dict "
    "output_hidden_states id2label label2id problem_type initializer_range initializer_factor init_std chunk_size_feed_forward "
    "_num_labels task_specific_params max_length min_length num_beams no_repeat_ngram_size early_stopping length_penalty "
    "prefix gradient_checkpointing finetuning_task attn_implementation _attn_implementation forced_eos_token_id "
    "forced_bos_token_id bad_words_ids _commit_hash auto_map classifier_dropout sep_token_id cls_token_id unk_token_id "
    "is_encoder_decoder normalize_before normalize_embedding static_position_embeddings extra_pos_embeddings "
    "pretraining_tp add_bias_logits add_final_layer_norm _attn_implementation_autoset do_sample tokenizer_class num_labels "
    "torchscript use_bfloat16 output_past eos_token_ids num_return_sequences top_k top_p temperature repetition_penalty "
    "num_beam_groups diversity_penalty typical_p encoder_no_repeat_ngram_size remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens return_dict_in_generate output_scores "
    "tf_legacy_loss"
)
WITHOUT_EFFECT = frozenset(_COMMON.split())
"""Keys of every configuration that change nothing of what a model computes from ids."""
SEARCH = {
    "bad_words_ids": None, "do_sample": False, "early_stopping": False, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0,
    "num_beams": 1, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
}  # fmt: skip
"""Keys of old configurations about how text is generated, with the defaults of transformers then."""
REFUSED = {
    "pruned_heads": "a spec has as many heads in each layer of a kind, and none is left out",
    "quantization_config": "the weights of quantised models are not read; save the model in float32, bfloat16 or float16",
}
"""Keys of every configuration that change what a model computes, unless they are empty."""
UNCOMPARED = frozenset({"init", "checkpoint", "backend", "name", "dropout"})
"""Fields of a spec with which a model of the same weights gives the same outputs."""
Values = dict[str, Any]


def configuration(map_file: MapFile, written: Mapping[str, Any]) -> Values:
    """The keys that the map names, with its defaults and fallbacks. A key in a section is `section.key`."""
    values = {}
    for key, default in map_file.config.items():
        value: Any = written
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        values[key] = default if value is _ABSENT else value
    values |= {key: values[key][0] for key in several_ends(values)}
    values |= dict.fromkeys(beyond_vocabulary(values))
    for key, source in map_file.fallback.items():
        factor, _, name = source.rpartition(" * ")
        if values[key] is None and isinstance(values[name], (int, str)):
            values[key] = values[name] * int(factor) if factor else values[name]
    for key in map_file.choose:
        first, equal, second = key.partition(" == ")
        if equal:
            values[key] = values[first] == values[second]
    return values


_ABSENT = object()


def several_ends(values: Mapping[str, Any]) -> list[str]:
    """The keys with several end tokens. A spec has one, the first."""
    return [key for key, ids in values.items() if key.endswith("eos_token_id") and isinstance(ids, list) and ids]


def beyond_vocabulary(values: Mapping[str, Any]) -> dict[str, int]:
    """By key whose special token has an id that the vocabulary does not have, -1 for instance, the size of the vocabulary."""
    sizes = {key: values.get(f"{key.rpartition('.')[0]}.vocab_size".lstrip(".")) for key in values if key.endswith("_token_id")}
    return {
        key: size
        for key, size in sizes.items()
        if type(size) is type(values[key]) is int and size > 0 and not 0 <= values[key] < size
    }


def with_flags(map_file: MapFile, architecture: str, written: Mapping[str, Any], tensors: Container[str]) -> Values:
    """A configuration with what the files say beside it."""
    config = {**map_file.architectures[architecture].config, **written}
    values = configuration(map_file, config)
    return config | {key: flag.tensor in tensors and not values[flag.unless] for key, flag in map_file.flags.items()}


def ignored_keys(map_file: MapFile, written: Mapping[str, Any], architecture: str) -> dict[str, str]:
    """The keys of a configuration that say something and are not read, with the reason."""
    reasons = {
        key: f"the vocabulary has no such id: it has {size:,}"
        for key, size in beyond_vocabulary({**map_file.config, **written}).items()
        if key in written
    }
    if written.get("auto_map"):
        reasons["auto_map"] = (
            f"it names Python code, which is never run; if that code is not {architecture} of transformers, the import is "
            "another model"
        )
    for key in several_ends(written):
        reasons[key] = (
            f"of {len(written[key])} end tokens a spec has the first, {short(str(written[key][0]))}; a search stops there alone"
        )
    named, numbered = written.get("id2label") or {}, written.get("label2id") or {}
    if named and label_count(written) != len(named):
        reasons["id2label"] = f"it has {len(named)} names, and `num_labels` is {label_count(written)}"
        reasons |= {"label2id": reasons["id2label"]} if numbered else {}
    elif numbered and {str(number): label for label, number in numbered.items()} != named:
        reasons["label2id"] = "it is not the reverse of `id2label`, which names the classes"
    searched = {
        key: "it is a setting of a search, which options of a command set"
        for key, default in SEARCH.items()
        if written.get(key, default) not in (default, None, [])
    }
    return {**reasons, **searched}


def unknown_keys(map_file: MapFile, written: Mapping[str, Any]) -> list[str]:
    """The keys of a configuration that the map does not know. They may change what the model computes."""
    known = {*map_file.config, *map_file.only, *map_file.unused, *WITHOUT_EFFECT}
    known |= {key for derived in map_file.derived.values() for key in derived.keys}
    sections = {key.split(".")[0] for key in known if "." in key}
    flat = [key for key in written if key not in sections]
    inner = [f"{section}.{key}" for section in sections for key in written.get(section) or {}]
    empty = {key for key in flat if written[key] in (None, [], {})}
    return [key for key in flat + inner if key not in known | empty and key.rpartition(".")[2] not in WITHOUT_EFFECT]


def spec_of(map_file: MapFile, architecture: str, written: Mapping[str, Any], catalogue: Catalogue, where: str) -> ModelSpec:
    """The spec of a configuration, the content of `config.json`, with the map and the class of transformers. Raises InputError
    for all values that no spec can say, at once, with the file `where`."""
    written = {**map_file.architectures[architecture].config, **written}
    values = configuration(map_file, written)
    problems = [
        f"`{key}` is {_shown(written[key])}, and a spec can only say {_shown(only)}"
        for key, only in map_file.only.items()
        if key in written and written[key] not in (only, None)
    ]
    problems += [f"`{key}` is {_shown(written[key])}: {reason}" for key, reason in REFUSED.items() if written.get(key)]
    template = _template(map_file, architecture, values, problems)
    for name, derived in map_file.derived.items():
        config = _Read({**written, **values})
        try:
            values[f"={name}"] = PAIRS[derived.function].forward(config)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
            written_here = {key: written[key] for key in (*derived.keys, *config.read) if written.get(key) is not None}
            problems.append(_reason(reason, written_here or dict.fromkeys(derived.keys)))
    filled = _filled(template, values, map_file, problems)
    if not problems:
        try:
            spec = parse_spec({"tfkit": 1, "name": map_file.name, "reference": map_file.reference, **filled}, catalogue)
            graph_of(spec)
            return spec
        except SpecError as error:
            problems += [_in_words_of(template, diagnostic) for diagnostic in error.diagnostics]
    raise InputError([Diagnostic("TFK142", f"{where}: {problem}") for problem in dict.fromkeys(problems)])


def _in_words_of(template: dict[str, Any], diagnostic: Diagnostic) -> str:
    """The message about a spec with the keys of the configuration that gave its values."""
    keys = dict(_placeholders(template, ""))
    by_name: dict[str, set[str]] = {}
    for path, key in keys.items():
        by_name.setdefault(path.rpartition(".")[2], set()).add(key)

    def named(match: re.Match[str]) -> str:
        known = by_name.get(match[1], set()) if "_" in match[1] else set()
        return f"`{min(known)}`" if len(known) == 1 else match[0]

    place = f"`{keys[diagnostic.path]}`" if diagnostic.path in keys else diagnostic.path
    return f"{place}: {re.sub(r'`?([a-z_]+)`?', named, diagnostic.message)}"


def _placeholders(template: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every path of a template whose value a key of the configuration gives, and that key."""
    if isinstance(template, dict):
        for name, value in template.items():
            yield from _placeholders(value, f"{path}.{name}" if path else name)
    elif isinstance(template, str) and template.startswith("$") and not template.startswith("$="):
        yield path, template[1:]


class _Read(dict[str, Any]):
    """A configuration that notes which of its keys are read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.read: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        self.read[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read[key] = None
        return super().get(key, default)


def _reason(reason: Exception, keys: Mapping[str, Any]) -> str:
    """Why a part of a spec cannot be made from these keys."""
    names = ", ".join(f"`{key}`" for key in keys)
    if isinstance(reason, KeyError):
        return f"{names}: {reason} is missing"
    if isinstance(reason, ValueError) and str(reason).startswith("`"):
        return f"{names}: {reason}"
    arithmetic = isinstance(reason, ArithmeticError)
    values = [f"`{key}` is {_shown(value)}" for key, value in keys.items() if not arithmetic or isinstance(value, (int, float))]
    return f"{', '.join(values)}; transformers writes {'other numbers' if arithmetic else 'values of another type'}"


def _shown(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) or value is None else short(str(value))}`"


def _template(map_file: MapFile, architecture: str, values: Values, problems: list[str]) -> dict[str, Any]:
    """The spec of the map with the parts of the architecture and of the chosen values."""
    template: dict[str, Any] = merged(map_file.spec, map_file.architectures[architecture].spec)
    for key, choices in map_file.choose.items():
        if _among(values[key], choices):
            template = merged(template, choices[values[key]])
        else:
            problems.append(f"`{key}` is {_shown(values[key])}; a spec says {', '.join(_shown(choice) for choice in choices)}")
    return template


def _among(value: Any, table: Mapping[Any, Any]) -> bool:
    """Whether a value is a key of a table. Lists and objects never are, and 1 is not true."""
    return any(value == key and isinstance(value, bool) is isinstance(key, bool) for key in table)


def _table(map_file: MapFile, key: str) -> Mapping[Any, Any] | None:
    table = map_file.values.get(key)
    return TABLES[table] if isinstance(table, str) else table


def _filled(template: Any, values: Values, map_file: MapFile, problems: list[str]) -> Any:
    """The template with values for `$key`. A key of a mapping whose value is null is left out."""
    if isinstance(template, dict):
        inner = {key: _filled(value, values, map_file, problems) for key, value in template.items()}
        return {key: value for key, value in inner.items() if value is not None}
    if isinstance(template, list):
        return [_filled(value, values, map_file, problems) for value in template]
    if not (isinstance(template, str) and template.startswith("$")):
        return template
    key = template[1:]
    value, table = values.get(key), _table(map_file, key)
    if table is None:
        return value
    if not _among(value, table):
        problems.append(f"`{key}` is {_shown(value)}; a spec says {', '.join(_shown(choice) for choice in table)}")
        return None
    return table[value]


def leaves(spec: ModelSpec) -> dict[str, Any]:
    """The leaves of a resolved spec by path, every layer on its own, widths and scales of heads as numbers."""
    graph = graph_of(spec)
    values = {
        path: value for path, value, _ in _walk({"nodes": resolved(spec)["nodes"], "outputs": list(spec.outputs)}, None, "")
    }
    for name, site in graph.sites():
        node, number, sublayer = name.split(".")
        at = f"nodes.{node}.layers.{number}.sublayers.{sublayer}"
        if f"{at}.num_heads" in values:
            values[f"{at}.head_dim"], values[f"{at}.num_kv_heads"] = site.head_dim, site.kv_heads
            if values.get(f"{at}.scale") == "inverse_sqrt_head_dim":
                values[f"{at}.scale"] = site.head_dim**-0.5
    return values


def _origins(spec: ModelSpec) -> dict[str, list[str]]:
    """By the path where a value was written, the paths of its leaves."""
    origins: dict[str, list[str]] = {}
    data = {"nodes": resolved(spec)["nodes"], "outputs": list(spec.outputs)}
    for path, _, origin in _walk(data, spec._tree, ""):
        if origin is not None:
            origins.setdefault(origin, []).append(path)
    return origins


def _walk(data: Any, written: Located | None, path: str) -> Iterator[tuple[str, Any, str | None]]:
    """The leaves of resolved data: path, value, and where the value was written."""
    if isinstance(data, dict):
        scalar = written is not None and not written.mapping
        for key, value in data.items():
            inner = written if scalar and key == "kind" else written.get(key) if written is not None else None
            place = f"{path}.{key}" if path else key
            if key == "layers" and isinstance(value, list):
                layers = list(_layers(value, inner))
                repeat = inner.items[0].get("repeat") if inner is not None and len(inner.items) == 1 else None
                yield f"{place}.length", len(layers), repeat.path if repeat is not None else None
                for number, (layer, where) in enumerate(layers):
                    yield from _walk(layer, where, f"{place}.{number}")
            elif key == "sublayers":
                for number, part in enumerate(value):
                    where = inner.items[number] if inner is not None and number < len(inner.items) else None
                    yield from _walk(part, where, f"{place}.{part['name']}")
            else:
                yield from _walk(value, inner, place)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            inner = written.items[number] if written is not None and number < len(written.items) else None
            yield from _walk(value, inner, f"{path}.{number}")
    else:
        if written is not None and written.mapping:
            written = written.get("kind")
        yield path, data, written.path if written is not None else None


def _layers(items: list[Any], written: Located | None) -> Iterator[tuple[Any, Located | None]]:
    """Every layer of a pattern, without `repeat`."""
    for number, item in enumerate(items):
        where = written.items[number] if written is not None and number < len(written.items) else None
        for _ in range(item.get("repeat", 1)):
            if "layers" in item:
                yield from _layers(item["layers"], where.get("layers") if where is not None else None)
            else:
                yield {key: value for key, value in item.items() if key != "repeat"}, where


def config_of(
    map_file: MapFile, architecture: str, spec: ModelSpec, catalogue: Catalogue, known: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The configuration of a spec that has the map's names of nodes, the inverse of `spec_of`. Values of `known` are kept where
    they give this spec. Also the differences of its spec from the given one: reasons why the configuration cannot say it."""
    wanted, base = leaves(spec), dict(known or {})
    for flagged in ({**base, **dict.fromkeys(map_file.flags, value)} for value in (False, True)):
        if known and _distance(map_file, architecture, flagged, wanted, catalogue) == 0:
            return base, []
    values = configuration(map_file, base)
    for _ in range(2):  # the second time with the parts that the values of the first choose
        for key, choices in map_file.choose.items():
            if " == " not in key:
                trials = {choice: {**base, **values, key: choice} for choice in choices}
                values[key] = min(
                    trials, key=lambda choice: _distance(map_file, architecture, trials[choice], wanted, catalogue)
                )
        for name, derived in map_file.derived.items():
            node = f"nodes.{derived.node}."
            below = {path.removeprefix(node): value for path, value in wanted.items() if path.startswith(node)}
            try:
                read = PAIRS[derived.function].inverse(below, values) if below else {}
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
                return {}, [f"{name}: {reason} is missing" if isinstance(reason, KeyError) else f"{name}: {reason}"]
            base |= read
        values |= _read(map_file, architecture, _sections({**values, **base}), wanted, catalogue)
        values |= {key: value for key, value in base.items() if key in values and key in _read_keys(map_file)}
        values = {key: value for key, value in values.items() if " == " not in key}
        values = configuration(map_file, _sections(values))
    values = {key: value for key, value in values.items() if " == " not in key}
    nullable = {*map_file.probe, *map_file.fallback}
    values = {key: value if value is not None or key in nullable else map_file.config[key] for key, value in values.items()}
    kind = {"architectures": [architecture], "model_type": base.get("model_type", map_file.model_type_of(architecture))}
    written = _sections({**map_file.only, **base, **values, **kind})
    try:
        actual = leaves(spec_of(map_file, architecture, written, catalogue, "the configuration"))
    except InputError as error:
        return {}, [diagnostic.message for diagnostic in error.diagnostics]
    unsaid = {*map_file.flags, *map_file.architectures[architecture].config}
    return {key: value for key, value in written.items() if key not in unsaid}, _differences(actual, wanted)


def _read_keys(map_file: MapFile) -> set[str]:
    """The keys that derived values give."""
    return {key for derived in map_file.derived.values() for key in derived.keys}


def _distance(map_file: MapFile, architecture: str, values: Values, wanted: Mapping[str, Any], catalogue: Catalogue) -> int:
    try:
        return len(_differences(leaves(spec_of(map_file, architecture, _sections(values), catalogue, "")), wanted))
    except (InputError, SpecError):
        return 1 << 30


def _read(map_file: MapFile, architecture: str, values: Values, wanted: Mapping[str, Any], catalogue: Catalogue) -> Values:
    """The values of all keys that stand in the template, read from the leaves of a spec."""
    filled = configuration(map_file, values)
    filled |= {key: probe for key, probe in map_file.probe.items() if filled.get(key, 0) is None}
    try:
        origins = _origins(spec_of(map_file, architecture, {**values, **_sections(filled)}, catalogue, ""))
    except (InputError, SpecError):
        return {}
    values, read_values = configuration(map_file, values), {}
    for key, path in _keys(_template(map_file, architecture, configuration(map_file, _sections(filled)), []), ""):
        if key not in map_file.config or not (places := origins.get(path)):
            continue
        value, table = next((wanted[place] for place in places if place in wanted), None), _table(map_file, key)
        if table is not None:
            same = [theirs for theirs, ours in table.items() if ours == value] or [values[key]]
            value = values[key] if values[key] in same else same[0]
        read_values[key] = value
    return read_values


def _keys(template: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each `$key` of a template with its path."""
    if isinstance(template, dict):
        for name, value in template.items():
            yield from _keys(value, f"{path}.{name}" if path else name)
    elif isinstance(template, list):
        for number, value in enumerate(template):
            yield from _keys(value, f"{path}.{number}")
    elif isinstance(template, str) and template.startswith("$"):
        yield template[1:], path


def _sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys `section.key` as mappings."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section:
            nested[section] = {**(nested.get(section) or {}), name: value}
        elif not (key in nested and isinstance(value, dict)):
            nested[key] = value
    return nested


def _differences(actual: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Where two specs differ in what a model computes."""
    no = "nothing"
    searched = any(path.endswith(".causal") and value for path, value in wanted.items())
    unread = () if searched else ("start_id", "end_id")  # ids that searches alone read
    return [
        f"`{path.removeprefix('nodes.')}` = {_shown(wanted.get(path, no))}, where it has {_shown(actual.get(path, no))}"
        for path in sorted({*actual, *wanted})
        if path.rpartition(".")[2] not in UNCOMPARED
        and not (path.endswith(unread) and path not in actual)
        and ".init." not in path
        and actual.get(path) != wanted.get(path)
    ]
