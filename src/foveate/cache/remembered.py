"""What is kept of a request so that a later miss of the cache can be explained.

Cold, that is digests, lengths and places: enough to say which block changed. Warm, the blocks themselves are
there too, and it can be said which of their bytes did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from foveate import wire
from foveate.cache import parameters
from foveate.cache.parameters import Setting
from foveate.cache.prompts import CachedPrompt, Piece, digest
from foveate.cache.requests import BlockTokens, blocks_read, cached_prompt
from foveate.cache.rules import Rules
from foveate.errors import MalformedRequest
from foveate.values import Area, Format, Place, Request
from foveate.wire.body import TOO_DEEP

# A setting that says more than this (the schema of an answer) is kept as its digest.
_LONGEST_SETTING_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A request as the explainer needs it.

    `lengths_bytes` are those of each piece's JSON, which `bodies` has where it is warm. `spellings` tell tools
    and messages by the very bytes they came in, spaces and escapes too; nothing for one that bears a mark.
    """

    format: Format
    prompt: CachedPrompt
    settings: tuple[Setting, ...]
    roles: tuple[str, ...]
    lengths_bytes: tuple[int, ...]
    cache_key: str = ""
    spellings: tuple[bytes, ...] = ()
    bodies: tuple[bytes, ...] | None = None

    def body(self, at: int) -> bytes | None:
        """The JSON of a piece, where it is known."""
        return None if self.bodies is None else self.bodies[at]

    def role(self, place: Place | None) -> str:
        """Who says what stands there; nothing outside of messages."""
        return self.roles[place.index] if place is not None and place.area is Area.MESSAGES else ""


def remember(request: Request, rules: Rules, tokens: BlockTokens, *, warm: bool = True) -> Remembered:
    """What is kept of `request`; with its blocks where `warm`.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = blocks_read(request, rules)
    try:
        settings = parameters.settings(request, blocks, rules)
        prompt = cached_prompt(request, rules, tokens)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None
    roles = {block.place.index: block.role for block in blocks if block.place.area is Area.MESSAGES}
    return Remembered(
        format=request.format,
        prompt=prompt,
        settings=tuple(map(_short, settings)),
        roles=tuple(roles.get(index, "") for index in range(len(request.messages))),
        lengths_bytes=tuple(len(block.said) for block in blocks),
        cache_key=parameters.cache_options(request, rules.key_parameter).key if rules.key_parameter else "",
        spellings=tuple(map(_spelling, (*request.tools, *request.messages))),
        bodies=tuple(block.said for block in blocks) if warm else None,
    )


def messages_of(pieces: Sequence[Piece]) -> dict[int, tuple[Piece, ...]]:
    """The pieces of each message, by its index; a message without blocks is not there."""
    own = [piece for piece in pieces if piece.area is Area.MESSAGES and piece.place is not None]
    return {index: tuple(group) for index, group in groupby(own, _message_index)}


def _message_index(piece: Piece) -> int:
    return piece.place.index if piece.place is not None else 0


def _short(setting: Setting) -> Setting:
    if len(setting.said) <= _LONGEST_SETTING_CHARS:
        return setting
    said = f'"{digest(setting.said.encode()).hex()}"'
    return Setting(name=setting.name, area=setting.area, said=said)


def _spelling(raw: bytes) -> bytes:
    return digest(raw) if wire.unmarked(raw) is raw else b""
