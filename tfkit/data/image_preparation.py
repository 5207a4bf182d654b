"""From files of images to corpora: choose the held-out images, check, write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ..errors import Diagnostic, InputError, StoreError
from ..files import make_folders, write_whole
from ..recipe import Recipe
from ..slots.node import ImageRule
from .corpus import CorpusWriter
from .corpus_facts import FACTS, CorpusCounts
from .image_files import LabelledFiles, labelled_files
from .preparation import TRAIN, VALIDATION, Data, classes_of, read_data
from .sources import sources_of
from .text_corpora import held_out_rows

KEYS = {"images": "images", "labels": "labels"}
VALIDATION_KEYS = {"images": "validation_images", "labels": "validation_labels"}


def check_images(recipe: Recipe) -> None:
    """Raises InputError where a recipe of images names no images."""
    options = recipe.data.options
    if options.images is None:
        fix = "write it there, or give --images FILE --labels FILE"
        raise InputError(recipe.diagnostic("TFK108", "data", "the recipe names no file for `data.images`", fix))
    if options.validation_images is None and options.validation_labels is not None:
        message = "validation labels need `data.validation_images`"
        raise InputError(recipe.diagnostic("TFK108", "data.validation_labels", message, "name them too"))


def check_normalisation(recipe: Recipe, rule: ImageRule) -> None:
    """Raises InputError unless there is one mean and one standard deviation, or one for each channel."""
    for name in ("mean", "std"):
        count = len(getattr(recipe.data.options, name))
        if count not in (1, rule.channels):
            message = f"{count} numbers, the images have {rule.channels} {'channel' if rule.channels == 1 else 'channels'}"
            raise InputError(recipe.diagnostic("TFK108", f"data.{name}", message, "write one, or one for each channel"))


def prepare_images(recipe: Recipe, directory: Path, rule: ImageRule) -> Data:
    """Write the corpora of a recipe of images into a directory. Raises InputError or StoreError."""
    check_normalisation(recipe, rule)
    options = recipe.data.options
    train = labelled_files(options.images, options.labels, recipe, rule, KEYS)
    validated = options.validation_images is not None
    validation = (
        labelled_files(options.validation_images, options.validation_labels, recipe, rule, VALIDATION_KEYS)
        if validated
        else train
    )
    held_out = held_out_rows(recipe, len(train.labels), validated, recipe.data.options.held_out, "data")
    labels = _classes(recipe, train)
    numbers = {label: number for number, label in enumerate(labels)}
    for number, label in enumerate(validation.labels):
        if label not in numbers:
            message = f"{validation.source(number)}: the label `{label}` is not among the training images"
            raise InputError(
                Diagnostic("TFK115", message, f"known: {', '.join(f'`{known_label}`' for known_label in labels[:8])}")
            )
    sources = sources_of(recipe)  # after their sizes were compared with what their headers say
    try:
        make_folders(directory)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be made: {reason.strerror}")) from None
    facts = {"train": _write(train, directory / TRAIN, lambda number: number not in held_out, numbers)}
    if validated:
        facts["validation"] = _write(validation, directory / VALIDATION, lambda number: True, numbers)
    elif held_out:
        facts["validation"] = _write(train, directory / VALIDATION, held_out.__contains__, numbers)
    data = {"labels": labels, "corpora": {name: counts.model_dump() for name, counts in facts.items()}, "sources": sources}
    write_whole(directory / FACTS, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return read_data(recipe, directory, {})


def _classes(recipe: Recipe, train: LabelledFiles) -> list[str]:
    """The labels, sorted: numbers by value. Raises InputError where there is only one."""
    labels = set(train.labels)
    if len(labels) < 2:
        message = f"every image has the label `{train.labels[0]}`"
        raise InputError(recipe.diagnostic("TFK115", "data", message, "two labels are needed at least"))
    classes = classes_of(recipe, sorted(labels))
    return sorted(classes, key=lambda label: (int(label), label)) if all(map(str.isdecimal, classes)) else classes


def _write(files: LabelledFiles, path: Path, selected: Callable[[int], bool], numbers: dict[str, int]) -> CorpusCounts:
    counted = CorpusCounts()
    writer = CorpusWriter(path, ("target",), (), ("label",), images=True)
    for number, ((_, pixels), label) in enumerate(zip(files.images(), files.labels, strict=True)):
        if selected(number):
            counted.read += 1
            writer.add({"target": pixels.reshape(-1), "label": numbers[label]})
    counted.kept, counted.tokens, counted.digest = writer.rows, dict(writer.tokens), writer.close()
    return counted
