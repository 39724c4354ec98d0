"""Who may see the gateway's own pages: whoever has a key of the gateway, and on loopback whoever is there."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from ipaddress import ip_address

import msgspec

from foveate.gateway.asks import GATEWAY_KEY, KEY_PREFIX, Receive, Scope, Send
from foveate.gateway.keys import Keys
from foveate.gateway.pages import OPEN, Page

_NAMED = ("localhost", "127.0.0.1", "::1")
_KEY_NEEDED = (
    "this page needs a key of the gateway (`foveate config key` makes one), as a bearer token or a password"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is at a host: an address, or a name that stands for one."""
    if host in _NAMED:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def shown_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key that a request shows: as clients do, or as the password that a browser asks for."""
    for name in (GATEWAY_KEY.encode(), b"x-api-key"):
        said = headers.get(name, b"").decode("latin-1").strip()
        if said:
            return said
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


def may_see(headers: Mapping[bytes, bytes], *, host: str, keys: Keys) -> bool:
    """Whether a request may see a page of a gateway that listens on `host`.

    On loopback it has to be asked for by a name of this machine: a page on the web whose own name leads to
    loopback all at once must not read it.
    """
    key = shown_key(headers)
    if key is not None and key.startswith(KEY_PREFIX):
        return keys.agent(key) is not None
    return is_loopback(host) and is_loopback(host_in(headers.get(b"host", b"").decode("latin-1")))


def host_in(said: str) -> str:
    """The host of a header, without its port and brackets."""
    if said.startswith("["):
        return said[1:].partition("]")[0]
    return said.rpartition(":")[0] if ":" in said else said


def guarded(pages: Mapping[str, Page], *, host: str, keys: Callable[[], Keys]) -> dict[str, Page]:
    """The pages, of which all but those for machines that know nothing are shown only to those who may."""
    return {
        path: page if path in OPEN else _guarded(page, host=host, keys=keys) for path, page in pages.items()
    }


def _guarded(page: Page, *, host: str, keys: Callable[[], Keys]) -> Page:
    async def shown(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if is_from_another_site(headers):
            await _refused(send, 403, "this page is shown to no other site")
        elif may_see(headers, host=host, keys=keys()):
            await page(scope, receive, send)
        else:
            await _refused(send, 401, _KEY_NEEDED)

    return shown


def is_from_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site asks, by what browsers say of it; a link may be followed from anywhere."""
    if headers.get(b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return False
    return (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) != (b"navigate", b"document")


async def _refused(send: Send, status: int, said: str) -> None:
    body = msgspec.json.encode({"error": said})
    asks_for_key = [(b"www-authenticate", b'Basic realm="Foveate", charset="UTF-8"')] if status == 401 else []
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *asks_for_key,
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
