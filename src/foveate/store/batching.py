"""Collects items that are submitted while a batch is being executed, and executes them as the next batch."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from foveate.errors import StoreUnavailable

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class BatchExecutor(Generic[ItemT, ResultT]):
    """Execute submitted items in batches, one batch at a time for each event loop.

    `execute` returns one result for each item, in order. A result that is an exception is raised to the caller
    that submitted the item. If `execute` raises `StoreUnavailable`, all callers get it. After any other
    exception, each item is executed alone, so that one bad item does not fail the others.
    """

    def __init__(
        self, execute: Callable[[Sequence[ItemT]], Awaitable[Sequence[ResultT | Exception]]], *, max_items: int
    ) -> None:
        self._execute = execute
        self._max_items = max_items
        self._pending: dict[asyncio.AbstractEventLoop, list[_Submission[ItemT, ResultT]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: ItemT) -> ResultT:
        """The item is executed even if the caller is cancelled."""
        (result,) = await self.submit_all([item])
        if isinstance(result, Exception):
            raise result
        return result

    async def submit_all(self, items: Sequence[ItemT]) -> Sequence[ResultT | Exception]:
        """Return a result or an exception for each item.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        if not items:
            return []
        loop = asyncio.get_running_loop()
        results: asyncio.Future[Sequence[ResultT | Exception]] = loop.create_future()
        pending = self._pending.get(loop)
        if pending is None:
            self._pending[loop] = [(items, results)]
            # Not immediately: other callers may be about to submit.
            task = loop.create_task(self._run_batches(loop))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            pending.append((items, results))
        return await results

    async def _run_batches(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while pending := self._pending[loop]:
                count, size = 0, 0
                while count < len(pending) and (not count or size + len(pending[count][0]) <= self._max_items):
                    size += len(pending[count][0])
                    count += 1
                groups = pending[:count]
                del pending[:count]
                await self._run_batch(groups)
        finally:
            del self._pending[loop]

    async def _run_batch(self, groups: "Sequence[_Submission[ItemT, ResultT]]") -> None:
        try:
            results = await self._execute_with_fallback([item for group, _ in groups for item in group])
        except StoreUnavailable as error:
            for _, future in groups:
                if not future.done():
                    future.set_exception(error)
            return
        first = 0
        for group, future in groups:
            if not future.done():  # otherwise the caller was cancelled
                future.set_result(results[first : first + len(group)])
            first += len(group)

    async def _execute_with_fallback(self, items: Sequence[ItemT]) -> Sequence[ResultT | Exception]:
        try:
            return await self._execute(items)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised to the callers
            if len(items) == 1:
                return [error]
            return [result for item in items for result in await self._execute_with_fallback([item])]


_Submission = tuple[Sequence[ItemT], "asyncio.Future[Sequence[ResultT | Exception]]"]
"""Submitted items, and the future of their results."""
