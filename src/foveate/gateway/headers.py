"""Headers: which of a client's go on to the provider, and which of the provider's come back."""

import re
from collections.abc import Iterable, Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]

FOVEATE_PREFIX = b"x-foveate-"
"""How Foveate's own headers begin; they never reach a provider."""

# Those of one connection (RFC 9110, 7.6.1), and what is written anew for the next.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_REWRITTEN = frozenset((b"host", b"content-length", b"expect"))
# With these a server may take a request for one with another method than was checked.
_METHOD_OVERRIDES = frozenset((b"x-http-method-override", b"x-http-method", b"x-method-override"))
KEY_HEADERS = frozenset(
    (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"x-amz-security-token")
)
"""Those that hold a key."""
GOOGLE_KEY_PARAMETERS = frozenset(("key", "access_token"))
"""The names under which Google's clients may put a key into the query."""

_ACCEPT_ENCODING = b"accept-encoding"
# By whether the key is another, and whether the answer is looked at.
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
    """The headers of a client's request as they go to the provider, names in small letters.

    `reads_answer`: the answer must come as it is, and not packed, since it is looked at. `key` takes the place
    of the client's keys, where there is one. `set_` are others that are set; an empty one is left out.
    What a signature of AWS covers stays as it is, as long as the client's key does.
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
    """Whether a header is one of Foveate's own, also as servers spell it that take `_` for `-`."""
    return name.replace(b"_", b"-").startswith(FOVEATE_PREFIX)


def signed_header_names(headers: Headers) -> frozenset[bytes]:
    """The headers that a signature of AWS covers, `host` among them; none of a request without one."""
    for name, value in headers:
        found = _SIGNED_HEADERS.match(value) if name == b"authorization" else None
        if found is not None:
            return frozenset(found[1].lower().split(b";"))
    return frozenset()


def forward_response_headers(headers: Headers, *, is_changed: bool) -> list[tuple[bytes, bytes]]:
    """The headers of a provider's answer as the client gets them.

    `is_changed`: the body is not the provider's byte for byte, and has another length.
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
    """Those that `connection` names are of one connection too."""
    names: set[bytes] = set()
    for name, value in headers:
        if name == _CONNECTION:
            names.update(word.strip().lower() for word in value.split(b","))
    return names
