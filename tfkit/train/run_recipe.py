"""The recipe of a run: written into its directory, and read back with the few changes that a resumed run allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import Diagnostic, InputError, Location
from ..files import write_whole
from ..recipe import FILES, Recipe, load_recipe
from .run_files import RECIPE, SPEC

CHANGEABLE = ("stopping", "keeping", "name", "description", "reference")
"""The keys of a recipe that affect neither weights nor scores. `validation.every_steps` is another."""
FIX = "what may change: `stopping`, `keeping`, `validation.every_steps`, `name`; or start a new run"
SEPARATE_DIGESTS = ("model", "changes", "pretrained", "vectors")
"""The keys whose content has a separate digest, the spec and the pretrained weights, or is read before the first step alone."""
FIXED = {
    "model": f"the spec of a run is its {SPEC}, and the weights belong to it",
    "data": "the data were read at the start of the run",
    "tokeniser": "the tokenisers were trained at the start of the run",
    "pretrained": "the weights were loaded at the start of the run",
    "vectors": "the vectors were read at the start of the run",
    "pretrained_share": "the weights were loaded at the start of the run",
}
"""The reason why a change of these keys has no effect on a resumed run. All other keys affect the weights or the scores."""


def write_recipe(recipe: Recipe, directory: Path) -> None:
    """Write a recipe with absolute file names into the directory of its run. Raises StoreError."""
    written = recipe.written()
    written["model"] = SPEC
    data = {"kind": recipe.data.kind} | recipe.data.options.model_dump(exclude_none=True)
    written["data"] = _with_absolute_files(data)
    written.pop("changes", None)
    if recipe.vectors is not None:
        written["vectors"] = {node: str(Path(file).absolute()) for node, file in recipe.vectors.items()}
    if recipe.data.kind == "images":
        del written["tokeniser"]
    if recipe.pretrained is not None:
        written["pretrained"] = str(Path(recipe.pretrained).absolute())
        # The tokenisers are those of the pretrained model; the defaults of the recipe would not describe them.
        del written["tokeniser"]
        if keys := recipe.written_keys("tokeniser"):
            keys |= {name: value for name, value in recipe.tokeniser.options.model_dump(mode="json").items() if name in keys}
            if isinstance(keys.get("extend"), str):
                keys["extend"] = str(Path(keys["extend"]).absolute())
            written["tokeniser"] = {"kind": recipe.tokeniser.kind, **keys}
    write_whole(directory / RECIPE, yaml.safe_dump(written, sort_keys=False, allow_unicode=True))


def _with_absolute_files(data: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `data`, or of one of its corpora, with absolute file names."""
    written: dict[str, Any] = {
        key: str(Path(value).absolute()) if key in FILES and value else value for key, value in data.items()
    }
    if "corpora" in written:
        written["corpora"] = [_with_absolute_files(corpus) for corpus in written["corpora"]]
    return written


def _without_files(data: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `data`, or of one of its corpora, that are no files and no rows of them."""
    written = {key: value for key, value in data.items() if key not in FILES and key != "held_out"}
    if "corpora" in written:
        written["corpora"] = [_without_files(corpus) for corpus in written["corpora"]]
    return written


def read_recipe(directory: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run to resume. Raises InputError for overrides of settings that may not change."""
    _check_overrides(overrides)
    recipe = load_recipe(directory / RECIPE, overrides)
    old, new = (
        {**fixed_settings(version), "pretrained": version.pretrained, "vectors": version.vectors}
        for version in (load_recipe(directory / RECIPE), recipe)
    )
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        message = f"a resumed run keeps its {', '.join(f'`{key}`' for key in changed)}"
        raise InputError(Diagnostic("TFK111", message, FIX))
    return recipe


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raises InputError for overrides that have no effect on a resumed run."""
    diagnostics = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        top = key.partition(".")[0]
        if top not in CHANGEABLE and key not in ("validation", "validation.every_steps"):
            why = FIXED.get(top, "the weights or the scores depend on it")
            message = f"a resumed run keeps its `{top}`: {why}"
            diagnostics.append(Diagnostic("TFK111", message, FIX, location=Location(f"--set {override}")))
    if diagnostics:
        raise InputError(diagnostics)


def fixed_settings(recipe: Recipe) -> Mapping[str, Any]:
    """The settings of a run that may not change, without files and weights, which have separate digests."""
    written = {key: value for key, value in recipe.written().items() if key not in (*CHANGEABLE, *SEPARATE_DIGESTS)}
    if recipe.pretrained is not None or recipe.data.kind == "images":
        # The recipe of such a run holds no default of its tokeniser. The digests of earlier releases have this one.
        written["tokeniser"] |= {"normalise": recipe.written_keys("tokeniser").get("normalise", "nfkc")}
    written["validation"] = {key: value for key, value in written["validation"].items() if key != "every_steps"}
    options = recipe.data.options.model_dump(exclude_none=True)
    return {**written, "data": {"kind": recipe.data.kind, **_without_files(options)}}


def check_processes(recipe: Recipe, count: int, fsdp: bool) -> None:
    """Raises InputError if `count` processes cannot share the steps of a recipe, or its model."""
    batches, limit = recipe.batching.accumulate, recipe.batch_limit
    name = "images" if recipe.data.kind == "images" else "tokens"
    if batches < count:
        message = f"a step takes {batches} {'batch' if batches == 1 else 'batches'}, which {count} processes cannot share"
        fix = (
            f"`--set batching.accumulate={count}` gives each a batch in every step; with `--set batching.{name}="
            f"{limit * batches // count}` too, steps keep their size"
        )
        raise InputError(recipe.diagnostic("TFK118", "batching.accumulate", message, fix))
    if fsdp and recipe.compile:
        message = "a model that FSDP2 shards is not compiled"
        raise InputError(recipe.diagnostic("TFK118", "compile", message, "remove `compile`, or `--fsdp`"))
    if fsdp and recipe.lora is not None:
        message = "adapters are not sharded: they are small, and FSDP2 would divide their base"
        raise InputError(recipe.diagnostic("TFK118", "lora", message, "remove `--fsdp`, or `lora`"))
    if fsdp and count == 1:
        message = "FSDP2 shards weights over several processes, and there is one"
        raise InputError(
            Diagnostic("TFK118", message, "start several: `torchrun --nproc-per-node 2 --no-python tfkit train ... --fsdp`")
        )
