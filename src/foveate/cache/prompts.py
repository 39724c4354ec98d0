"""A request as a provider's cache sees it: pieces in a row, each told by its digest, and what breaks it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from blake3 import blake3

from foveate.values import Area, Place, Ttl

_DIGEST_BYTES = 16
_RUNS = frozenset(("tool_use", "tool_result", "toolUse", "toolResult"))  # the latter on Bedrock


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrompt:
    """The pieces of one request, tools first, then system, then messages.

    `settings` are what else has to be the same for a prefix to hold: the digest of the parameters that break it
    from that area on (the model and its tools' settings from the start, a tool choice from the messages on).
    `only_marked` asks a provider that keeps things unasked to keep what is marked alone (OpenAI's explicit
    mode), `ttl` is for how long it is asked to keep them. `double_marks` are those that take one of the places
    which the provider has for marks, and stand on a piece that bears another one. `keys` are its `prefixes`,
    and `ends` the tokens up to and with each piece, where somebody knows them.
    """

    model: str
    pieces: tuple[Piece, ...]
    settings: Mapping[Area, bytes] = field(default_factory=dict)
    only_marked: bool = False
    ttl: Ttl | None = None
    double_marks: int = 0
    keys: Sequence[bytes] | None = field(default=None, repr=False, compare=False)
    ends: Sequence[int] | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Those of all pieces."""
        return sum(piece.tokens for piece in self.pieces)


def digest(said: bytes) -> bytes:
    """What tells a block from every other one."""
    return blake3(said).digest(_DIGEST_BYTES)


def ends_of(prompt: CachedPrompt) -> Sequence[int]:
    """For each piece, how many tokens the prompt has up to and with it."""
    return list(accumulate([piece.tokens for piece in prompt.pieces])) if prompt.ends is None else prompt.ends


def prefixes(prompt: CachedPrompt) -> Sequence[bytes]:
    """For each piece, what tells the whole prompt up to and with it from every other one."""
    if prompt.keys is not None:
        return prompt.keys
    messages = next((at for at, piece in enumerate(prompt.pieces) if piece.area is Area.MESSAGES), None)
    front, before = front_keys(prompt.model, prompt.pieces[:messages], prompt.settings)
    found, key = list(front), b""
    for piece in prompt.pieces[len(front) :]:
        key = next_key(key, piece)
        found.append(before + key)
    return found


def front_keys(
    model: str, pieces: Sequence[Piece], settings: Mapping[Area, bytes]
) -> tuple[Sequence[bytes], bytes]:
    """What tells what stands before the messages up to each piece, and all of it, from every other one."""
    chain = blake3(model.encode())
    areas = list(Area)
    mixed = 0
    found = []
    for piece in pieces:
        while mixed <= areas.index(piece.area):  # also those of areas that hold nothing
            chain.update(b"\0" + settings.get(areas[mixed], b""))
            mixed += 1
        chain.update(piece.digest)
        found.append(chain.digest(_DIGEST_BYTES))
    for area in areas[mixed:]:
        chain.update(b"\0" + settings.get(area, b""))
    return found, chain.digest(_DIGEST_BYTES)


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
