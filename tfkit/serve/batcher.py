"""Dynamic batching: items that wait are computed together as soon as the model is free. It knows nothing of HTTP or models."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(Exception):
    """The queue has no room for the items."""


class Closed(Exception):
    """The batcher takes no more items."""


@dataclass(frozen=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    key: Hashable
    size: int
    result: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Collects items and computes them in batches, in one worker thread.

    A batch starts with the oldest item, and takes every waiting item with the same key, oldest first, until it is full. It
    starts when the model is free; only with `max_wait` it waits for more items.

    Args:
        work: Computes the results of a batch, in its order. It runs in the worker thread.
        max_items: The limit of items of a batch.
        max_size: The limit of the sum of sizes of a batch; a single item may exceed it.
        max_queue: The limit of items that wait.
        max_wait: Seconds that a batch which is not full waits for more items.
        watch: Is given the number of items of every batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_items: int = 256,
        max_size: int = 16384,
        max_queue: int = 2048,
        max_wait: float = 0.0,
        watch: Callable[[int], object] = lambda count: None,
    ) -> None:
        self.work, self.max_items, self.max_size, self.watch = work, max_items, max_size, watch
        self.max_queue, self.max_wait, self.closed = max_queue, max_wait, False
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "tfkit-serve")
        self._runner: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of items that wait."""
        return len(self._queue)

    def start(self) -> None:
        """Start to compute batches, in the running event loop."""
        self._runner = asyncio.get_running_loop().create_task(self._run())

    async def submit(self, items: Sequence[tuple[Item, Hashable, int]]) -> list[Result]:
        """Compute items. All are taken or none.

        Args:
            items: Each with its key and its size. Only items with equal keys are computed together.

        Returns:
            Their results, in order.

        Raises:
            QueueFull: there is no room for the items.
            Closed: `drain` was called.
            Exception: what `work` raised for the first item that it cannot compute.
        """
        if self.closed:
            raise Closed
        if len(self._queue) + len(items) > self.max_queue:
            raise QueueFull
        loop = asyncio.get_running_loop()
        mine = [_Waiting[Item, Result](item, key, size, loop.create_future()) for item, key, size in items]
        self._queue.extend(mine)
        self._changed.set()
        try:
            results = await asyncio.gather(*(waiting.result for waiting in mine), return_exceptions=True)
        except asyncio.CancelledError:  # nobody waits for them any more, so they take no room
            self._queue = deque(waiting for waiting in self._queue if not waiting.result.cancelled())
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # type: ignore[return-value]

    async def drain(self) -> None:
        """Take no more items, compute those that wait, and stop the worker thread."""
        self.closed = True
        self._changed.set()
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run(self) -> None:
        while await self._something_waits():
            if self.max_wait and not self._full() and not self.closed:
                await self._wait_for_more()
            batch = self._next()
            if batch:
                self.watch(len(batch))
                await self._compute(batch)

    async def _something_waits(self) -> bool:
        """Waits for an item; false when the batcher is closed and nothing waits."""
        while not self._queue and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._queue)

    async def _wait_for_more(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.max_wait
        while not self._full() and not self.closed and (left := end - loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return

    def _full(self) -> bool:
        return len(self._queue) >= self.max_items or sum(waiting.size for waiting in self._queue) >= self.max_size

    def _next(self) -> list[_Waiting[Item, Result]]:
        """Removes the next batch from the queue, and all items that nobody waits for any more."""
        batch: list[_Waiting[Item, Result]] = []
        left: deque[_Waiting[Item, Result]] = deque()
        size, open_ = 0, True
        for waiting in self._queue:
            if waiting.result.cancelled():
                continue
            if batch and (not open_ or waiting.key != batch[0].key):
                left.append(waiting)
            elif batch and (len(batch) >= self.max_items or size + waiting.size > self.max_size):
                open_ = False
                left.append(waiting)
            else:
                batch.append(waiting)
                size += waiting.size
        self._queue = left
        return batch

    async def _compute(self, batch: list[_Waiting[Item, Result]]) -> None:
        """Computes a batch. If it fails, each item is computed alone, so that only those fail that are the reason."""
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self.work, [waiting.item for waiting in batch])
            pairs = list(zip(batch, results, strict=True))
        except Exception as reason:
            if len(batch) > 1:
                for waiting in batch:
                    if not waiting.result.done():  # its client may have gone
                        await self._compute([waiting])
            elif not batch[0].result.done():
                batch[0].result.set_exception(reason)
            return
        for waiting, result in pairs:
            if not waiting.result.done():
                waiting.result.set_result(result)
