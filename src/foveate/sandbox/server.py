"""The sandbox behind HTTP: a thin ASGI app, and uvicorn to serve it."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from foveate.sandbox.asks import LIMIT_BYTES, Ask, Reply
from foveate.sandbox.doors import Provider, spoken_by
from foveate.sandbox.scripts import Script
from foveate.sandbox.stand_in import Sandbox
from foveate.upstream.sockets import address, listening
from foveate.wire import refusals

if TYPE_CHECKING:
    import uvicorn

__all__ = ["App", "address", "listening", "serve", "server"]

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A longer body is read and counted beside the event loop, so that other answers go on meanwhile.
_SHORT_BYTES = 64 * 1024
_SHUTDOWN_SECONDS = 2


class App:
    """An ASGI app around a sandbox. `heard` is told each request, `lost` each whose client went away."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        providers: frozenset[Provider] = frozenset(Provider),
        heard: Callable[[Ask], None] | None = None,
        lost: Callable[[Ask], None] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._providers = providers
        self._heard = heard
        self._lost = lost

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        ask = await _asked(scope, receive)
        if ask is None:  # gone before all of it was here
            return
        if self._heard is not None:
            self._heard(ask)
        reply = await self._reply(ask)
        try:
            is_through = await _sent(reply, receive, send)
        finally:
            if reply.at_end is not None:
                reply.at_end()
        if not is_through and self._lost is not None:
            self._lost(ask)

    async def _reply(self, ask: Ask) -> Reply:
        if len(ask.body) > LIMIT_BYTES:
            spoken = spoken_by(ask, self._providers)
            return self._sandbox.refused(spoken, refusals.too_large(spoken, LIMIT_BYTES))
        if len(ask.body) < _SHORT_BYTES:
            return self._sandbox.answered(ask, self._sandbox.taken(ask))
        taken = await asyncio.to_thread(self._sandbox.taken, ask)
        return self._sandbox.answered(ask, taken)


async def _asked(scope: _Scope, receive: _Receive) -> Ask | None:
    """The request with its body, of which no more is kept than shows that it is too long."""
    pieces: list[bytes] = []
    kept = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if kept <= LIMIT_BYTES:
            pieces.append(message.get("body", b""))
            kept += len(pieces[-1])
        if not message.get("more_body"):
            break
    headers: dict[str, str] = {}
    for name, said in scope["headers"]:  # RFC 9110, 5.3: several lines are one list
        key, text = name.decode("latin-1").lower(), said.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return Ask(
        method=scope["method"],
        path=scope["path"],
        headers=headers,
        body=b"".join(pieces),
        query=scope.get("query_string", b"").decode("latin-1"),
    )


async def _sent(reply: Reply, receive: _Receive, send: _Send) -> bool:
    """Send a reply; False where the client went away before its end."""
    gone = asyncio.ensure_future(receive())  # the next thing to come is that the client has gone
    try:
        if await _passed(reply.delay_seconds, gone):
            return False
        headers = dict(reply.headers)
        if not reply.streams:
            whole = sum(map(len, reply.pieces))
            headers["content-length"] = str(whole + 1 if reply.breaks_off else whole)
        told = [(name.encode("latin-1"), said.encode("latin-1")) for name, said in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": told})
        for number, piece in enumerate(reply.pieces):
            if number and await _passed(reply.pace_seconds, gone):
                return False
            is_last = number == len(reply.pieces) - 1
            if is_last and not reply.breaks_off and reply.before_last is not None:
                reply.before_last()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not reply.breaks_off:  # or else the server finds it unfinished, and cuts the connection
            await send({"type": "http.response.body", "body": b""})
        return True
    finally:
        gone.cancel()


async def _passed(seconds: float, gone: "asyncio.Future[Any]") -> bool:
    """Wait so long, or until the client has gone; whether it has."""
    if seconds:
        await asyncio.wait({gone}, timeout=seconds)
    return gone.done()


def server(app: App) -> "uvicorn.Server":
    """A uvicorn that serves the app and says nothing."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="httptools",
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
    )


def serve(where: socket.socket, *, script: Script | None, providers: frozenset[Provider]) -> None:
    """Be the sandbox until somebody ends it."""
    sandbox = Sandbox(clock=time.time, seed=os.urandom(16), script=script, providers=providers)
    running = server(App(sandbox, providers=providers))
    # An interrupt while the loop is loaded must not leave a coroutine that nobody awaits.
    with asyncio.Runner(loop_factory=running.config.get_loop_factory()) as runner:
        runner.run(running.serve(sockets=[where]))
