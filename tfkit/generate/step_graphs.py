"""Decoding steps as CUDA graphs: the launches of a step are recorded once, and replayed at every position without Python.

A step of a small model takes the host longer than the device. A replay takes it some microseconds, whatever the number of
kernels. torch records and replays the graph (`torch.cuda.graph`); `torch.compile(mode="reduce-overhead")` would record the same
step, after compiling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.fixed_step import FixedStep
from ..nn.model import Model
from .prefill import GenerationState

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records a function. Returns what runs it again on the same tensors, and the tensor that then holds its result."""
WARM_UP = 3
"""Runs before a capture, in which kernels are compiled and libraries take their memory."""
ROUND = 64
"""Capacities are multiples of this, so that batches of similar lengths share a graph."""


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
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


class StepGraphs:
    """The captured steps of one model, by number of rows and capacity. Weights and backends must stay as they are.

    Args:
        capture: Records a step; CUDA graphs by default.

    Raises:
        InputError: The model is not on a CUDA device.
    """

    def __init__(self, model: Model, capture: Capture | None = None) -> None:
        if capture is None:
            check_device(model.device)
        self.model, self.capture = model, capture or cuda_graph
        self.steps: dict[tuple[int, int, str], tuple[FixedStep, Callable[[], object], Tensor]] = {}

    def begin(self, start: GenerationState, sites: Iterable[str] = ()) -> Callable[[Tensor], Tensor]:
        """Decode on from a state.

        Args:
            start: The state after the prefill.
            sites: Sites whose attention weights are wanted: none can be.

        Returns:
            A function of the tokens (B,) of a step, which gives the logits (B, V) after them. The next step overwrites these.

        Raises:
            InputError: A step of the model cannot be captured, or the search passes the positions of the model.
        """
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
        capacity = -(-last // ROUND) * ROUND
        key = (decoding.batch, capacity, start.output)
        if key not in self.steps:
            step = FixedStep(self.model, decoding, capacity, start.output)
            step.load(decoding)
            self.steps[key] = (step, *self.capture(step.run))
        step, replay, logits = self.steps[key]
        step.load(decoding)

        def following(chosen: Tensor) -> Tensor:
            step.ids.copy_(chosen[:, None])
            replay()
            step.place.add_(1)
            return logits

        return following


def check_device(device: torch.device | str) -> None:
    """Raises InputError unless a device has CUDA graphs."""
    if torch.device(device).type != "cuda":
        message = f"CUDA graphs need a CUDA device, and the model is on {device}"
        raise InputError(Diagnostic("TFK063", message, "leave them out (--cuda-graphs); on a CPU they would save nothing"))
