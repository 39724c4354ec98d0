"""What stands around the messages of a request: the same from turn to turn, and so read once."""

from collections.abc import Mapping
from typing import Any

from foveate.values import Format, Request
from foveate.wire.body import Fields, fields

# Of each of two generations: the tools and system prompts of a few hundred agents.
_KEPT_BYTES = 16 * 1024 * 1024
_NOTED_BYTES = 4 * 1024
# What is larger is read anew each time.
_MAX_BYTES = 4 * 1024 * 1024

# Where the messages stand, in the formats whose other fields say nothing about them.
MESSAGES = {Format.ANTHROPIC: "messages", Format.CHAT: "messages", Format.RESPONSES: "input"}

_Key = tuple[tuple[str, bytes], ...]


class Around:
    """Every field of a request but its messages, each with its own bytes, and what rooms have noted of them.

    `request` is what they say. Neither it nor a note may lead back here: what is forgotten has to be gone at
    once, and not when garbage is looked for.
    """

    __slots__ = ("__weakref__", "fields", "known", "request")

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        self.fields = fields
        self.known: dict[object, Any] = {}
        self.request: Request | None = None


class Arounds:
    """Those seen before, held in two generations: when the younger one is full, the older one is forgotten."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self.drop()

    def drop(self) -> None:
        """Forget all of them."""
        self._young: dict[tuple[Format, _Key], Around] = {}
        self._old: dict[tuple[Format, _Key], Around] = {}
        self._young_bytes = 0

    def of(self, spoken: Format, found: Fields) -> Around | None:
        """What stands around the messages of a request with these fields; None where that is not told apart."""
        messages = MESSAGES.get(spoken)
        if messages is None:
            return None
        said = tuple([(name, bytes(raw)) for name, raw in found.items() if name != messages])
        if sum([len(raw) for _, raw in said]) > _MAX_BYTES:
            return Around(dict(said))
        key = spoken, said
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key) or Around(dict(said))
            self._keep(key, known)
        return known

    def _keep(self, key: tuple[Format, _Key], around: Around) -> None:
        if self._young_bytes > self._most_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = around
        self._young_bytes += _NOTED_BYTES + sum(map(len, around.fields.values()))


AROUNDS = Arounds()


def around_of(request: Request) -> Around | None:
    """What stands around the messages of a request; None where that is not told apart."""
    return request.around if isinstance(request.around, Around) else None


def parameters_of(request: Request) -> Fields | Mapping[str, bytes]:
    """The fields of a request at its top; its messages may be missing.

    Raises:
        MalformedRequest: its body is no JSON object.
    """
    around = around_of(request)
    return fields(request.body) if around is None else around.fields
