"""Batches that are searched side by side give what they give one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import tfkit
from tfkit import Model
from tfkit.generate.batched import BatchedSearch, map_in_threads, workers_for

from .test_batched import SEARCHES, SOURCES, progress


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("model", ["translator", "writer"])
def test_the_same_is_found(model: str, kind: str, decoder_of: Callable[..., Model]) -> None:
    decoder, search = decoder_of(model), SEARCHES[kind]
    alone = tfkit.generate_batched(decoder, SOURCES, search, batch_tokens=40)
    assert progress(tfkit.generate_batched(decoder, SOURCES, search, batch_tokens=40, workers=3)) == progress(alone)
    assert progress(
        list(tfkit.generate_stream(decoder, iter(SOURCES), search, chunk=9, batch_tokens=40, workers=2))
    ) == progress(alone)


def test_they_run_at_once_each_with_its_share_of_the_threads(decoder_of: Callable[..., Model], monkeypatch) -> None:
    meeting, inner, shares = threading.Barrier(2, timeout=600), BatchedSearch.search_batch, set()

    def meets(*given):
        meeting.wait()
        shares.add((torch.get_num_threads(), torch.is_grad_enabled()))
        return inner(*given)

    monkeypatch.setattr(BatchedSearch, "search_batch", meets)
    tfkit.generate_batched(decoder_of("translator"), SOURCES[:2], SEARCHES["greedy"], batch_tokens=1, workers=2)
    assert shares == {(1, True)}


@pytest.mark.slow
def test_an_exception_of_one_batch_is_raised_and_no_other_batch_starts() -> None:
    state = []

    def work(batch: int) -> int:
        state.append(batch)
        if batch == 1:
            raise tfkit.InputError(tfkit.Diagnostic("TFK070", "no"))
        return batch

    with pytest.raises(tfkit.InputError):
        map_in_threads(work, [1, *range(2, 2000)], 2)
    assert len(state) < 1999
    assert map_in_threads(lambda batch: 2 * batch, range(7), 3) == [0, 2, 4, 6, 8, 10, 12]
    assert map_in_threads(work, [], 3) == []


def test_two_callers_leave_the_threads_as_they_were() -> None:
    inner: list[list[int]] = []

    def outer(batch: int) -> int:
        inner.append(map_in_threads(lambda _: torch.get_num_threads(), [0, 1], 2))
        return batch

    assert map_in_threads(outer, [0, 1], 2) == [0, 1]
    assert inner == [[1, 1], [1, 1]]
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError):
        map_in_threads(lambda _: (_ for _ in ()).throw(RuntimeError), [0, 1], 2)
    assert map_in_threads(lambda _: torch.get_num_threads(), [0, 1], 2) == [1, 1]


def test_a_batch_alone_has_all_threads() -> None:
    assert map_in_threads(lambda _: torch.get_num_threads(), [0], 2) == [2]


def test_one_after_the_other_where_threads_would_differ(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    assert workers_for(model, 4) == 4
    with torch.autocast("cpu", torch.bfloat16):
        assert workers_for(model, 4) == 1
    with torch.device("cpu"):
        assert workers_for(model, 4) == 1
    assert workers_for(model.train(), 4) == 1


@pytest.mark.slow
def test_one_after_the_other_with_a_backend_that_is_not_for_threads(decoder_of: Callable[..., Model]) -> None:
    """While one thread is in `flex`, torch tells all of them that they are being compiled, which `flex` refuses on a CPU."""
    model, search = decoder_of("translator", position="alibi"), SEARCHES["greedy"]
    due = progress(tfkit.generate_batched(model, SOURCES, search, batch_tokens=8))
    model.set_backend("flex", "encoder.*")
    assert workers_for(model, 4) == 1
    assert progress(tfkit.generate_batched(model, SOURCES, search, batch_tokens=8, workers=2)) == due
    model.set_backend(["eager", "flex"])
    assert workers_for(model, 4) == 1
    model.set_backend(["eager", "cudnn"])
    assert workers_for(model, 4) == 4
    model.set_backend("auto")
    assert workers_for(model, 4) == 4


def test_invalid_numbers_are_refused(decoder_of: Callable[..., Model]) -> None:
    with pytest.raises(tfkit.InputError, match="workers is 0"):
        tfkit.generate_batched(decoder_of("translator"), SOURCES, workers=0)
