"""A request as a provider's cache sees it: pieces in a row, each told by its digest, and what breaks it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import NamedTuple

import msgspec
from blake3 import blake3

from foveate.model import Area, Place, Ttl

_DIGEST_BYTES = 16
_RUN_KINDS = frozenset(("tool_use", "tool_result", "toolUse", "toolResult"))  # the latter on Bedrock
_THINKING_KINDS = frozenset(("thinking", "redacted_thinking"))


class PromptPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One block: what it says (by digest), its tokens, and the mark that it bears.

    `area` is the stretch it stands in. `markable` says whether the provider would take a mark on it.
    """

    digest: bytes
    tokens: int
    kind: str
    area: Area
    place: Place | None = None
    breakpoint_ttl: Ttl | None = None
    accepts_breakpoint: bool = True


class PromptLayout(NamedTuple):
    """Where things stand in a prompt, by the numbers of its pieces.

    The tools end before `tools_end`, the system prompt before `system_end`; `thought` is the first piece of
    thinking, if there is any, and `marks` are those that pieces bear.
    """

    tools_end: int
    system_end: int
    first_thinking: int | None
    breakpoints: Mapping[int, Ttl]

    def extend(self, new: Sequence[PromptPiece], start: int) -> "PromptLayout":
        """Those of a prompt with `new` pieces behind its first `start`."""
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
    """The pieces of one request, tools first, then system, then messages.

    `settings` are what else has to be the same for a prefix to hold: the digest of the parameters that break it
    from that area on (the model and its tools' settings from the start, a tool choice from the messages on).
    `only_marked` asks a provider that keeps things unasked to keep what is marked alone (OpenAI's explicit
    mode), `ttl` is for how long it is asked to keep them. `double_marks` are those that take one of the places
    which the provider has for marks, and stand on a piece that bears another one. `keys` are its `prefixes`,
    `ends` the tokens up to and with each piece, and `landmarks` what stands where, if somebody knows them.
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
        """Those of all pieces."""
        return self.ends[-1] if self.ends else sum(piece.tokens for piece in self.pieces)


def compute_digest(content: bytes) -> bytes:
    """What tells a block from every other one."""
    return blake3(content).digest(_DIGEST_BYTES)


def token_ends(prompt: CachedPrompt) -> Sequence[int]:
    """For each piece, how many tokens the prompt has up to and with it."""
    return list(accumulate([piece.tokens for piece in prompt.pieces])) if prompt.ends is None else prompt.ends


def prompt_layout(prompt: CachedPrompt) -> PromptLayout:
    """What stands where in a prompt."""
    return find_layout(prompt.pieces) if prompt.layout is None else prompt.layout


def find_layout(pieces: Sequence[PromptPiece]) -> PromptLayout:
    """What stands where among all pieces of a prompt."""
    system_end = _find_system_end(pieces)
    tools_end = sum([piece.area is Area.TOOLS for piece in pieces[:system_end]])
    return PromptLayout(tools_end, system_end, None, {}).extend(pieces, 0)


def find_pieces(prompt: CachedPrompt, places: Collection[Place]) -> dict[Place, int]:
    """The pieces that stand at `places`, looked for in the front and from the end on, where they mostly are."""
    pieces, layout = prompt.pieces, prompt.layout
    system_end = _find_system_end(pieces) if layout is None else layout.system_end
    indices = {place.index for place in places}  # told apart at less than the whole place
    found: dict[Place, int] = {}
    messages_backwards = zip(reversed(range(system_end, len(pieces))), reversed(pieces), strict=False)
    for at, piece in chain(enumerate(islice(pieces, system_end)), messages_backwards):
        place = piece.place
        if place is not None and place.index in indices and place in places:
            found[place] = at
            if len(found) == len(places):
                break
    return found


def _find_system_end(pieces: Sequence[PromptPiece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.area is Area.MESSAGES), len(pieces))


def prefix_keys(prompt: CachedPrompt) -> Sequence[bytes]:
    """For each piece, what tells the whole prompt up to and with it from every other one."""
    if prompt.keys is not None:
        return prompt.keys
    return compute_prefix_keys(prompt.model, prompt.pieces, prompt.settings, _find_system_end(prompt.pieces))


def compute_prefix_keys(
    model: str, pieces: Sequence[PromptPiece], settings: Mapping[Area, bytes], front_size: int
) -> list[bytes]:
    """The prefixes of a prompt whose first `front` pieces stand before its conversation."""
    keys, front_key = compute_front_keys(model, pieces[:front_size], settings)
    found, key = list(keys), b""
    for piece in pieces[front_size:]:
        key = extend_key(key, piece)
        found.append(front_key + key)
    return found


def compute_front_keys(
    model: str, pieces: Sequence[PromptPiece], settings: Mapping[Area, bytes]
) -> tuple[Sequence[bytes], bytes]:
    """What tells what stands before the messages up to each piece, and all of it, from every other one."""
    hasher = blake3(model.encode())
    areas = list(Area)
    areas_hashed = 0
    found = []
    for piece in pieces:
        while areas_hashed <= areas.index(piece.area):  # also those of areas that hold nothing
            hasher.update(b"\0" + settings.get(areas[areas_hashed], b""))
            areas_hashed += 1
        hasher.update(piece.digest)
        found.append(hasher.digest(_DIGEST_BYTES))
    for area in areas[areas_hashed:]:
        hasher.update(b"\0" + settings.get(area, b""))
    return found, hasher.digest(_DIGEST_BYTES)


def extend_key(key: bytes, piece: PromptPiece) -> bytes:
    """What tells a row of messages up to and with `piece`, where `key` tells those before it."""
    return blake3(key + piece.digest).digest(_DIGEST_BYTES)


def is_same_run(previous: PromptPiece, piece: PromptPiece) -> bool:
    """Whether two neighbours are one position where runs are: consecutive tool calls are, and their results."""
    return piece.kind == previous.kind and piece.kind in _RUN_KINDS


def count_positions(
    pieces: Sequence[PromptPiece], start: int, end: int, *, runs_are_one: bool, limit: int
) -> int:
    """How many positions lie between two pieces, as a mark's lookback counts them; `most` where there are more.

    Where `runs_are_one`, consecutive tool calls are one position, and so are consecutive tool results.
    """
    if not runs_are_one:
        return min(end - start, limit)
    found, previous_kind = 0, pieces[start].kind
    for at in range(start + 1, end + 1):
        kind = pieces[at].kind
        if kind != previous_kind or kind not in _RUN_KINDS:
            found += 1
            previous_kind = kind
            if found >= limit:
                return limit
    return found
