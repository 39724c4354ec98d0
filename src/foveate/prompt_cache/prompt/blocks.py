"""How many tokens each block of a request takes: those of a message, shared among its blocks.

A message's tokens are shared by how many tokens the blocks' own texts are, so that all add up to the whole.

What is found out of a block once, and asked of it in every request that repeats it.

A session sends its whole past in each request. `wire.blocks` gives what it has seen before as the very same
blocks, so what is known of one is found here by which block it is: a look, not a hash of all it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, Protocol

from msgspec import structs

from foveate.caching import LruCache, register
from foveate.formats.json_text.parse import as_dict, as_text, parse_json
from foveate.model import Area, Block, Request, TokenCount, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, prompt_layout
from foveate.prompt_cache.rules import CacheRules
from foveate.tokens import RequestCount, RequestCounter

# Of each of two generations: a session of 2,000 turns with a handful of tool calls in each, or a dozen shorter.
_MAX_BLOCKS = 16 * 1024
_MAX_BYTES = 32 * 1024 * 1024

_IMAGE_KINDS = frozenset(("image", "image_url", "input_image"))
_IMAGE_DATA_KEYS = ("inlineData", "inline_data", "fileData", "file_data")
_IMAGE_KEYS = frozenset(("image", *_IMAGE_DATA_KEYS))
# Where a block holds others. A tool's arguments and schema are not looked into: an `image` there is a word.
_NESTED_KEYS = ("content", "source", "output", "parts", "toolResult", "functionResponse", "function_response")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenShares:
    """How `by` shared the tokens of one row among the blocks of a group."""

    divided_by: object
    tokens: int
    group: "list[BlockFacts]"
    shares: list[int]


class BlockFacts:
    """What is known of one block.

    `row` is the row of a request's count that it is part of, `digest` tells it from every other block, `images`
    is how many it holds, `cites` whether it switches citations on, `searches` whether it searches the web.
    `piece`, by what may be marked, and `shared` are what was last made of it, for who asks for the same again.
    """

    __slots__ = (
        "block",
        "count_part",
        "digest",
        "enables_citations",
        "image_count",
        "is_web_search",
        "piece",
        "piece_kinds",
        "token_shares",
    )

    def __init__(self, block: Block) -> None:
        content, place = block.canonical_json, block.place
        is_message = place.area is Area.MESSAGES
        self.block = block
        self.count_part = f"messages[{place.index}]" if is_message else str(place.area)
        # Of a message also who says it: the same words of somebody else are no prefix.
        self.digest = compute_digest(
            block.role.encode("utf-8", "replace") + b"\0" + content if is_message else content
        )
        self.image_count = count_images(parse_json(content)) if b"image" in content else 0
        self.enables_citations = b'"citations"' in content and _enables_citations(parse_json(content))
        self.is_web_search = (
            place.area is Area.TOOLS and b"search" in content and _is_web_search(as_dict(parse_json(content)))
        )
        self.piece: PromptPiece | None = None
        self.piece_kinds: frozenset[str] | None = None
        self.token_shares: TokenShares | None = None


class BlockFactsCache:
    """The facts of blocks seen before, by which block it is. Safe to share between threads.

    They are held in two generations: when the younger one is full, the older one is forgotten.
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
        """Forget all of them."""
        self._generations, self._young_bytes = ({}, {}), 0

    def look_up(self, blocks: Sequence[Block]) -> list[BlockFacts]:
        """What is known of each of `blocks`."""
        young = self._generations[0]
        # A block that is held here is alive, so that no other one can have its identity.
        return [young.get(id(block)) or self._look_up_old(block) for block in blocks]

    def _look_up_old(self, block: Block) -> BlockFacts:
        old = self._generations[1].get(id(block))
        facts = BlockFacts(block) if old is None else old
        if block.place.area is not Area.SYSTEM:  # which is read anew for each request
            self._store(facts)
        return facts

    def _store(self, facts: BlockFacts) -> None:
        young, _ = self._generations
        if len(young) >= self._max_blocks or self._young_bytes > self._max_bytes:
            self._generations, self._young_bytes = ({}, young), 0
        self._generations[0][id(facts.block)] = facts
        self._young_bytes += len(facts.block.canonical_json)


_FACTS_CACHE = BlockFactsCache()


def look_up_facts(blocks: Sequence[Block]) -> list[BlockFacts]:
    """What is known of each of `blocks`."""
    return _FACTS_CACHE.look_up(blocks)


def count_images(content: Any) -> int:
    """How many images a block holds, by its JSON as plain Python."""
    if isinstance(content, list):
        return sum(map(count_images, content))
    if not isinstance(content, dict):
        return 0
    return (
        1 if is_image(content) else sum(count_images(content[name]) for name in _NESTED_KEYS if name in content)
    )


def is_image(content: dict[str, Any]) -> bool:
    """Whether a block is an image, in any of the formats."""
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
    # On an answer's text, `citations` is the list of what was cited; on a document it is the switch.
    if as_dict(content.get("citations")).get("enabled") is True:
        return True
    return any(_enables_citations(content[name]) for name in _NESTED_KEYS if name in content)


def _is_web_search(tool: dict[str, Any]) -> bool:
    kind = as_text(tool.get("type")) or next(iter(tool), "")
    return kind.startswith(("web_search", "googleSearch", "google_search"))


