"""Arguments that name a spec or a saved model. Torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..catalogue import Catalogue
from ..graph import Graph, graph_of
from ..spec import ModelSpec, load_spec


class Named(NamedTuple):
    """A spec, or a saved model without its weights; `digest` is the SHA-256 of the weights, of an adapter with that of its
    base."""

    spec: ModelSpec
    graph: Graph
    dtype: str = "float32"
    item_size: int = 4
    digest: str | None = None


def named(file: str, catalogue: Catalogue, overrides: Sequence[str] = (), *, checked: bool = False) -> Named:
    """Read a spec, with these changes, or the directory of a model or a run. `checked`: the weights are read, and must have
    their digest. Raises SpecError or StoreError."""
    if not Path(file).is_dir():
        spec = load_spec(file, catalogue, overrides)
        return Named(spec, graph_of(spec))
    from ..files import check_digest
    from ..io import read_saved
    from ..io.saved_files import ITEM_SIZES

    saved = read_saved(Path(file), catalogue)
    dtype, record, base = saved.versions.dtype, saved.versions.weights_record, saved.versions.base
    if checked:
        check_digest(saved.directory / saved.versions.weights, record)
    digest = record.sha256 if base is None else f"{record.sha256} on {base.sha256}"
    return Named(saved.spec, saved.graph, dtype, ITEM_SIZES[dtype], digest)
