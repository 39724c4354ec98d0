"""Does together what was asked for while something else was being done."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from foveate.errors import StoreUnavailable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Gathering(Generic[Asked, Answer]):
    """Has `do` done with many things at once, for each event loop that asks: one `do` is under way at a time.

    `do` gives an answer to each, in their order; one that is an error is raised to whoever asked. Where the
    store is away, that is raised to all. After any other error each is tried alone, so that one which cannot be
    done is not the end of the others.
    """

    def __init__(
        self, do: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]], *, most: int
    ) -> None:
        self._do = do
        self._most = most
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[Asked, asyncio.Future[Answer]]]] = {}
        self._at_it: set[asyncio.Task[None]] = set()

    async def done(self, asked: Asked) -> Answer:
        """The answer to it. It is done even where nobody waits for that any longer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        waiting = self._waiting.get(loop)
        if waiting is None:
            self._waiting[loop] = [(asked, answer)]
            # Not at once: others may be about to ask.
            task = loop.create_task(self._do_all(loop))
            self._at_it.add(task)
            task.add_done_callback(self._at_it.discard)
        else:
            waiting.append((asked, answer))
        return await answer

    async def _do_all(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while waiting := self._waiting[loop]:
                some = waiting[: self._most]
                del waiting[: self._most]
                await self._do_some(some)
        finally:
            del self._waiting[loop]

    async def _do_some(self, some: Sequence[tuple[Asked, "asyncio.Future[Answer]"]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._do([asked for asked, _ in some])
        except StoreUnavailable as error:
            answers = [error] * len(some)
        except Exception as error:  # noqa: BLE001 - a border: it is raised where it is awaited
            if len(some) > 1:
                for one in some:
                    await self._do_some([one])
                return
            answers = [error]
        for (_, future), answer in zip(some, answers, strict=True):
            if future.done():  # nobody waits for it
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
