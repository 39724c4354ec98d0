"""Blocks of a request: facts derived once per block, and the tokens of each block.

Every request of a session repeats its history. `formats.blocks` returns the same objects for blocks that it
has seen before, so facts are looked up by identity instead of hashing the content. The tokens of a message
are divided among its blocks in proportion to the tokens of their texts, so that the shares add up to the
message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, Protocol, cast

from msgspec import structs

from foveate.caching import LruCache, register
from foveate.formats.json_text.large_json import contains
from foveate.formats.json_text.parse import as_dict, as_text, parse_json, parse_structure
from foveate.model import Area, Block, Request, TokenCount, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, prompt_layout
from foveate.prompt_cache.rules import CacheRules
from foveate.tokens import RequestCount, RequestCounter

# Per generation. Enough for a session of 2,000 turns with several tool calls each, or for a dozen shorter
# ones.
_MAX_BLOCKS = 16 * 1024
_MAX_BYTES = 32 * 1024 * 1024

_IMAGE_KINDS = frozenset(("image", "image_url", "input_image"))
_IMAGE_DATA_KEYS = ("inlineData", "inline_data", "fileData", "file_data")
_IMAGE_KEYS = frozenset(("image", *_IMAGE_DATA_KEYS))
# Fields that contain nested blocks. Tool arguments and schemas are not searched: `image` is just a name
# there.
_NESTED_KEYS = ("content", "source", "output", "parts", "toolResult", "functionResponse", "function_response")
# Enough for a session of 2,000 turns with several tool calls each.
_MAX_WEIGHTS = 16 * 1024
_MAX_MEMO_KEYS = 256
# Fields with encoded or encrypted data, which is not tokenized as text. This many characters weigh one token.
_OPAQUE_FIELDS = frozenset(
    ("data", "bytes", "file_data", "signature", "encrypted_content", "thoughtSignature", "thought_signature")
)
_OPAQUE_CHARS_PER_TOKEN = 16
_LONG_WORD_CHARS = 64
# With more long words than this, most are no longer in the counter's cache, so all are counted in one text.
_MAX_LONG_WORDS = 16
_count_part = attrgetter("count_part")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenShares:
    """The tokens of one part of a request, as divided among a group of blocks by one `BlockTokens`."""

    divided_by: object
    tokens: int
    group: "list[BlockFacts]"
    shares: list[int]


class BlockFacts:
    """Facts about one block.

    `count_part` names the part of the request's token count that the block belongs to, `image_count` is the
    number of images in it. `token_shares` caches the last division of its message's tokens.
    """

    __slots__ = (
        "block",
        "count_part",
        "digest",
        "enables_citations",
        "image_count",
        "is_web_search",
        "token_shares",
    )

    def __init__(self, block: Block) -> None:
        content, place = block.canonical_json, block.place
        is_message = place.area is Area.MESSAGES
        self.block = block
        self.count_part = f"messages[{place.index}]" if is_message else str(place.area)
        # The digest of a message block includes the role: the same text with another role is a different
        # prefix.
        # `join` copies a large content without the interpreter lock.
        self.digest = compute_digest(
            b"".join((block.role.encode("utf-8", "replace"), b"\0", content)) if is_message else content
        )
        self.image_count = count_images(parse_structure(content)) if contains(content, b"image") else 0
        self.enables_citations = contains(content, b'"citations"') and _enables_citations(
            parse_structure(content)
        )
        self.is_web_search = (
            place.area is Area.TOOLS
            and contains(content, b"search")
            and _is_web_search(as_dict(parse_structure(content)))
        )
        # Saves 12% of the CPU of a request with 300 messages and thinking that the provider drops.
        self.token_shares: TokenShares | None = None


class BlockFactsCache:
    """Facts about blocks seen before, looked up by identity. Thread-safe.

    Entries are held in two generations. When the younger one is full, the older one is dropped.
    """

    def __init__(self, max_blocks: int = _MAX_BLOCKS, max_bytes: int = _MAX_BYTES) -> None:
        self._max_blocks = max_blocks
        self._max_bytes = max_bytes
        self._generations: tuple[dict[int, BlockFacts], dict[int, BlockFacts]] = {}, {}
        self._young_bytes = 0
        register(self)

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def clear(self) -> None:
        self._generations, self._young_bytes = ({}, {}), 0

    def look_up(self, blocks: Sequence[Block]) -> list[BlockFacts]:
        young = self._generations[0]
        # The cache keeps its blocks alive, so no other block can have the same id.
        found = [young.get(id(block)) for block in blocks]
        if all(found):
            return cast("list[BlockFacts]", found)
        missing = zip(blocks, found, strict=True)
        missing_bytes = sum(len(block.canonical_json) for block, facts in missing if facts is None)
        # A few large requests would fill the cache.
        is_cached = missing_bytes <= self._max_bytes // 2
        return [young.get(id(block)) or self._look_up_old(block, is_cached=is_cached) for block in blocks]

    def _look_up_old(self, block: Block, *, is_cached: bool) -> BlockFacts:
        old = self._generations[1].get(id(block))
        facts = BlockFacts(block) if old is None else old
        size_bytes = len(block.canonical_json)
        # System blocks are new objects in each request. A few large images would fill the cache.
        if is_cached and block.place.area is not Area.SYSTEM and size_bytes <= self._max_bytes // 4:
            self._store(facts, size_bytes)
        return facts

    def _store(self, facts: BlockFacts, size_bytes: int) -> None:
        young, _ = self._generations
        if len(young) >= self._max_blocks or self._young_bytes > self._max_bytes:
            self._generations, self._young_bytes = ({}, young), 0
        self._generations[0][id(facts.block)] = facts
        self._young_bytes += size_bytes


# Saves 37% of the CPU of a request with 300 messages and thinking that the provider drops.
_FACTS_CACHE = BlockFactsCache()


def look_up_facts(blocks: Sequence[Block]) -> list[BlockFacts]:
    return _FACTS_CACHE.look_up(blocks)


def count_images(content: Any) -> int:
    if isinstance(content, list):
        return sum(map(count_images, content))
    if not isinstance(content, dict):
        return 0
    return (
        1 if is_image(content) else sum(count_images(content[name]) for name in _NESTED_KEYS if name in content)
    )


def is_image(content: dict[str, Any]) -> bool:
    if as_text(content.get("type")) in _IMAGE_KINDS:
        return True
    if _IMAGE_KEYS.isdisjoint(content):
        return False
    image_data = (as_dict(content.get(key)) for key in _IMAGE_DATA_KEYS)
    has_image_data = any(
        as_text(data.get("mimeType") or data.get("mime_type")).startswith("image/") for data in image_data
    )
    return has_image_data or "source" in as_dict(content.get("image"))


def _enables_citations(content: Any) -> bool:
    if isinstance(content, list):
        return any(map(_enables_citations, content))
    if not isinstance(content, dict):
        return False
    # In a response's text, `citations` lists the sources; on a document, it enables citations.
    if as_dict(content.get("citations")).get("enabled") is True:
        return True
    return any(_enables_citations(content[name]) for name in _NESTED_KEYS if name in content)


def _is_web_search(tool: dict[str, Any]) -> bool:
    kind = as_text(tool.get("type")) or next(iter(tool), "")
    return kind.startswith(("web_search", "googleSearch", "google_search"))


class BlockCounter(Protocol):
    """Counts requests and texts: a `RequestCounter`, or a fake of it."""

    def text(self, text: str) -> TokenCount: ...

    def count_request(self, request: Request) -> RequestCount: ...


class BlockTokens:
    """Divides the tokens of requests among their blocks, by one model's counter. Thread-safe."""

    def __init__(self, counter: BlockCounter, *, capacity: int = _MAX_WEIGHTS) -> None:
        self._counter = counter
        # Saves 37% of the CPU of a session's first request with 500 tools that other sessions have sent.
        self._weights: LruCache[int] = LruCache(capacity)
        self._memo_keys: dict[object, object] = {}
        # Set if the counter can count message by message.
        self.counter = counter if isinstance(counter, RequestCounter) else None
        register(self)

    def clear(self) -> None:
        self._weights.clear()
        self._memo_keys = {}

    def memo_key(self, *parts: object) -> object:
        """A key for memoizing results of this instance: the same object for equal `parts`."""
        if len(self._memo_keys) > _MAX_MEMO_KEYS:
            self._memo_keys = {}
        return self._memo_keys.setdefault(parts, object())

    def divide(self, tokens: int, image_tokens: int, blocks: Sequence[BlockFacts]) -> Sequence[int]:
        """Divide `tokens` among `blocks`, `image_tokens` of them among those with images."""
        if len(blocks) == 1:
            return (tokens,)
        shares = _divide_by_weight(tokens - image_tokens, [self._weight(facts) for facts in blocks])
        if not image_tokens:
            return shares
        images = [facts.image_count for facts in blocks]
        image_weights = images if any(images) else [1] * len(blocks)
        return [
            share + image
            for share, image in zip(shares, _divide_by_weight(image_tokens, image_weights), strict=True)
        ]

    def divide_request(self, request: Request, blocks: Sequence[Block]) -> list[int]:
        """The tokens of each of `blocks`, which must be all blocks of `request`. They add up to its count.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply.
        """
        return self.divide_request_facts(request, look_up_facts(blocks))

    def divide_request_facts(self, request: Request, blocks: Sequence[BlockFacts]) -> list[int]:
        if not blocks:
            return []
        part_tokens = {part.name: part.tokens for part in self._counter.count_request(request).parts}
        blocks_by_part = {part_name: list(group) for part_name, group in groupby(blocks, _count_part)}
        image_tokens = part_tokens.pop("images", 0)
        envelope_tokens = carried_tokens = (
            0  # tokens of messages without blocks go to the next message that has one
        )
        shares_by_part: dict[str, Sequence[int]] = {}
        for part_name, tokens in part_tokens.items():
            group = blocks_by_part.get(part_name)
            if group is not None:
                shares_by_part[part_name] = self._divide_part(tokens + carried_tokens, group)
                carried_tokens = 0
            elif part_name.startswith("messages"):
                carried_tokens += tokens
            else:
                envelope_tokens += tokens
        shares = [
            share
            for part_name in blocks_by_part
            for share in shares_by_part.get(part_name, [0] * len(blocks_by_part[part_name]))
        ]
        image_counts = [facts.image_count for facts in blocks]
        if any(image_counts):
            shares = [
                share + image
                for share, image in zip(shares, _divide_by_weight(image_tokens, image_counts), strict=True)
            ]
            image_tokens = 0
        shares[-1] += carried_tokens
        # The overhead is added to the first block, so that the tokens of a growing session's earlier blocks
        # stay the same, except for one token of rounding.
        shares[0] += envelope_tokens + image_tokens
        return shares

    def _divide_part(self, tokens: int, group: list[BlockFacts]) -> Sequence[int]:
        if len(group) == 1:
            return (tokens,)
        known = group[0].token_shares
        if known is not None and known.divided_by is self and known.tokens == tokens and known.group == group:
            return known.shares
        shares = _divide_by_weight(tokens, [self._weight(facts) for facts in group])
        group[0].token_shares = TokenShares(divided_by=self, tokens=tokens, group=group, shares=shares)
        return shares

    def _weight(self, facts: BlockFacts) -> int:
        weights = self._weights
        weight = weights.get(facts.digest)
        if weight is None:
            words, opaque_chars = _split_readable(parse_json(facts.block.canonical_json))
            # Long words are counted separately, as they were with their message: the counter has them in its
            # cache.
            texts = [word for word in words if len(word) >= _LONG_WORD_CHARS]
            if len(texts) <= _MAX_LONG_WORDS:
                texts.append(" ".join([word for word in words if len(word) < _LONG_WORD_CHARS]))
            else:
                texts = [" ".join(words)]
            tokens = sum([self._counter.text(text).tokens for text in texts])
            weight = max(tokens + opaque_chars // _OPAQUE_CHARS_PER_TOKEN, 1)
            weights.put(facts.digest, weight)
        return weight


def add_automatic_breakpoint(prompt: CachedPrompt, ttl: Ttl | None) -> CachedPrompt:
    """Add the breakpoint that a client lets its provider place: on the last block that accepts one."""
    if ttl is None:
        return prompt
    pieces = prompt.pieces
    last = next((at for at in reversed(range(len(pieces))) if pieces[at].accepts_breakpoint), None)
    if last is None or pieces[last].breakpoint_ttl is not None:
        return replace(prompt, duplicate_breakpoints=1)
    with_breakpoint = (*pieces[:last], structs.replace(pieces[last], breakpoint_ttl=ttl), *pieces[last + 1 :])
    layout = prompt_layout(prompt)
    return replace(
        prompt, pieces=with_breakpoint, layout=layout._replace(breakpoints={**layout.breakpoints, last: ttl})
    )


def make_piece(facts: BlockFacts, tokens: int, rules: CacheRules) -> PromptPiece:
    block = facts.block
    return PromptPiece(
        digest=facts.digest,
        tokens=tokens,
        kind=block.kind,
        area=block.place.area,
        place=block.place,
        breakpoint_ttl=block.breakpoint_ttl,
        accepts_breakpoint=block.kind in rules.breakpoint_kinds and not block.is_empty,
    )


def _divide_by_weight(tokens: int, weights: Sequence[int]) -> list[int]:
    """Divide `tokens` into whole numbers in proportion to `weights`, each off by less than one."""
    if not weights:
        return []
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


def _split_readable(content: Any) -> tuple[list[str], int]:
    """The words in a block's JSON without images, and the number of encoded or encrypted characters in it."""
    words: list[str] = []
    opaque_chars = 0
    pending = [content]
    while pending:
        entry = pending.pop()
        if isinstance(entry, dict) and not is_image(entry):
            for name, inner in entry.items():
                if name in _OPAQUE_FIELDS and isinstance(inner, str):
                    opaque_chars += len(inner)
                else:
                    words.append(name)
                    pending.append(inner)
        elif isinstance(entry, list):
            pending += entry
        elif isinstance(entry, str):
            words.append("" if entry.startswith("data:") else entry)
        elif not isinstance(entry, dict):
            words.append(str(entry))
    return words, opaque_chars
