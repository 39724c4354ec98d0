"""The gateway's server and its connections to a provider without the engine, as a separate process.

Its cost is a lower bound for this architecture; the difference to Foveate is the cost of the engine.
"""

import sys

from foveate.gateway.request import Receive, Scope, Send
from foveate.http.listening_sockets import open_listening_socket
from foveate.http.pool import ConnectionPool, parse_url

_DROPPED_HEADERS = frozenset((b"host", b"content-length", b"connection", b"transfer-encoding"))


class Relay:
    """An ASGI app that forwards requests and responses unchanged."""

    def __init__(self, pool: ConnectionPool, base_url: str) -> None:
        self._pool = pool
        self._base_url = base_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        headers = [pair for pair in scope["headers"] if pair[0] not in _DROPPED_HEADERS]
        url = parse_url(self._base_url + scope["path"])
        async with self._pool.stream(scope["method"], url, headers, body) as response:
            response_headers = [pair for pair in response.headers if pair[0].lower() != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": response.status, "headers": response_headers})
            while chunk := await response.read_chunk():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _serve(upstream_port: int) -> None:
    import uvicorn

    with open_listening_socket("127.0.0.1", 0) as listener:
        async with ConnectionPool() as pool:
            server = uvicorn.Server(
                uvicorn.Config(
                    Relay(pool, f"http://127.0.0.1:{upstream_port}"),
                    http="httptools",
                    lifespan="off",
                    ws="none",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    date_header=False,
                )
            )
            print(listener.getsockname()[1], flush=True)
            await server.serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1])))
