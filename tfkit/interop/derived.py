"""Values of a spec that several keys of a configuration give, and the keys from the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]
Values = Mapping[str, Any]
"""The leaves of a resolved spec by path."""


@dataclass(frozen=True)
class Pair:
    """A value of the spec, from a configuration (ValueError for what no spec says), and its inverse, from the leaves below the
    node in a resolved spec to keys of the configuration."""

    forward: Callable[[Config], Any]
    inverse: Callable[[Values, Config], dict[str, Any]]


ROTARY_KEYS = frozenset(
    {
        "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
        "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "truncate", "mscale",
        "mscale_all_dim", "short_factor", "long_factor",
    }
)  # fmt: skip


def _number(*values: Any) -> float:
    """The first of some values that is written, the last one being the default."""
    return float(next(value for value in values if value is not None))


def _rotary(config: Config) -> Any:
    """Rotary positions on whole heads: the classes of this map read no share of a head."""
    if _rotated_share(config) != 1.0:
        raise ValueError("`partial_rotary_factor` is not 1, and models of this class rotate whole heads")
    return _rotary_part(config)


def _whole_rotary_keys(values: Values, config: Config) -> dict[str, Any]:
    if (dims := values.get("layers.0.position.dims")) not in (None, values["layers.0.sublayers.self_attention.head_dim"]):
        raise ValueError(f"`dims` is {dims}, and models of this class rotate whole heads")
    return _rotary_keys(values, config)


def _rope(config: Config) -> dict[str, Any]:
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _rotated_share(config: Config) -> float:
    """The share of a head that is rotated."""
    return _number(
        _rope(config).get("partial_rotary_factor"), config.get("partial_rotary_factor"), config.get("rotary_pct"), 1.0
    )


def _rotary_part(config: Config) -> Any:
    """`rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` before."""
    if config.get("rope_parameters") and config.get("rope_scaling"):
        raise ValueError("`rope_scaling` is written beside `rope_parameters`, and one of them counts")
    written = _rope(config)
    if other := written.keys() - ROTARY_KEYS:
        raise ValueError(f"`{min(other)}` is unknown")
    kind = written.get("rope_type", written.get("type", "default"))
    position: dict[str, Any] = {
        "kind": "rotary_half",
        "base": _number(written.get("rope_theta"), config.get("rope_theta"), 1e4),
    }
    share = _rotated_share(config)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if share != 1.0:
        position["dims"] = int(head_dim * share)
    if kind == "default":
        return position
    trained = written.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    if kind == "llama3":
        factors = {
            "factor": float(written["factor"]),
            "low": float(written["low_freq_factor"]),
            "high": float(written["high_freq_factor"]),
        }
        return {**position, "scaling": {"kind": "llama3", **factors, "trained_len": trained}}
    if kind == "linear":
        return {**position, "scaling": {"kind": "linear", "factor": float(written["factor"])}}
    raise ValueError(f"`rope_type` is `{kind}`; a spec says default, linear and llama3")


def _rotary_keys(values: Values, config: Config) -> dict[str, Any]:
    at = "layers.0.position"
    if values.get(at) is not None and values[at] != "rotary_half":
        raise ValueError(f"the position scheme is `{values[at]}`, not rotary_half")
    written: dict[str, Any] = {"rope_theta": values.get(f"{at}.base", 10000.0), "rope_type": "default"}
    if (dims := values.get(f"{at}.dims")) is not None:
        written["partial_rotary_factor"] = dims / values["layers.0.sublayers.self_attention.head_dim"]
    if (kind := values.get(f"{at}.scaling.kind")) is not None:
        written |= {"rope_type": kind, "factor": values.get(f"{at}.scaling.factor")}
        if kind == "llama3":
            scaling = {"low_freq_factor": "low", "high_freq_factor": "high", "original_max_position_embeddings": "trained_len"}
            written |= {theirs: values.get(f"{at}.scaling.{ours}") for theirs, ours in scaling.items()}
    return {"rope_parameters": written}


def _alternating_windows(config: Config) -> Any:
    """Layers that see a window, and layers that see all, in turn unless `layer_types` says otherwise."""
    return _windows(config, ("sliding_attention", "full_attention"))


def _layer_windows(config: Config) -> Any:
    """Layers that see all, unless `layer_types` says otherwise."""
    return _windows(config, ("full_attention",))


MAX_LAYERS = 10_000
"""At most this many layers are listed one by one."""


def _layer_count(config: Config) -> int:
    number = config["num_hidden_layers"]
    if not isinstance(number, int) or number > MAX_LAYERS:
        raise ValueError(f"`num_hidden_layers` is {str(number)[:20]}; a whole number up to {MAX_LAYERS:,} is expected")
    return number


def _windows(config: Config, pattern: tuple[str, ...]) -> Any:
    window, number = config.get("sliding_window"), _layer_count(config)
    kinds = config.get("layer_types") or [pattern[layer % len(pattern)] for layer in range(number)]
    if len(kinds) != number:
        raise ValueError(f"`layer_types` has {len(kinds)} entries for {number} layers")
    known = {"sliding_attention": {"self_attention": {"window": window}}, "full_attention": {}}
    if unknown := sorted({*kinds} - {*known}):
        raise ValueError(f"`layer_types` has `{unknown[0]}`; a spec says {' and '.join(known)}")
    return [known[kind] for kind in kinds]


def _window_keys(values: Values, config: Config) -> dict[str, Any]:
    number = values["layers.length"]
    windows = [values.get(f"layers.{layer}.sublayers.self_attention.window") for layer in range(number)]
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise ValueError(f"windows of {', '.join(map(str, sorted(sizes)))} keys differ; the configuration has one size")
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"num_hidden_layers": number, "layer_types": kinds, **({"sliding_window": sizes.pop()} if sizes else {})}


def _power(config: Config) -> Any:
    return float(config["query_pre_attn_scalar"]) ** -0.5


def _power_key(values: Values, config: Config) -> dict[str, Any]:
    scale = values["layers.0.sublayers.self_attention.scale"]
    scalar = scale**-2
    return {"query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar}


def _modernbert_layers(config: Config) -> Any:
    """The first attention has no norm, so that their first layer is two of ours. Local layers have another base."""
    kinds, number = config.get("layer_types"), _layer_count(config)
    if kinds is None:
        every = config.get("global_attn_every_n_layers") or 3
        kinds = ["sliding_attention" if layer % every else "full_attention" for layer in range(number)]
    if len(kinds) != number or kinds[0] != "full_attention":
        raise ValueError(f"`layer_types` starts with `{kinds[0]}` and has {len(kinds)} entries for {number} layers")
    half = config["local_attention"] // 2
    bases = config.get("rope_parameters") or {}
    local = _number(bases.get("sliding_attention", {}).get("rope_theta"), config.get("local_rope_theta"), 10000.0)
    window = {"position": {"base": local}, "attention": {"window": [half, half]}}
    first = [{"placement": "none", "sublayers": ["self_attention"]}, {"sublayers": ["ffn"]}]
    return [*first, *(window if kind == "sliding_attention" else {} for kind in kinds[1:])]


def _modernbert_base(config: Config) -> Any:
    bases = config.get("rope_parameters") or {}
    return _number(bases.get("full_attention", {}).get("rope_theta"), config.get("global_rope_theta"), 160000.0)


def _modernbert_keys(values: Values, config: Config) -> dict[str, Any]:
    number = values["layers.length"] - 1
    windows = [values.get(f"layers.{layer + 1}.sublayers.self_attention.window.0") for layer in range(1, number)]
    local = next((layer for layer, window in enumerate(windows) if window is not None), None)
    kinds = ["full_attention", *("full_attention" if window is None else "sliding_attention" for window in windows)]
    keys: dict[str, Any] = {"num_hidden_layers": number, "layer_types": kinds}
    bases = {"full_attention": values["layers.0.position.base"]}
    if local is not None:
        keys["local_attention"] = 2 * int(windows[local] or 0)
        bases["sliding_attention"] = values[f"layers.{local + 2}.position.base"]
    return {**keys, "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}}


def _partial_rotary(config: Config) -> Any:
    """Rotary positions on a quarter of each head, unless the configuration says otherwise."""
    older = {
        "rope_theta": config.get("rotary_emb_base", config.get("rope_theta", 1e4)),
        "rotary_pct": config.get("rotary_pct", 0.25),
    }
    return _rotary_part({**config, **older})


def label_count(config: Config) -> int:
    """The number of classes. Where `num_labels` and `id2label` differ, transformers takes the first."""
    named, count = config.get("id2label"), config.get("num_labels")
    return count if type(count) is int and count > 0 else len(named or range(2))


def _label_keys(values: Values, config: Config) -> dict[str, Any]:
    names = [f"LABEL_{number}" for number in range(values["classes"])]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def _visible_positions(config: Config) -> Any:
    """Learned positions of visible tokens. The first one has the row after that of the padding id."""
    offset = config["pad_token_id"] + 1
    return {"kind": "learned", "max_len": config["max_position_embeddings"] - offset, "offset": offset, "count": "visible"}


def _position_rows(values: Values, config: Config) -> dict[str, Any]:
    return {"max_position_embeddings": values["position.max_len"] + values["position.offset"]}


def _after_padding(config: Config) -> Any:
    return config["pad_token_id"] + 1


def _t5_feed_forward(config: Config) -> None:
    """`feed_forward_proj` gives the activation and whether it is gated. Transformers reads them where they are written, too."""
    *gated, activation = str(config["feed_forward_proj"]).split("-")
    due = {"dense_act_fn": "gelu_new" if gated and activation == "gelu" else activation, "is_gated_act": gated == ["gated"]}
    for key, value in due.items():
        if config.get(key) not in (None, value):
            raise ValueError(f"`{key}` is `{config[key]}`, and `feed_forward_proj` is `{config['feed_forward_proj']}`")


def _clip_end(config: Config) -> Any:
    """Old configurations say 2, and mean the highest id."""
    written = config["text_config.eos_token_id"]
    return config["text_config.vocab_size"] - 1 if written == 2 else written


def _clip_end_key(values: Values, config: Config) -> dict[str, Any]:
    return {"text_config.eos_token_id": values["end_id"]}


def _nothing(values: Values, config: Config) -> dict[str, Any]:
    return {}


PAIRS = {
    "rotary": Pair(_rotary, _whole_rotary_keys),
    "partial_rotary": Pair(_partial_rotary, _rotary_keys),
    "alternating_windows": Pair(_alternating_windows, _window_keys),
    "layer_windows": Pair(_layer_windows, _window_keys),
    "inverse_square_root": Pair(_power, _power_key),
    "modernbert_layers": Pair(_modernbert_layers, _modernbert_keys),
    "modernbert_base": Pair(_modernbert_base, _nothing),
    "labels": Pair(label_count, _label_keys),
    "visible_positions": Pair(_visible_positions, _position_rows),
    "after_padding": Pair(_after_padding, _nothing),
    "t5_feed_forward": Pair(_t5_feed_forward, _nothing),
    "clip_end": Pair(_clip_end, _clip_end_key),
}
"""Every derived value by its name in a map."""
