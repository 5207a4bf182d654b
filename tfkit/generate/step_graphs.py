"""Decoding steps as CUDA graphs: the launches of a step are recorded once, and replayed at every position without Python.

A step of a small model takes the host longer than the device. A replay takes it some microseconds, whatever the number of
kernels. torch records and replays the graph (`torch.cuda.graph`); `torch.compile(mode="reduce-overhead")` would record the same
step, after compiling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.fixed_step import FixedStep
from ..nn.model import Model
from ..nn.runtime.decoding_state import DecodingState
from .prefill import GenerationState

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records a function. Returns what runs it again on the same tensors, and the tensor that then holds its result."""
WARM_UP = 3
"""Runs before a capture, in which kernels are compiled and libraries take their memory."""
ROUND = 64
"""Positions of caches and memories are multiples of this, so that batches of similar lengths share a graph."""
ROUND_ROWS = 8
"""Rows are a power of two below this, and multiples of it above."""
MAX_STEPS = 16
"""The largest number of steps that are kept: the one that was used least recently makes room for another."""


def cuda_graph(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a function as a CUDA graph.

    Args:
        run: Reads and writes the same tensors in every run.

    Returns:
        A function that replays the graph, and the tensor that then holds the result.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may use the device meanwhile
        result = run()
    return graph.replay, result


class StepGraphs:
    """The captured steps of one model, by number of rows and capacities. Weights and backends must stay as they are.

    Args:
        capture: Records a step; CUDA graphs by default.

    Raises:
        InputError: The model is not on a CUDA device.
    """

    def __init__(self, model: Model, capture: Capture | None = None) -> None:
        if capture is None:
            check_device(model.device)
        self.model, self.capture = model, capture or cuda_graph
        self.steps: dict[tuple[Any, ...], Captured] = {}

    def begin(self, start: GenerationState, sites: Iterable[str] = ()) -> Callable[[Tensor], Tensor]:
        """Decode on from a state, a token for each row.

        Args:
            start: The state after the prefill.
            sites: Sites whose attention weights are wanted: none can be.

        Returns:
            A function of the tokens (B,) of a step, which gives the logits (B, V) after them. The next step overwrites these.

        Raises:
            InputError: A step of the model cannot be captured, or the search passes the positions of the model.
        """
        captured = self._captured(start, sites)
        captured.step.load(start.decoding)
        return captured.following

    def begin_beams(self, start: GenerationState, beams: int, sites: Iterable[str] = ()) -> CapturedBeams:
        """Decode on from a state with `beams` hypotheses of each row. Arguments and errors as in `begin`."""
        return CapturedBeams(self._captured(start, sites, beams), start.decoding)

    def _captured(self, start: GenerationState, sites: Iterable[str], beams: int = 0) -> Captured:
        if wanted := tuple(sites):
            message = f"attention weights of `{wanted[0]}` are wanted, and a captured step gives none"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out, or the weights"))
        if start.columns is not None:
            message = "the rows of each batch have shortlists, and a captured step computes the logits of every id"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out, or the shortlists"))
        decoding = start.decoding
        last, positions = decoding.length + start.max_tokens - 1, self.model.plan.max_input_lengths.get(decoding.target)
        if positions is not None and last > positions:
            message = f"the search reaches position {last}, and the model has {positions} positions"
            raise InputError(Diagnostic("TFK061", message, "ask for fewer tokens, or shorten the prompt"))
        rows = _rows(decoding.batch) * max(beams, 1)
        capacity = _rounded(last, ROUND)
        memories = {name: _rounded(memory.tensor.shape[1], ROUND) for name, memory in decoding.node_outputs.items()}
        key = (rows, beams > 0, capacity, *memories.values(), start.output)
        captured = self.steps.pop(key, None)
        if captured is None:
            step = FixedStep(self.model, decoding, rows, capacity, memories, start.output, reorders=beams > 0)
            step.load(decoding)
            captured = Captured(step, *self.capture(step.run))
            if len(self.steps) == MAX_STEPS:
                del self.steps[next(iter(self.steps))]
        self.steps[key] = captured
        return captured


@dataclass(frozen=True)
class Captured:
    """A captured step: `replay` runs it, and `logits` (rows, V) then holds its result."""

    step: FixedStep
    replay: Callable[[], object]
    logits: Tensor

    def following(self, chosen: Tensor) -> Tensor:
        """The logits (B, V) after the tokens (B,) of the first rows. The next step overwrites them."""
        self.step.ids[: len(chosen)] = chosen[:, None]
        self.replay()
        self.step.place.add_(1)
        return self.logits[: len(chosen)]


class CapturedBeams:
    """The captured steps of a beam search. The hypotheses of a sentence have copies of its memory, and share no prefix."""

    def __init__(self, captured: Captured, state: DecodingState) -> None:
        self.captured = captured
        self.state: DecodingState | None = state
        """The state after the prefill, until the first branch."""

    def branch(self, rows: Tensor, kept: Tensor | None) -> None:
        """Continue with the hypotheses that continue the rows `rows` (B',), as in `Model.branch`; `kept` is None if all
        sentences go on."""
        step = self.captured.step
        if self.state is not None:
            step.load(self.state, rows)
            self.state = None
            return
        step.order[: len(rows)] = rows
        if kept is not None:
            step.move_memories(rows)

    def following(self, chosen: Tensor) -> Tensor:
        """The logits (B, V) after the tokens (B,) of the hypotheses. The next step overwrites them."""
        return self.captured.following(chosen)


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _rows(batch: int) -> int:
    return 1 << (batch - 1).bit_length() if batch < ROUND_ROWS else _rounded(batch, ROUND_ROWS)


def check_device(device: torch.device | str) -> None:
    """Raises InputError unless a device has CUDA graphs."""
    if torch.device(device).type != "cuda":
        message = f"CUDA graphs need a CUDA device, and the model is on {device}"
        raise InputError(Diagnostic("TFK063", message, "leave them out; on a CPU they would save nothing"))
