"""The batcher, without a model and without HTTP."""

import asyncio
import threading

import pytest

from tfkit.serve.batcher import Batcher, Closed, QueueFull


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 20))


class Held:
    """Work that waits in its first batch until it is released, and notes all batches."""

    def __init__(self):
        self.started, self.released, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, items):
        self.batches.append(list(items))
        self.started.set()
        assert self.released.wait(20)
        if "bad" in items:
            raise ValueError("bad item")
        return [item.upper() for item in items]


def items(*words, key=None, size=1):
    return [(word, key, size) for word in words]


async def held(batcher, work):
    """A running batcher whose model is busy with one item."""
    batcher.start()
    first = asyncio.create_task(batcher.submit(items("first")))
    while not work.started.is_set():
        await asyncio.sleep(0)
    return first


def submitted(batcher, *wanted):
    return [asyncio.create_task(batcher.submit(each)) for each in wanted]


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({}, [["first"], ["a", "b", "c"]]),
        ({"max_items": 2}, [["first"], ["a", "b"], ["c"]]),
        ({"max_size": 1}, [["first"], ["a"], ["b"], ["c"]]),
    ],
)
def test_what_waits_is_one_batch_up_to_the_limits(limits, batches):
    async def scenario():
        work = Held()
        batcher = Batcher(work, **limits)
        first = await held(batcher, work)
        tasks = submitted(batcher, items("a", "b"), items("c"))
        await asyncio.sleep(0)
        assert batcher.waiting == 3
        work.released.set()
        assert [await first, *[await task for task in tasks]] == [["FIRST"], ["A", "B"], ["C"]]
        await batcher.drain()
        assert work.batches == batches

    run(scenario())


def test_a_batch_has_one_key_and_the_oldest_goes_first():
    async def scenario():
        work = Held()
        batcher = Batcher(work)
        await held(batcher, work)
        submitted(batcher, items("a", key=1), items("b", key=2), items("c", key=1))
        await asyncio.sleep(0)
        work.released.set()
        await batcher.drain()
        assert work.batches == [["first"], ["a", "c"], ["b"]]

    run(scenario())


def test_only_the_item_fails_that_is_the_reason():
    async def scenario():
        work = Held()
        batcher = Batcher(work)
        await held(batcher, work)
        good, bad = submitted(batcher, items("a"), items("bad"))
        await asyncio.sleep(0)
        work.released.set()
        assert await good == ["A"]
        with pytest.raises(ValueError, match="bad item"):
            await bad
        await batcher.drain()

    run(scenario())


def test_a_full_queue_takes_all_items_or_none():
    async def scenario():
        work = Held()
        batcher = Batcher(work, max_queue=2)
        await held(batcher, work)
        (one,) = submitted(batcher, items("a"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await batcher.submit(items("b", "c"))
        assert batcher.waiting == 1
        work.released.set()
        assert await one == ["A"]
        await batcher.drain()

    run(scenario())


def test_drain_computes_what_waits_and_takes_no_more():
    async def scenario():
        work = Held()
        batcher = Batcher(work, max_wait=1000.0)
        batcher.start()
        tasks = submitted(batcher, items("a"), items("b"))
        await asyncio.sleep(0)
        work.released.set()
        await batcher.drain()  # without the wait for more
        assert [await task for task in tasks] == [["A"], ["B"]]
        with pytest.raises(Closed):
            await batcher.submit(items("c"))

    run(scenario())


def test_what_nobody_waits_for_is_not_computed():
    async def scenario():
        work = Held()
        batcher = Batcher(work)
        await held(batcher, work)
        gone, there = submitted(batcher, items("gone"), items("there"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        work.released.set()
        assert await there == ["THERE"]
        await batcher.drain()
        assert work.batches == [["first"], ["there"]]

    run(scenario())


def test_what_nobody_waits_for_takes_no_room():
    async def scenario():
        work = Held()
        batcher = Batcher(work, max_queue=2)
        await held(batcher, work)
        (gone,) = submitted(batcher, items("gone", "too"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert batcher.waiting == 0
        (there,) = submitted(batcher, items("a", "b"))
        await asyncio.sleep(0)
        work.released.set()
        assert await there == ["A", "B"]
        await batcher.drain()

    run(scenario())


def test_what_nobody_waits_for_is_not_computed_again_after_a_failure():
    async def scenario():
        work = Held()
        batcher = Batcher(work)
        gone, bad = submitted(batcher, items("gone"), items("bad"))
        batcher.start()
        while not work.started.is_set():
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        work.released.set()
        with pytest.raises(ValueError, match="bad item"):
            await bad
        await batcher.drain()
        assert work.batches == [["gone", "bad"], ["bad"]]

    run(scenario())
