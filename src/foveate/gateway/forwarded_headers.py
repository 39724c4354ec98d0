"""Headers that are forwarded to the provider and back to the client."""

import re
from collections.abc import Iterable, Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]

FOVEATE_PREFIX = b"x-foveate-"
"""Prefix of Foveate's own headers. They never reach a provider."""

# Hop-by-hop headers (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_REWRITTEN = frozenset((b"host", b"content-length", b"expect"))
# With these a server may apply another method than the one that was checked.
_METHOD_OVERRIDES = frozenset((b"x-http-method-override", b"x-http-method", b"x-method-override"))
KEY_HEADERS = frozenset(
    (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"x-amz-security-token")
)
"""Headers that contain a credential."""
GOOGLE_KEY_PARAMETERS = frozenset(("key", "access_token"))
"""Query parameters in which Google's clients may send a key."""

_ACCEPT_ENCODING = b"accept-encoding"
# By whether the key is replaced, and whether the response is parsed.
_NEVER_SENT = {
    (has_key, is_read): _HOP_BY_HOP
    | _REWRITTEN
    | _METHOD_OVERRIDES
    | (KEY_HEADERS if has_key else frozenset())
    | (frozenset((_ACCEPT_ENCODING,)) if is_read else frozenset())
    for has_key in (True, False)
    for is_read in (True, False)
}
_CONNECTION = b"connection"
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html (November 2026)
_SIGNED_HEADERS = re.compile(rb"AWS4-.*SignedHeaders=([^,\s]+)")


def forward_request_headers(
    headers: Headers,
    *,
    reads_response: bool,
    key: Sequence[tuple[bytes, bytes]] | None,
    overrides: Mapping[bytes, bytes],
) -> list[tuple[bytes, bytes]]:
    """Return a client's headers for the upstream request, with lower-case names.

    `reads_response`: the engine parses the response, so it must not be compressed. `key` replaces the client's
    keys, unless it is None. `overrides` are set; an empty value removes the header. Headers covered by an AWS
    signature stay unchanged unless the key is replaced.
    """
    dropped = _NEVER_SENT[key is not None, reads_response].union(_connection_headers(headers), overrides)
    signed = signed_header_names(headers) - _REWRITTEN if key is None else frozenset()
    forwarded = [
        pair
        for pair in headers
        if pair[0] in signed or (pair[0] not in dropped and not is_foveate_header(pair[0]))
    ]
    forwarded += key or ()
    forwarded += [(name, value) for name, value in overrides.items() if value]
    if reads_response and _ACCEPT_ENCODING not in signed:
        forwarded.append((_ACCEPT_ENCODING, b"identity"))
    return forwarded


def is_foveate_header(name: bytes) -> bool:
    """Return whether a header is Foveate's own, including the spelling of servers that treat `_` as `-`."""
    return name.replace(b"_", b"-").startswith(FOVEATE_PREFIX)


def signed_header_names(headers: Headers) -> frozenset[bytes]:
    """Return the headers that an AWS signature covers, including `host`; empty without a signature."""
    for name, value in headers:
        match = _SIGNED_HEADERS.match(value) if name == b"authorization" else None
        if match is not None:
            return frozenset(match[1].lower().split(b";"))
    return frozenset()


def forward_response_headers(headers: Headers, *, is_changed: bool) -> list[tuple[bytes, bytes]]:
    """Return a provider's headers for the client.

    `is_changed`: the body differs from the provider's, and so does its length.
    """
    lowercased = [(name.lower(), value) for name, value in headers]
    dropped = _connection_headers(lowercased)
    if is_changed:
        dropped.add(b"content-length")
    return [
        pair
        for pair in lowercased
        if pair[0] not in _HOP_BY_HOP and pair[0] not in dropped and not is_foveate_header(pair[0])
    ]


def _connection_headers(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Return the hop-by-hop headers that `connection` names."""
    names: set[bytes] = set()
    for name, value in headers:
        if name == _CONNECTION:
            names.update(word.strip().lower() for word in value.split(b","))
    return names
