"""The gateway asked in this process, as a server asks it for a client: a request in, its answer as it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from foveate.gateway.asks import Receive, Scope, Send

App = Callable[[Scope, Receive, Send], Awaitable[None]]
Message = MutableMapping[str, Any]


class Arriving:
    """An answer on its way. It `is_whole` once its last piece is here; `is_stopped`: nobody wants the rest."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Message | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._is_asked = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_whole = self.is_stopped = False

    def stop(self) -> None:
        """Want no more of it: its provider is told, and it is billed so far."""
        self.is_stopped = True
        self.leave()

    def leave(self) -> None:
        """Be gone, as a client that closes its connection."""
        self._gone.set()
        self.end()

    def end(self) -> None:
        """Wait for no more of it."""
        self._came.put_nowait(None)

    def receive(self, body: bytes) -> Receive:
        """What the gateway hears: the request, and later that its client has gone."""

        async def heard() -> Message:
            if self._is_asked:
                await self._gone.wait()
                return {"type": "http.disconnect"}
            self._is_asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        return heard

    async def send(self, message: Message) -> None:
        """Take what the gateway says."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        self._came.put_nowait(message)

    async def begun(self) -> None:
        """Wait until its head is here, or it is over."""
        while not self.status:
            if await self._came.get() is None:
                self.end()
                return

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its body, as it comes, until it is over or stopped."""
        while (message := await self._came.get()) is not None and not self.is_stopped:
            if message["type"] != "http.response.body":
                continue
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body"):
                self.is_whole = True
                return


@asynccontextmanager
async def asked(app: App, scope: Scope, body: bytes) -> AsyncIterator[Arriving]:
    """The answer to a request; behind the block nothing of it is under way, and what it cost is known."""
    arriving = Arriving()
    serving = asyncio.ensure_future(app(scope, arriving.receive(body), arriving.send))
    serving.add_done_callback(lambda _: arriving.end())
    try:
        yield arriving
    finally:
        if not arriving.is_whole:
            arriving.leave()
        await asyncio.wait([serving])
    serving.result()
