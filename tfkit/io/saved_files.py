"""The files of a saved model, read and checked without torch. Of the weights only the header is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..catalogue import Catalogue
from ..errors import Diagnostic, StoreError
from ..errors.arguments import in_words
from ..files import check_digest, check_files, check_header, check_sizes, read_bytes, read_model
from ..graph import Graph, graph_of
from ..slots.options import CONTRACT
from ..spec import ModelSpec, parse_spec
from ..spec.located import Diagnostics
from ..spec.reader import read_text
from .layout import ADAPTER, ADAPTER_CONFIG, FORMAT, NAME_A_MODEL, PLAN, SPEC, VERSIONS, WEIGHTS, Format, Versions, model_in

ITEM_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by dtype."""


@dataclass(frozen=True)
class SavedFiles:
    """A saved model without its weights.

    Args:
        directory: the directory of the model.
        spec: its spec.
        graph: the graph of the spec.
        versions: its dtype, the versions that wrote it, and the digests of its files.
    """

    directory: Path
    spec: ModelSpec
    graph: Graph
    versions: Versions


def read_saved(directory: Path, catalogue: Catalogue) -> SavedFiles:
    """Read a saved model without its weights.

    Args:
        directory: the directory of a model, or of a training run, whose best model is read.
        catalogue: the entries that names refer to.

    Returns:
        The spec, the graph and the versions. The header of the weights agrees with the spec.

    Raises:
        StoreError: a file is missing, altered, or has another format.
        SpecError: the spec has errors.
    """
    directory = model_in(directory)
    versions = read_versions(directory)
    spec = saved_spec(directory / SPEC, catalogue)
    graph = graph_of(spec)
    if versions.base is not None:  # the digest of an adapter is checked, and its tensors when it is loaded
        return SavedFiles(directory, spec, graph, versions)
    check_room(directory / WEIGHTS, versions, graph)
    shapes = {
        f"nodes.{node.name}.{parameter.name}": parameter.shape
        for node in graph.nodes.values()
        for parameter in node.parameters()
    }
    check_header(directory / WEIGHTS, with_dtypes(directory, versions, shapes), "the spec")
    return SavedFiles(directory, spec, graph, versions)


def read_versions(directory: Path) -> Versions:
    """The versions of a saved model. Checks sizes of all files and digests of all but the weights. Raises StoreError."""
    path = directory / VERSIONS
    form = read_model(path, Format, fix=NAME_A_MODEL).format
    if form != FORMAT:
        message = f"{directory} has format {in_words(form)}, this tfkit reads {FORMAT}"
        raise StoreError(Diagnostic("TFK083", message, "load it with the tfkit that wrote it"))
    versions = read_model(path, Versions)
    if versions.contract > CONTRACT:
        message = f"{path} has contract {in_words(versions.contract)} between tfkit and its plugins, this tfkit has {CONTRACT}"
        raise StoreError(Diagnostic("TFK083", message, "load it with the tfkit that wrote it"))
    for name, record in check_sizes(path, versions.files).items():
        if name != WEIGHTS:
            check_digest(directory / name, record)
    return versions


def saved_spec(path: Path, catalogue: Catalogue) -> ModelSpec:
    """The spec of a saved model. It was resolved when it was written, so it extends no other file."""
    try:
        text = read_bytes(path, links=False)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}")) from None
    if "extends" in read_text(text, str(path), Diagnostics()).mapping:
        raise StoreError(Diagnostic("TFK082", f"{path} extends another file, which no saved spec does", "it was altered"))
    return parse_spec(text, catalogue, file=str(path))


def with_dtypes(
    directory: Path, versions: Versions, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and the shape of every tensor of a saved model. Raises StoreError if it lists a tensor that has no shape."""
    if unknown := sorted(versions.dtypes.keys() - shapes.keys()):
        message = f"{directory / VERSIONS} has a dtype for `{unknown[0]}`, which the spec has not"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))
    return {name: (versions.dtypes.get(name, versions.dtype), shape) for name, shape in shapes.items()}


def check_room(path: Path, versions: Versions, graph: Graph) -> None:
    """Raises StoreError if a file is too small for the weights of a model, before its parameters are listed."""
    smallest = min(ITEM_SIZES[dtype] for dtype in (versions.dtype, *versions.dtypes.values()))
    needed, size = (graph.parameters() + graph.parameters(trainable=False)) * smallest, versions.files[WEIGHTS].bytes
    if size < needed:
        message = f"{path} has {size:,} bytes, and the weights of the spec need {needed:,}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))


def other_files(directory: Path) -> dict[str, Path]:
    """The files of a saved model that its caller gave to `save` (tokenisers, labels), by name. They are not held in memory.

    Raises:
        StoreError: a file is missing or was altered.
    """
    directory = model_in(directory)
    files = read_model(directory / VERSIONS, Versions).files
    others = {name: record for name, record in files.items() if name not in (SPEC, WEIGHTS, PLAN, ADAPTER, ADAPTER_CONFIG)}
    check_files(directory / VERSIONS, others)
    return {name: directory / name for name in others}
