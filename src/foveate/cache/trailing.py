"""A request as a provider's cache sees it, made from what was noted of its messages: a turn costs a turn.

What the messages of a conversation are to a cache, their pieces, tokens and prefixes, is noted with them in the
tree of conversations; what stands before them is noted with everything around the messages. Putting both
together is all that is left to be done for a request of which most was sent before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from foveate import wire
from foveate.cache import parameters
from foveate.cache.block_facts import BlockFacts, facts_of
from foveate.cache.block_tokens import BlockTokens, marked_at_end, piece_of
from foveate.cache.prompts import CachedPrompt, Landmarks, Piece, front_keys, landmarks_among, next_key
from foveate.cache.rows import Ends, Pieces
from foveate.cache.rules import Rules
from foveate.tokens import RequestCounter
from foveate.tokens.caches import register
from foveate.tokens.opening import Opening
from foveate.tokens.tally import Tally
from foveate.values import Area, Place, Request, Ttl
from foveate.wire.around import around_of, parameters_of
from foveate.wire.begun import Begun
from foveate.wire.trails import TRAILS, Latest, noted

_row = attrgetter("row")

_THINKING = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoningContent")  # Responses, and Bedrock
)

_MESSAGE_BYTES = 512
_FRONT_TIMES = 4


class _Stretch(NamedTuple):
    """What a message is to a cache, with what the conversation up to and with it comes to.

    `keys` are what tells the messages up to each piece from all others. Tokens up to `end` are given to pieces;
    what a message without any block takes is given to the next that has one. `contents` is what there is among
    the pieces of all messages so far, `own_contents` among its own.
    """

    pieces: tuple[Piece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    end: int
    contents: frozenset[str]
    own_contents: frozenset[str] = frozenset()


_NOTHING = _Stretch((), (), b"", 0, frozenset())
_IMAGES, _CITATIONS, _THOUGHTS = "images", "citations", "thoughts"


class _Row(NamedTuple):
    """All pieces of a request and what is known of them, with the `front` that they begin with."""

    front: "_Front"
    pieces: Begun[Piece]
    keys: Begun[bytes]
    ends: Begun[int]
    landmarks: Landmarks

    def with_more(self, stretches: "Sequence[_Stretch]") -> "_Row":
        """The same with more messages behind it."""
        front, pieces, keys, ends, landmarks = self
        new = [piece for stretch in stretches for piece in stretch.pieces]
        if not new:
            return self
        end = ends[-1] if ends else 0
        return _Row(
            front,
            pieces.with_more(new),
            keys.with_more([front.key + key for stretch in stretches for key in stretch.keys]),
            ends.with_more(islice(accumulate([piece.tokens for piece in new], initial=end), 1, None)),
            landmarks.with_more(new, len(pieces)),
        )


_ROWS: Latest[_Row] = Latest()
register(_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """What stands before the messages of a trail: tools, system prompt, and the system messages."""

    pieces: tuple[Piece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    tokens: int
    settings: dict[Area, bytes]
    only_marked: bool
    ttl: Ttl | None
    automatic: Ttl | None

    def row(self) -> _Row:
        """Its pieces, as the beginning of all."""
        ends = accumulate([piece.tokens for piece in self.pieces])
        return _Row(self, Begun(self.pieces), Begun(self.keys), Begun(ends), landmarks_among(self.pieces))


def trailed_prompt(request: Request, rules: Rules, tokens: BlockTokens) -> CachedPrompt | None:
    """`request` as the cache sees it.

    None where it cannot be told message by message: the counter counts requests only as a whole, or the
    provider leaves out thoughts that it was sent.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
        RecursionError: the same.
    """
    counter = tokens.counter
    if counter is None:
        return None
    trail = wire.trail(request)
    tally = counter.tally(request, trail)
    head = counter.head(request, trail)
    note = _note(request, trail, rules, tokens)
    last = _last_stretch(request, trail, rules, tokens, counter, note)
    if _THOUGHTS in last.contents and (rules.drops_thinking or not counter.keeps_thoughts):
        return None
    together = tally.behind(head) if trail.head else tally
    opening = counter.around(request, trail, together.loads)
    front = _front(request, trail, rules, tokens, note, opening, head, last)
    # What goes around it all is counted at the front, so that what a growing session has sent stays what it
    # was, but for the one token by which a sum may be rounded up or down.
    rest = counter.total(request, opening, together).tokens - front.tokens - last.end
    row = _row_of(front, trail, note)
    prompt = CachedPrompt(
        model=request.model,
        pieces=Pieces(row.pieces, rest),
        settings=front.settings,
        only_marked=front.only_marked,
        ttl=front.ttl,
        keys=row.keys,
        ends=Ends(row.ends, rest),
        landmarks=row.landmarks,
    )
    return marked_at_end(prompt, front.automatic)


def _row_of(front: _Front, trail: wire.Trail, note: object) -> _Row:
    """All pieces in a row, made from those of the request before, where there was one."""
    size, before = _ROWS.before(trail.links, note) or (0, None)
    if before is None or before.front is not front:
        size, before = 0, front.row()
    row = before.with_more([link.known[note] for link in trail.links[size:]])
    _ROWS.put(trail.links, row, note, instead_of=size)
    return row


def unread_bytes(request: Request, rules: Rules, tokens: BlockTokens) -> int:
    """About how much has to be read for `trailed_prompt`: little for a request of which most was sent before.

    Reading a short message takes as long as some hundred bytes of a long one, and what stands before the
    messages takes several times as long, since its tokens are divided among many blocks.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    if tokens.counter is None:
        return len(request.body)
    trail = wire.trail(request)
    note = _note(request, trail, rules, tokens)
    size = 0
    for link in reversed(trail.links):
        if note in link.known:
            break
        size += len(link.raw) + _MESSAGE_BYTES
    around = around_of(request)
    if around is None or note not in around.known:
        size += _FRONT_TIMES * (len(request.body) - sum(map(len, request.messages)))
    return size


