"""What a client says in headers that injected sections depend on; none of them reaches a provider."""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote

from foveate.engine.injecting.options import NOTHING_TOLD, Told

FOCUS = "x-foveate-focus"
SCOPE = "x-foveate-scope"
CHANNEL = "x-foveate-channel"
SENDER = "x-foveate-sender"
METADATA = "x-foveate-channel-"
"""How the names of headers begin that tell more of a channel: `x-foveate-channel-topic`."""

_PREFIX = "x-foveate-"
_LONGEST_CHARS = 1_000


def told_in(headers: Mapping[str, str]) -> Told:
    """What the headers say, names in small letters; values are UTF-8, as it is or percent-encoded."""
    own = {name: said for name, said in headers.items() if name.startswith(_PREFIX)}
    if not own:
        return NOTHING_TOLD
    metadata = sorted(name for name in own if name.startswith(METADATA) and len(name) > len(METADATA))
    return Told(
        focus=text_of(own.get(FOCUS)) or None,
        scope=text_of(own.get(SCOPE)) or None,
        channel=text_of(own.get(CHANNEL)),
        sender=text_of(own.get(SENDER)),
        metadata=tuple((name.removeprefix(METADATA), text_of(own[name])) for name in metadata),
    )


def text_of(said: str | None) -> str:
    """What a header of ours says, of which there are Latin-1's letters: UTF-8, as it is or percent-encoded."""
    if said is None:
        return ""
    with suppress(UnicodeError):  # then it is Latin-1, as headers once were
        said = said.encode("latin-1").decode()
    if "%" in said:  # as clients write it that have only ASCII for headers
        with suppress(UnicodeError):
            said = unquote(said, errors="strict")
    return said.strip()[:_LONGEST_CHARS]
