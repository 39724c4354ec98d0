"""CORS: browsers may call the gateway only from its own pages and from listed origins."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from foveate.formats.response.errors import make_status_error
from foveate.gateway.auth.page_access import is_loopback, strip_port
from foveate.gateway.observability.request_observer import (
    NO_REQUEST_OBSERVER,
    RequestObserver,
    observe_response,
)
from foveate.gateway.request import AsgiApp, Receive, Scope, Send

_ANY_ORIGIN = "*"
_ORIGIN = b"origin"
_HOST = b"host"
_CORS_PREFIX = b"access-control-"
_ALLOWED_METHODS = b"GET, HEAD, POST, DELETE"
_EXPOSED_HEADERS = b"x-foveate-request-id, request-id, x-request-id, retry-after"
_PREFLIGHT_SECONDS = b"600"

HeaderList = list[tuple[bytes, bytes]]


def response_headers(origin: str, allowed: Sequence[str]) -> HeaderList | None:
    """Return the CORS headers of a response for an origin; None if its pages may not read it.

    Cookies are never allowed: clients send their keys themselves.
    """
    if origin in allowed:
        allowed_origin = origin.encode("latin-1")
    elif _ANY_ORIGIN in allowed:
        allowed_origin = b"*"
    else:
        return None
    return [
        (b"access-control-allow-origin", allowed_origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
    ]


def preflight_headers(origin: str, requested_headers: bytes, allowed: Sequence[str]) -> HeaderList:
    cors_headers = response_headers(origin, allowed)
    if cors_headers is None:
        return []
    return [
        cors_headers[0],
        (b"access-control-allow-methods", _ALLOWED_METHODS),
        (b"access-control-allow-headers", requested_headers or b"content-type"),
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
    ]


class CorsMiddleware:
    """ASGI middleware that lets only pages of listed origins call the app.

    Over plain HTTP browsers identify a page only by `origin`, and not with every request. So on loopback the
    host name is checked too, since any web page can make its own name resolve to loopback.
    """

    def __init__(
        self,
        app: AsgiApp,
        origins: Callable[[], Sequence[str]],
        *,
        host: str,
        host_names: Callable[[], Sequence[str]] = tuple,
        observer: RequestObserver = NO_REQUEST_OBSERVER,
    ) -> None:
        """Listen on `host`; `host_names` are further names of it."""
        self._app = app
        self._origins = origins
        self._is_on_loopback = is_loopback(host)
        self._host_names = host_names
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = host_header = None
        for name, value in scope["headers"]:
            if name == _ORIGIN:
                origin = value.decode("latin-1")
            elif name == _HOST:
                host_header = value.decode("latin-1").lower()
        if (
            self._is_on_loopback
            and host_header is not None
            and not self._is_known_host(strip_port(host_header))
        ):
            await self._reject(scope, send, "foreign_host", _unknown_host_text(strip_port(host_header)))
        elif origin is not None:
            await self._handle_browser_request(origin, host_header or "", scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _handle_browser_request(
        self, origin: str, host_header: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = dict(scope["headers"])
        allowed = self._origins()
        cors_headers = response_headers(origin, allowed)
        is_preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if cors_headers is None and (is_preflight or origin.partition("://")[2].lower() != host_header):
            # Even if the page could not read the response, the request would be sent, perhaps with the
            # gateway's key.
            await self._reject(scope, send, "foreign_origin", _unlisted_origin_text(origin))
            return
        if is_preflight:
            requested_headers = headers.get(b"access-control-request-headers", b"")
            with observe_response(scope, send, self._observer) as response:
                await response.send_response(
                    204, b"", [*preflight_headers(origin, requested_headers, allowed), _VARY]
                )
            return

        async def send_with_cors(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # The provider's CORS headers are for pages that call the provider.
                provider_headers = [
                    pair for pair in message.get("headers", ()) if not pair[0].lower().startswith(_CORS_PREFIX)
                ]
                message = {**message, "headers": [*provider_headers, *(cors_headers or ()), _VARY]}
            await send(message)

        await self._app(scope, receive, send_with_cors)

    def _is_known_host(self, name: str) -> bool:
        return is_loopback(name) or name in (host_name.lower() for host_name in self._host_names())

    async def _reject(self, scope: Scope, send: Send, code: str, message: str) -> None:
        with observe_response(scope, send, self._observer) as response:
            response.error_code, response.error_reason = code, message
            await response.send_error(
                make_status_error(response.api_format, 403, message), retry=False, headers=[_VARY]
            )


_VARY = (b"vary", b"origin")
_MAX_SHOWN_CHARS = 100


def _unknown_host_text(name: str) -> str:
    return (
        f"this gateway only serves this machine and does not accept the host name {name[:_MAX_SHOWN_CHARS]!r}:"
        " use 127.0.0.1 or localhost, or list the name in server.host_names"
    )


def _unlisted_origin_text(origin: str) -> str:
    return (
        f"web pages from {origin[:_MAX_SHOWN_CHARS]!r} may not call this gateway: allow the origin with"
        " --cors-origin or in server.cors_origins"
    )
