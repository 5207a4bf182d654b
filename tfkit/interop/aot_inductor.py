"""Export with AOTInductor: one package of machine code per program, which C++ runs without Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..errors import BuildError, Diagnostic
from ..nn.model import Model
from ..nn.recurrent import Recurrent
from .program_shapes import targets_of
from .trace import backend_refusals, describe, prepared, program_refusals, traced


def refusals(model: Model) -> list[str]:
    """Every reason why AOTInductor cannot express a model.

    Args:
        model: the model.

    Returns:
        The reasons; none if it can.
    """
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


def write(model: Model, texts: Mapping[str, str | bytes], directory: Path) -> None:
    """Compile the programs of a model; write them, `program.json` and the other files of the model.

    Args:
        model: the model.
        texts: the other files of the model (tokenisers), by name.
        directory: an empty directory.

    Raises:
        BuildError: a part of the model cannot be traced, or there is no C++ compiler.
    """
    check_compiler()
    programs = {}
    with prepared(model):
        for facts, program in traced(model):
            programs[f"{facts.program.name}.pt2"] = facts
            path = directory / f"{facts.program.name}.pt2"
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    describe(model, directory, "aot-inductor", programs, texts, device=model.device.type)
