"""A request as it comes over HTTP, read as far as the gateway has to know it."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from random import Random
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec

from foveate.gateway.doors import Door, Family, door_of, meant_path
from foveate.gateway.headers import GOOGLE_QUERY, KEYS, OWN, Headers
from foveate.values import Format

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

AGENT = "x-foveate-agent"
SESSION = "x-foveate-session"
_BETAS = "anthropic-beta"
KIND = "x-foveate-kind"
REQUEST_ID = "x-foveate-request-id"
GATEWAY_KEY = "x-foveate-key"
"""Names a key of the gateway beside the client's own credentials, such as those of a subscription."""

KEY_PREFIX = "fov-"
USUAL_AGENT = "default"

# One among other words, with a scheme before it or in a list, but not within a longer word.
_KEY_HEADERS = KEYS | {GATEWAY_KEY.encode()}
_KEY = re.compile(rf"(?<![\w-]){KEY_PREFIX}[^\s,;\"']*")
# As keys are made. Other words may begin like one, where none is expected.
_WHOLE_KEY = re.compile(rf"(?<![\w-]){KEY_PREFIX}[\w-]{{40,}}")
_BASIC = "basic"
# As the server renames the header that asks for another protocol.
_UPGRADE = f"{OWN.decode()}upgrade"

# The formats of errors for requests that Foveate does not read.
_ERROR_FORMATS = {
    Family.ANTHROPIC: Format.ANTHROPIC,
    Family.OPENAI: Format.CHAT,
    Family.GEMINI: Format.GEMINI,
    Family.AZURE: Format.CHAT,
    Family.BEDROCK: Format.BEDROCK,
    Family.VERTEX: Format.GEMINI,
}

# Seeded by the system, in each process anew; ids are to be unique, and no secret.
_IDS = Random()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what. `raw_headers` are as they came, names in small letters; so are those of `headers`.

    `path` is readable, `raw_path` as it goes out: `%2F` in a name is no slash to the provider. `key` is the key
    of the gateway that the client shows; None for one that shows its provider's own, or none. One that
    `keeps_credentials` names it in a header of its own, and has credentials that go on to the provider.
    """

    id: str
    method: str
    path: str
    raw_path: str
    query: str
    door: Door
    headers: Mapping[str, str]
    raw_headers: list[tuple[bytes, bytes]]
    key: str | None = None
    keeps_credentials: bool = False

    def __repr__(self) -> str:
        """What is asked for, without any key."""
        return f"Ask(id={self.id!r}, method={self.method!r}, path={self.path!r})"

    @property
    def asks_for_websocket(self) -> bool:
        """Whether the client opens a WebSocket: a GET with that upgrade, whose header the server renames."""
        return self.method == "GET" and "websocket" in self.headers.get(_UPGRADE, "").lower()

    @property
    def spoken(self) -> Format:
        """The format of its body where Foveate reads it; else that of its errors."""
        return self.door.spoken or _ERROR_FORMATS[self.door.family]

    @property
    def error_format(self) -> Format:
        """The format of its errors, which at Bedrock is the same for all bodies."""
        return Format.BEDROCK if self.door.family is Family.BEDROCK else self.spoken


def ask_of(scope: Scope) -> Ask:
    """What an ASGI scope says."""
    raw = list(scope["headers"])
    in_place = key_in(raw)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(headers) < len(raw) and _BETAS in headers:  # RFC 9110, 5.3: several lines are one list
        headers[_BETAS] = b",".join([value for name, value in raw if name == b"anthropic-beta"]).decode(
            "latin-1"
        )
    method, path = scope["method"], meant_path(scope["path"])
    raw_path = meant_path((scope.get("raw_path") or path.encode()).decode("latin-1"))
    query, door = scope["query_string"].decode("latin-1"), door_of(method, path, headers)
    return Ask(
        id=f"req_{_IDS.getrandbits(128):032x}",
        method=method,
        path=path,
        # `OPTIONS *` has none; joined to an address without a slash it could change where that leads
        raw_path=raw_path if raw_path.startswith("/") else f"/{raw_path}",
        query=query,
        door=door,
        headers=headers,
        raw_headers=raw,
        key=headers.get(GATEWAY_KEY, "").strip() or in_place,
        keeps_credentials=bool(headers.get(GATEWAY_KEY, "").strip())
        and in_place is None
        and (any(name in KEYS for name, _ in raw) or _has_google_key(door, query)),
    )


def _has_google_key(door: Door, query: str) -> bool:
    if door.family not in (Family.GEMINI, Family.VERTEX):
        return False
    return any(name in GOOGLE_QUERY for name, _ in parse_qsl(query))


def key_in(headers: Headers) -> str | None:
    """The first key of the gateway in all headers that hold keys: as clients send it, or as a password."""
    for name, value in headers:
        if name in KEYS:
            said = value.decode("latin-1")
            for text in (said, _password(said)):
                if KEY_PREFIX in text and (found := _KEY.search(text)):
                    return found[0]
    return None


def _password(said: str) -> str:
    """The name and the password of a header that has them, with a blank between."""
    scheme, _, token = said.strip().partition(" ")
    if scheme.lower() != _BASIC:
        return ""
    try:
        return b64decode(token.strip(), validate=True).decode("utf-8", "replace").replace(":", " ", 1)
    except (NotBase64, ValueError):
        return ""


def has_misplaced_key(path: str, query: str, headers: Headers) -> bool:
    """Whether a key of the gateway stands in an address or in a header that is none for keys."""
    texts = [unquote(path), unquote_plus(query)]
    texts += [value.decode("latin-1") for name, value in headers if name not in _KEY_HEADERS]
    return any(KEY_PREFIX in text and _WHOLE_KEY.search(text) for text in texts)
