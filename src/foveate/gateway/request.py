"""A request as it comes over HTTP, read as far as the gateway has to know it.

What a client says in headers that injected sections depend on; none of them reaches a provider.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec

from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.gateway.endpoints import ApiFamily, Endpoint, canonicalize_path, match_endpoint
from foveate.gateway.headers import FOVEATE_PREFIX, GOOGLE_KEY_PARAMETERS, KEY_HEADERS, Headers
from foveate.model import Format

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

AGENT_HEADER = "x-foveate-agent"
SESSION_HEADER = "x-foveate-session"
_BETA_HEADER = "anthropic-beta"
KIND_HEADER = "x-foveate-kind"
REQUEST_ID_HEADER = "x-foveate-request-id"
GATEWAY_KEY_HEADER = "x-foveate-key"
"""Names a key of the gateway beside the client's own credentials, such as those of a subscription."""

KEY_PREFIX = "fov-"
DEFAULT_AGENT = "default"

# One among other words, with a scheme before it or in a list, but not within a longer word.
_ALL_KEY_HEADERS = KEY_HEADERS | {GATEWAY_KEY_HEADER.encode()}
_KEY_PATTERN = re.compile(rf"(?<![\w-]){KEY_PREFIX}[^\s,;\"']*")
# As keys are made. Other words may begin like one, where none is expected.
_WHOLE_KEY_PATTERN = re.compile(rf"(?<![\w-]){KEY_PREFIX}[\w-]{{40,}}")
_BASIC_SCHEME = "basic"
# As the server renames the header that asks for another protocol.
_UPGRADE_HEADER = f"{FOVEATE_PREFIX.decode()}upgrade"

# The formats of errors for requests that Foveate does not read.
_ERROR_FORMATS = {
    ApiFamily.ANTHROPIC: Format.ANTHROPIC,
    ApiFamily.OPENAI: Format.CHAT,
    ApiFamily.GEMINI: Format.GEMINI,
    ApiFamily.AZURE: Format.CHAT,
    ApiFamily.BEDROCK: Format.BEDROCK,
    ApiFamily.VERTEX: Format.GEMINI,
}

# Seeded by the system, in each process anew; ids are to be unique, and no secret.
_ID_GENERATOR = Random()


class IncomingRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    endpoint: Endpoint
    headers: Mapping[str, str]
    raw_headers: list[tuple[bytes, bytes]]
    key: str | None = None
    keeps_credentials: bool = False

    def __repr__(self) -> str:
        """What is asked for, without any key."""
        return f"Ask(id={self.id!r}, method={self.method!r}, path={self.path!r})"

    @property
    def is_websocket_upgrade(self) -> bool:
        """Whether the client opens a WebSocket: a GET with that upgrade, whose header the server renames."""
        return self.method == "GET" and "websocket" in self.headers.get(_UPGRADE_HEADER, "").lower()

    @property
    def api_format(self) -> Format:
        """The format of its body where Foveate reads it; else that of its errors."""
        return self.endpoint.api_format or _ERROR_FORMATS[self.endpoint.family]

    @property
    def error_format(self) -> Format:
        """The format of its errors, which at Bedrock is the same for all bodies."""
        return Format.BEDROCK if self.endpoint.family is ApiFamily.BEDROCK else self.api_format


def parse_request(scope: Scope) -> IncomingRequest:
    """What an ASGI scope says."""
    raw = list(scope["headers"])
    gateway_key = find_gateway_key(raw)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(headers) < len(raw) and _BETA_HEADER in headers:  # RFC 9110, 5.3: several lines are one list
        headers[_BETA_HEADER] = b",".join([value for name, value in raw if name == b"anthropic-beta"]).decode(
            "latin-1"
        )
    method, path = scope["method"], canonicalize_path(scope["path"])
    raw_path = canonicalize_path((scope.get("raw_path") or path.encode()).decode("latin-1"))
    query, endpoint = scope["query_string"].decode("latin-1"), match_endpoint(method, path, headers)
    return IncomingRequest(
        id=f"req_{_ID_GENERATOR.getrandbits(128):032x}",
        method=method,
        path=path,
        # `OPTIONS *` has none; joined to an address without a slash it could change where that leads
        raw_path=raw_path if raw_path.startswith("/") else f"/{raw_path}",
        query=query,
        endpoint=endpoint,
        headers=headers,
        raw_headers=raw,
        key=headers.get(GATEWAY_KEY_HEADER, "").strip() or gateway_key,
        keeps_credentials=bool(headers.get(GATEWAY_KEY_HEADER, "").strip())
        and gateway_key is None
        and (any(name in KEY_HEADERS for name, _ in raw) or _has_google_key(endpoint, query)),
    )


