"""Programs as torch.export traces them, with the sizes that vary, and the file that describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from ..distribution import version as tfkit_version
from ..errors import BuildError, Diagnostic, TfkitError
from ..files import Content, child, write_content
from ..nn.model import Model
from ..slots.node import InputRule
from .programs import ProgramFacts, programs_of, shortest_inputs, targets_of

PROGRAM = "program.json"
"""The file that describes the programs beside it."""


def program_refusals(model: Model) -> list[str]:
    """Every reason why no programs can be made of a model."""
    targets = targets_of(model)
    if len(targets) > 1:
        named = " and ".join(f"`{name}`" for name in targets)
        return [f"the inputs {named}, which are both decoded step by step: a program decodes one"]
    return []


def backend_refusals(model: Model) -> list[str]:
    """Every named backend that torch.export cannot trace."""
    sites: dict[str, list[str]] = {}
    for site, choice in model.backends.choices().items():
        if not any(candidate.entry.capabilities.export for candidate in choice.candidates):
            sites.setdefault(choice.requested, []).append(site)
    return [
        f"the backend `{name}` at {', '.join(names)}, which does not work under torch.export" for name, names in sites.items()
    ]


@contextmanager
def prepared(model: Model, backend: Any = None) -> Iterator[None]:
    """The model in evaluation mode, with another backend at all sites; both are restored. Errors of torch become BuildError."""
    training, requested = model.training, model.requested_backends
    model.eval()
    try:
        if backend is not None and requested:
            model.set_backend(backend)
        yield
    except (TfkitError, OSError):
        raise
    except Exception as reason:  # tracing and its conversions raise dozens of kinds
        lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
        message = f"torch cannot trace `{model.plan.name}`: {' '.join(lines[:2]) or type(reason).__name__}"
        raise BuildError(Diagnostic("TFK127", message, "choose another target, or change the spec")) from reason
    finally:
        model.train(training)
        model.backends.set(requested)


def traced(model: Model) -> Iterator[tuple[ProgramFacts, ExportedProgram]]:
    """The programs of a model, as torch.export traces them."""
    for facts in programs_of(model):
        yield facts, _trace(facts)


def _trace(facts: ProgramFacts) -> ExportedProgram:
    dims: dict[str, Dim] = {}
    shortest = {"past": 0, **shortest_inputs(facts.program.model)}
    for tensor in facts.inputs:
        for size in tensor.shape:
            if isinstance(size, str):
                dims[size] = Dim(re.sub(r"\W+", "_", size), min=shortest.get(size, 1))
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)} for tensor in facts.inputs
    )
    with torch.no_grad():
        example = tuple(facts.program.example.values())
        # Deferred: the prover does not know that a mask and a convolution give equal lengths.
        program = torch.export.export(
            facts.program,
            example,
            dynamic_shapes=(shapes,),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    _drop_unused(program)
    return program


def _drop_unused(program: ExportedProgram) -> None:
    """Remove what the outputs do not need, and the weights that only this read."""
    sdpa = torch.ops.aten.scaled_dot_product_attention.default  # counts as impure, because it may draw random numbers
    program.graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure() and node.target is not sdpa)
    users = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    signature = program.graph_signature
    for spec in [spec for spec in signature.input_specs if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)]:
        if not users[spec.arg.name].users:
            program.graph.erase_node(users[spec.arg.name])
            signature.input_specs.remove(spec)
            program.state_dict.pop(spec.target)
    program.graph_module.recompile()


def describe(
    model: Model,
    directory: Path,
    target: str,
    programs: Mapping[str, ProgramFacts],
    texts: Mapping[str, Content],
    **more: Any,
) -> None:
    """Write `program.json`, with the kind of export and further entries, and the other files of the model into the directory of
    the programs."""
    plan, targets = model.plan, targets_of(model)
    ids = {
        name: {"pad_id": rule.pad_id, "start_id": rule.start_id, "end_id": rule.end_id, "vocab_size": rule.vocab_size}
        for name, rule in plan.inputs.items()
        if isinstance(rule, InputRule)
    }
    described = {
        "format": 1,
        "model": plan.name,
        "target": target,
        "versions": {"tfkit": tfkit_version(), "torch": version("torch")},
        **more,
        "decoded": targets[0] if targets else None,
        "ids": ids,
        "tokenisers": {name: file for name in ids for file in (f"{name}.json", "tokeniser.json") if file in texts},
        "min_lengths": shortest_inputs(model),
        "max_lengths": dict(plan.max_input_lengths),
        "programs": [
            {
                "name": facts.program.name,
                "file": file,
                "inputs": [asdict(tensor) for tensor in facts.inputs],
                "outputs": [asdict(tensor) for tensor in facts.outputs],
            }
            for file, facts in programs.items()
        ],
    }
    (directory / PROGRAM).write_text(json.dumps(described, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name, text in texts.items():
        write_content(child(directory, name), text)