# A session of 2,000 turns with a handful of tool calls in each.
_MAX_WEIGHTS = 16 * 1024
_MAX_MEMO_KEYS = 256

# Fields that hold what is encoded or sealed. It is not billed by its letters; so many of them weigh a token.
_OPAQUE_FIELDS = frozenset(
    ("data", "bytes", "file_data", "signature", "encrypted_content", "thoughtSignature", "thought_signature")
)
_OPAQUE_CHARS_PER_TOKEN = 16
_LONG_WORD_CHARS = 64
# Of more than so many long words, nobody knows all any longer, and all are counted at once.
_MAX_LONG_WORDS = 16

_count_part = attrgetter("count_part")


class BlockCounter(Protocol):
    """What counts a request and its texts: a `tokens.RequestCounter`, or one that stands in for it."""

    def text(self, text: str) -> TokenCount:
        """The count of a text alone."""

    def count_request(self, request: Request) -> RequestCount:
        """The count of a whole request, part by part."""


class BlockTokens:
    """How many tokens each block of a request takes, by one model's counter. Safe to share between threads."""

    def __init__(self, counter: BlockCounter, *, capacity: int = _MAX_WEIGHTS) -> None:
        self._counter = counter
        self._weights: LruCache[int] = LruCache(capacity)
        self._memo_keys: dict[object, object] = {}
        # That of the requests of a session, message by message.
        self.counter = counter if isinstance(counter, RequestCounter) else None
        register(self)

    def clear(self) -> None:
        """Forget what blocks weigh."""
        self._weights = LruCache(self._weights.capacity)
        self._memo_keys = {}

    def memo_key(self, *parts: object) -> object:
        """The key under which something made with these tokens is noted; the same for the same things."""
        if len(self._memo_keys) > _MAX_MEMO_KEYS:
            self._memo_keys = {}
        return self._memo_keys.setdefault(parts, object())

    def divide(self, tokens: int, image_tokens: int, blocks: Sequence[BlockFacts]) -> Sequence[int]:
        """The tokens of some blocks that are `tokens` together, of which their images are `image_tokens`."""
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
        """The tokens of each of `blocks`, which are all that `request` has; they add up to its count.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply.
        """
        return self.divide_request_facts(request, look_up_facts(blocks))

    def divide_request_facts(self, request: Request, blocks: Sequence[BlockFacts]) -> list[int]:
        """The same, for who knows the blocks."""
        if not blocks:
            return []
        part_tokens = {part.name: part.tokens for part in self._counter.count_request(request).parts}
        blocks_by_part = {part_name: list(group) for part_name, group in groupby(blocks, _count_part)}
        image_tokens = part_tokens.pop("images", 0)
        envelope_tokens = carried_tokens = 0  # by messages that have no block, to the next that has one
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
        # What goes around it all is counted at the front, so that what a growing session has sent stays what it
        # was, but for the one token by which a sum may be rounded up or down.
        shares[0] += envelope_tokens + image_tokens
        return shares

    def _divide_part(self, tokens: int, group: list[BlockFacts]) -> Sequence[int]:
        """The tokens of one row, among its blocks."""
        if len(group) == 1:
            return (tokens,)
        known = group[0].token_shares
        if known is not None and known.divided_by is self and known.tokens == tokens and known.group == group:
            return known.shares
        shares = _divide_by_weight(tokens, [self._weight(facts) for facts in group])
        group[0].token_shares = TokenShares(divided_by=self, tokens=tokens, group=group, shares=shares)
        return shares

    def _weight(self, facts: BlockFacts) -> int:
        """The tokens of a block's own text, at least 1."""
        weights = self._weights
        found = weights.get(facts.digest)
        if found is None:
            words, opaque_chars = _split_readable(parse_json(facts.block.canonical_json))
            # Long ones are counted alone, as they have been with their message: who was asked then knows them.
            texts = [word for word in words if len(word) >= _LONG_WORD_CHARS]
            if len(texts) <= _MAX_LONG_WORDS:
                texts.append(" ".join([word for word in words if len(word) < _LONG_WORD_CHARS]))
            else:
                texts = [" ".join(words)]
            tokens = sum([self._counter.text(text).tokens for text in texts])
            found = max(tokens + opaque_chars // _OPAQUE_CHARS_PER_TOKEN, 1)
            weights.put(facts.digest, found)
        return found


def add_automatic_breakpoint(prompt: CachedPrompt, ttl: Ttl | None) -> CachedPrompt:
    """With the mark that a client leaves to its provider to place: on the last block that takes one."""
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
    piece = PromptPiece(
        digest=facts.digest,
        tokens=tokens,
        kind=block.kind,
        area=block.place.area,
        place=block.place,
        breakpoint_ttl=block.breakpoint_ttl,
        accepts_breakpoint=block.kind in rules.breakpoint_kinds and not block.is_empty,
    )
    facts.piece, facts.piece_kinds = piece, rules.breakpoint_kinds
    return piece


def _divide_by_weight(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`, less than one away from each one's part; nothing for none."""
    if not weights:
        return []
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


def _split_readable(content: Any) -> tuple[list[str], int]:
    """The words in a block's JSON but for its images, and how many characters of it are sealed."""
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
