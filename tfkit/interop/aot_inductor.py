"""Export with AOTInductor: one package of machine code per program, which C++ runs without Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..nn.model import Model
from .trace import backend_refusals, describe, prepared, program_refusals, traced


def refusals(model: Model) -> list[str]:
    """Every reason why AOTInductor cannot compile a model here.

    Args:
        model: the model.

    Returns:
        The reasons; none if it can.
    """
    return program_refusals(model) + backend_refusals(model) + _compiler_refusals()


def _compiler_refusals() -> list[str]:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return ["any model without a C++ compiler: install `g++`, or name one in the environment variable CXX"]
    return []


def write(model: Model, texts: Mapping[str, str], directory: Path) -> None:
    """Compile the programs of a model; write them, `program.json` and the other files of the model.

    Args:
        model: the model.
        texts: the other files of the model (tokenisers), by name.
        directory: an empty directory.

    Raises:
        InputError: a part of the model cannot be traced.
    """
    programs = {}
    with prepared(model):
        for facts, program in traced(model):
            programs[f"{facts.program.name}.pt2"] = facts
            path = directory / f"{facts.program.name}.pt2"
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    describe(model, directory, "aot-inductor", programs, texts, device=model.device.type)
