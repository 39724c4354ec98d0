"""A request as a provider's cache sees it: a sequence of pieces, each identified by a digest, and the prefix
keys.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import NamedTuple

import msgspec
from blake3 import blake3

from foveate.model import Area, Place, Ttl

_DIGEST_BYTES = 16
_RUN_KINDS = frozenset(("tool_use", "tool_result", "toolUse", "toolResult"))  # the last two on Bedrock
_THINKING_KINDS = frozenset(("thinking", "redacted_thinking"))


class PromptPiece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One block of a prompt: the digest of its content, its tokens, and the TTL of its cache breakpoint, if
    it has one.

    `accepts_breakpoint` says whether the provider accepts a breakpoint on this block.
    """

    digest: bytes
    tokens: int
    kind: str
    area: Area
    place: Place | None = None
    breakpoint_ttl: Ttl | None = None
    accepts_breakpoint: bool = True


class PromptLayout(NamedTuple):
    """Positions in a prompt, as indexes of its pieces.

    The tools end before `tools_end`, the system prompt before `system_end`. `first_thinking` is the first
    thinking block, and `breakpoints` maps pieces to the TTLs of their breakpoints.
    """

    tools_end: int
    system_end: int
    first_thinking: int | None
    breakpoints: Mapping[int, Ttl]

    def extend(self, new: Sequence[PromptPiece], start: int) -> "PromptLayout":
        """Add the `new` pieces that follow the first `start` ones."""
        tools_end, system_end, first_thinking, breakpoints = self
        if first_thinking is None:
            first_thinking = next(
                (at for at, piece in enumerate(new, start) if piece.kind in _THINKING_KINDS), None
            )
        added = {
            at: piece.breakpoint_ttl for at, piece in enumerate(new, start) if piece.breakpoint_ttl is not None
        }
        return PromptLayout(
            tools_end, system_end, first_thinking, {**breakpoints, **added} if added else breakpoints
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrompt:
    """The pieces of one request: tools, then the system prompt, then messages.

    `settings` maps each area to a digest of the parameters that invalidate the prefix from that area on: the
    model and tool settings from the start, a tool choice from the messages on. With `explicit_only`, an
    automatic cache stores only prefixes that end at a breakpoint (OpenAI's explicit mode), for `ttl`.
    `duplicate_breakpoints` counts breakpoints that use up the provider's limit but share a piece with another
    one. `keys` (prefix keys), `ends` (cumulative tokens) and `layout` are filled in if the caller already
    knows them.
    """

    model: str
    pieces: Sequence[PromptPiece]
    settings: Mapping[Area, bytes] = field(default_factory=dict)
    explicit_only: bool = False
    ttl: Ttl | None = None
    duplicate_breakpoints: int = 0
    keys: Sequence[bytes] | None = field(default=None, repr=False, compare=False)
    ends: Sequence[int] | None = field(default=None, repr=False, compare=False)
    layout: PromptLayout | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        return self.ends[-1] if self.ends else sum(piece.tokens for piece in self.pieces)


def compute_digest(content: bytes) -> bytes:
    return blake3(content).digest(_DIGEST_BYTES)


def token_ends(prompt: CachedPrompt) -> Sequence[int]:
    """Cumulative token counts: for each piece, the tokens up to and including it."""
    return list(accumulate([piece.tokens for piece in prompt.pieces])) if prompt.ends is None else prompt.ends


def prompt_layout(prompt: CachedPrompt) -> PromptLayout:
    return find_layout(prompt.pieces) if prompt.layout is None else prompt.layout


def find_layout(pieces: Sequence[PromptPiece]) -> PromptLayout:
    system_end = _find_system_end(pieces)
    tools_end = sum([piece.area is Area.TOOLS for piece in pieces[:system_end]])
    return PromptLayout(tools_end, system_end, None, {}).extend(pieces, 0)


def find_pieces(prompt: CachedPrompt, places: Collection[Place]) -> dict[Place, int]:
    """Searches the front first, then backwards from the end, where they usually are."""
    pieces, layout = prompt.pieces, prompt.layout
    system_end = _find_system_end(pieces) if layout is None else layout.system_end
    indices = {place.index for place in places}  # cheaper to compare than whole places
    pieces_by_place: dict[Place, int] = {}
    messages_backwards = zip(reversed(range(system_end, len(pieces))), reversed(pieces), strict=False)
    for at, piece in chain(enumerate(islice(pieces, system_end)), messages_backwards):
        place = piece.place
        if place is not None and place.index in indices and place in places:
            pieces_by_place[place] = at
            if len(pieces_by_place) == len(places):
                break
    return pieces_by_place


def _find_system_end(pieces: Sequence[PromptPiece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.area is Area.MESSAGES), len(pieces))


def prefix_keys(prompt: CachedPrompt) -> Sequence[bytes]:
    """The key of each prefix: identifies the prompt up to and including each piece."""
    if prompt.keys is not None:
        return prompt.keys
    return compute_prefix_keys(prompt.model, prompt.pieces, prompt.settings, _find_system_end(prompt.pieces))


def compute_prefix_keys(
    model: str, pieces: Sequence[PromptPiece], settings: Mapping[Area, bytes], preamble_size: int
) -> list[bytes]:
    """Compute the prefix keys of a prompt whose first `preamble_size` pieces precede the conversation."""
    keys, preamble_key = compute_preamble_keys(model, pieces[:preamble_size], settings)
    all_keys, key = list(keys), b""
    for piece in pieces[preamble_size:]:
        key = extend_key(key, piece)
        all_keys.append(preamble_key + key)
    return all_keys


def compute_preamble_keys(
    model: str, pieces: Sequence[PromptPiece], settings: Mapping[Area, bytes]
) -> tuple[Sequence[bytes], bytes]:
    """Compute the keys of the prefixes before the messages, and the key that all messages build on."""
    hasher = blake3(model.encode())
    areas = list(Area)
    areas_hashed = 0
    keys = []
    for piece in pieces:
        while areas_hashed <= areas.index(piece.area):  # also the settings of empty areas
            hasher.update(b"\0" + settings.get(areas[areas_hashed], b""))
            areas_hashed += 1
        hasher.update(piece.digest)
        keys.append(hasher.digest(_DIGEST_BYTES))
    for area in areas[areas_hashed:]:
        hasher.update(b"\0" + settings.get(area, b""))
    return keys, hasher.digest(_DIGEST_BYTES)


def extend_key(key: bytes, piece: PromptPiece) -> bytes:
    """Compute the key of a message prefix that ends with `piece`, from the key of the prefix before it."""
    return blake3(key + piece.digest).digest(_DIGEST_BYTES)


def is_same_run(previous: PromptPiece, piece: PromptPiece) -> bool:
    """Return whether two neighbours count as one lookback position, like tool calls or results in a row."""
    return piece.kind == previous.kind and piece.kind in _RUN_KINDS


def count_positions(
    pieces: Sequence[PromptPiece], start: int, end: int, *, runs_are_one: bool, limit: int
) -> int:
    """Count the lookback positions between two pieces, up to `limit`.

    If `runs_are_one`, consecutive tool calls count as one position, and so do consecutive tool results.
    """
    if not runs_are_one:
        return min(end - start, limit)
    positions, previous_kind = 0, pieces[start].kind
    for at in range(start + 1, end + 1):
        kind = pieces[at].kind
        if kind != previous_kind or kind not in _RUN_KINDS:
            positions += 1
            previous_kind = kind
            if positions >= limit:
                return limit
    return positions
