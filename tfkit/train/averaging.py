"""The mean of the weights of several models of one run. It often translates better than each of the models.

https://arxiv.org/abs/1706.03762, section 6.1: the mean of the last 5 (base) or 20 (big) checkpoints
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ..builder import build
from ..catalogue import load_catalogue
from ..data import (
    IMAGES,
    SPANS,
    TextTokeniser,
    has_labels,
    label_texts,
    read_facts,
    read_image_facts,
    read_labels,
    read_span_facts,
    read_tokenisers,
    reads_pairs,
    roles_of,
    span_texts,
    tokeniser_texts,
)
from ..errors import Diagnostic, StoreError
from ..io import load, save
from ..io.alignment_site import ALIGNMENT, alignment_site_text, read_alignment_site
from ..nn.model import Model
from ..slots.node import ImageRule
from ..spec import load_spec
from ..text import model_in
from .checkpoint import MODEL, checkpoints_in, read_checkpoint
from .fit_spec import alignment_in, learnt_alignment
from .run_directory import check_inside, own_place
from .run_files import CHECKPOINTS, DATA, SPEC
from .run_recipe import read_recipe


def average_checkpoints(run: Path, last: int | None, output: Path, *, overwrite: bool = False) -> list[Path]:
    """Average the last checkpoints of a run, or all that it keeps for None. Raises StoreError if it has fewer, a file is
    damaged, or the model cannot be saved.

    Reference:
        Section 6.1 of https://arxiv.org/abs/1706.03762
    """
    run = own_place(run)
    check_inside(run)
    checkpoints = checkpoints_in(run / CHECKPOINTS)
    if not checkpoints:
        raise StoreError(Diagnostic("TFK114", f"{run} has no checkpoint", "name a run of `tfkit train`, or two models or more"))
    if last is not None and last > len(checkpoints):
        message = f"{run} has {len(checkpoints)} checkpoints, {last} are requested"
        raise StoreError(Diagnostic("TFK114", message, "a run keeps the last `keeping.last` checkpoints"))
    recipe = read_recipe(run, ())
    if recipe.lora is not None:
        message = f"{run} has adapters, and the mean of their factors is not that of the weights"
        raise StoreError(Diagnostic("TFK114", message, f"name models: `tfkit average {run}/models/step-N ... -o DIR`"))
    chosen = checkpoints if last is None else checkpoints[-last:]
    model = build(load_spec(run / SPEC, load_catalogue()))
    weights = model.state_dict()
    states = (read_checkpoint(path, weights)[0][MODEL] for path in chosen)
    facts = read_facts(run / DATA)
    texts = tokeniser_texts(_tokenisers(run, model)) | _answers(run)
    texts |= label_texts(facts.labels, facts.pairs) | span_texts(facts.spans)
    texts |= learnt_alignment(recipe, alignment_in(recipe, model, roles_of(model.plan, recipe.data.kind)))
    return _save_mean(model, chosen, states, texts, output, overwrite)


def average_models(places: Sequence[Path], output: Path, *, overwrite: bool = False) -> list[Path]:
    """Average saved models, the best ones of runs, and return their directories. Raises StoreError if specs or tokenisers
    differ, a file is damaged, or the model cannot be saved.

    Reference:
        Section 6.1 of https://arxiv.org/abs/1706.03762
    """
    places = [model_in(place) for place in places]
    model = load(places[0])
    tokenisers, texts = _tokenisers(places[0], model), _answers(places[0])
    digests = {name: tokeniser.digest for name, tokeniser in tokenisers.items()}

    def states() -> Iterator[Mapping[str, Tensor]]:
        """The weights of one model after the other, which is compared with the first."""
        yield model.state_dict()
        for place in places[1:]:
            other = load(place)
            if other.spec != model.spec:
                raise _unequal(f"{place} has another spec than {places[0]}")
            if {name: tokeniser.digest for name, tokeniser in _tokenisers(place, other).items()} != digests:
                raise _unequal(f"{place} has another tokeniser than {places[0]}")
            others = _answers(place)
            if differing := sorted(name for name in {*texts, *others} if texts.get(name) != others.get(name)):
                raise _unequal(f"{place / differing[0]} is not that of {places[0]}")
            yield other.state_dict()

    return _save_mean(model, list(places), states(), texts | tokeniser_texts(tokenisers), output, overwrite)


def _unequal(message: str) -> StoreError:
    return StoreError(Diagnostic("TFK114", message, "average models of one run"))


def _answers(place: Path) -> dict[str, str]:
    """What the model in `place` says about its labels, answers, images and alignments, by file name."""
    texts = label_texts(read_labels(place), reads_pairs(place)) if has_labels(place) else {}
    if os.path.lexists(place / SPANS):
        texts |= span_texts(read_span_facts(place))
    if os.path.lexists(place / IMAGES):
        texts[IMAGES] = read_image_facts(place).model_dump_json() + "\n"
    site = read_alignment_site(place)
    return texts if site is None else {**texts, ALIGNMENT: alignment_site_text(site)}


def _save_mean(
    model: Model,
    places: list[Path],
    states: Iterable[Mapping[str, Tensor]],
    texts: Mapping[str, str],
    output: Path,
    overwrite: bool,
) -> list[Path]:
    total: dict[str, Tensor] = {}
    for state in states:
        for name, tensor in state.items():
            total[name] = tensor.double() if name not in total else total[name] + tensor.double()
    model.load_state_dict({name: tensor / len(places) for name, tensor in total.items()})
    save(model, output, overwrite=overwrite, texts=texts)
    return places


def _tokenisers(place: Path, model: Model) -> dict[str, TextTokeniser]:
    if any(isinstance(rule, ImageRule) for rule in model.plan.inputs.values()):
        return {}
    return read_tokenisers(place, ("source", "target") if len(model.plan.inputs) > 1 else ("target",))
