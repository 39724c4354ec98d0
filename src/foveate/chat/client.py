"""In-process client of the gateway's ASGI app."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from foveate.gateway.request import AsgiApp, Receive, Scope

Message = MutableMapping[str, Any]


class GatewayResponse:
    """A response that is arriving. `is_stopped`: the user does not want the rest."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._is_request_sent = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = self.is_stopped = False

    def stop(self) -> None:
        """Cancel the response. The provider is disconnected, and the part so far is charged."""
        self.is_stopped = True
        self.disconnect()

    def disconnect(self) -> None:
        """Act like a client that closes its connection."""
        self._disconnected.set()
        self.close()

    def close(self) -> None:
        """Stop waiting for more."""
        self._messages.put_nowait(None)

    def create_receive(self, body: bytes) -> Receive:
        """Return an ASGI `receive` for the request, and later for the disconnect."""

        async def receive() -> Message:
            if self._is_request_sent:
                await self._disconnected.wait()
                return {"type": "http.disconnect"}
            self._is_request_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def send(self, message: Message) -> None:
        """The ASGI `send` of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        self._messages.put_nowait(message)

    async def wait_for_head(self) -> None:
        """Wait for the head, or for the end."""
        while not self.status:
            if await self._messages.get() is None:
                self.close()
                return

    async def iterate_chunks(self) -> AsyncIterator[bytes]:
        """Yield the body until it ends or is stopped."""
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
    """Send a request and yield its response. After the block nothing is running, and its charge is known."""
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
