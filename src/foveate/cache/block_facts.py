"""What is found out of a block once, and asked of it in every request that repeats it.

A session sends its whole past in each request. `wire.blocks` gives what it has seen before as the very same
blocks, so what is known of one is found here by which block it is: a look, not a hash of all it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cache.prompts import PromptPiece, compute_digest
from foveate.tokens.caches import register
from foveate.values import Area, Block
from foveate.wire.body import as_dict, as_text, parse_json

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
