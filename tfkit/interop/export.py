"""Export a model to another engine. Nothing is written if the target cannot express the model.

A target has two functions:

    refusals(model) -> list[str]                             every reason why it cannot express the spec; empty if it can
    write(model, texts, directory, **options)                the files, into an empty directory; it may return the sizes
                                                             and digests of some by name, which are then not read again

`texts` are the other files of the saved model (tokenisers), by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ..distribution import install_line, version
from ..errors import BuildError, Diagnostic, InputError
from ..files import Content, FileModel, FileRecord, file_record
from ..io.replacing import Kind, check_place, write_directory
from ..nn.model import Model
from ..slots.lazy import load
from .huggingface_import import ORIGIN
from .kept_tensors import KEPT_FILE

LISTING = "tfkit-export.json"
"""The file with the sizes and digests of the others, so that a later export may replace them."""


class Listing(FileModel):
    """The content of `LISTING`."""

    format: Literal[1]
    tfkit: str
    target: str
    options: dict[str, Any]
    files: dict[str, FileRecord]


EXPORT = Kind("export of tfkit", LISTING, Listing, frozenset({LISTING}))


@dataclass(frozen=True)
class Target:
    """An engine or a library that models can be exported to: two functions as `module:function`, see above, its name in
    messages, a line about it, the packages that `write` imports, and the extra of tfkit that installs them."""

    refusals: str
    write: str
    title: str
    summary: str
    packages: tuple[str, ...] = ()
    extra: str = ""


TARGETS = {
    "hf": Target(
        "tfkit.interop.huggingface:refusals",
        "tfkit.interop.huggingface:write",
        "Hugging Face transformers",
        "a directory that `from_pretrained` reads",
    ),
    "ctranslate2": Target(
        "tfkit.interop.ctranslate2:refusals",
        "tfkit.interop.ctranslate2:write",
        "CTranslate2",
        "an inference engine in C++, also with int8",
        ("ctranslate2",),
        "ctranslate2",
    ),
    "onnx": Target(
        "tfkit.interop.program_exports:onnx_refusals",
        "tfkit.interop.program_exports:write_onnx",
        "ONNX",
        "programs for onnxruntime and other engines",
        ("onnx", "onnxscript"),
        "onnx",
    ),
    "torch-export": Target(
        "tfkit.interop.program_exports:torch_export_refusals",
        "tfkit.interop.program_exports:write_torch_export",
        "torch.export",
        "programs that torch runs without tfkit",
    ),
    "aot-inductor": Target(
        "tfkit.interop.program_exports:aot_inductor_refusals",
        "tfkit.interop.program_exports:write_aot_inductor",
        "AOTInductor",
        "machine code, for C++ without Python",
    ),
}


def check_target(target: str) -> None:
    """Raises InputError for an unknown target, BuildError if its packages are missing."""
    if target not in TARGETS:
        raise InputError(Diagnostic("TFK127", f"there is no target `{target}`", f"targets: {', '.join(TARGETS)}"))
    export_target = TARGETS[target]
    missing = [name for name in export_target.packages if find_spec(name) is None]
    if missing:
        message = f"an export to {export_target.title} needs the package {', '.join(missing)}, not installed here"
        raise BuildError(Diagnostic("TFK097", message, install_line(export_target.extra)))


def export(
    model: Model,
    directory: str | Path,
    target: str,
    *,
    texts: Mapping[str, Content] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Export a model with further files that belong to it (tokenisers), as `tfkit.save` takes them. The directory is written
    under another name and then renamed, so that it is never incomplete; its absolute path is returned. `overwrite` replaces an
    earlier export, if its directory contains only files that tfkit wrote.

    Raises:
        InputError: the target cannot express the model. All reasons are given.
        BuildError: a package is missing.
        StoreError: the directory exists, or cannot be written. Its content is unchanged.
    """
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    check_target(target)
    directory = Path(directory).absolute()
    check_place(directory, overwrite, EXPORT)
    known = (texts or {}, options.get("architecture")) if target == "hf" else ()  # an import keeps its configuration in `texts`
    if reasons := load(TARGETS[target].refusals)(model, *known):
        title, fix = TARGETS[target].title, "change the spec and train it again, or choose another target"
        raise InputError([Diagnostic("TFK127", f"{title} cannot express {reason}", fix) for reason in reasons])
    for_return = () if target == "hf" else (ORIGIN, KEPT_FILE)
    files = {name: text for name, text in (texts or {}).items() if name not in for_return}
    write_directory(directory, partial(_write, model, files, target, options), EXPORT)
    return directory


def _write(model: Model, texts: Mapping[str, Content], target: str, options: Mapping[str, Any], draft: Path) -> None:
    records = load(TARGETS[target].write)(model, texts, draft, **options) or {}
    names = sorted(path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file())
    listing = {
        "format": 1,
        "tfkit": version(),
        "target": target,
        "options": dict(options),
        "files": {name: records[name].model_dump() if name in records else file_record(draft / name) for name in names},
    }
    (draft / LISTING).write_text(json.dumps(listing, indent=1, allow_nan=False) + "\n", encoding="utf-8")