def _has_google_key(endpoint: Endpoint, query: str) -> bool:
    if endpoint.family not in (ApiFamily.GEMINI, ApiFamily.VERTEX):
        return False
    return any(name in GOOGLE_KEY_PARAMETERS for name, _ in parse_qsl(query))


def find_gateway_key(headers: Headers) -> str | None:
    """The first key of the gateway in all headers that hold keys: as clients send it, or as a password."""
    for name, value in headers:
        if name in KEY_HEADERS:
            text = value.decode("latin-1")
            for candidate in (text, _decode_basic_auth(text)):
                if KEY_PREFIX in candidate and (found := _KEY_PATTERN.search(candidate)):
                    return found[0]
    return None


def _decode_basic_auth(authorization: str) -> str:
    """The name and the password of a header that has them, with a blank between."""
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != _BASIC_SCHEME:
        return ""
    try:
        return b64decode(token.strip(), validate=True).decode("utf-8", "replace").replace(":", " ", 1)
    except (NotBase64, ValueError):
        return ""


def has_misplaced_key(path: str, query: str, headers: Headers) -> bool:
    """Whether a key of the gateway stands in an address or in a header that is none for keys."""
    texts = [unquote(path), unquote_plus(query)]
    texts += [value.decode("latin-1") for name, value in headers if name not in _ALL_KEY_HEADERS]
    return any(KEY_PREFIX in text and _WHOLE_KEY_PATTERN.search(text) for text in texts)


FOCUS_HEADER = "x-foveate-focus"
SCOPE_HEADER = "x-foveate-scope"
CHANNEL_HEADER = "x-foveate-channel"
SENDER_HEADER = "x-foveate-sender"
METADATA_HEADER_PREFIX = "x-foveate-channel-"
"""How the names of headers begin that tell more of a channel: `x-foveate-channel-topic`."""

_FOVEATE_HEADER_PREFIX = "x-foveate-"
_MAX_HEADER_CHARS = 1_000


def parse_section_headers(headers: Mapping[str, str]) -> SectionInputs:
    """What the headers say, names in small letters; values are UTF-8, as it is or percent-encoded."""
    foveate_headers = {
        name: value for name, value in headers.items() if name.startswith(_FOVEATE_HEADER_PREFIX)
    }
    if not foveate_headers:
        return NO_SECTION_INPUTS
    metadata = sorted(
        name
        for name in foveate_headers
        if name.startswith(METADATA_HEADER_PREFIX) and len(name) > len(METADATA_HEADER_PREFIX)
    )
    return SectionInputs(
        focus=decode_header(foveate_headers.get(FOCUS_HEADER)) or None,
        scope=decode_header(foveate_headers.get(SCOPE_HEADER)) or None,
        channel=decode_header(foveate_headers.get(CHANNEL_HEADER)),
        sender=decode_header(foveate_headers.get(SENDER_HEADER)),
        metadata=tuple(
            (name.removeprefix(METADATA_HEADER_PREFIX), decode_header(foveate_headers[name]))
            for name in metadata
        ),
    )


def decode_header(value: str | None) -> str:
    """What a header of ours says, of which there are Latin-1's letters: UTF-8, as it is or percent-encoded."""
    if value is None:
        return ""
    with suppress(UnicodeError):  # then it is Latin-1, as headers once were
        value = value.encode("latin-1").decode()
    if "%" in value:  # as clients write it that have only ASCII for headers
        with suppress(UnicodeError):
            value = unquote(value, errors="strict")
    return value.strip()[:_MAX_HEADER_CHARS]
