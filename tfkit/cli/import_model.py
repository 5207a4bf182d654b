"""`tfkit import`: a model of Hugging Face transformers as a model of tfkit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, InputError
from ..view.terminal import shown
from .options import READ, WRITE, OneOf, allow_nan_option, common, large_option
from .output import print_json, print_text
from .packages import need_packages
from .usage import usage_error

if TYPE_CHECKING:
    from ..interop.huggingface_import import ImportPlan

DTYPES = ("float32", "bfloat16", "float16", "float64")
MAX_LISTED = 4
PROBLEMS = {
    "multi_label_classification": "tfkit chooses one class, by a softmax; the logits are those of the model",
    "regression": "tfkit chooses one class, by a softmax; the logit is the number of the model",
}
"""Kinds of problems of transformers that `tfkit classify` does not have, and what it does."""
PREPROCESSOR = "preprocessor_config.json"
READ_KEYS = frozenset({
    "do_normalize", "do_rescale", "rescale_factor", "image_mean", "image_std", "image_processor_type", "feature_extractor_type",
    "processor_class", "_valid_processor_keys",
})  # fmt: skip
"""Keys of the preprocessor that are read, and those without effect."""

EPILOG = """\b
hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
tfkit import opus-mt-en-de --dry-run
tfkit import opus-mt-en-de -o en-de
tfkit import Llama-3.2-1B --dtype float32 -o llama

tfkit import bert-base-uncased --class BertForSequenceClassification \\
    --initialise -o classifier

The directory is one that `save_pretrained` wrote, or a download of it (`hf` is
of the package huggingface-hub): config.json, safetensors files, the tokeniser. --dry-run reads only the
configuration and the headers of the files.

A configuration without a class gets the one whose tensors are those of the
files, if there is one alone. Tensors of parts that the class does not have are
left out. Parts that the files do not have are an error without --initialise.

--json prints the map and class, the number of parameters, dtype, files,
tensors: which are tied, ignored, left out, zero or initialised, and why; keys
of the configuration that are not read and why (those of another file with its
name before a colon), those that are not known, the tokeniser files, and the
directory.
"""


@click.command("import", epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=READ, help="A directory of Hugging Face transformers.")
@click.option("-o", "--output", metavar="DIR", type=WRITE, help="Where the model is saved.")
@click.option("--dry-run", is_flag=True, help="Say what would be imported; write nothing.")
@click.option(
    "--dtype", metavar="DTYPE", type=OneOf("dtype", DTYPES), help="Dtype of the weights (default: that of the files)."
)
@click.option("--allow-pickle", is_flag=True, help="Read pytorch_model.bin, with torch's reader of weights.")
@allow_nan_option
@large_option
@click.option("--class", "architecture", metavar="CLASS", help="The class of transformers (default: that of config.json).")
@click.option("--initialise", is_flag=True, help="Draw the weights of parts that the files do not have, as a new head.")
@click.option("--without-tokeniser", is_flag=True, help="Import the weights alone.")
@click.option("--pairs", is_flag=True, help="The classifier reads pairs of texts.")
@click.option("--force", is_flag=True, help="Replace a model that is saved there already.")
@common
def command(
    directory: str, output: str | None, dry_run: bool, dtype: str | None, allow_pickle: bool, allow_nan: bool,
    large: bool, architecture: str | None, initialise: bool, without_tokeniser: bool, pairs: bool, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Import a model of Hugging Face transformers, with its tokeniser.

    Names and shapes of all tensors are checked before any is read.
    """
    from ..catalogue import load_catalogue
    from ..interop.generation_config import generation_texts
    from ..interop.huggingface_import import plan_import, run_import, vocabulary_sizes

    if (output is None) != dry_run:
        raise usage_error("write -o DIR, where the model is saved, or --dry-run")
    catalogue = load_catalogue()
    plan = plan_import(Path(directory), catalogue, dtype, allow_pickle, large, architecture, initialise)
    if pairs and "label" not in plan.spec.nodes:
        message = f"--pairs is for a classifier, and {plan.match.architecture} is none"
        raise usage_error(message, "leave it out, or choose a class with --class")
    sizes = vocabulary_sizes(plan.spec)
    if sizes and not without_tokeniser:
        need_packages("train", "tokenizers")
        from ..data import original_files, read_huggingface

        if original_files(Path(directory)):
            plan.texts |= read_huggingface(Path(directory), sizes if len(sizes) > 1 else next(iter(sizes.values())))
    plan.texts |= _answers(plan, pairs) | generation_texts(plan, catalogue)
    if output is not None:
        run_import(plan, Path(output), catalogue, overwrite=force, allow_nan=allow_nan)
    if as_json:
        print_json({**plan.as_data(), "output": output})
    else:
        _print(plan, output)
    return 0


def _answers(plan: ImportPlan, pairs: bool) -> dict[str, str]:
    """The labels of a classifier, and how its images are normalised."""
    from ..data import image_facts_text, label_texts

    texts: dict[str, str] = {}
    if "label" in plan.spec.nodes:
        if (problem := plan.directory.config.get("problem_type")) in PROBLEMS:
            plan.ignored_keys["problem_type"] = f"{problem}: {PROBLEMS[problem]}"
        count = plan.spec.nodes["label"].options.classes
        texts |= label_texts(_labels(plan, count), pairs)
    if "image" in plan.spec.nodes:
        texts |= image_facts_text(*_normalisation(plan))
    return texts