def _note(request: Request, trail: wire.Trail, rules: Rules, tokens: BlockTokens) -> object:
    options = bytes(parameters_of(request).get("prompt_cache_options", b""))
    return tokens.note(rules.markable, trail.head, options)


def _last_stretch(
    request: Request,
    trail: wire.Trail,
    rules: Rules,
    tokens: BlockTokens,
    counter: RequestCounter,
    note: object,
) -> _Stretch:
    """What the last message is to a cache; it is noted of each message by then."""
    links = trail.links
    known = noted(links, note)
    last: _Stretch = links[known - 1].known[note] if known else _NOTHING
    for new in range(known, len(links)):
        tally = counter.tallied_at(trail, new)
        # Behind a history that is longer or shorter by a compaction stands the same message.
        twin = TRAILS.twin(trail, new)
        like = twin.known.get(note) if twin is not None else None
        stretch = like and _moved(like, last, tally, trail.head + new)
        if stretch is None:
            blocks = facts_of(wire.blocks_at(request, trail, new))
            stretch = _stretch(last, blocks, tally, rules, tokens)
        links[new].known[note] = last = stretch
    return last


def _stretch(
    before: _Stretch, blocks: Sequence[BlockFacts], tally: Tally, rules: Rules, tokens: BlockTokens
) -> _Stretch:
    # Also such as stand in a signature, or beside a chat's content.
    has_thoughts = tally.last_thought_tokens > 0 or any(facts.block.kind in _THINKING for facts in blocks)
    images = tally.image_tokens - (tally.before.image_tokens if tally.before is not None else 0)
    found = (
        (_IMAGES, any(facts.images for facts in blocks)),
        (_CITATIONS, any(facts.cites for facts in blocks)),
        (_THOUGHTS, has_thoughts),
    )
    own = frozenset([name for name, is_there in found if is_there])
    end = _end_of(tally)
    shares = tokens.divided(end - before.end, images, blocks) if blocks else ()
    pieces = tuple([piece_of(facts, share, rules) for facts, share in zip(blocks, shares, strict=True)])
    return _behind(before, pieces, end, own)


def _moved(like: _Stretch, before: _Stretch, tally: Tally, index: int) -> _Stretch | None:
    """The stretch of a message, made from that of the same message elsewhere if it has as many tokens there."""
    end = _end_of(tally)
    if end - before.end != sum([piece.tokens for piece in like.pieces]):
        return None
    places = [Place(Area.MESSAGES, index, at) for at in range(len(like.pieces))]
    pieces = [replace(piece, place=place) for piece, place in zip(like.pieces, places, strict=True)]
    return _behind(before, tuple(pieces), end, like.own_contents)


def _end_of(tally: Tally) -> int:
    return round(tally.tokens + tally.image_tokens + tally.thought_tokens)


def _behind(before: _Stretch, pieces: tuple[Piece, ...], end: int, own: frozenset[str]) -> _Stretch:
    keys, key = [], before.key
    for piece in pieces:
        key = next_key(key, piece)
        keys.append(key)
    return _Stretch(
        pieces=pieces,
        keys=tuple(keys),
        key=key,
        end=end if pieces else before.end,
        contents=before.contents | own if own else before.contents,
        own_contents=own,
    )


def _front(
    request: Request,
    trail: wire.Trail,
    rules: Rules,
    tokens: BlockTokens,
    note: object,
    opening: Opening,
    head: Tally,
    last: _Stretch,
) -> _Front:
    around = around_of(request)
    known = around.known.get(note) if around is not None else None
    told = opening, request.messages[: trail.head], rules.breaks, last.contents - {_THOUGHTS}
    if known is not None and known[0] == told:
        front: _Front = known[1]
        return front
    front = _made(request, trail, rules, tokens, opening, head, last)
    if around is not None:
        around.known[note] = told, front
    return front


def _made(
    request: Request,
    trail: wire.Trail,
    rules: Rules,
    tokens: BlockTokens,
    opening: Opening,
    head: Tally,
    last: _Stretch,
) -> _Front:
    blocks = facts_of(wire.front_blocks(request, trail))
    pieces: list[Piece] = []
    messages = iter(head.each(keeps_thoughts=True))
    for area, group in groupby(blocks, _row):
        own = list(group)
        images = 0
        if area == Area.TOOLS:
            size = round(opening.tools.tokens)
        elif area == Area.SYSTEM:
            images = opening.system.image_tokens
            size = round(opening.system.tokens) + images
        else:
            size = round(next(messages)[0])
        shares = tokens.divided(size, images, own)
        pieces += [piece_of(facts, share, rules) for facts, share in zip(own, shares, strict=True)]
    found = parameters.body_of(request)
    settings = parameters.digests(
        parameters.settings_in(
            found,
            blocks,
            rules,
            has_images=_IMAGES in last.contents,
            has_citations=_CITATIONS in last.contents,
        )
    )
    options = parameters.cache_options_in(found)
    keys, key = front_keys(request.model, pieces, settings)
    return _Front(
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        tokens=sum(piece.tokens for piece in pieces),
        settings=settings,
        only_marked=options.only_marked,
        ttl=options.ttl,
        automatic=wire.automatic_mark(request) if "cache_control" in found else None,
    )
