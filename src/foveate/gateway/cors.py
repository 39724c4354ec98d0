"""Pages that may call the gateway from a browser: its own and those of listed origins, and no others."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from foveate.gateway.admin import host_in, is_loopback
from foveate.gateway.asks import Receive, Scope, Send
from foveate.gateway.traffic import UNSEEN, Traffic, seen
from foveate.wire.refusals import failed

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ANY = "*"
_ORIGIN = b"origin"
_HOST = b"host"
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
    """An app whose answers browsers give to the pages of listed origins alone, and that other pages cannot ask.

    Browsers that ask over plain HTTP say of whose page it is only by `origin`, and not with all requests. So on
    loopback the name counts too by which it is asked for, since any page's own can be made to lead here.
    """

    def __init__(
        self,
        app: App,
        origins: Callable[[], Sequence[str]],
        *,
        host: str,
        host_names: Callable[[], Sequence[str]] = tuple,
        traffic: Traffic = UNSEEN,
    ) -> None:
        """`host` is where the app listens; `host_names` are names of it beside those of loopback."""
        self._app = app
        self._origins = origins
        self._is_on_loopback = is_loopback(host)
        self._host_names = host_names
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = asked_for = None
        for name, value in scope["headers"]:
            if name == _ORIGIN:
                origin = value.decode("latin-1")
            elif name == _HOST:
                asked_for = value.decode("latin-1").lower()
        if self._is_on_loopback and asked_for is not None and not self._is_own(host_in(asked_for)):
            await self._refuse(scope, send, "foreign_host", _not_known_as(host_in(asked_for)))
        elif origin is not None:
            await self._from_page(origin, asked_for or "", scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _from_page(self, origin: str, asked_for: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        allowed = self._origins()
        own = answer_headers(origin, allowed)
        is_preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if own is None and (is_preflight or origin.partition("://")[2].lower() != asked_for):
            # Whether or not it could read the answer, it would be asked for, perhaps with the gateway's key.
            await self._refuse(scope, send, "foreign_origin", _not_listed(origin))
            return
        if is_preflight:
            asked = headers.get(b"access-control-request-headers", b"")
            with seen(scope, send, self._traffic) as client:
                await client.said(204, b"", [*preflight_headers(origin, asked, allowed), _VARY])
            return

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # What a provider allows, it allows to pages that call the provider.
                kept = [pair for pair in message.get("headers", ()) if not pair[0].lower().startswith(_ALLOWED)]
                message = {**message, "headers": [*kept, *(own or ()), _VARY]}
            await send(message)

        await self._app(scope, receive, sent)

    def _is_own(self, name: str) -> bool:
        return is_loopback(name) or name in (known.lower() for known in self._host_names())

    async def _refuse(self, scope: Scope, send: Send, code: str, said: str) -> None:
        with seen(scope, send, self._traffic) as client:
            client.refused, client.reason = code, said
            await client.refuse(failed(client.spoken, 403, said), retry=False, headers=[_VARY])


_VARY = (b"vary", b"origin")
_SHOWN_CHARACTERS = 100


def _not_known_as(name: str) -> str:
    return (
        f"this gateway is for this machine alone, and not known as {name[:_SHOWN_CHARACTERS]!r}: ask for it as "
        "127.0.0.1 or localhost, or list the name in server.host_names"
    )


def _not_listed(origin: str) -> str:
    return (
        f"pages of {origin[:_SHOWN_CHARACTERS]!r} may not call this gateway: list the origin with "
        "--cors-origin or in server.cors_origins"
    )