def _normalisation(plan: ImportPlan) -> tuple[Any, Any]:
    """Mean and standard deviation of the channels. The keys of the preprocessor that are not read are added to the plan. Raises
    InputError for images that are not scaled to 0..1."""
    written = plan.directory.object_if_there(PREPROCESSOR)
    factor = written.get("rescale_factor", 1 / 255)
    if written.get("do_rescale", True) is not True or not isinstance(factor, (int, float)) or abs(255 * factor - 1) > 1e-6:
        message = f"{plan.directory.path / PREPROCESSOR}: images are not divided by 255: `do_rescale` or `rescale_factor`"
        raise InputError(Diagnostic("TFK142", message, "tfkit scales bytes to 0..1 before the mean is subtracted"))
    reason = "images are neither resized, cropped nor converted: they have the size and the colours of the model"
    plan.ignored_keys |= {f"{PREPROCESSOR}:{key}": reason for key, value in written.items() if value and key not in READ_KEYS}
    channels = plan.spec.nodes["image"].options.channels
    if not written.get("do_normalize", True):
        return [0.0] * channels, [1.0] * channels
    half = [0.5] * channels
    mean, std = written.get("image_mean", half), written.get("image_std", half)
    for key, numbers in (("image_mean", mean), ("image_std", std)):
        if isinstance(numbers, list) and len(numbers) not in (1, channels):
            message = f"`{key}` has {len(numbers):,} numbers, and images have {channels} channels"
            file = plan.directory.path / PREPROCESSOR
            raise InputError(Diagnostic("TFK142", f"{file}: {message}", "write one, or one for each channel"))
    return mean, std


def _labels(plan: ImportPlan, count: int) -> list[str]:
    """The names of the classes. A model without any gets the names that transformers gives it, `LABEL_0` and so on. Raises
    InputError unless each class has one name."""
    from ..data import check_labels
    from ..graph import graph_of
    from ..interop.huggingface_directory import CONFIG

    names = plan.directory.config.get("id2label")
    if not names or "id2label" in plan.ignored_keys:
        names = {str(number): f"LABEL_{number}" for number in range(count)}
    try:
        for number in range(count):
            if not isinstance(names.get(str(number)), str):
                raise ValueError(f'it has no text for the key "{number}"')
        if other := sorted(names.keys() - {str(number) for number in range(count)}):
            raise ValueError(f"it has the key {json.dumps(other[0][:60], allow_nan=False)}")
        labels = [names[str(number)] for number in range(count)]
        check_labels(labels, words=graph_of(plan.spec).nodes["label"].signal.length is not None)
    except ValueError as reason:
        message = f"{plan.directory.path / CONFIG}: `id2label`: {reason}"
        fix = f'give each class a name of its own there, with the keys "0" to "{count - 1}"'
        raise InputError(Diagnostic("TFK142", message, fix)) from None
    return labels


def _tensors(plan: ImportPlan) -> Iterator[tuple[int, str]]:
    """What becomes of the tensors: rows of a number and a text. Those with one reason share a row."""
    match = plan.match
    yield len(match.rules) - len(match.absent), f"tensors become {sum(len(rule.ours) for rule in match.rules):,} parameters"
    tied = {name: f"equal to {other}" for name, other in match.tied.items()}
    left_out = {name: f"left out, because {reason}" for name, reason in match.left_out.items()}
    ignored = {name: f"not read: {reason}" for name, reason in match.ignored.items()}
    zeros = dict.fromkeys(sorted(match.zeros), "not in the files: zeros, as in transformers")
    for group in (tied, ignored, left_out, zeros):
        for reason in dict.fromkeys(group.values()):
            names = [name for name, why in group.items() if why == reason]
            more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
            yield len(names), f"{', '.join(names[:MAX_LISTED])}{more}: {reason}"
    for node, rules in plan.initialised.items():
        listed = ", ".join(rule.theirs for rule in rules[:MAX_LISTED])
        listed += f" and {len(rules) - MAX_LISTED} more" if len(rules) > MAX_LISTED else ""
        yield len(rules), f"{listed}: not in the files: new weights for `{node}`, which no training has seen"


def _print(plan: ImportPlan, output: str | None) -> None:
    from ..files import LABELS, PAIR_LABELS
    from ..interop.huggingface_directory import CONFIG
    from ..interop.huggingface_import import vocabulary_sizes
    from ..io.generation_settings import GENERATION

    data = plan.as_data()
    files = f"{data['files']} file{'s' if data['files'] > 1 else ''}"
    of = f" of {' and '.join(plan.dtypes)}" if len(plan.dtypes) > 1 else ""
    print_text(shown(f"{data['architecture']}: {data['parameters']:,} parameters, {data['dtype']}{of}, {files}"))
    for count, text in _tensors(plan):
        print_text(shown(f"  {count:>5,}  {text}"))
    for reason in dict.fromkeys(plan.ignored_keys.values()):
        keys = [key.rpartition(":") for key, why in plan.ignored_keys.items() if why == reason]
        file, names = keys[0][0] or CONFIG, ", ".join(f"`{name}`" for _, _, name in keys)
        print_text(shown(f"  not read of {file}: {names}: {reason}"))
    if plan.unknown:
        print_text(shown(f"  keys of config.json that tfkit does not know: {', '.join(plan.unknown)}"))
        print_text("  if one of them changes what the model computes, the import is another model")
    if not plan.texts.keys() - {GENERATION, LABELS, PAIR_LABELS} and vocabulary_sizes(plan.spec):
        print_text("  there is no tokeniser: the model reads ids, and no text")
    if plan.texts:
        print_text(shown(f"  files beside the weights: {', '.join(sorted(plan.texts))}"))
    print_text(shown(f"saved in {output}" if output else "nothing was written (--dry-run)"))
