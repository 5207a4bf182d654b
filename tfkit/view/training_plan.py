"""What `tfkit plan --gpus` prints: the memory of a rank for each way to train, and the command of the cheapest that fits.
`plan_data.py` lists the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..graph import Graph
from ..graph.training import Step, cheapest, choices, command_for, inexact, usable_bytes
from .formatting import bytes_in_words
from .terminal import shown

WIDTH = 76
"""Characters of a line of a command."""
PARTS = ("weights", "gradients", "optimiser", "gathered", "casts", "activations", "working", "validation")


def training_data(graph: Graph, step: Step, gpus: int, memory: int, settings: Sequence[str], dtype: str) -> dict[str, Any]:
    """The data of a plan for training (see `plan_data.py`), from what each rank computes, the bytes of each GPU, and the
    changes of a recipe that make it compute such steps."""
    all_choices = choices(graph, step, gpus, memory)
    chosen = cheapest(all_choices)
    rows = []
    for choice in all_choices:
        needed = asdict(choice.memory)
        del needed["step_peak"]
        row = {"sharding": choice.regime.sharding, "checkpointing": choice.regime.checkpointing, "peak": choice.memory.peak}
        rows.append({**row, "bytes": needed, "sent": choice.sent, "fits": choice.fits, "available": choice.available})
    return {
        "gpus": gpus,
        "memory": memory,
        "usable": usable_bytes(memory),
        "batch": {"rows": step.batch.size, "lengths": dict(step.batch.lengths), "precision": dtype},
        "inexact": inexact(graph),
        "choices": rows,
        "chosen": None if chosen is None else all_choices.index(chosen),
        "command": None if chosen is None else command_for(chosen.regime, settings),
    }


def training_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """The text of `training_data`."""
    batch, gpus = data["batch"], data["gpus"]
    lengths = ", ".join(f"{shown(name)} {length}" for name, length in batch["lengths"].items())
    rows = f"{batch['rows']} {'row' if batch['rows'] == 1 else 'rows'}"
    title = f"Training on {gpus} {'GPU' if gpus == 1 else 'GPUs'} of {bytes_in_words(data['memory'])}"
    details = f": {batch['precision']}, {rows}{f' of {lengths}' if lengths else ''} on each in a step, Adam"
    parts: list[RenderableType] = ["", Text(title, "bold").append(details, ""), Padding(_table(data["choices"]), (0, 0, 0, 2))]
    usable = f"It fits if the peak is at most {bytes_in_words(data['usable'])}: 90 % of the memory without 1 GiB for CUDA."
    parts += [Text(f"* with activation checkpointing. All figures are estimates. {usable}", "dim")]
    if any(not row["available"] for row in data["choices"]):
        parts += [Text("zero2 is for comparison: `tfkit train` has ddp, and fsdp (--fsdp).", "dim")]
    if data["inexact"]:
        kinds = ", ".join(map(shown, data["inexact"]))
        parts += [Text(f"Less exact: activations of {kinds}, which do not say what they keep.", "dim")]
    if data["command"] is None:
        copied = max(row["bytes"]["validation"] for row in data["choices"])
        fix = "use more GPUs, fewer --batch-tokens, or a smaller model"
        if copied > data["usable"]:
            whole = f"a process validates a copy of the whole model, {bytes_in_words(copied)}"
            fix = f"{whole}, however many GPUs there are; use GPUs with more memory, or a smaller model"
        return [*parts, "", Text("does not fit in any of these ways", "bold red").append(f": {fix}", "")]
    choice = data["choices"][data["chosen"]]
    how = choice["sharding"] if gpus > 1 else "one process"
    how += " with activation checkpointing" if choice["checkpointing"] else ""
    parts += ["", Text("fits", "bold green").append(f" with {how}; RECIPE is a recipe with this model:", "")]
    return [*parts, *(Text(f"  {line}") for line in _lines(data["command"]))]


def _lines(command: str) -> list[str]:
    """A command for a shell, in lines of at most `WIDTH` characters."""
    first, *options = command.split(" --")
    lines = [first]
    for word in (f" --{option}" for option in options):
        if len(lines[-1]) + len(word) > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += word
    return lines


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("GiB of one GPU", no_wrap=True)
    for row in rows:
        grid.add_column(row["sharding"] + ("*" if row["checkpointing"] else ""), justify="right", no_wrap=True)
    for name in PARTS:
        if any(row["bytes"][name] for row in rows):
            grid.add_row(name, *(_cell(row["bytes"][name]) for row in rows))
    grid.add_row("peak", *(_cell(row["peak"]) for row in rows), style="bold")
    grid.add_row("sent in a step", *(_cell(sum(row["sent"].values())) for row in rows))
    grid.add_row("fits", *("yes" if row["fits"] else "no" for row in rows))
    return grid


def _cell(size: int) -> str:
    gib = size / 2**30
    return "-" if not size else f"{gib:.2f}" if gib >= 0.01 else f"{gib:.1g}"
