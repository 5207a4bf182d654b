"""Export with `torch.export`: one `.pt2` file per program, which runs without tfkit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..nn.model import Model
from .trace import backend_refusals, describe, prepared, program_refusals, traced


def refusals(model: Model) -> list[str]:
    """Every reason why torch.export cannot express a model.

    Args:
        model: the model.

    Returns:
        The reasons; none if it can.
    """
    return program_refusals(model) + backend_refusals(model)


def write(model: Model, texts: Mapping[str, str | bytes], directory: Path) -> None:
    """Write the programs of a model, `program.json` and the other files of the model.

    Args:
        model: the model.
        texts: the other files of the model (tokenisers), by name.
        directory: an empty directory.

    Raises:
        BuildError: a part of the model cannot be traced.
    """
    programs = {}
    with prepared(model):
        for facts, program in traced(model):
            programs[f"{facts.program.name}.pt2"] = facts
            torch.export.save(program, directory / f"{facts.program.name}.pt2")
    describe(model, directory, "torch-export", programs, texts)
