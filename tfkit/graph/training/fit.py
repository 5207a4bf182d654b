"""Whether a model can be trained in the memory of some GPUs, and the cheapest way that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model_graph import Graph
from .communication import sent_per_step
from .memory import Memory, Regime, Step, memory_of, weights_of

CONTEXT = 2**30
"""Bytes of a GPU for CUDA's context and NCCL's buffers."""
USABLE = 0.9
"""Share of the rest that the estimate may fill. The estimate may be 10 % too low, and an allocator leaves gaps."""
ORDER = (("ddp", False), ("zero2", False), ("fsdp", False), ("ddp", True), ("zero2", True), ("fsdp", True))
"""Sharding and checkpointing from the cheapest. FSDP sends half as much again as DDP, mostly beside the computation;
checkpointing computes the forward pass twice, a third more work. https://arxiv.org/abs/1910.02054, sections 7 and 8"""
TRAINABLE = ("ddp", "fsdp")
"""The shardings that `tfkit train` has."""


@dataclass(frozen=True)
class Choice:
    """One way to train, with its estimate for one rank.

    Args:
        regime: sharding and checkpointing.
        memory: bytes by purpose.
        sent: bytes that a rank sends in a step, by collective.
        fits: whether it fits in the memory.
    """

    regime: Regime
    memory: Memory
    sent: dict[str, int]
    fits: bool

    @property
    def available(self) -> bool:
        """Whether `tfkit train` can do it."""
        return self.regime.sharding in TRAINABLE


def usable_bytes(memory: int) -> int:
    """Bytes that an estimate may fill in a GPU with this memory."""
    return max(0, int((memory - CONTEXT) * USABLE))


def choices(graph: Graph, step: Step, ranks: int, memory: int) -> list[Choice]:
    """All ways to train a model, the cheapest first.

    Args:
        graph: the resolved model.
        step: what each rank computes.
        ranks: number of GPUs.
        memory: bytes of each.

    Returns:
        One choice for each sharding, with and without checkpointing; for one GPU without sharding.
    """
    weights, candidates = weights_of(graph), []
    for sharding, checkpointing in ORDER:
        if ranks == 1 and sharding != "ddp":
            continue
        regime = Regime(ranks, sharding, checkpointing)
        needed = memory_of(graph, step, regime)
        sent = sent_per_step(weights, step, regime)
        candidates.append(Choice(regime, needed, sent, needed.peak <= usable_bytes(memory)))
    return candidates


def cheapest(candidates: list[Choice]) -> Choice | None:
    """The first choice that fits and that `tfkit train` has; None if there is none."""
    return next((choice for choice in candidates if choice.fits and choice.available), None)


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
