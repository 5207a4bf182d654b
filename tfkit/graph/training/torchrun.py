"""The command that trains a model as it was planned."""

from __future__ import annotations

from collections.abc import Sequence

from .memory import Regime

PER_MACHINE = 8
"""GPUs of one machine. More of them are planned as several machines."""


def command_for(regime: Regime, settings: Sequence[str]) -> str:
    """The command line that starts all processes; RECIPE names the model and the data.

    Args:
        regime: how the model is spread.
        settings: changes of the recipe, `batching.tokens=4096`.

    Returns:
        A line for a shell. Over several machines it is run on each of them, with the name of the first one for HOST.
    """
    ranks = regime.ranks
    changes = [*settings, f"batching.accumulate={ranks}"]
    changes += ["activation_checkpointing=true"] if regime.checkpointing else []
    words = ["tfkit train RECIPE -o RUN --device cuda", *(["--fsdp"] if regime.sharding == "fsdp" else [])]
    if ranks > 1:
        words.insert(0, f"torchrun {_processes(ranks)} --no-python")
    return " ".join([*words, *(f"--set {change}" for change in changes)])


def _processes(ranks: int) -> str:
    if ranks <= PER_MACHINE or ranks % PER_MACHINE:
        return f"--nproc-per-node {ranks}"
    machines = ranks // PER_MACHINE
    meeting = "--rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return f"--nnodes {machines} --nproc-per-node {PER_MACHINE} {meeting}"
