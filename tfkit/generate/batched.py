"""Searching for many sources of all lengths: sorted by length, batched, given back in their own order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from ..errors import Diagnostic, InputError
from ..nn.cpu.prepacked import PrepackedWeights
from ..nn.model import Model
from .beam import beam_search
from .greedy import greedy
from .hypothesis import Hypothesis
from .sample import sample
from .settings import Search
from .threads import map_in_threads, workers_for

BEAM = Search()


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
    prepacked: PrepackedWeights | None = None,
) -> list[list[Hypothesis]]:
    """For every source its hypotheses, in the order of `sources`.

    A source is a list of ids as the model was trained to read them, an end token included where it was. In a model of one input
    it is the prompt, start token included. A batch holds sources of about one length, rows x longest x `search.width` at most
    `batch_tokens`, or a single source; the longest come first, so that memory peaks at once. `target`, `output` and `attention`
    are those of `beam_search`. Samples of a source depend on its place in `sources`, not on its batch. Where the target has a
    table of positions, no hypothesis goes beyond it. On a CPU `workers` batches are searched at once, torch's threads shared
    out among them; one after the other where the model is in training mode, under autocast, and with attention backends that
    are not for several `threads`. `packed` are the packed weights of earlier calls with this model, which must not have changed
    since.

    Raises InputError for empty sources, for ids out of range, and for what the searches raise it.
    """
    prepacked = prepacked or PrepackedWeights()
    return _search(model, sources, search, batch_tokens, target, output, tuple(attention), 0, workers, prepacked)


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
    """`generate_batched` for sources without end: reads `chunk` of them at a time, sorts and batches those, and gives their
    hypotheses in order. Samples are those of `generate_batched` over everything."""
    _whole("chunk", chunk)
    left, first, prepacked = iter(sources), 0, PrepackedWeights()
    while held := list(islice(left, chunk)):
        yield from _search(model, held, search, batch_tokens, target, output, tuple(attention), first, workers, prepacked)
        first += len(held)


def _search(
    model: Model,
    sources: Sequence[Sequence[int]],
    search: Search,
    batch_tokens: int,
    target: str | None,
    output: str | None,
    attention: tuple[str, ...],
    first: int,
    workers: int,
    prepacked: PrepackedWeights,
) -> list[list[Hypothesis]]:
    if not isinstance(search, Search):
        raise InputError(Diagnostic("TFK078", f"the search is a {type(search).__name__}", "it is a tfkit.Search(...)"))
    _whole("batch_tokens", batch_tokens)
    _whole("workers", workers)
    target, source = _inputs(model, target)
    _check_sources(sources, model.plan.inputs[source].vocab_size, first)
    if search.kind == "sample" and search.seed is None:
        raise InputError(
            Diagnostic("TFK078", "a search that samples many sources has no seed", "Search(kind='sample', seed=0)")
        )
    found: list[list[Hypothesis]] = [[] for _ in sources]

    def work(rows: list[int]) -> list[list[Hypothesis]]:
        return _search_batch(model, [sources[row] for row in rows], search, target, source, output, attention, rows, first)

    batches = list(_batches(sources, search.width, batch_tokens, alike=source == target))
    with model.shared_prepacked(prepacked):
        made_of = map_in_threads(work, batches, workers_for(model, workers))
    for rows, made in zip(batches, made_of, strict=True):
        for row, hypotheses in zip(rows, made, strict=True):
            found[row] = hypotheses
    return found


def _search_batch(
    model: Model,
    sources: list[Sequence[int]],
    search: Search,
    target: str,
    source: str,
    output: str | None,
    attention: tuple[str, ...],
    rows: list[int],
    first: int,
) -> list[list[Hypothesis]]:
    device, rule = next(model.parameters()).device, model.plan.inputs[source]
    longest = len(sources[0])
    ids = torch.full((len(sources), longest), rule.pad_id or 0, dtype=torch.int64)
    for row, given in enumerate(sources):
        ids[row, : len(given)] = torch.as_tensor(given)
    lengths = [len(given) for given in sources]
    limits = torch.tensor([_limit(model, search, target, length, alike=source == target) for length in lengths])
    said: dict[str, Any] = {"max_new_tokens": limits, "target": target, "output": output, "attention": attention}
    if source == target:
        said["prompt"] = ids.to(device)
    else:
        said[source] = ids.to(device)
        if min(lengths) < longest:
            said["masks"] = {source: (torch.arange(longest) < torch.tensor(lengths)[:, None]).to(device)}
    if search.kind == "greedy":
        found = greedy(model, scores=True, **said).hypotheses()
    elif search.kind == "beam":
        found = beam_search(model, beams=search.beams, length_penalty=search.length_penalty, n_best=search.n_best, **said)
    else:
        found = sample(
            model, temperature=search.temperature, top_k=search.top_k, top_p=search.top_p, seed=search.seed,
            samples=search.n_best, streams=[first + row for row in rows], **said,
        )  # fmt: skip
    if not attention:
        return found
    own = zip(found, lengths, strict=True)
    memories, before = model.memory_sites, longest if source == target else 1
    return [[_without_padding(one, memories, longest, length, before) for one in made] for made, length in own]


def _without_padding(one: Hypothesis, memories: frozenset[str], longest: int, length: int, before: int) -> Hypothesis:
    """A hypothesis whose attention weights have the keys of its own sentence: where a memory has a key for every token of the
    `longest` source of the batch, the first `length`; in self-attention what is `before` the first new token, and all tokens
    but the last, which is never read."""
    attention = {
        site: weights[..., : length if weights.shape[2] == longest else None]
        if site in memories
        else weights[..., : before + len(one.ids) - 1]
        for site, weights in one.attention.items()
    }
    return replace(one, attention=attention)


def _limit(model: Model, search: Search, target: str, length: int, alike: bool) -> int:
    """How many new tokens a source of `length` tokens may have: what the search allows, and the positions of the target."""
    wanted, most = search.limit(length), model.plan.max_input_lengths.get(target)
    if most is None:
        return wanted
    return max(1, min(wanted, most + 1 - (length if alike else 1)))  # the last token is never read


def _batches(sources: Sequence[Sequence[int]], width: int, tokens: int, alike: bool) -> Iterator[list[int]]:
    """The numbers of the sources of each batch, long ones first; prompts (`alike`) only with others of their length."""
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    batch: list[int] = []
    for row in order:
        longest = len(sources[batch[0]]) if batch else 0
        if batch and ((len(batch) + 1) * longest * width > tokens or (alike and len(sources[row]) < longest)):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _inputs(model: Model, target: str | None) -> tuple[str, str]:
    """The input that is decoded and the one that the sources are for: the same in a model of one input."""
    names = list(model.plan.inputs)
    if target is not None and target not in names:
        message = f"the target is `{target}`, which is no input of the model"
        raise InputError(Diagnostic("TFK073", message, f"name one of {', '.join(names)}"))
    if len(names) == 1:
        return names[0], names[0]
    able = [name for name in names if name not in model.plan.undecodable] if target is None else [target]
    if len(able) != 1:
        message = f"inputs that can be decoded: {', '.join(able) or 'none'}"
        raise InputError(Diagnostic("TFK073", message, "name one with `target`"))
    reason = model.plan.undecodable.get(able[0])
    if reason:
        raise InputError(Diagnostic("TFK075", f"`{able[0]}` cannot be decoded step by step: {reason}"))
    others = [name for name in names if name != able[0]]
    if len(others) != 1:
        message = f"beside `{able[0]}` the model has the inputs {', '.join(others)}"
        raise InputError(Diagnostic("TFK073", message, "search_all gives sources to one; call beam_search with all of them"))
    return able[0], others[0]


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
                Diagnostic("TFK070", f"source {number} is empty", "every source has a token, an end token at least")
            )
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab_size:
            message = f"source {number} holds the id {low if low < 0 else high}, but the vocabulary has {vocab_size} ids"
            raise InputError(Diagnostic("TFK072", message, f"ids are 0..{vocab_size - 1}"))


def _whole(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(Diagnostic("TFK078", f"{name} is {value!r}", "it is a whole number from 1 up"))
