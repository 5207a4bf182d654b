"""`tfkit export`: a saved model for another engine."""

from __future__ import annotations

from pathlib import Path

import click

from ..view.formatting import bytes_in_words
from ..view.terminal import shown
from .options import READ, WRITE, OneOf, allow_nan_option, common
from .output import print_json, print_text
from .usage import usage_error

TARGETS = ("ctranslate2", "hf", "onnx", "torch-export", "aot-inductor")
QUANTIZATIONS = ("float32", "int8", "int8_float32")

EPILOG = """\b
tfkit export runs/en-de --to ctranslate2 -o en-de-ct2
tfkit export runs/en-de --to ctranslate2 --quantization int8 -o en-de-int8
tfkit export runs/en-de --to onnx -o en-de-onnx
tfkit export marian --to hf -o marian-hf
"""


@click.command("export", epilog=EPILOG)
@click.argument("model", metavar="DIR", type=READ, help="A saved model, or a run, whose best model is exported.")
@click.option(
    "--to", "target", metavar="TARGET", type=OneOf("target", TARGETS), required=True, help=f"One of: {', '.join(TARGETS)}."
)
@click.option("-o", "--output", metavar="DIR", type=WRITE, required=True, help="Where the export is written.")
@click.option(
    "--quantization", metavar="TYPE", type=OneOf("quantization", QUANTIZATIONS), default=None,
    help=f"Of ctranslate2: the type of the matrices in the file, {', '.join(QUANTIZATIONS)} (default: float32).",
)  # fmt: skip
@click.option(
    "--class", "architecture", metavar="NAME", help="Of hf: the class of transformers (default: the first that fits)."
)
@allow_nan_option
@click.option("--force", is_flag=True, help="Replace an export that is there already.")
@common
def command(
    model: str, target: str, output: str, quantization: str | None, architecture: str | None, allow_nan: bool, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Export a trained model to another engine.

    A model that the target cannot express is refused with every reason, and nothing is written.
    """
    from ..interop.export import EXPORT, check_target, export
    from ..io.replacing import check_place

    target_options = {"quantization": ("ctranslate2", quantization), "architecture": ("hf", architecture)}
    options = {name: value for name, (_, value) in target_options.items() if value is not None}
    for name in options:
        if target_options[name][0] != target:
            word = "class" if name == "architecture" else name
            raise usage_error(f"--{word} belongs to {target_options[name][0]}, and the target is {target}")
    check_target(target)
    check_place(Path(output), force, EXPORT)
    from ..io import load, other_files

    loaded = load(model, allow_nan=allow_nan)
    directory = export(loaded, output, target, texts=other_files(Path(model)), overwrite=force, **options)
    sizes = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    if as_json:
        print_json({"target": target, "directory": output, "files": sizes})
        return 0
    print_text(shown(f"{output}: {len(sizes)} files for {target}"))
    width = max(map(len, sizes))
    for name, size in sizes.items():
        print_text(shown(f"  {name:<{width}}  {bytes_in_words(size)}"))
    return 0
