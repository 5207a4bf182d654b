"""Export to ONNX: one file per program, for onnxruntime and other engines."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..nn.model import Model
from .program_shapes import ProgramFacts
from .trace import describe, prepared, program_refusals, traced

BACKEND = "eager"
"""Products and a softmax, which every engine has and fuses in its own way."""


def refusals(model: Model) -> list[str]:
    """Every reason why ONNX cannot express a model.

    Args:
        model: the model.

    Returns:
        The reasons; none if it can.
    """
    return program_refusals(model)


def write(model: Model, texts: Mapping[str, str | bytes], directory: Path) -> None:
    """Write the programs of a model, `program.json` and the other files of the model.

    Args:
        model: the model.
        texts: the other files of the model (tokenisers), by name.
        directory: an empty directory.

    Raises:
        BuildError: a part of the model cannot be traced.
    """
    programs, opset = {}, 0
    with prepared(model, BACKEND), _silent():
        for facts, program in traced(model):
            found = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[tensor.name for tensor in facts.inputs],
                output_names=[tensor.name for tensor in facts.outputs],
                dynamic_shapes=_axes(facts),
                custom_translation_table={torch.ops.aten.cos.default: _cosine},
            )
            assert found is not None
            _strip(found.model)
            file = f"{facts.program.name}.onnx"
            found.save(directory / file)
            programs[file], opset = facts, found.model.opset_imports[""]
    versions = {name: version(name) for name in ("onnx", "onnxscript")}
    describe(model, directory, "onnx", programs, texts, opset=opset, exporter=versions)


def _cosine(x: Any) -> Any:
    """cos(x) in float64 as sin(x + pi / 2): onnxruntime before 1.24 has no cosine in float64."""
    from onnxscript import opset18 as op
    from onnxscript.ir import DataType

    return op.Sin(op.Add(x, math.pi / 2)) if x.dtype == DataType.DOUBLE else op.Cos(x)


def _axes(facts: ProgramFacts) -> Any:
    """The names of sizes, each once, as the exporter wants them."""
    seen: set[str] = set()
    shapes = []
    for tensor in facts.inputs:
        axes = {axis: size for axis, size in enumerate(tensor.shape) if isinstance(size, str) and size not in seen}
        seen.update(axes.values())
        shapes.append(axes or None)
    return tuple(shapes)


def _strip(model: Any) -> None:
    """Remove the source lines that each node came from: half of a small file, with paths of this machine."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes() if hasattr(graph, "all_nodes") else graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()


@contextmanager
def _silent() -> Iterator[None]:
    """Without the exporter's warnings about packages that no model needs, and about torch's own code."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*torch.jit.script_method.*", category=DeprecationWarning)
            yield
    finally:
        logger.setLevel(before)
