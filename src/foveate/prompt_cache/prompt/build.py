"""Builds the `CachedPrompt` of a request: its blocks with their digests, tokens and breakpoints.

The request is counted once, as it will be charged; each message's tokens are then divided among its blocks.
If possible, the prompt is built from what is memoized about earlier messages, so that a request costs only
its new turn.

The pieces, tokens and keys of messages are memoized in the tree of conversations, those of tools and system
prompt with the request's envelope. A request that repeats an earlier one only combines them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from foveate import formats
from foveate.caching import register
from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_envelope, get_parameters
from foveate.formats.incremental.history import HISTORY_TREE, HistoryCache, count_memoized
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.model import Area, Block, Place, Request, Ttl
from foveate.prompt_cache.prompt import parameters
from foveate.prompt_cache.prompt.blocks import (
    BlockFacts,
    BlockTokens,
    add_automatic_breakpoint,
    look_up_facts,
    make_piece,
)
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    PromptLayout,
    PromptPiece,
    compute_preamble_keys,
    compute_prefix_keys,
    extend_key,
    find_layout,
)
from foveate.prompt_cache.rules import CacheRules
from foveate.tokens import RequestCounter, counter_for
from foveate.tokens.counter import EnvelopeCount, Tally

_count_part = attrgetter("count_part")
_THINKING_KINDS = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoningContent")  # Responses and Bedrock
)
_MESSAGE_OVERHEAD_BYTES = 512
_FRONT_COST_FACTOR = 4
_HAS_IMAGES, _HAS_CITATIONS, _HAS_THINKING = "images", "citations", "thoughts"
_MAX_MODELS = 64
_TOOL_RESULT_KINDS = frozenset(("tool_result", "toolResult"))


class _MessagePieces(NamedTuple):
    """The pieces of one message, and totals of the conversation up to and including it.

    `keys` are the message-prefix keys of the pieces. Tokens up to `end` are assigned to pieces; the tokens of
    a message without blocks go to the next message that has some. `contents` tells what occurs in all
    messages so far, `own_contents` in this one.
    """

    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    end: int
    contents: frozenset[str]
    own_contents: frozenset[str] = frozenset()


_NO_MESSAGES = _MessagePieces((), (), b"", 0, frozenset())


class _PromptPieces(NamedTuple):
    """All pieces of a request with their keys and cumulative tokens, and the `preamble` they start with."""

    preamble: "_CachedPreamble"
    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    ends: tuple[int, ...]
    layout: PromptLayout

    def extend(self, messages: "Sequence[_MessagePieces]") -> "_PromptPieces":
        preamble, pieces, keys, ends, layout = self
        new = [piece for message in messages for piece in message.pieces]
        if not new:
            return self
        end = ends[-1] if ends else 0
        return _PromptPieces(
            preamble,
            (*pieces, *new),
            (*keys, *[preamble.key + key for message in messages for key in message.keys]),
            (*ends, *islice(accumulate([piece.tokens for piece in new], initial=end), 1, None)),
            layout.extend(new, len(pieces)),
        )


_LATEST_PROMPTS: HistoryCache[_PromptPieces] = HistoryCache()
register(_LATEST_PROMPTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedPreamble:
    """The pieces before the conversation: tools, system prompt, and leading system messages."""

    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    tokens: int
    settings: dict[Area, bytes]
    explicit_only: bool
    ttl: Ttl | None
    automatic_ttl: Ttl | None

    def start_pieces(self) -> _PromptPieces:
        ends = accumulate([piece.tokens for piece in self.pieces])
        return _PromptPieces(self, self.pieces, self.keys, tuple(ends), find_layout(self.pieces))


def build_incrementally(request: Request, rules: CacheRules, tokens: BlockTokens) -> CachedPrompt | None:
    """Build the `CachedPrompt` of a request; None if it cannot be built message by message.

    That is so if the counter only counts whole requests, or if the provider drops thinking blocks that it was
    sent.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
        RecursionError: the same.
    """
    counter = tokens.counter
    if counter is None:
        return None
    history = formats.message_history(request)
    tally = counter.tally_messages(request, history)
    head = counter.tally_head(request, history)
    memo_key = _memo_key(request, history, rules, tokens)
    last = _read_messages(request, history, rules, tokens, counter, memo_key)
    if _HAS_THINKING in last.contents and (rules.drops_thinking or not counter.keeps_thinking):
        return None
    total_tally = tally.after_head(head) if history.leading_system_messages else tally
    opening = counter.cached_envelope_count(request, history, total_tally.loaded_tools)
    preamble = _look_up_preamble(request, history, rules, tokens, memo_key, opening, head, last)
    # The overhead is added to the first piece, so that the tokens of a growing session's earlier pieces stay
    # the same, except for one token of rounding.
    extra_tokens = counter.total(request, opening, total_tally).tokens - preamble.tokens - last.end
    known = _extend_latest(preamble, history, memo_key)
    prompt = CachedPrompt(
        model=request.model,
        pieces=_add_to_first(known.pieces, extra_tokens),
        settings=preamble.settings,
        explicit_only=preamble.explicit_only,
        ttl=preamble.ttl,
        keys=known.keys,
        ends=[end + extra_tokens for end in known.ends],
        layout=known.layout,
    )
    return add_automatic_breakpoint(prompt, preamble.automatic_ttl)


def _add_to_first(pieces: tuple[PromptPiece, ...], tokens: int) -> tuple[PromptPiece, ...]:
    return (replace(pieces[0], tokens=pieces[0].tokens + tokens), *pieces[1:]) if pieces else ()


def _extend_latest(
    preamble: _CachedPreamble, history: formats.MessageHistory, memo_key: object
) -> _PromptPieces:
    """All pieces of the request, extended from those of the previous request if there is one."""
    size, previous = _LATEST_PROMPTS.find_prefix(history.nodes, memo_key) or (0, None)
    if previous is None or previous.preamble is not preamble:
        size, previous = 0, preamble.start_pieces()
    extended = previous.extend([node.memo[memo_key] for node in history.nodes[size:]])
    _LATEST_PROMPTS.put(history.nodes, extended, memo_key, replaces=size)
    return extended


def estimate_unread_bytes(request: Request, rules: CacheRules, tokens: BlockTokens) -> int:
    """Estimate how much `build_incrementally` has to read: little for a request that mostly repeats an
    earlier one.

    A short message takes as long as some hundred bytes of a long one. What precedes the messages takes
    several times as long per byte, since its tokens are divided among many blocks.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    if tokens.counter is None:
        return len(request.body)
    history = formats.message_history(request)
    memo_key = _memo_key(request, history, rules, tokens)
    size = 0
    for node in reversed(history.nodes):
        if memo_key in node.memo:
            break
        size += len(node.raw) + _MESSAGE_OVERHEAD_BYTES
    envelope = get_envelope(request)
    if envelope is None or memo_key not in envelope.memo:
        size += _FRONT_COST_FACTOR * (len(request.body) - sum(map(len, request.messages)))
    return size


