"""The gateway asked in this process, as a server asks it for a client: a request in, its answer as it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from foveate.gateway.request import Receive, Scope, Send

AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Message = MutableMapping[str, Any]


class GatewayResponse:
    """An answer on its way. It `is_whole` once its last piece is here; `is_stopped`: nobody wants the rest."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._is_request_sent = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = self.is_stopped = False

    def stop(self) -> None:
        """Want no more of it: its provider is told, and it is billed so far."""
        self.is_stopped = True
        self.disconnect()

    def disconnect(self) -> None:
        """Be gone, as a client that closes its connection."""
        self._disconnected.set()
        self.close()

    def close(self) -> None:
        """Wait for no more of it."""
        self._messages.put_nowait(None)

    def create_receive(self, body: bytes) -> Receive:
        """What the gateway hears: the request, and later that its client has gone."""

        async def heard() -> Message:
            if self._is_request_sent:
                await self._disconnected.wait()
                return {"type": "http.disconnect"}
            self._is_request_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return heard

    async def send(self, message: Message) -> None:
        """Take what the gateway says."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        self._messages.put_nowait(message)

    async def wait_for_head(self) -> None:
        """Wait until its head is here, or it is over."""
        while not self.status:
            if await self._messages.get() is None:
                self.close()
                return

    async def iterate_chunks(self) -> AsyncIterator[bytes]:
        """Its body, as it comes, until it is over or stopped."""
        while (message := await self._messages.get()) is not None and not self.is_stopped:
            if message["type"] != "http.response.body":
                continue
            if chunk := message.get("body", b""):
                yield chunk
            if not message.get("more_body"):
                self.is_complete = True
                return


@asynccontextmanager
async def send_request(app: AsgiApp, scope: Scope, body: bytes) -> AsyncIterator[GatewayResponse]:
    """The answer to a request; behind the block nothing of it is under way, and what it cost is known."""
    response = GatewayResponse()
    serving_task = asyncio.ensure_future(app(scope, response.create_receive(body), response.send))
    serving_task.add_done_callback(lambda _: response.close())
    try:
        yield response
    finally:
        if not response.is_complete:
            response.disconnect()
        await asyncio.wait([serving_task])
    serving_task.result()
