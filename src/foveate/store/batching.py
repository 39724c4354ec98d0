"""Does together what was asked for while something else was being done."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from foveate.errors import StoreUnavailable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class BatchExecutor(Generic[Asked, Answer]):
    """Has `do` done with many things at once, for each event loop that asks: one `do` is under way at a time.

    `do` gives an answer to each, in their order; one that is an error is raised to whoever asked. Where the
    store is away, that is raised to all. After any other error each is tried alone, so that one which cannot be
    done is not the end of the others.
    """

    def __init__(
        self, execute: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]], *, max_items: int
    ) -> None:
        self._execute = execute
        self._max_items = max_items
        self._pending: dict[asyncio.AbstractEventLoop, list[_Submission[Asked, Answer]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Asked) -> Answer:
        """The answer to it. It is done even where nobody waits for that any longer."""
        (result,) = await self.submit_all([item])
        if isinstance(result, Exception):
            raise result
        return result

    async def submit_all(self, items: Sequence[Asked]) -> Sequence[Answer | Exception]:
        """The answer to each, or what is wrong with it, unless the store is away.

        Raises:
            StoreUnavailable: it is.
        """
        if not items:
            return []
        loop = asyncio.get_running_loop()
        results: asyncio.Future[Sequence[Answer | Exception]] = loop.create_future()
        pending = self._pending.get(loop)
        if pending is None:
            self._pending[loop] = [(items, results)]
            # Not at once: others may be about to ask.
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

    async def _run_batch(self, groups: "Sequence[_Submission[Asked, Answer]]") -> None:
        try:
            results = await self._execute_with_fallback([item for group, _ in groups for item in group])
        except StoreUnavailable as error:
            for _, future in groups:
                if not future.done():
                    future.set_exception(error)
            return
        first = 0
        for group, future in groups:
            if not future.done():  # or nobody waits for it
                future.set_result(results[first : first + len(group)])
            first += len(group)

    async def _execute_with_fallback(self, items: Sequence[Asked]) -> Sequence[Answer | Exception]:
        try:
            return await self._execute(items)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a border: it is raised where it is awaited
            if len(items) == 1:
                return [error]
            return [result for item in items for result in await self._execute_with_fallback([item])]


_Submission = tuple[Sequence[Asked], "asyncio.Future[Sequence[Answer | Exception]]"]
"""What somebody asked for, and who awaits the answers."""
