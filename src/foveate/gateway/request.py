"""The HTTP request of a client, parsed as far as the gateway needs it, and Foveate's own request headers."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec

from foveate.agents.run_prefix import make_request_id, parse_run_prefix
from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.gateway.endpoints import ApiFamily, Endpoint, canonicalize_path, match_endpoint
from foveate.gateway.forwarded_headers import FOVEATE_PREFIX, GOOGLE_KEY_PARAMETERS, KEY_HEADERS, Headers
from foveate.model import Format

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION_NUMBER_KEY = "foveate.connection"
"""Key of the number of the client's connection in an ASGI scope."""

AGENT_HEADER = "x-foveate-agent"
SESSION_HEADER = "x-foveate-session"
_BETA_HEADER = "anthropic-beta"
KIND_HEADER = "x-foveate-kind"
REQUEST_ID_HEADER = "x-foveate-request-id"
GATEWAY_KEY_HEADER = "x-foveate-key"
"""Carries a gateway key if the client also sends its own credentials, such as those of a subscription."""

KEY_PREFIX = "fov-"
DEFAULT_AGENT = "default"

# A key may follow a scheme or be in a list, but not within a longer word.
_ALL_KEY_HEADERS = KEY_HEADERS | {GATEWAY_KEY_HEADER.encode()}
_KEY_PATTERN = re.compile(rf"(?<![\w-]){KEY_PREFIX}[^\s,;\"']*")
# Only complete keys. In other places, words may start with the prefix of a key.
_WHOLE_KEY_PATTERN = re.compile(rf"(?<![\w-]){KEY_PREFIX}[\w-]{{40,}}")
_BASIC_SCHEME = "basic"
# The server renames the upgrade header to this.
_UPGRADE_HEADER = f"{FOVEATE_PREFIX.decode()}upgrade"

# Error formats for requests that Foveate does not parse.
_ERROR_FORMATS = {
    ApiFamily.ANTHROPIC: Format.ANTHROPIC,
    ApiFamily.OPENAI: Format.CHAT,
    ApiFamily.GEMINI: Format.GEMINI,
    ApiFamily.AZURE: Format.CHAT,
    ApiFamily.BEDROCK: Format.BEDROCK,
    ApiFamily.VERTEX: Format.GEMINI,
}

# Seeded by the system in each process. Ids must be unique, not secret.
_ID_GENERATOR = Random()


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP request of a client. Header names are lower case.

    `path` is decoded; `raw_path` is forwarded, because `%2F` in a name is not a slash to the provider. `key` is
    the gateway key; None if the client sends its provider's key or none. `keeps_credentials`: the key has a
    header of its own, and the client's credentials are forwarded. `connection` is unique in this process; 0 if
    it is unknown.
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
    connection: int = 0

    def __repr__(self) -> str:
        """Leave out keys."""
        return f"ClientRequest(id={self.id!r}, method={self.method!r}, path={self.path!r})"

    @property
    def is_websocket_upgrade(self) -> bool:
        """Return whether the client opens a WebSocket. The server renames the upgrade header."""
        return self.method == "GET" and "websocket" in self.headers.get(_UPGRADE_HEADER, "").lower()

    @property
    def api_format(self) -> Format:
        """Format of the body if Foveate parses it, else of its errors."""
        return self.endpoint.api_format or _ERROR_FORMATS[self.endpoint.family]

    @property
    def error_format(self) -> Format:
        """Format of errors. Bedrock has the same for all bodies."""
        return Format.BEDROCK if self.endpoint.family is ApiFamily.BEDROCK else self.api_format


