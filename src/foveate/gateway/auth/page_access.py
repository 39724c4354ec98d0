"""Access to the gateway's own pages.

An agent's key sees that agent. An admin key sees everything, and so does a request on loopback without a key.
Scoped pages know their viewer and show only what that viewer may see; all other pages are for administrators.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

import msgspec

from foveate.gateway.auth.callers import Keys
from foveate.gateway.observability.health import DETAILS_SCOPE_KEY, PUBLIC_PATHS
from foveate.gateway.request import GATEWAY_KEY_HEADER, KEY_PREFIX, AsgiApp, Receive, Scope, Send
from foveate.web.page import ADMIN, Viewer, set_viewer

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_KEY_NEEDED = (
    "this page requires a gateway key, as a bearer token or a password (`foveate config key` creates one)"
)
_ADMIN_NEEDED = (
    "this page shows all agents, but this key belongs to a single agent: use an admin key"
    " (`foveate config key --admin` creates one)"
)
# Headers of a proxy on this machine: the request comes from somewhere else.
_PROXY_HEADERS = frozenset((b"forwarded", b"via", b"x-real-ip"))
_PROXY_PREFIX = b"x-forwarded-"


def is_loopback(host: str) -> bool:
    """Return whether a host, an address or a name, can be reached only from this machine."""
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def find_key(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the key of a request, as clients send it or as a browser's password."""
    for name in (GATEWAY_KEY_HEADER.encode(), b"x-api-key"):
        value = headers.get(name, b"").decode("latin-1").strip()
        if value:
            return value
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    match scheme.lower():
        case "bearer":
            return token.strip()
        case "basic":
            try:
                return b64decode(token.strip(), validate=True).decode("utf-8", "replace").partition(":")[2]
            except (NotBase64, ValueError):
                return None
        case _:
            return None


def identify_viewer(headers: Mapping[bytes, bytes], *, host: str, keys: Keys) -> Viewer | None:
    """Return the viewer of a page; None for somebody who may see nothing. The gateway listens on `host`.

    On loopback the request must use a name of this machine, so that a web page whose own name resolves to
    loopback cannot read it (DNS rebinding). Requests from a proxy do not come from this machine.
    """
    key = find_key(headers)
    if key is not None and key.startswith(KEY_PREFIX):
        if keys.is_admin(key):
            return ADMIN
        agent = keys.agent(key)
        return None if agent is None else Viewer(agent)
    is_local = is_loopback(host) and is_loopback(strip_port(headers.get(b"host", b"").decode("latin-1")))
    return ADMIN if is_local and not is_proxied(headers) else None


def is_proxied(names: Iterable[bytes]) -> bool:
    """Return whether the header names show that a proxy forwarded the request."""
    return any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX) for name in names)


def strip_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def guard_pages(
    pages: Mapping[str, AsgiApp], scoped: Mapping[str, AsgiApp], *, host: str, keys: Callable[[], Keys]
) -> dict[str, AsgiApp]:
    """Wrap pages so that each checks its viewer; only those in `PUBLIC_PATHS` are for everybody.

    `scoped` pages know their viewer and show an agent's key only that agent. The others are for administrators.
    """
    admins_only = {
        path: _detect_details_viewer(page, host=host, keys=keys)
        if path in PUBLIC_PATHS
        else _require_viewer(page, host=host, keys=keys, is_scoped=False)
        for path, page in pages.items()
    }
    return admins_only | {
        path: _require_viewer(page, host=host, keys=keys, is_scoped=True) for path, page in scoped.items()
    }


def _detect_details_viewer(page: AsgiApp, *, host: str, keys: Callable[[], Keys]) -> AsgiApp:
    """Wrap a page that is for everybody, and tell it whether its caller may see details."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        viewer = None if is_cross_site(headers) else identify_viewer(headers, host=host, keys=keys())
        await page({**scope, DETAILS_SCOPE_KEY: viewer is not None and viewer.sees_everything}, receive, send)

    return app


def _require_viewer(page: AsgiApp, *, host: str, keys: Callable[[], Keys], is_scoped: bool) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if is_cross_site(headers):
            await _send_error(send, 403, "this page rejects requests from other sites")
            return
        viewer = identify_viewer(headers, host=host, keys=keys())
        if viewer is None:
            await _send_error(send, 401, _KEY_NEEDED)
        elif is_scoped or viewer.sees_everything:
            await page(set_viewer(scope, viewer), receive, send)
        else:
            await _send_error(send, 403, _ADMIN_NEEDED)

    return app


def is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another site sends the request; following a link is not cross-site."""
    if headers.get(b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return False
    return (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) != (b"navigate", b"document")


async def _send_error(send: Send, status: int, message: str) -> None:
    body = msgspec.json.encode({"error": message})
    challenge = [(b"www-authenticate", b'Basic realm="Foveate", charset="UTF-8"')] if status == 401 else []
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *challenge,
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
