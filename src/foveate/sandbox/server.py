"""Serves the sandbox over HTTP: a thin ASGI app, and uvicorn."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from foveate.formats.response import errors
from foveate.http.listening_sockets import open_listening_socket, socket_url
from foveate.sandbox.http import (
    MAX_BODY_BYTES,
    SandboxProvider,
    SandboxReply,
    SandboxRequest,
    detect_route_format,
)
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script

__all__ = ["SandboxApp", "build_server", "open_listening_socket", "serve", "socket_url"]

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Longer bodies are processed in a thread, so that other responses continue meanwhile.
_MAX_INLINE_BYTES = 64 * 1024
_SHUTDOWN_SECONDS = 2


class SandboxApp:
    """An ASGI app. It calls `on_request` for each request, and `on_disconnect` if its client went away."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        providers: frozenset[SandboxProvider] = frozenset(SandboxProvider),
        on_request: Callable[[SandboxRequest], None] | None = None,
        on_disconnect: Callable[[SandboxRequest], None] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._providers = providers
        self._on_request = on_request
        self._on_disconnect = on_disconnect

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        http_request = await _read_request(scope, receive)
        if http_request is None:  # the client disconnected
            return
        if self._on_request is not None:
            self._on_request(http_request)
        reply = await self._reply(http_request)
        try:
            is_complete = await _send_reply(reply, receive, send)
        finally:
            if reply.on_end is not None:
                reply.on_end()
        if not is_complete and self._on_disconnect is not None:
            self._on_disconnect(http_request)

    async def _reply(self, http_request: SandboxRequest) -> SandboxReply:
        if len(http_request.body) > MAX_BODY_BYTES:
            api_format = detect_route_format(http_request, self._providers)
            return self._sandbox.render_error(
                api_format, errors.make_body_too_large_error(api_format, MAX_BODY_BYTES)
            )
        if len(http_request.body) < _MAX_INLINE_BYTES:
            return self._sandbox.respond(http_request, self._sandbox.accept(http_request))
        accepted = await asyncio.to_thread(self._sandbox.accept, http_request)
        return self._sandbox.respond(http_request, accepted)


async def _read_request(scope: _Scope, receive: _Receive) -> SandboxRequest | None:
    """Read a request, and no more of a body than shows that it is too long; None if the client went away."""
    chunks: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if size_bytes <= MAX_BODY_BYTES:
            chunks.append(message.get("body", b""))
            size_bytes += len(chunks[-1])
        if not message.get("more_body"):
            break
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:  # RFC 9110, 5.3: repeated fields form a list
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return SandboxRequest(
        method=scope["method"],
        path=scope["path"],
        headers=headers,
        body=b"".join(chunks),
        query=scope.get("query_string", b"").decode("latin-1"),
    )


async def _send_reply(reply: SandboxReply, receive: _Receive, send: _Send) -> bool:
    """Send a reply; return False if the client went away before its end."""
    disconnect = asyncio.ensure_future(receive())  # the next message can only be a disconnect
    try:
        if await _wait_unless_disconnected(reply.delay_seconds, disconnect):
            return False
        headers = dict(reply.headers)
        if not reply.is_streaming:
            size_bytes = sum(map(len, reply.chunks))
            headers["content-length"] = str(size_bytes + 1 if reply.disconnects else size_bytes)
        raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw_headers})
        for number, chunk in enumerate(reply.chunks):
            if number and await _wait_unless_disconnected(reply.pace_seconds, disconnect):
                return False
            is_last = number == len(reply.chunks) - 1
            if is_last and not reply.disconnects and reply.before_last_chunk is not None:
                reply.before_last_chunk()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not reply.disconnects:  # otherwise uvicorn finds the response incomplete, and disconnects
            await send({"type": "http.response.body", "body": b""})
        return True
    finally:
        disconnect.cancel()


async def _wait_unless_disconnected(seconds: float, disconnect: "asyncio.Future[Any]") -> bool:
    """Wait, but not longer than the client stays connected; return whether it went away."""
    if seconds:
        await asyncio.wait({disconnect}, timeout=seconds)
    return disconnect.done()


def build_server(app: SandboxApp) -> uvicorn.Server:
    """Return a uvicorn server without logging."""
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


def serve(listener: socket.socket, *, script: Script | None, providers: frozenset[SandboxProvider]) -> None:
    sandbox = Sandbox(clock=time.time, seed=os.urandom(16), script=script, providers=providers)
    uvicorn_server = build_server(SandboxApp(sandbox, providers=providers))
    # An interrupt while the loop starts must not leave a coroutine that is never awaited.
    with asyncio.Runner(loop_factory=uvicorn_server.config.get_loop_factory()) as runner:
        try:
            runner.run(uvicorn_server.serve(sockets=[listener]))
        except asyncio.CancelledError:  # Python 3.11 does not count an interrupt just before the loop runs
            raise KeyboardInterrupt from None