def parse_request(scope: Scope) -> ClientRequest:
    raw = list(scope["headers"])
    gateway_key = find_gateway_key(raw)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(headers) < len(raw) and _BETA_HEADER in headers:  # RFC 9110, 5.3: several lines form one list
        headers[_BETA_HEADER] = b",".join([value for name, value in raw if name == b"anthropic-beta"]).decode(
            "latin-1"
        )
    method, path = scope["method"], scope["path"]
    raw_path = (scope.get("raw_path") or path.encode()).decode("latin-1")
    run = parse_run_prefix(raw_path)
    if run is not None:  # it has no escapes, so the decoded path starts with it as well
        path, raw_path = path[len(str(run)) :], raw_path[len(str(run)) :]
        headers.setdefault(AGENT_HEADER, run.agent)
    path, raw_path = canonicalize_path(path), canonicalize_path(raw_path)
    query, endpoint = scope["query_string"].decode("latin-1"), match_endpoint(method, path, headers)
    return ClientRequest(
        id=make_request_id(_ID_GENERATOR.getrandbits(128), "" if run is None else run.run),
        method=method,
        path=path,
        # `OPTIONS *` has no slash; appended to a base URL, it could change the host
        raw_path=raw_path if raw_path.startswith("/") else f"/{raw_path}",
        query=query,
        endpoint=endpoint,
        headers=headers,
        raw_headers=raw,
        key=headers.get(GATEWAY_KEY_HEADER, "").strip() or gateway_key,
        keeps_credentials=bool(headers.get(GATEWAY_KEY_HEADER, "").strip())
        and gateway_key is None
        and (any(name in KEY_HEADERS for name, _ in raw) or _has_google_key(endpoint, query)),
        connection=scope.get(CONNECTION_NUMBER_KEY, 0),
    )


def _has_google_key(endpoint: Endpoint, query: str) -> bool:
    if endpoint.family not in (ApiFamily.GEMINI, ApiFamily.VERTEX):
        return False
    return any(name in GOOGLE_KEY_PARAMETERS for name, _ in parse_qsl(query))


def find_gateway_key(headers: Headers) -> str | None:
    """Return the first gateway key in any credential header, as a token or as a password."""
    for name, value in headers:
        if name in KEY_HEADERS:
            text = value.decode("latin-1")
            for candidate in (text, _decode_basic_auth(text)):
                if KEY_PREFIX in candidate and (match := _KEY_PATTERN.search(candidate)):
                    return match[0]
    return None


def _decode_basic_auth(authorization: str) -> str:
    """Return the name and password of a Basic header, separated by a blank."""
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != _BASIC_SCHEME:
        return ""
    try:
        return b64decode(token.strip(), validate=True).decode("utf-8", "replace").replace(":", " ", 1)
    except (NotBase64, ValueError):
        return ""


def has_misplaced_key(path: str, query: str, headers: Headers) -> bool:
    """Return whether a gateway key is in the URL, or in a header that is not for keys."""
    texts = [unquote(path), unquote_plus(query)]
    texts += [value.decode("latin-1") for name, value in headers if name not in _ALL_KEY_HEADERS]
    return any(KEY_PREFIX in text and _WHOLE_KEY_PATTERN.search(text) for text in texts)


FOCUS_HEADER = "x-foveate-focus"
SCOPE_HEADER = "x-foveate-scope"
CHANNEL_HEADER = "x-foveate-channel"
SENDER_HEADER = "x-foveate-sender"
METADATA_HEADER_PREFIX = "x-foveate-channel-"
"""Prefix of headers with channel metadata, such as `x-foveate-channel-topic`."""

_FOVEATE_HEADER_PREFIX = "x-foveate-"
_MAX_HEADER_CHARS = 1_000


def parse_section_headers(headers: Mapping[str, str]) -> SectionInputs:
    """Parse the headers that injected sections depend on. They never reach a provider."""
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
    """Decode a value that is UTF-8, plain or percent-encoded, read as Latin-1."""
    if value is None:
        return ""
    with suppress(UnicodeError):  # then it is Latin-1
        value = value.encode("latin-1").decode()
    if "%" in value:  # for clients that can send only ASCII
        with suppress(UnicodeError):
            value = unquote(value, errors="strict")
    return value.strip()[:_MAX_HEADER_CHARS]
