"""Settings of Hugging Face's `generate`, from `generation_config.json`, as settings of a search.

A setting that is absent has the default of `generate`: greedy search, no filter, special tokens in a text. The limit of tokens,
which is 20 there, is that of tfkit. What tfkit does not have is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError
from ..io.generation_settings import GENERATION, GenerationSettings, SavedPenalty, settings_text
from ..spec.located import short
from .huggingface_directory import CONFIG, GENERATION as GENERATION_CONFIG
from .huggingface_import import ImportPlan, vocabulary_sizes

FILTERS: dict[str, tuple[str, Callable[[Any], dict[str, Any] | None]]] = {
    "repetition_penalty": ("repetition_penalty", lambda value: {"factor": float(value)} if value != 1.0 else None),
    "no_repeat_ngram_size": ("no_repeat_ngram", lambda value: {"size": value} if value else None),
    "bad_words_ids": ("bad_words", lambda value: {"sequences": value} if value else None),
    "min_new_tokens": ("min_tokens", lambda value: {"tokens": value} if value else None),
    "forced_bos_token_id": ("forced_first", lambda value: {"id": value}),
    "forced_eos_token_id": ("forced_last", lambda value: _forced_last(value if isinstance(value, list) else [value])),
    "suppress_tokens": ("suppress", lambda value: {"ids": value} if value else None),
    "begin_suppress_tokens": ("suppress_first", lambda value: {"ids": value} if value else None),
}
"""The filter of each setting and its options, in the order in which `generate` applies them; None for a value that turns it
off."""
NAMED = ("exponential_decay_length_penalty", "penalty_alpha", "sequence_bias", "guidance_scale")
"""Further settings of old configurations that tfkit does not have."""
NAMES = {"beams": "num_beams", "alpha": "length_penalty", "new_tokens": "max_new_tokens or max_length"}
"""Settings of a search that have another name there."""
READ = {
    *FILTERS, "num_beams", "do_sample", "temperature", "top_k", "top_p", "length_penalty", "early_stopping", "max_length",
    "max_new_tokens", "min_length",
}  # fmt: skip
ELSEWHERE = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config",
    "use_cache", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
}  # fmt: skip
"""Settings that the spec of a model says, and those that change no token."""
OFF: dict[str, Any] = {
    "num_return_sequences": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "remove_invalid_values": False, "renormalize_logits": False, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
"""Settings that tfkit does not have, with the value that turns each off."""


_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(ge=1)]
_Ids = int | list[int]


class _Written(BaseModel):
    """The types and the ranges of settings, also of those that the search of this file does not read. Filters and limits of
    tokens are checked further where they are made."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    num_beams: _Positive = 1
    do_sample: bool = False
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_k: _Count = 50
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    max_length: _Positive = 20
    min_length: _Count = 0
    max_new_tokens: int = 20
    min_new_tokens: _Count = 0
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = []
    forced_bos_token_id: int = 0
    forced_eos_token_id: _Ids = 0
    suppress_tokens: list[int] = []
    begin_suppress_tokens: list[int] = []
    bos_token_id: _Ids = 0
    eos_token_id: _Ids = 0
    pad_token_id: _Ids = 0
    decoder_start_token_id: _Ids = 0
    num_return_sequences: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    encoder_repetition_penalty: float = 1.0
    encoder_no_repeat_ngram_size: int = 0
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0


def _forced_last(ids: list[Any]) -> dict[str, Any] | None:
    """`generate` makes all of several ids equally probable, and takes the lowest."""
    return {"id": min(ids)} if ids else None


def settings_of(
    written: Mapping[str, Any], encoder_decoder: bool, file: str = "generation_config.json"
) -> tuple[GenerationSettings, dict[str, str]]:
    """The settings of a search, and by name why others are not carried over. `encoder_decoder`: the decoder starts with one
    token; otherwise lengths count the prompt too, and no limit says them. Raises InputError, with the file, for a value that
    `generate` does not take."""
    values = {name: value for name, value in written.items() if value is not None}
    if isinstance(values.get("bad_words_ids"), list):
        written_ends = values.get("eos_token_id")
        ends = {(end,) for end in (written_ends if isinstance(written_ends, list) else [written_ends]) if type(end) is int}
        words = values["bad_words_ids"]  # without those that end, as `generate` does
        values["bad_words_ids"] = [
            word for word in words if not (isinstance(word, list) and len(word) == 1 and (*word,) in ends)
        ]
    try:
        _Written.model_validate(values)
        return _settings(values, encoder_decoder), _left_out(values, encoder_decoder)
    except (ValidationError, TypeError, ValueError) as reason:
        words = str(reason)
        if isinstance(reason, ValidationError):
            first = reason.errors()[0]
            words = f"{NAMES.get(str(first['loc'][-1]), first['loc'][0])} is {short(repr(first['input']))}: {first['msg']}"
        raise InputError(Diagnostic("TFK142", f"{file}: {words}", "remove the setting there")) from None


def _largest_id(value: Any) -> int:
    """The largest id of a setting, an id or a list; -1 without any."""
    if isinstance(value, list):
        return max((_largest_id(one) for one in value), default=-1)
    return value if type(value) is int else -1


