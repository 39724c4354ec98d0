"""What a client says in headers that injected sections depend on; none of them reaches a provider."""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote

from foveate.engine.injecting.options import NO_SECTION_INPUTS, SectionInputs

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
