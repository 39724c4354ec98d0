"""Snapshots of requests, from which a later cache miss can be explained.

A snapshot always has digests, lengths and places: enough to find the block that changed. With the contents of
the blocks, the changed bytes can be found as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.model import Area, Format, Place, Request
from foveate.prompt_cache.prompt import parameters
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import build_cached_prompt, read_visible_blocks
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest
from foveate.prompt_cache.prompt.parameters import CacheParameter
from foveate.prompt_cache.rules import CacheRules

# Longer values (such as a response schema) are replaced by their digest.
_MAX_PARAMETER_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSnapshot:
    """A request as the explanation of a miss needs it.

    `lengths_bytes` are those of the JSON of each piece, `contents` the JSON itself, if kept. `raw_digests`
    identify tools and messages by their exact bytes, including whitespace and escapes; empty for those with a
    breakpoint.
    """

    format: Format
    prompt: CachedPrompt
    cache_parameters: tuple[CacheParameter, ...]
    roles: tuple[str, ...]
    lengths_bytes: tuple[int, ...]
    cache_key: str = ""
    raw_digests: tuple[bytes, ...] = ()
    contents: tuple[bytes, ...] | None = None

    def content(self, at: int) -> bytes | None:
        """The JSON of a piece, if kept."""
        return None if self.contents is None else self.contents[at]

    def role(self, place: Place | None) -> str:
        """The role of the message at a place; empty outside messages."""
        return self.roles[place.index] if place is not None and place.area is Area.MESSAGES else ""


def take_snapshot(
    request: Request, rules: CacheRules, tokens: BlockTokens, *, keep_contents: bool = True
) -> RequestSnapshot:
    """Make a snapshot of `request`; with the contents of its blocks if `keep_contents`.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = read_visible_blocks(request, rules)
    try:
        cache_parameters = parameters.read_cache_parameters(request, blocks, rules)
        prompt = build_cached_prompt(request, rules, tokens)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None
    roles = {block.place.index: block.role for block in blocks if block.place.area is Area.MESSAGES}
    return RequestSnapshot(
        format=request.format,
        prompt=prompt,
        cache_parameters=tuple(map(_shorten, cache_parameters)),
        roles=tuple(roles.get(index, "") for index in range(len(request.messages))),
        lengths_bytes=tuple(len(block.canonical_json) for block in blocks),
        cache_key=parameters.read_cache_options(request, rules.key_parameter).key
        if rules.key_parameter
        else "",
        raw_digests=tuple(map(_digest_raw, (*request.tools, *request.messages))),
        contents=tuple(block.canonical_json for block in blocks) if keep_contents else None,
    )


def group_by_message(pieces: Sequence[PromptPiece]) -> dict[int, tuple[PromptPiece, ...]]:
    """The pieces of each message by its index; messages without blocks are left out."""
    message_pieces = [piece for piece in pieces if piece.area is Area.MESSAGES and piece.place is not None]
    return {index: tuple(group) for index, group in groupby(message_pieces, _message_index)}


def _message_index(piece: PromptPiece) -> int:
    return piece.place.index if piece.place is not None else 0


def _shorten(parameter: CacheParameter) -> CacheParameter:
    if len(parameter.json_text) <= _MAX_PARAMETER_CHARS:
        return parameter
    json = f'"{compute_digest(parameter.json_text.encode()).hex()}"'
    return CacheParameter(name=parameter.name, area=parameter.area, json_text=json)


def _digest_raw(raw: bytes) -> bytes:
    return compute_digest(raw) if formats.strip_breakpoints(raw) is raw else b""
