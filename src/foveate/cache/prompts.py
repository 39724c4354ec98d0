"""A request as a provider's cache sees it: pieces in a row, each told by its digest, and what breaks it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import NamedTuple

import msgspec
from blake3 import blake3

from foveate.values import Area, Place, Ttl

_DIGEST_BYTES = 16
_RUNS = frozenset(("tool_use", "tool_result", "toolUse", "toolResult"))  # the latter on Bedrock
_THOUGHTS = frozenset(("thinking", "redacted_thinking"))


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One block: what it says (by digest), its tokens, and the mark that it bears.

    `area` is the stretch it stands in. `markable` says whether the provider would take a mark on it.
    """

    digest: bytes
    tokens: int
    kind: str
    area: Area
    place: Place | None = None
    mark: Ttl | None = None
    markable: bool = True


class Landmarks(NamedTuple):
    """Where things stand in a prompt, by the numbers of its pieces.

    The tools end before `tools_end`, the system prompt before `system_end`; `thought` is the first piece of
    thinking, if there is any, and `marks` are those that pieces bear.
    """

    tools_end: int
    system_end: int
    thought: int | None
    marks: Mapping[int, Ttl]

    def with_more(self, new: Sequence[Piece], start: int) -> "Landmarks":
        """Those of a prompt with `new` pieces behind its first `start`."""
        tools_end, system_end, thought, marks = self
        if thought is None:
            thought = next((at for at, piece in enumerate(new, start) if piece.kind in _THOUGHTS), None)
        borne = {at: piece.mark for at, piece in enumerate(new, start) if piece.mark is not None}
        return Landmarks(tools_end, system_end, thought, {**marks, **borne} if borne else marks)


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
    pieces: Sequence[Piece]
    settings: Mapping[Area, bytes] = field(default_factory=dict)
    only_marked: bool = False
    ttl: Ttl | None = None
    double_marks: int = 0
    keys: Sequence[bytes] | None = field(default=None, repr=False, compare=False)
    ends: Sequence[int] | None = field(default=None, repr=False, compare=False)
    landmarks: Landmarks | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Those of all pieces."""
        return self.ends[-1] if self.ends else sum(piece.tokens for piece in self.pieces)


def digest(said: bytes) -> bytes:
    """What tells a block from every other one."""
    return blake3(said).digest(_DIGEST_BYTES)


def ends_of(prompt: CachedPrompt) -> Sequence[int]:
    """For each piece, how many tokens the prompt has up to and with it."""
    return list(accumulate([piece.tokens for piece in prompt.pieces])) if prompt.ends is None else prompt.ends


def landmarks_of(prompt: CachedPrompt) -> Landmarks:
    """What stands where in a prompt."""
    return landmarks_among(prompt.pieces) if prompt.landmarks is None else prompt.landmarks


def landmarks_among(pieces: Sequence[Piece]) -> Landmarks:
    """What stands where among all pieces of a prompt."""
    system_end = _system_end(pieces)
    tools_end = sum([piece.area is Area.TOOLS for piece in pieces[:system_end]])
    return Landmarks(tools_end, system_end, None, {}).with_more(pieces, 0)


def numbers_of(prompt: CachedPrompt, places: Collection[Place]) -> dict[Place, int]:
    """The pieces that stand at `places`, looked for in the front and from the end on, where they mostly are."""
    pieces, landmarks = prompt.pieces, prompt.landmarks
    system_end = _system_end(pieces) if landmarks is None else landmarks.system_end
    indices = {place.index for place in places}  # told apart at less than the whole place
    found: dict[Place, int] = {}
    behind = zip(reversed(range(system_end, len(pieces))), reversed(pieces), strict=False)
    for at, piece in chain(enumerate(islice(pieces, system_end)), behind):
        place = piece.place
        if place is not None and place.index in indices and place in places:
            found[place] = at
            if len(found) == len(places):
                break
    return found


def _system_end(pieces: Sequence[Piece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.area is Area.MESSAGES), len(pieces))


def prefixes(prompt: CachedPrompt) -> Sequence[bytes]:
    """For each piece, what tells the whole prompt up to and with it from every other one."""
    if prompt.keys is not None:
        return prompt.keys
    return all_keys(prompt.model, prompt.pieces, prompt.settings, _system_end(prompt.pieces))


def all_keys(model: str, pieces: Sequence[Piece], settings: Mapping[Area, bytes], front: int) -> list[bytes]:
    """The prefixes of a prompt whose first `front` pieces stand before its conversation."""
    keys, before = front_keys(model, pieces[:front], settings)
    found, key = list(keys), b""
    for piece in pieces[front:]:
        key = next_key(key, piece)
        found.append(before + key)
    return found


def front_keys(
    model: str, pieces: Sequence[Piece], settings: Mapping[Area, bytes]
) -> tuple[Sequence[bytes], bytes]:
    """What tells what stands before the messages up to each piece, and all of it, from every other one."""
    told = blake3(model.encode())
    areas = list(Area)
    mixed = 0
    found = []
    for piece in pieces:
        while mixed <= areas.index(piece.area):  # also those of areas that hold nothing
            told.update(b"\0" + settings.get(areas[mixed], b""))
            mixed += 1
        told.update(piece.digest)
        found.append(told.digest(_DIGEST_BYTES))
    for area in areas[mixed:]:
        told.update(b"\0" + settings.get(area, b""))
    return found, told.digest(_DIGEST_BYTES)


def next_key(key: bytes, piece: Piece) -> bytes:
    """What tells a row of messages up to and with `piece`, where `key` tells those before it."""
    return blake3(key + piece.digest).digest(_DIGEST_BYTES)


def goes_on(before: Piece, piece: Piece) -> bool:
    """Whether two neighbours are one position where runs are: consecutive tool calls are, and their results."""
    return piece.kind == before.kind and piece.kind in _RUNS


def distance(pieces: Sequence[Piece], start: int, end: int, *, runs_are_one: bool, most: int) -> int:
    """How many positions lie between two pieces, as a mark's lookback counts them; `most` where there are more.

    Where `runs_are_one`, consecutive tool calls are one position, and so are consecutive tool results.
    """
    if not runs_are_one:
        return min(end - start, most)
    found, before = 0, pieces[start].kind
    for at in range(start + 1, end + 1):
        kind = pieces[at].kind
        if kind != before or kind not in _RUNS:
            found += 1
            before = kind
            if found >= most:
                return most
    return found