def _memo_key(
    request: Request, history: formats.MessageHistory, rules: CacheRules, tokens: BlockTokens
) -> object:
    options = bytes(get_parameters(request).get("prompt_cache_options", b""))
    return tokens.memo_key(rules.breakpoint_kinds, history.leading_system_messages, options)


def _read_messages(
    request: Request,
    history: formats.MessageHistory,
    rules: CacheRules,
    tokens: BlockTokens,
    counter: RequestCounter,
    memo_key: object,
) -> _MessagePieces:
    """Memoize the pieces of each message, and return those of the last one."""
    nodes = history.nodes
    known = count_memoized(nodes, memo_key)
    last: _MessagePieces = nodes[known - 1].memo[memo_key] if known else _NO_MESSAGES
    for new in range(known, len(nodes)):
        tally = counter.tally_at(history, new)
        # A compaction changes the history before a message, but not the message itself.
        twin = HISTORY_TREE.find_twin(history, new)
        known_twin = twin.memo.get(memo_key) if twin is not None else None
        message = known_twin and _relocate_message(
            known_twin, last, tally, history.leading_system_messages + new
        )
        if message is None:
            blocks = look_up_facts(formats.blocks_at(request, history, new))
            message = _build_message(last, blocks, tally, rules, tokens)
        nodes[new].memo[memo_key] = last = message
    return last


def _build_message(
    previous: _MessagePieces, blocks: Sequence[BlockFacts], tally: Tally, rules: CacheRules, tokens: BlockTokens
) -> _MessagePieces:
    # Includes thinking in a signature, or beside the content of a chat message.
    has_thinking = tally.last_thinking_tokens > 0 or any(
        facts.block.kind in _THINKING_KINDS for facts in blocks
    )
    images = tally.image_tokens - (tally.previous.image_tokens if tally.previous is not None else 0)
    features = (
        (_HAS_IMAGES, any(facts.image_count for facts in blocks)),
        (_HAS_CITATIONS, any(facts.enables_citations for facts in blocks)),
        (_HAS_THINKING, has_thinking),
    )
    own_contents = frozenset([name for name, is_present in features if is_present])
    end = _end_tokens(tally)
    shares = tokens.divide(end - previous.end, images, blocks) if blocks else ()
    pieces = tuple([make_piece(facts, share, rules) for facts, share in zip(blocks, shares, strict=True)])
    return _chain_message(previous, pieces, end, own_contents)


def _relocate_message(
    twin: _MessagePieces, previous: _MessagePieces, tally: Tally, index: int
) -> _MessagePieces | None:
    """Reuse the pieces of the same message in another conversation, if it has the same number of tokens
    there.
    """
    end = _end_tokens(tally)
    if end - previous.end != sum([piece.tokens for piece in twin.pieces]):
        return None
    places = [Place(Area.MESSAGES, index, at) for at in range(len(twin.pieces))]
    pieces = [replace(piece, place=place) for piece, place in zip(twin.pieces, places, strict=True)]
    return _chain_message(previous, tuple(pieces), end, twin.own_contents)


def _end_tokens(tally: Tally) -> int:
    return round(tally.tokens + tally.image_tokens + tally.thinking_tokens)


