"""What stands around the messages of a request: the same from turn to turn, and so read once."""

from collections.abc import Mapping
from typing import Any

from foveate.caching import register
from foveate.formats.json_text.parse import Fields, parse_fields
from foveate.model import Format, Request

# Of each of two generations: the tools and system prompts of a few hundred agents.
_MAX_GENERATION_BYTES = 16 * 1024 * 1024
_MEMO_BYTES = 4 * 1024
# What is larger is read anew each time.
_MAX_ENVELOPE_BYTES = 4 * 1024 * 1024

# Where the messages stand, in the formats whose other fields say nothing about them.
MESSAGE_FIELDS = {Format.ANTHROPIC: "messages", Format.CHAT: "messages", Format.RESPONSES: "input"}

_Key = tuple[tuple[str, bytes], ...]


class Envelope:
    """Every field of a request but its messages, each with its own bytes, and what rooms have noted of them.

    `request` is what they say. Neither it nor a note may lead back here: what is forgotten has to be gone at
    once, and not when garbage is looked for.
    """

    __slots__ = ("__weakref__", "fields", "memo", "request")

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        self.fields = fields
        self.memo: dict[object, Any] = {}
        self.request: Request | None = None


class EnvelopeCache:
    """Those seen before, held in two generations: when the younger one is full, the older one is forgotten."""

    def __init__(self, max_bytes: int = _MAX_GENERATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._young: dict[tuple[Format, _Key], Envelope] = {}
        self._old: dict[tuple[Format, _Key], Envelope] = {}
        self._young_bytes = 0

    def get(self, api_format: Format, fields: Fields) -> Envelope | None:
        """What stands around the messages of a request with these fields; None where that is not told apart."""
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
    """What stands around the messages of a request; None where that is not told apart."""
    return request.envelope if isinstance(request.envelope, Envelope) else None


def get_parameters(request: Request) -> Fields | Mapping[str, bytes]:
    """The fields of a request at its top; its messages may be missing.

    Raises:
        MalformedRequest: its body is no JSON object.
    """
    envelope = get_envelope(request)
    return parse_fields(request.body) if envelope is None else envelope.fields