def _settings(values: Mapping[str, Any], encoder_decoder: bool) -> GenerationSettings:
    limits = {"min_new_tokens": values.get("min_length", 0) - 1, "max_new_tokens": values.get("max_length", 0) - 1}
    implied = {name: limit for name, limit in limits.items() if limit > 0 and encoder_decoder}  # without the start token
    values = {**implied, **values}
    if not encoder_decoder:
        values.pop("forced_bos_token_id", None)
    filters = [
        {"kind": kind, **options}
        for name, (kind, options_of) in FILTERS.items()
        if name in values and (options := options_of(values[name])) is not None
    ]
    if "forced_bos_token_id" in values:  # the first token that `generate` chooses is the one after it
        filters = [{**one, "after": 1} if one["kind"] == "suppress_first" else one for one in filters]
    common: dict[str, Any] = {"new_tokens": values.get("max_new_tokens"), "filters": filters, "special_tokens": True}
    if values.get("do_sample"):
        sampled = {name: values[name] for name in ("temperature", "top_p") if name in values}
        return GenerationSettings(kind="sample", top_k=values.get("top_k", 50) or None, **sampled, **common)
    beams = values.get("num_beams", 1)
    if beams == 1:
        return GenerationSettings(kind="greedy", **common)
    penalty = SavedPenalty(kind="power", alpha=max(0.0, float(values.get("length_penalty", 1.0))))
    stopping = {"early_stopping": values.get("early_stopping", False), "unfinished": "ranked"}
    return GenerationSettings(kind="beam", beams=beams, length_penalty=penalty, **stopping, **common)


def _left_out(values: Mapping[str, Any], encoder_decoder: bool) -> dict[str, str]:
    other = {name for name, value in values.items() if name not in READ | ELSEWHERE and OFF.get(name) != value}
    reasons = dict.fromkeys(sorted(other), "tfkit has no such setting")
    if values.get("num_beams", 1) != 1 and values.get("do_sample"):
        reasons["num_beams"] = "samples have no beams"
    elif values.get("num_beams", 1) != 1 and float(values.get("length_penalty", 1.0)) < 0:
        reasons["length_penalty"] = "it is negative, and 0 is used: a search stops by the longest hypothesis"
    if not encoder_decoder:
        for name in ("max_length", "min_length"):
            if values.get(name):
                reasons[name] = f"it counts the prompt; write {name.replace('length', 'new_tokens')}"
        if "forced_bos_token_id" in values:
            reasons["forced_bos_token_id"] = "it is for a prompt of one token, and other prompts do not read it"
    return reasons


def generation_texts(plan: ImportPlan, catalogue: Catalogue) -> dict[str, str]:
    """The file of an imported model with the settings of `generate` as those of a search. Files before 2023 have them in
    `config.json`. What tfkit reads otherwise, or lacks, is added to the plan. Raises InputError for a wrong setting."""
    file, written = GENERATION_CONFIG, plan.directory.generation
    if written is None:
        keys = {*READ, *OFF, *NAMED}
        file, written = CONFIG, {name: value for name, value in plan.directory.config.items() if name in keys}
    kinds = {node.kind for node in plan.spec.nodes.values()}
    causal = any(getattr(node.options, "causal", False) for node in plan.spec.nodes.values())
    if "token_logits" not in kinds or not causal:
        return {}
    plan.unknown = [name for name in plan.unknown if name not in {*READ, *OFF, *NAMED}]
    size = max(vocabulary_sizes(plan.spec).values())
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        ids = written.get(name)
        if isinstance(ids, list) and (beyond := [one for one in ids if type(one) is int and one >= size]):
            written = {**written, name: [one for one in ids if type(one) is not int or one < size]}
            reason = f"{len(beyond):,} of its ids are beyond the vocabulary of {size:,}"
            plan.ignored_keys[f"{file}:{name}"] = reason
    for name in ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"):
        if (largest := _largest_id(written.get(name))) >= size:
            message = f"{plan.directory.path / file}: {name} has the id {largest}, and the vocabulary has {size:,}"
            raise InputError(Diagnostic("TFK142", message, "remove the setting there"))
    decodes_memory = any(getattr(node.options, "memory", None) for node in plan.spec.nodes.values())
    special = {name: plan.directory.config.get(name) for name in ("eos_token_id",) if file == CONFIG}
    settings, left_out = settings_of({**special, **written}, decodes_memory, str(plan.directory.path / file))
    for named in settings.filters:
        try:
            catalogue.score_filter(named)
        except InputError as reason:
            name = next(name for name, (kind, _) in FILTERS.items() if kind == named["kind"])
            message = (
                f"{plan.directory.path / file}: {name} is {short(repr(written.get(name)))}: {reason.diagnostics[0].message}"
            )
            raise InputError(Diagnostic("TFK142", message, "remove the setting there")) from None
    plan.ignored_keys = {name: reason for name, reason in plan.ignored_keys.items() if name not in READ}
    plan.ignored_keys |= {f"{file}:{name}": reason for name, reason in left_out.items()}
    for name in ("eos_token_id", "decoder_start_token_id"):
        here, there = written.get(name), plan.directory.config.get(name)
        here = here[0] if isinstance(here, list) and len(here) == 1 else here
        if file == CONFIG or name in plan.ignored_keys or (name == "decoder_start_token_id" and not decodes_memory):
            continue
        if here is None and there is not None:
            does = "never ends before its limit" if name == "eos_token_id" else "starts with `bos_token_id`"
            plan.ignored_keys[f"{file}:{name}"] = f"it is absent, so `generate` {does}; the model has {there}, of {CONFIG}"
        elif here != there:
            plan.ignored_keys[f"{file}:{name}"] = f"the model has that of {CONFIG}, {there}: a search starts and ends by it"
    return {GENERATION: settings_text(settings)}
