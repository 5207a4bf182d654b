"""`tfkit import`: a model of Hugging Face transformers as a model of tfkit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

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
FEW = 6

EPILOG = """\b
tfkit import opus-mt-en-de --dry-run
tfkit import opus-mt-en-de -o en-de
tfkit import Llama-3.2-1B --dtype float32 -o llama

The directory is one that `save_pretrained` wrote, or a download of it:
config.json, safetensors files, the tokeniser. --dry-run reads only the
configuration and the headers of the files.

--json prints the map and class, the number of parameters, dtype, files,
tensors, which tensors were tied or ignored and why, keys of the
configuration that are not read and why, those that are not known, the
tokeniser files, and the directory.
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
@click.option("--without-tokeniser", is_flag=True, help="Import the weights alone.")
@click.option("--pairs", is_flag=True, help="The classifier reads pairs of texts.")
@click.option("--force", is_flag=True, help="Replace a model that is saved there already.")
@common
def command(
    directory: str, output: str | None, dry_run: bool, dtype: str | None, allow_pickle: bool, allow_nan: bool,
    large: bool, without_tokeniser: bool, pairs: bool, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Import a model of Hugging Face transformers, with its tokeniser.

    Names and shapes of all tensors are checked before any is read.
    """
    from ..catalogue import load_catalogue
    from ..interop.huggingface_import import plan_import, run_import, vocabulary_sizes

    if (output is None) != dry_run:
        raise usage_error("write -o DIR, where the model is saved, or --dry-run")
    catalogue = load_catalogue()
    plan = plan_import(Path(directory), catalogue, dtype, allow_pickle, large)
    sizes = vocabulary_sizes(plan.spec)
    if sizes and not without_tokeniser:
        need_packages("train", "tokenizers")
        from ..data import original_files, read_huggingface

        if original_files(Path(directory)):
            plan.texts |= read_huggingface(Path(directory), sizes if len(sizes) > 1 else next(iter(sizes.values())))
    plan.texts |= _answers(plan, pairs)
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

    found: dict[str, str] = {}
    if "label" in plan.spec.nodes:
        count = plan.spec.nodes["label"].options.classes
        found |= label_texts(_labels(plan, count), pairs)
    if "image" in plan.spec.nodes:
        given = plan.directory.object_if_there("preprocessor_config.json")
        half = [0.5] * plan.spec.nodes["image"].options.channels
        found |= image_facts_text(given.get("image_mean", half), given.get("image_std", half))
    return found


def _labels(plan: ImportPlan, count: int) -> list[str]:
    """The names of the classes; those that transformers gives where there are none. Raises InputError for other names than one
    text for each class."""
    from ..data import check_labels
    from ..interop.huggingface_directory import CONFIG

    names = plan.directory.config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
    try:
        for number in range(count):
            if not isinstance(names.get(str(number)), str):
                raise ValueError(f'it has no text for the key "{number}"')
        if other := sorted(names.keys() - {str(number) for number in range(count)}):
            raise ValueError(f"it has the key {json.dumps(other[0][:60], allow_nan=False)}")
        found = [names[str(number)] for number in range(count)]
        check_labels(found)
    except ValueError as reason:
        message = f"{plan.directory.path / CONFIG}: `id2label`: {reason}"
        fix = f'give each class a name of its own there, with the keys "0" to "{count - 1}"'
        raise InputError(Diagnostic("TFK142", message, fix)) from None
    return found


def _print(plan: ImportPlan, output: str | None) -> None:
    from ..interop.huggingface_import import vocabulary_sizes

    data = plan.as_data()
    files = f"{data['files']} file{'s' if data['files'] > 1 else ''}"
    print_text(shown(f"{data['architecture']}: {data['parameters']:,} parameters, {data['dtype']}, {files}"))
    read, written = data["tensors"]["read"], data["tensors"]["written"]
    print_text(f"  {read:,} tensors become {written:,}")
    for name, other in list(plan.tied.items())[:FEW]:
        print_text(shown(f"  {name} is equal to {other}"))
    ignored = list(plan.ignored.items())
    for name, reason in ignored[:FEW]:
        print_text(shown(f"  {name} is not read: {reason}"))
    if len(ignored) > FEW:
        print_text(f"  {len(ignored) - FEW} more tensors are not read")
    for reason in dict.fromkeys(plan.ignored_keys.values()):
        keys = [f"`{key}`" for key, why in plan.ignored_keys.items() if why == reason]
        print_text(shown(f"  not read of config.json: {', '.join(keys)}: {reason}"))
    if plan.unknown:
        print_text(shown(f"  keys of config.json that tfkit does not know: {', '.join(plan.unknown)}"))
        print_text("  if one of them changes what the model computes, the import is another model")
    if not plan.texts and vocabulary_sizes(plan.spec):
        print_text("  there is no tokeniser: the model reads ids, and no text")
    if plan.texts:
        print_text(shown(f"  files beside the weights: {', '.join(sorted(plan.texts))}"))
    print_text(shown(f"saved in {output}" if output else "nothing was written (--dry-run)"))
