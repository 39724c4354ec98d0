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
        self._waiting: dict[asyncio.AbstractEventLoop, list[_Group[Asked, Answer]]] = {}
        self._at_it: set[asyncio.Task[None]] = set()

    async def done(self, asked: Asked) -> Answer:
        """The answer to it. It is done even where nobody waits for that any longer."""
        (answer,) = await self.all_done([asked])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def all_done(self, asked: Sequence[Asked]) -> Sequence[Answer | Exception]:
        """The answer to each, or what is wrong with it, unless the store is away.

        Raises:
            StoreUnavailable: it is.
        """
        if not asked:
            return []
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[Sequence[Answer | Exception]] = loop.create_future()
        waiting = self._waiting.get(loop)
        if waiting is None:
            self._waiting[loop] = [(asked, answers)]
            # Not at once: others may be about to ask.
            task = loop.create_task(self._do_all(loop))
            self._at_it.add(task)
            task.add_done_callback(self._at_it.discard)
        else:
            waiting.append((asked, answers))
        return await answers

    async def _do_all(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while waiting := self._waiting[loop]:
                number, size = 0, 0
                while number < len(waiting) and (not number or size + len(waiting[number][0]) <= self._most):
                    size += len(waiting[number][0])
                    number += 1
                groups = waiting[:number]
                del waiting[:number]
                await self._do_groups(groups)
        finally:
            del self._waiting[loop]

    async def _do_groups(self, groups: "Sequence[_Group[Asked, Answer]]") -> None:
        try:
            answers = await self._answers([asked for group, _ in groups for asked in group])
        except StoreUnavailable as error:
            for _, future in groups:
                if not future.done():
                    future.set_exception(error)
            return
        first = 0
        for group, future in groups:
            if not future.done():  # or nobody waits for it
                future.set_result(answers[first : first + len(group)])
            first += len(group)

    async def _answers(self, asked: Sequence[Asked]) -> Sequence[Answer | Exception]:
        try:
            return await self._do(asked)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a border: it is raised where it is awaited
            if len(asked) == 1:
                return [error]
            return [answer for one in asked for answer in await self._answers([one])]


_Group = tuple[Sequence[Asked], "asyncio.Future[Sequence[Answer | Exception]]"]
"""What somebody asked for, and who awaits the answers."""
