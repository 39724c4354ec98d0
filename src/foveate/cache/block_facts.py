"""What is found out of a block once, and asked of it in every request that repeats it.

A session sends its whole past in each request. `wire.blocks` gives what it has seen before as the very same
blocks, so what is known of one is found here by which block it is: a look, not a hash of all it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cache.prompts import Piece, digest
from foveate.tokens.caches import register
from foveate.values import Area, Block
from foveate.wire.body import as_record, as_text, value

# Of each of two generations: a session of 2,000 turns with a handful of tool calls in each, or a dozen shorter.
_KEPT_BLOCKS = 16 * 1024
_KEPT_BYTES = 32 * 1024 * 1024

_PICTURES = frozenset(("image", "image_url", "input_image"))
_PICTURE_KEYS = ("inlineData", "inline_data", "fileData", "file_data")
_HOLDING = frozenset(("image", *_PICTURE_KEYS))
# Where a block holds others. A tool's arguments and schema are not looked into: an `image` there is a word.
_INNER = ("content", "source", "output", "parts", "toolResult", "functionResponse", "function_response")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """How `by` shared the tokens of one row among the blocks of a group."""

    by: object
    tokens: int
    group: "list[BlockFacts]"
    shares: list[int]


class BlockFacts:
    """What is known of one block.

    `row` is the row of a request's count that it is part of, `digest` tells it from every other block, `images`
    is how many it holds, `cites` whether it switches citations on, `searches` whether it searches the web.
    `piece`, by what may be marked, and `shared` are what was last made of it, for who asks for the same again.
    """

    __slots__ = ("block", "cites", "digest", "images", "markable", "piece", "row", "searches", "shared")

    def __init__(self, block: Block) -> None:
        said, place = block.said, block.place
        is_message = place.area is Area.MESSAGES
        self.block = block
        self.row = f"messages[{place.index}]" if is_message else str(place.area)
        # Of a message also who says it: the same words of somebody else are no prefix.
        self.digest = digest(block.role.encode("utf-8", "replace") + b"\0" + said if is_message else said)
        self.images = pictures(value(said)) if b"image" in said else 0
        self.cites = b'"citations"' in said and _cites(value(said))
        self.searches = place.area is Area.TOOLS and b"search" in said and _searches(as_record(value(said)))
        self.piece: Piece | None = None
        self.markable: frozenset[str] | None = None
        self.shared: Shared | None = None


class KnownBlocks:
    """The facts of blocks seen before, by which block it is. Safe to share between threads.

    They are held in two generations: when the younger one is full, the older one is forgotten.
    """

    def __init__(self, most_blocks: int = _KEPT_BLOCKS, most_bytes: int = _KEPT_BYTES) -> None:
        self._most_blocks = most_blocks
        self._most_bytes = most_bytes
        self._generations: tuple[dict[int, BlockFacts], dict[int, BlockFacts]] = {}, {}
        self._young_bytes = 0
        register(self)

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def drop(self) -> None:
        """Forget all of them."""
        self._generations, self._young_bytes = ({}, {}), 0

    def of(self, blocks: Sequence[Block]) -> list[BlockFacts]:
        """What is known of each of `blocks`."""
        young = self._generations[0]
        # A block that is held here is alive, so that no other one can have its identity.
        return [young.get(id(block)) or self._older(block) for block in blocks]

    def _older(self, block: Block) -> BlockFacts:
        old = self._generations[1].get(id(block))
        facts = BlockFacts(block) if old is None else old
        if block.place.area is not Area.SYSTEM:  # which is read anew for each request
            self._keep(facts)
        return facts

    def _keep(self, facts: BlockFacts) -> None:
        young, _ = self._generations
        if len(young) >= self._most_blocks or self._young_bytes > self._most_bytes:
            self._generations, self._young_bytes = ({}, young), 0
        self._generations[0][id(facts.block)] = facts
        self._young_bytes += len(facts.block.said)


_KNOWN = KnownBlocks()


def facts_of(blocks: Sequence[Block]) -> list[BlockFacts]:
    """What is known of each of `blocks`."""
    return _KNOWN.of(blocks)


def pictures(said: Any) -> int:
    """How many images a block holds, by its JSON as plain Python."""
    if isinstance(said, list):
        return sum(map(pictures, said))
    if not isinstance(said, dict):
        return 0
    return 1 if is_picture(said) else sum(pictures(said[name]) for name in _INNER if name in said)


def is_picture(said: dict[str, Any]) -> bool:
    """Whether a block is an image, in any of the formats."""
    if as_text(said.get("type")) in _PICTURES:
        return True
    if _HOLDING.isdisjoint(said):
        return False
    held = (as_record(said.get(key)) for key in _PICTURE_KEYS)
    is_held = any(as_text(data.get("mimeType") or data.get("mime_type")).startswith("image/") for data in held)
    return is_held or "source" in as_record(said.get("image"))


def _cites(said: Any) -> bool:
    if isinstance(said, list):
        return any(map(_cites, said))
    if not isinstance(said, dict):
        return False
    # On an answer's text, `citations` is the list of what was cited; on a document it is the switch.
    if as_record(said.get("citations")).get("enabled") is True:
        return True
    return any(_cites(said[name]) for name in _INNER if name in said)


def _searches(tool: dict[str, Any]) -> bool:
    kind = as_text(tool.get("type")) or next(iter(tool), "")
    return kind.startswith(("web_search", "googleSearch", "google_search"))
