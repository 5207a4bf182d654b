"""Decoding steps without Python. On CUDA the launches of a step are recorded once as a graph, and replayed at every position.
On a CPU an installed recorder does the like (`RecordedSteps`).

A step of a small model takes the host longer than the device. A replay takes it some microseconds, whatever the number of
kernels. torch records and replays the graph (`torch.cuda.graph`); `torch.compile(mode="reduce-overhead")` would record the same
step, after compiling it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cpu import small_batch
from ..cpu.int8 import capabilities
from ..cpu.packed_weight import SearchProducts, active, equal_sums
from ..cpu.products import are_plain, may_read
from ..errors import Diagnostic, InputError
from ..nn.fixed_step import FixedStart, FixedStep
from ..nn.model import Model
from ..nn.runtime.decoding_state import DecodingState
from ..nn.runtime.head_columns import HeadColumns
from ..slots.lazy import load
from ..slots.processor_kernels import StepRecorder
from .columns import places_in
from .model_state import ModelState
from .prefill import GenerationState

Capture = Callable[..., tuple[Callable[[], object], Any]]
"""Records a function. Returns what runs it again on the same tensors, and the tensors that then hold its result."""
Tables = Mapping[str, Tensor] | None
WARM_UP = 3
"""Runs before a capture, in which kernels are compiled and libraries take their memory."""
ROUND = 64
"""Positions of caches and memories are multiples of this, so that batches of similar lengths share a graph."""
ROUND_ROWS = 8
"""Rows are a power of two below this, and multiples of it above, as are the positions of a recorded first pass."""
ROUND_COLUMNS = 256
"""The lists of ids of a search with shortlists have such a number of places."""
MAX_CACHED = 64_000_000
"""The largest caches of a recorded step on a CPU, in numbers. Rows that have ended are computed on, and in larger
batches that takes longer than Python (bench/translate_cells.py)."""
MAX_FIRST = 2_000_000_000
"""The largest product of positions, of all rows, and parameters in a recorded first pass: with more, Python takes a small part
of the time, and a recording as long as some passes."""
MAX_STEPS, MAX_STARTS = 32, 64
"""The largest numbers of steps and of first passes that are kept: the one used least recently makes room for another."""


class _Searches(threading.local):
    """How many searches of this thread run within each other."""

    depth = 0


_searches = _Searches()


@contextmanager
def one_search() -> Iterator[None]:
    """Surrounds a search. A function of the caller may search in the middle of it (`emit`, a filter): that search has recorded
    steps of its own, because these keep the keys and values of one search."""
    _searches.depth += 1
    try:
        yield
    finally:
        _searches.depth -= 1


def cuda_graph(run: Callable[[], Any], warm_up: int = WARM_UP, pool: Any = None) -> tuple[Callable[[], object], Any]:
    """Record a function as a CUDA graph. The recording itself computes nothing.

    Args:
        run: Reads and writes the same tensors in every run.
        warm_up: Runs before the recording.
        pool: Memory (`torch.cuda.graph_pool_handle()`) of graphs that never run at the same time; its own by default.

    Returns:
        A function that replays the graph, and the tensors that then hold the result.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # another thread may use the device meanwhile
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

    def begin(
        self, start: GenerationState, sites: Iterable[str] = (), never: Tensor | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """Decode on from a state, a token for each row.

        Args:
            start: The state after the prefill.
            sites: Sites whose attention weights are wanted: none can be.
            never: If `greedy_from` may select all further tokens, the ids (F,) that it must not select; else None.

        Returns:
            A function of the tokens (B,) of a step, which gives the logits (B, V) after them. The next step overwrites these.

        Raises:
            InputError: A step of the model cannot be captured, or the search passes the positions of the model.
        """
        self._refuse(start, sites)
        captured = self._captured(start)
        captured.step.load(start.decoding)
        return captured.following

    def first_pass(
        self, target: str, output: str, inputs: Mapping[str, Tensor], masks: Tables, lengths: Tables, capacity: int,
        start_id: int,
    ) -> tuple[DecodingState, Tensor] | None:  # fmt: skip
        """The state after the start token and its logits (B, V), by a recorded pass; None for an ordinary one, as on CUDA."""
        return None

    def greedy_from(self, start: GenerationState) -> Callable[..., None] | None:
        """What selects all further tokens of a greedy search without Python (`StepRecorder.greedy`). None on CUDA."""
        return None

    def begin_beams(
        self, start: GenerationState, beams: int, sites: Iterable[str] = (), never: Tensor | None = None
    ) -> CapturedBeams | None:
        """Decode on from a state with `beams` hypotheses of each row. Arguments and errors as in `begin`."""
        self._refuse(start, sites)
        return CapturedBeams(self, self._captured(start, beams), start.decoding)

    def _refuse(self, start: GenerationState, sites: Iterable[str]) -> None:
        if wanted := tuple(sites):
            message = f"attention weights of `{wanted[0]}` are wanted, and a captured step gives none"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out, or the weights"))
        if start.columns is not None:
            message = "the rows of each batch have shortlists, and a captured step computes the logits of every id"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out, or the shortlists"))

    def _captured(self, start: GenerationState, beams: int = 0) -> Captured:
        decoding = start.decoding
        last, positions = self._last_position(start)
        if last > positions:
            message = f"the search reaches position {last}, and the model has {positions} positions"
            raise InputError(Diagnostic("TFK061", message, "ask for fewer tokens, or shorten the prompt"))
        memories = {name: _rounded(memory.tensor.shape[1], ROUND) for name, memory in decoding.node_outputs.items()}
        rows, lists = _rows(decoding.batch) * max(beams, 1), None if decoding.columns is None else decoding.columns.lists
        columns = 0 if lists is None else _rounded(lists.shape[1], ROUND_COLUMNS)
        shape = rows, _rounded(last, ROUND), memories, start.output, beams, columns
        return self._of_shape(decoding, lambda step: step.load(decoding), *shape)

    def _of_shape(
        self, state: DecodingState, begin: Callable[[FixedStep], None], rows: int, capacity: int, memories: Mapping[str, int],
        output: str, beams: int, columns: int,
    ) -> Captured:  # fmt: skip
        key = (rows, beams, capacity, *memories.values(), output, columns, _searches.depth)
        captured = self.steps.pop(key, None)
        if captured is None:
            step = FixedStep(self.model, state, rows, capacity, memories, output, beams, columns)
            begin(step)
            captured = Captured(step, *self.capture(step.run))
            if len(self.steps) == MAX_STEPS:
                del self.steps[next(iter(self.steps))]
        self.steps[key] = captured
        return captured

    def with_fewer_rows(self, captured: Captured, rows: Tensor) -> Captured:
        """A captured step with fewer rows, which goes on with the rows `rows` (B',) of another one."""
        step = captured.step
        memories = {name: visible.shape[1] for name, visible in step.visible.items()}
        hypotheses, columns = max(step.beams, 1), 0 if step.columns is None else step.columns.lists.shape[1]
        shape = (
            _rows(len(rows) // hypotheses) * hypotheses, step.slots.shape[1], memories, step.output, step.beams, columns
        )  # fmt: skip
        smaller = self._of_shape(step.state, lambda fewer: fewer.take_over(step, rows), *shape)
        smaller.step.take_over(step, rows)
        return smaller

    def _last_position(self, start: GenerationState) -> tuple[int, int]:
        """The number of positions that a search may reach, and that the model has."""
        decoding = start.decoding
        positions = self.model.plan.max_input_lengths.get(decoding.target, sys.maxsize)
        return decoding.length + start.max_tokens - 1, positions


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


@dataclass(frozen=True)
class CapturedStart:
    """A captured first pass: `replay` runs it, and `logits` (rows, V) then holds its result."""

    start: FixedStart
    replay: Callable[[], object]
    logits: Tensor


def recorded_steps(model: Model) -> RecordedSteps | None:
    """The recorded steps of a model, by the fastest recorder that is installed and that this processor has instructions for.

    Args:
        model: The model. It is not changed, and steps of a model that changes are recorded anew.

    Returns:
        They, for the `graphs` of a search; None where there is no recorder, for several models, and for models elsewhere.
    """
    instructions, recorders = capabilities(), getattr(model, "step_recorders", ())
    for recorder in sorted(recorders, key=lambda recorder: recorder.relative_time):
        if model.device.type == "cpu" and all(instructions.get(name) for name in recorder.needs):
            return RecordedSteps(model, recorder)
    return None


class _Held(threading.local):
    """The steps that a thread has recorded, their copies of weights, and the fingerprint of these weights at that time."""

    def __init__(self) -> None:
        self.forget(None, None)

    def forget(self, state: ModelState | None, products: SearchProducts | None) -> None:
        """Begin anew with a model in this state."""
        self.state, self.products = state, products
        self.steps: dict[tuple[Any, ...], Captured] = {}
        self.copies: dict[Tensor, Any] = {}
        self.weights: list[Tensor] = []
        self.sums: tuple[Tensor, ...] = ()
        self.refused: dict[tuple[Any, ...], str] = {}
        self.starts: dict[tuple[Any, ...], CapturedStart] = {}
        self.parameters = 0
        self.begun: Callable[[], DecodingState | None] = lambda: None
        """A weak reference to the state that a recorded first pass gave last: its model has been compared."""

    def written_to(self, products: SearchProducts) -> bool:
        """Whether a weight was written to past torch's counter of versions; once for a series of searches."""
        if self.products is products:
            return False
        self.products = products
        return bool(self.weights) and not equal_sums(self.sums, products.fingerprint_of_all(self.weights))


class RecordedSteps(StepGraphs):
    """The steps of a model on a CPU that an installed recorder repeats without Python (`tfkit.plugin.StepRecorder`), as the
    replays of a graph. A search whose steps cannot be recorded, or are slower recorded, takes ordinary ones: `begin` gives
    None.

    A recorded step runs no modules. So steps are ordinary where a module has hooks or a function in place of its `forward`, and
    where another backend than that of the recorder was asked for by name. They are recorded anew once a weight, a module or an
    attribute of a module changes (`model_state.py`). Each thread has steps of its own.
    """

    def __init__(self, model: Model, recorder: StepRecorder) -> None:
        self.record: Capture = load(recorder.record)
        self.greedy: Callable[..., int] | None = None if recorder.greedy is None else load(recorder.greedy)
        self.beams: Callable[..., None] | None = None if recorder.beams is None else load(recorder.beams)
        self.held = _Held()
        super().__init__(model, self._capture)

    @property
    def steps(self) -> dict[tuple[Any, ...], Captured]:
        return self.held.steps

    @steps.setter
    def steps(self, steps: dict[tuple[Any, ...], Captured]) -> None:
        self.held.steps = steps

    def begin(
        self, start: GenerationState, sites: Iterable[str] = (), never: Tensor | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """As that of `StepGraphs`, or None."""
        if not self._serves(start, sites, never):
            return None
        captured = self._captured(start)
        captured.step.load(start.decoding)
        return captured.following

    def greedy_from(self, start: GenerationState) -> Callable[..., None] | None:
        """As that of `StepGraphs`."""
        captured = self._captured(start)
        logits = captured.logits
        if self.greedy is None or logits.dtype != torch.float32 or not logits.is_contiguous():
            return None
        return partial(self._search, captured)

    def _search(
        self, captured: Captured, ids: Tensor, log_probs: Tensor, limits: Tensor, counts: Tensor, finished: Tensor,
        end_id: int | None, forbidden: Tensor,
    ) -> None:  # fmt: skip
        """A greedy search from the second token on; with fewer rows once half of them have ended."""
        assert self.greedy is not None
        rows, length, lists = torch.arange(len(ids), device=ids.device), 1, None
        if (columns := captured.step.columns) is not None:
            lists = columns.lists[: len(ids)].clone()
            ids[:, :1] = places_in(lists, ids[:, :1])
            end_id, forbidden = None if end_id is None else len(forbidden), torch.arange(len(forbidden), device=ids.device)
        while True:
            search = [held[rows] for held in (ids, log_probs, limits, counts, finished)]
            step = captured.step
            length = self.greedy(captured.replay, step.ids, step.place, captured.logits, *search, end_id, forbidden, length)
            for held, part in zip((ids, log_probs, counts, finished), (*search[:2], *search[3:]), strict=True):
                held[rows] = part
            [left] = (~finished[rows] & (limits[rows] > length)).nonzero(as_tuple=True)
            if not len(left):
                break
            captured, rows = self.with_fewer_rows(captured, left), rows[left]
        if lists is not None:
            of_row = torch.arange(ids.shape[1], device=ids.device) < counts[:, None]
            ids.copy_(torch.where(of_row, lists.gather(1, ids.where(of_row, 0)), ids))

    def begin_beams(
        self, start: GenerationState, beams: int, sites: Iterable[str] = (), never: Tensor | None = None
    ) -> CapturedBeams | None:
        """As that of `StepGraphs`, or None."""
        if not self._serves(start, sites, never, beams):
            return None
        return CapturedBeams(self, self._captured(start, beams), start.decoding, self.beams)

    def first_pass(
        self, target: str, output: str, inputs: Mapping[str, Tensor], masks: Tables, lengths: Tables, capacity: int,
        start_id: int,
    ) -> tuple[DecodingState, Tensor] | None:  # fmt: skip
        """As that of `StepGraphs`. It is recorded for the first search over sources of a shape, so that no result depends on
        the searches before."""
        model, held, others = self.model, self.held, [name for name in self.model.plan.inputs if name != target]
        ids, products = inputs.get(others[0]) if others else None, active.products or SearchProducts(self.model.float32_kernels)
        if list(inputs) != others or len(others) != 1 or not isinstance(ids, Tensor) or ids.dim() != 2 or not are_plain(ids):
            return None
        B, L = ids.shape
        rows, length = _rows(B), max(L, min(_rounded(L, ROUND_ROWS), model.plan.max_input_lengths.get(others[0], sys.maxsize)))
        shape = rows, length, output, start_id, _searches.depth
        if not may_read() or not self._same_model(products) or shape in held.refused:
            return None
        if not 0 < rows * length * held.parameters <= MAX_FIRST:
            return None
        padding = model._context(others, inputs, {"masks": masks, "lengths": lengths}, ()).padding[others[0]]
        captured = held.starts.pop(shape, None)
        if captured is None:
            state = model.start(target, batch=None, capacity=capacity, masks=masks, lengths=lengths, segments=None, **inputs)
            model.step(state, torch.full((B, 1), start_id, device=model.device), True)
            try:
                start = FixedStart(model, state, rows, length, output, start_id)
                start.load(ids, padding.as_visible(L))
                replay, (logits, *_) = self.capture(start.run)
                captured = CapturedStart(start, replay, logits)
            except Exception as reason:  # an ordinary pass says what is wrong, if anything is wrong there too
                held.refused[shape] = str(reason)
                return None
            if len(held.starts) == MAX_STARTS:
                del held.starts[next(iter(held.starts))]
        held.starts[shape] = captured
        captured.start.load(ids, padding.as_visible(L))
        captured.replay()
        state = captured.start.state(B, L, capacity, padding, products)
        held.begun = weakref.ref(state)
        return state, captured.logits[:B].clone()

    def _serves(self, start: GenerationState, sites: Iterable[str], never: Tensor | None, beams: int = 0) -> bool:
        decoding = start.decoding
        features = sum(2 * cache.key[0, :, 0].numel() for cache in decoding.caches.values() if cache.key is not None)
        rows, (last, positions) = _rows(decoding.batch) * max(beams, 1), self._last_position(start)
        cached = features * rows * _rounded(last, ROUND)
        if tuple(sites) or last > positions or cached > MAX_CACHED:
            return False
        if start.columns is not None:
            columns, search = decoding.columns, self.beams if beams else self.greedy
            if never is None or search is None or not isinstance(columns, HeadColumns) or start.logits.dtype != torch.float32:
                return False
            columns.lists = start.columns.lists(never, start.rule.end_id, decoding.batch)
            if columns.lists is None or cached + columns.lists.numel() > MAX_CACHED:
                return False
        held, kind = self.held, (beams > 0, start.columns is not None, start.output)
        if decoding is not held.begun() and not (may_read(start.logits) and self._same_model(decoding.products)):
            return False
        if kind in held.refused:
            return False
        try:
            self._captured(start, beams)
        except Exception as reason:  # an ordinary step says what is wrong, if anything is wrong there too
            held.refused[kind] = str(reason)
            return False
        return True

    def _same_model(self, products: SearchProducts) -> bool:
        """Whether recordings may stand for the model. Those of other weights are forgotten."""
        measured = small_batch.TABLE is not None  # a user's choice of products, which a recorded step would not follow
        held = self.held
        if measured or self.model.training:
            return False
        if held.state is None or not held.state.holds(self.model) or held.written_to(products):
            state = ModelState(self.model)
            if not state.is_plain():
                return False
            held.forget(state, products)
            held.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return True

    def _capture(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        held = self.held
        result = self.record(run, [*self.model.parameters(), *self.model.buffers()], held.copies)
        assert held.products is not None
        if len(held.weights) < len(held.copies):
            held.weights = list(held.copies)
            held.sums = held.products.fingerprint_of_all(held.weights)
        return result


class CapturedBeams:
    """The captured steps of a beam search.

    Args:
        graphs: What captures other steps.
        captured: The step.
        state: The state after the prefill.
        search: What searches without Python (`StepRecorder.beams`), or None.
    """

    def __init__(
        self, graphs: StepGraphs, captured: Captured, state: DecodingState, search: Callable[..., None] | None = None
    ) -> None:
        self.graphs, self.captured, self.search = graphs, captured, search
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
        raise InputError(Diagnostic("TFK063", message, "leave them out; on a CPU tfkit-simd records steps without being told"))
