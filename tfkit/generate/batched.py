"""Generation from many sources of different lengths: they are sorted by length and batched; results have their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch

from ..cpu.packed_weight import SearchProducts, searching
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_whole, in_words
from ..nn.model import Model
from .beam import beam_search
from .greedy import greedy
from .hypotheses import Hypothesis
from .sample import sample
from .settings import Search
from .step_graphs import StepGraphs

# Searches several batches in parallel on a CPU, each in a thread.
#
# A decoding step runs about a hundred small operations. Threads that share each operation synchronise a hundred times per step
# and wait for the slowest. Threads that search different batches share only Python's lock, which torch releases while it
# computes. `bench/translate.py --threads 2` compares both, with and without `--workers 2`.

Batch = TypeVar("Batch")
Result = TypeVar("Result")
_THREAD_COUNT = threading.Lock()
"""The lock of the caller that changes torch's thread count, a setting of the whole process."""


def map_in_threads(work: Callable[[Batch], Result], batches: Sequence[Batch], workers: int) -> list[Result]:
    """Call `work` for every batch in `workers` threads; returns the results in the order of the batches.

    torch's threads are divided among the workers: until the end, torch's thread count is that of one worker. An exception of
    one call is raised after the calls that have started. While another caller uses this function, batches run one at a time.
    """
    workers = min(workers, len(batches))
    if workers < 2 or not _THREAD_COUNT.acquire(blocking=False):
        return [work(batch) for batch in batches]
    threads = torch.get_num_threads()
    threads_per_worker = max(1, threads // workers)
    try:
        with ThreadPoolExecutor(workers, "tfkit-search", torch.set_num_threads, (threads_per_worker,)) as pool:
            futures = [pool.submit(work, batch) for batch in batches]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
        _THREAD_COUNT.release()


def workers_for(model: Model, workers: int) -> int:
    """The number of batches that may run in parallel: `workers` on a CPU.

    It is 1 in training mode (dropout draws from one generator), under autocast and torch modes (they apply to one thread only),
    and with a backend that is not thread-safe.
    """
    parallel = (
        workers > 1
        and model.device.type == "cpu"
        and not model.training
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not model.not_thread_safe("cpu")
    )
    return workers if parallel else 1


BEAM = Search()
EmitToken = Callable[[int, int], None]
"""Is given the number of a source and a new id of it."""
ShortlistsOf = Callable[[Sequence[Sequence[int]]], Sequence[torch.Tensor]]
"""Gives the ids that each source may get, as `Shortlist.of`."""


def generate_batched(
    model: Model,
    sources: Sequence[Sequence[int]],
    search: Search = BEAM,
    *,
    batch_tokens: int = 4096,
    target: str | None = None,
    output: str | None = None,
    attention: Iterable[str] = (),
    workers: int = 1,
    emit: EmitToken | None = None,
    graphs: StepGraphs | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    shortlists: ShortlistsOf | None = None,
) -> list[list[Hypothesis]]:
    """Generate from many sources.

    Args:
        model: The model. Call `model.eval()` first, or dropout is active.
        sources: Lists of ids as in training, with an end token if the model was trained with one. For a model with one input
            these are prompts, start token included.
        search: The kind of search and its settings.
        batch_tokens: The limit of rows x longest source x `search.width` in a batch; a single source may exceed it. The
            longest batches come first, so that memory peaks at the start.
        target: The input to decode; the only decodable one by default.
        output: The output node with the logits, as in `beam_search`.
        attention: Sites whose weights every hypothesis holds, as in `beam_search`.
        workers: Batches that are searched in parallel on a CPU. They share torch's threads. In training mode, under autocast,
            and with attention backends that are not thread-safe, batches run one at a time.
        emit: Is given the number of a source and its new id, as soon as a token is chosen: for a greedy search, or one
            sample of each source. With several `workers`, threads call it.
        graphs: Captured steps of the model, on a CUDA device.
        prefixes: The ids that the hypotheses of each source begin with, as in `tfkit.greedy`.
        shortlists: Gives the ids that the sources of a batch may get, as in `tfkit.greedy`: `Shortlist.of`.

    Returns:
        The hypotheses of every source, in the order of `sources`. Samples of a source depend on its index there, not on its
        batch. No hypothesis is longer than the positions of the target.

    Raises:
        InputError: A source is empty or holds ids out of range; `emit` is given for a search that does not choose tokens one by
            one; there are not as many prefixes as sources; and as the search.
    """
    if prefixes is not None and (not isinstance(prefixes, Sequence) or len(prefixes) != len(sources)):
        message = f"prefixes is {in_words(prefixes)}, and there are {len(sources):,} sources"
        raise InputError(Diagnostic("TFK078", message, "give one list of ids for each source, which may be empty"))
    batched = _search(model, search, target, output, attention, emit, graphs, shortlists)
    return batched.run(sources, 0, batch_tokens, workers, prefixes)


def generate_stream(
    model: Model,
    sources: Iterable[Sequence[int]],
    search: Search = BEAM,
    *,
    chunk: int = 1000,
    batch_tokens: int = 4096,
    target: str | None = None,
    output: str | None = None,
    attention: Iterable[str] = (),
    workers: int = 1,
) -> Iterator[list[Hypothesis]]:
    """`generate_batched` for an endless iterable of sources.

    Args:
        model: As in `generate_batched`.
        sources: Read `chunk` at a time; each chunk is sorted and batched.
        search: As in `generate_batched`.
        chunk: Sources in memory at a time.
        batch_tokens: As in `generate_batched`.
        target: As in `generate_batched`.
        output: As in `generate_batched`.
        attention: As in `generate_batched`.
        workers: As in `generate_batched`.

    Yields:
        The hypotheses of each source, in order. Samples equal those of one `generate_batched` call over all sources.

    Raises:
        InputError: As `generate_batched`.
    """
    check_whole("chunk", chunk)
    batched = _search(model, search, target, output, attention)
    remaining, first = iter(sources), 0
    while sources_of_chunk := list(islice(remaining, chunk)):
        yield from batched.run(sources_of_chunk, first, batch_tokens, workers)
        first += len(sources_of_chunk)


def _search(
    model: Model, search: Search, target: str | None, output: str | None, attention: Iterable[str],
    emit: EmitToken | None = None, graphs: StepGraphs | None = None,
    shortlists: ShortlistsOf | None = None,
) -> BatchedSearch:  # fmt: skip
    if not isinstance(search, Search):
        raise InputError(Diagnostic("TFK078", f"the search is a {type(search).__name__}", "it is a tfkit.Search(...)"))
    if search.kind == "sample" and search.seed is None:
        raise InputError(
            Diagnostic("TFK078", "a search that samples many sources has no seed", "Search(kind='sample', seed=0)")
        )
    if emit is not None and (search.kind == "beam" or search.width > 1):
        message = f"`emit` is given for {search.width} hypotheses of a {search.kind} search"
        raise InputError(Diagnostic("TFK078", message, "use a greedy search, or one sample of each source"))
    target, source = _inputs(model, target)
    return BatchedSearch(model, search, target, source, output, tuple(attention), emit, graphs, shortlists)


@dataclass(frozen=True)
class BatchedSearch:
    """A search with one model. `source` is the input node of the sources; for a model with one input it is the `target`."""

    model: Model
    search: Search
    target: str
    source: str
    output: str | None
    attention: tuple[str, ...]
    emit: EmitToken | None = None
    graphs: StepGraphs | None = None
    shortlists: ShortlistsOf | None = None

    @property
    def continues(self) -> bool:
        """Whether the sources are prompts to continue."""
        return self.source == self.target

    def run(
        self, sources: Sequence[Sequence[int]], first: int, batch_tokens: int, workers: int,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """The hypotheses of sources. `first` is the number of the first source in a stream."""
        check_whole("batch_tokens", batch_tokens)
        check_whole("workers", workers)
        _check_sources(sources, self.model.plan.token_rule(self.source).vocab_size, first)

        products = SearchProducts(self.model.float32_kernels)  # of all batches and their threads

        def work(rows: list[int]) -> list[list[Hypothesis]]:
            with searching(products):
                forced = None if prefixes is None else [prefixes[row] for row in rows]
                return self.search_batch([sources[row] for row in rows], [first + row for row in rows], forced)

        widths = list(map(len, sources))
        batches = list(batches_by_length(widths, self.search.width, batch_tokens, same_length=self.continues))
        results = map_in_threads(work, batches, workers_for(self.model, workers))
        hypotheses_of_sources: list[list[Hypothesis]] = [[] for _ in sources]
        for rows, hypotheses_of_rows in zip(batches, results, strict=True):
            for row, hypotheses in zip(rows, hypotheses_of_rows, strict=True):
                hypotheses_of_sources[row] = hypotheses
        return hypotheses_of_sources

    def search_batch(
        self, sources: Sequence[Sequence[int]], streams: list[int], prefixes: Sequence[Sequence[int]] | None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of one batch, whose first source is the longest. `streams` are the random streams of its rows."""
        model, search = self.model, self.search
        device, rule = model.device, model.plan.token_rule(self.source)
        lengths = [len(source) for source in sources]
        longest = lengths[0]
        ids = torch.full((len(sources), longest), rule.pad_id or 0, dtype=torch.int64, device="cpu")
        for row, source in enumerate(sources):
            ids[row, : len(source)] = torch.as_tensor(source, device="cpu")
        arguments: dict[str, Any] = {
            "max_new_tokens": torch.tensor([self._max_new_tokens(length) for length in lengths], device="cpu"),
            "target": self.target,
            "output": self.output,
            "attention": self.attention,
            "filters": search.filters,
            "prefixes": prefixes,
            "graphs": self.graphs,
            "shortlists": None if self.shortlists is None else self.shortlists(sources),
        }
        if (emit := self.emit) is not None:

            def emit_rows(rows: torch.Tensor, ids: torch.Tensor) -> None:
                for row, chosen in zip(rows.tolist(), ids.tolist(), strict=True):
                    emit(streams[row], chosen)

            arguments["emit"] = emit_rows
        if self.continues:
            arguments["prompt"] = ids.to(device)
        else:
            arguments[self.source] = ids.to(device)
            if min(lengths) < longest:
                visible = torch.arange(longest, device="cpu") < torch.tensor(lengths, device="cpu")[:, None]
                arguments["masks"] = {self.source: visible.to(device)}
        if search.kind == "greedy":
            hypotheses_of_rows = greedy(model, scores=True, **arguments).hypotheses()
        elif search.kind == "beam":
            hypotheses_of_rows = beam_search(
                model, beams=search.beams, length_penalty=search.length_penalty, n_best=search.n_best,
                early_stopping=search.early_stopping, unfinished=search.unfinished, **arguments,
            )  # fmt: skip
        else:
            hypotheses_of_rows = sample(
                model, temperature=search.temperature, top_k=search.top_k, top_p=search.top_p, seed=search.seed,
                samples=search.n_best, streams=streams, **arguments,
            )  # fmt: skip
        if not self.attention:
            return hypotheses_of_rows
        return [
            [self._without_padding(hypothesis, longest, length) for hypothesis in hypotheses]
            for hypotheses, length in zip(hypotheses_of_rows, lengths, strict=True)
        ]

    def _without_padding(self, hypothesis: Hypothesis, longest: int, length: int) -> Hypothesis:
        """A hypothesis with the attention weights of its own source only, without the padding of the batch.

        In cross-attention these are the first `length` keys, if the memory has one key per source token. In self-attention they
        are the keys of the prompt, or of the start token, and of all tokens but the last, which is not fed to the model.
        """
        before = longest if self.continues else 1
        attention = {
            site: weights[..., : length if weights.shape[2] == longest else None]
            if site in self.model.memory_sites
            else weights[..., : before + len(hypothesis.ids) - 1]
            for site, weights in hypothesis.attention.items()
        }
        return replace(hypothesis, attention=attention)

    def _max_new_tokens(self, length: int) -> int:
        """The limit for a source of `length` tokens: that of the search, and the positions of the target."""
        limit, positions = self.search.limit(length), self.model.plan.max_input_lengths.get(self.target)
        if positions is None:
            return limit
        return max(1, min(limit, positions + 1 - (length if self.continues else 1)))  # the last token needs no position


def batches_by_length(lengths: Sequence[int], width: int, max_tokens: int, *, same_length: bool = False) -> Iterator[list[int]]:
    """The indices of the rows of each batch, long rows first; with `same_length`, of rows of one length.

    Args:
        lengths: The tokens of each row.
        width: How often a row is in its batch.
        max_tokens: The limit of rows x longest row x `width`; a single row may exceed it.
        same_length: Whether a batch has no padding.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batch: list[int] = []
    for row in order:
        longest = lengths[batch[0]] if batch else 0
        full = (len(batch) + 1) * longest * width > max_tokens
        if batch and (full or (same_length and lengths[row] < longest)):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _inputs(model: Model, target: str | None) -> tuple[str, str]:
    """The input that is decoded, and the input node of the sources: the same for a model with one input."""
    names = list(model.plan.inputs)
    if target is not None and target not in names:
        message = f"the target is `{target}`, which is no input of the model"
        raise InputError(Diagnostic("TFK073", message, f"name one of {', '.join(names)}"))
    if len(names) == 1:
        return names[0], names[0]
    decodable = [name for name in names if name not in model.plan.undecodable] if target is None else [target]
    if len(decodable) != 1:
        message = f"inputs that can be decoded: {', '.join(decodable) or 'none'}"
        raise InputError(Diagnostic("TFK073", message, "name one with `target`"))
    reason = model.plan.undecodable.get(decodable[0])
    if reason:
        raise InputError(Diagnostic("TFK075", f"`{decodable[0]}` cannot be decoded step by step: {reason}"))
    others = [name for name in names if name != decodable[0]]
    if len(others) != 1:
        message = f"in addition to `{decodable[0]}` the model has the inputs {', '.join(others)}"
        fix = "generate_batched has sources for one input; call beam_search with all inputs"
        raise InputError(Diagnostic("TFK073", message, fix))
    return decodable[0], others[0]


def _check_sources(sources: Any, vocab_size: int, first: int) -> None:
    if isinstance(sources, str) or not isinstance(sources, Sequence):
        raise InputError(Diagnostic("TFK071", f"the sources are a {type(sources).__name__}", "give a list of lists of ids"))
    for number, source in enumerate(sources, first):
        ids = source.tolist() if isinstance(source, torch.Tensor) else source
        if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(type(one) is int for one in ids):
            message = f"source {number} is {source!r:.60}"
            raise InputError(Diagnostic("TFK071", message, "a source is a list of whole numbers, its ids"))
        if not len(ids):
            raise InputError(
                Diagnostic("TFK070", f"source {number} is empty", "a source has at least one token, the end token")
            )
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab_size:
            message = f"source {number} holds the id {low if low < 0 else high}, but the vocabulary has {vocab_size} ids"
            raise InputError(Diagnostic("TFK072", message, f"ids are 0..{vocab_size - 1}"))
