"""Pages of other origins that may call the gateway from a browser: those that are listed, and no other."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from foveate.gateway.admin import host_in, is_loopback
from foveate.gateway.asks import Receive, Scope, Send

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ANY = "*"
_ORIGIN = b"origin"
_ALLOWED = b"access-control-"
_METHODS = b"GET, HEAD, POST, DELETE"
_EXPOSED = b"x-foveate-request-id, request-id, x-request-id, retry-after"
_SECONDS = b"600"

Headers = list[tuple[bytes, bytes]]


def answer_headers(origin: str, allowed: Sequence[str]) -> Headers | None:
    """What an answer says to the page of an origin; None where it may not read it.

    Credentials of the browser's own (cookies) are never allowed: clients bring their keys themselves.
    """
    if origin in allowed:
        said = origin.encode("latin-1")
    elif _ANY in allowed:
        said = b"*"
    else:
        return None
    return [(b"access-control-allow-origin", said), (b"access-control-expose-headers", _EXPOSED)]


def preflight_headers(origin: str, asked: bytes, allowed: Sequence[str]) -> Headers:
    """What is answered to a browser that asks, before a page's request, whether it may send it."""
    said = answer_headers(origin, allowed)
    if said is None:
        return []
    return [
        said[0],
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", asked or b"content-type"),
        (b"access-control-max-age", _SECONDS),
    ]


class Cors:
    """An app whose answers browsers give to the pages of listed origins alone."""

    def __init__(self, app: App, origins: Callable[[], Sequence[str]], *, host: str) -> None:
        """`host` is where the app listens."""
        self._app = app
        self._origins = origins
        self._is_on_loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == _ORIGIN:
                    await self._from_page(value.decode("latin-1"), scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _from_page(self, origin: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        allowed = self._origins()
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            asked = headers.get(b"access-control-request-headers", b"")
            said = preflight_headers(origin, asked, allowed)
            await _answer(send, 204 if said else 403, [*said, _VARY])
            return
        own = answer_headers(origin, allowed)
        if own is None and self._is_of_strange_page(headers):
            # Whether or not it could read the answer, it would be asked for, perhaps with the gateway's key.
            await _answer(send, 403, [_VARY])
            return

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # What a provider allows, it allows to pages that call the provider.
                kept = [pair for pair in message.get("headers", ()) if not pair[0].lower().startswith(_ALLOWED)]
                message = {**message, "headers": [*kept, *(own or ()), _VARY]}
            await send(message)

        await self._app(scope, receive, sent)

    def _is_of_strange_page(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a browser asks for a page of another site, or of a name that was made to lead to loopback."""
        site = headers.get(b"sec-fetch-site")
        if site is None:  # no browser
            return False
        return site in _FOREIGN or (
            self._is_on_loopback and not is_loopback(host_in(headers.get(b"host", b"").decode("latin-1")))
        )


_VARY = (b"vary", b"origin")
# A page of the gateway's own says same-origin, and one who typed the address none.
_FOREIGN = frozenset((b"cross-site", b"same-site"))


async def _answer(send: Send, status: int, headers: Headers) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})
