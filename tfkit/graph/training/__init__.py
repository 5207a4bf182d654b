"""Training on several GPUs, on paper: the memory of each rank, what the ranks send in a step, whether it fits; and what tensor
parallelism divides."""

from .communication import sent_per_step
from .division import Division, divide
from .fit import Choice, cheapest, choices, command_for, usable_bytes
from .memory import Memory, Regime, Step, Weights, inexact, memory_of, weights_of

__all__ = [
    "Choice",
    "Division",
    "Memory",
    "Regime",
    "Step",
    "Weights",
    "cheapest",
    "choices",
    "command_for",
    "divide",
    "inexact",
    "memory_of",
    "sent_per_step",
    "usable_bytes",
    "weights_of",
]
