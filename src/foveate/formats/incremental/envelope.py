"""The envelope of a request: all fields but its messages. It stays the same in a session and is parsed once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from foveate.caching import register
from foveate.formats.json_text.parse import Fields, parse_fields
from foveate.model import Format, Request

# Per generation: the tools and system prompts of a few hundred agents.
_MAX_GENERATION_BYTES = 16 * 1024 * 1024
_MEMO_BYTES = 4 * 1024
# Larger envelopes are parsed anew each time.
_MAX_ENVELOPE_BYTES = 4 * 1024 * 1024

# The field with the messages, in formats whose other fields do not depend on them.
MESSAGE_FIELDS = {Format.ANTHROPIC: "messages", Format.CHAT: "messages", Format.RESPONSES: "input"}

_Key = tuple[tuple[str, bytes], ...]


class Envelope:
    """Fields of a request other than its messages, with values that other packages memoize for them.

    `request` is the parsed request without messages. Neither it nor a memo may refer back to the envelope: a
    dropped envelope must be freed at once, without waiting for the garbage collector.
    """

    __slots__ = ("__weakref__", "fields", "memo", "request")

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        self.fields = fields
        self.memo: dict[object, Any] = {}
        self.request: Request | None = None


class RequestFields(NamedTuple):
    """All fields of a request without an envelope. Its body is parsed once."""

    fields: Fields


class EnvelopeCache:
    """Envelopes in two generations: when the younger one is full, the older one is dropped."""

    def __init__(self, max_bytes: int = _MAX_GENERATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self._young: dict[tuple[Format, _Key], Envelope] = {}
        self._old: dict[tuple[Format, _Key], Envelope] = {}
        self._young_bytes = 0

    def get(self, api_format: Format, fields: Fields) -> Envelope | None:
        messages = MESSAGE_FIELDS.get(api_format)
        if messages is None:
            return None
        other_fields = tuple([(name, bytes(raw)) for name, raw in fields.items() if name != messages])
        if sum([len(raw) for _, raw in other_fields]) > _MAX_ENVELOPE_BYTES:
            return Envelope(dict(other_fields))
        key = api_format, other_fields
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key) or Envelope(dict(other_fields))
            self._put(key, known)
        return known

    def _put(self, key: tuple[Format, _Key], envelope: Envelope) -> None:
        if self._young_bytes > self._max_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = envelope
        self._young_bytes += _MEMO_BYTES + sum(map(len, envelope.fields.values()))


ENVELOPES = EnvelopeCache()
register(ENVELOPES)


def get_envelope(request: Request) -> Envelope | None:
    return request.envelope if isinstance(request.envelope, Envelope) else None


def get_known_fields(request: Request) -> Fields | Mapping[str, bytes]:
    """Return the top-level fields of a request as far as they are parsed. Messages may be missing."""
    return request.envelope.fields if isinstance(request.envelope, Envelope | RequestFields) else {}


def get_parameters(request: Request) -> Fields | Mapping[str, bytes]:
    """Return the top-level fields of a request. Messages may be missing.

    Raises:
        MalformedRequest: the body is not a JSON object.
    """
    return get_known_fields(request) or parse_fields(request.body)