def _chain_message(
    previous: _MessagePieces, pieces: tuple[PromptPiece, ...], end: int, own_contents: frozenset[str]
) -> _MessagePieces:
    keys, key = [], previous.key
    for piece in pieces:
        key = extend_key(key, piece)
        keys.append(key)
    return _MessagePieces(
        pieces=pieces,
        keys=tuple(keys),
        key=key,
        end=end if pieces else previous.end,
        contents=previous.contents | own_contents if own_contents else previous.contents,
        own_contents=own_contents,
    )


def _look_up_preamble(
    request: Request,
    history: formats.MessageHistory,
    rules: CacheRules,
    tokens: BlockTokens,
    memo_key: object,
    opening: EnvelopeCount,
    head: Tally,
    last: _MessagePieces,
) -> _CachedPreamble:
    envelope = get_envelope(request)
    known = envelope.memo.get(memo_key) if envelope is not None else None
    inputs = (
        opening,
        request.messages[: history.leading_system_messages],
        rules.invalidating_parameters,
        last.contents - {_HAS_THINKING},
    )
    if known is not None and known[0] == inputs:
        preamble: _CachedPreamble = known[1]
        return preamble
    preamble = _build_preamble(request, history, rules, tokens, opening, head, last)
    if envelope is not None:
        envelope.memo[memo_key] = inputs, preamble
    return preamble


def _build_preamble(
    request: Request,
    history: formats.MessageHistory,
    rules: CacheRules,
    tokens: BlockTokens,
    opening: EnvelopeCount,
    head: Tally,
    last: _MessagePieces,
) -> _CachedPreamble:
    blocks = look_up_facts(formats.preamble_blocks(request, history))
    pieces: list[PromptPiece] = []
    messages = iter(head.message_tokens(keeps_thinking=True))
    for area, group in groupby(blocks, _count_part):
        area_blocks = list(group)
        images = 0
        if area == Area.TOOLS:
            size = round(opening.tools.tokens)
        elif area == Area.SYSTEM:
            images = opening.system.image_tokens
            size = round(opening.system.tokens) + images
        else:
            size = round(next(messages)[0])
        shares = tokens.divide(size, images, area_blocks)
        pieces += [make_piece(facts, share, rules) for facts, share in zip(area_blocks, shares, strict=True)]
    fields = parameters.parameter_fields(request)
    settings = parameters.digest_by_area(
        parameters.parse_cache_parameters(
            fields,
            blocks,
            rules,
            has_images=_HAS_IMAGES in last.contents,
            has_citations=_HAS_CITATIONS in last.contents,
        )
    )
    options = parameters.parse_cache_options(fields)
    keys, key = compute_preamble_keys(request.model, pieces, settings)
    return _CachedPreamble(
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        tokens=sum(piece.tokens for piece in pieces),
        settings=settings,
        explicit_only=options.explicit_only,
        ttl=options.ttl,
        automatic_ttl=formats.automatic_breakpoint(request) if "cache_control" in fields else None,
    )


@lru_cache(_MAX_MODELS)
def block_tokens_for(model: str) -> BlockTokens:
    return BlockTokens(counter_for(model))


def build_cached_prompt(request: Request, rules: CacheRules, tokens: BlockTokens) -> CachedPrompt:
    """Build the prompt that the cache of a model with `rules` sees.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    try:
        incremental = build_incrementally(request, rules, tokens)
        return incremental or _build_whole(
            request, look_up_facts(read_visible_blocks(request, rules)), rules, tokens
        )
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def read_visible_blocks(request: Request, rules: CacheRules) -> tuple[Block, ...]:
    """The blocks of `request` that the model is shown. Some providers drop the thinking of earlier turns.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = formats.request_blocks(request)
    if not rules.drops_thinking:
        return blocks
    user_messages = (
        b.place.index for b in reversed(blocks) if b.role == "user" and b.kind not in _TOOL_RESULT_KINDS
    )
    last = next(user_messages, 0)
    return tuple(block for block in blocks if block.kind not in _THINKING_KINDS or block.place.index >= last)


def _build_whole(
    request: Request, blocks: Sequence[BlockFacts], rules: CacheRules, tokens: BlockTokens
) -> CachedPrompt:
    fields = parameters.parameter_fields(request)
    pieces = [
        make_piece(facts, share, rules)
        for facts, share in zip(blocks, tokens.divide_request_facts(request, blocks), strict=True)
    ]
    options = parameters.parse_cache_options(fields)
    settings = parameters.digest_by_area(parameters.parse_cache_parameters(fields, blocks, rules))
    # Leading system and developer messages are part of the preamble, as in a prompt built incrementally: a
    # session may switch between both.
    preamble_size = len(formats.preamble_blocks(request, formats.message_history(request)))
    prompt = CachedPrompt(
        model=request.model,
        pieces=tuple(pieces),
        settings=settings,
        explicit_only=options.explicit_only,
        ttl=options.ttl,
        keys=compute_prefix_keys(request.model, pieces, settings, preamble_size),
    )
    return add_automatic_breakpoint(
        prompt, formats.automatic_breakpoint(request) if "cache_control" in fields else None
    )
