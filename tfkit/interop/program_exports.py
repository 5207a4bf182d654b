"""Programs of a model that torch.export traced: as they are, as machine code that C++ runs without Python, and as ONNX."""

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

from ..errors import BuildError, Diagnostic
from ..files import Content
from ..nn.model import Model
from ..nn.recurrent import Recurrent
from .programs import ProgramFacts, targets_of
from .trace import backend_refusals, describe, prepared, program_refusals, traced


def torch_export_refusals(model: Model) -> list[str]:
    """Every reason why torch.export cannot express a model."""
    return program_refusals(model) + backend_refusals(model)


def write_torch_export(model: Model, texts: Mapping[str, Content], directory: Path) -> None:
    """Write the programs of a model, `program.json` and the other files. Raises BuildError if a part cannot be traced."""
    programs = {}
    with prepared(model):
        for facts, program in traced(model):
            programs[f"{facts.program.name}.pt2"] = facts
            torch.export.save(program, directory / f"{facts.program.name}.pt2")
    describe(model, directory, "torch-export", programs, texts)


def aot_inductor_refusals(model: Model) -> list[str]:
    """Every reason why AOTInductor cannot express a model."""
    targets = targets_of(model)
    stepwise = model.plan.followers[targets[0]] if targets else ()
    loops = [
        f"`{name}`, a recurrent node that reads whole sequences: AOTInductor fails on the loop over their positions"
        for name, node in model.nodes.items()
        if isinstance(node, Recurrent) and name not in stepwise
    ]
    return program_refusals(model) + loops + backend_refusals(model)


def check_compiler() -> None:
    """Raises BuildError if there is no C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except RuntimeError:  # torch's InvalidCxxCompiler is one
        message = "an export to AOTInductor needs a C++ compiler, and there is none here"
        raise BuildError(
            Diagnostic("TFK097", message, "install g++, or name a compiler in the environment variable CXX")
        ) from None


def write_aot_inductor(model: Model, texts: Mapping[str, Content], directory: Path) -> None:
    """Compile the programs of a model; write them, `program.json` and the other files. Raises BuildError if a part cannot be
    traced, or there is no C++ compiler."""
    check_compiler()
    programs = {}
    with prepared(model):
        for facts, program in traced(model):
            programs[f"{facts.program.name}.pt2"] = facts
            path = directory / f"{facts.program.name}.pt2"
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    describe(model, directory, "aot-inductor", programs, texts, device=model.device.type)


ONNX_BACKEND = "eager"
"""Products and a softmax, which every engine has and fuses in its own way."""


def onnx_refusals(model: Model) -> list[str]:
    """Every reason why ONNX cannot express a model."""
    return program_refusals(model)


def write_onnx(model: Model, texts: Mapping[str, Content], directory: Path) -> None:
    """Write the programs of a model, `program.json` and the other files. Raises BuildError if a part cannot be traced."""
    programs, opset = {}, 0
    with prepared(model, ONNX_BACKEND), _silent():
        for facts, program in traced(model):
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[tensor.name for tensor in facts.inputs],
                output_names=[tensor.name for tensor in facts.outputs],
                dynamic_shapes=_axes(facts),
                custom_translation_table={torch.ops.aten.cos.default: _cosine},
            )
            assert onnx_program is not None
            _strip(onnx_program.model)
            file = f"{facts.program.name}.onnx"
            onnx_program.save(directory / file)
            programs[file], opset = facts, onnx_program.model.opset_imports[""]
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
