"""A conversation as a chain of hashes, one a message, by which it is recognised whenever it is sent again.

Two messages are the same where role and blocks are: a string is the one text block that means the same, cache
marks are left out, and neither spacing and escapes nor the order of keys, at any depth, make a difference
(databases and some languages hand a conversation back with its keys in another order). All else that a block
says does, with these exceptions: half a character is the same as any other half, and as U+FFFD; a number is
as exact as a double; a role that is no string is `user`; and fields of a message that are no part of its blocks
are not looked at, such as those that nobody knows in Anthropic's format, or the `phase` of Responses.
System prompt and tools are no part of it, since they hold the time of day; nor are the system messages with
which a conversation begins. The format is part of it.
"""

import asyncio
from dataclasses import dataclass, replace

import msgspec
from blake3 import blake3

from foveate import wire
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo, digest
from foveate.values import Block, Format, Request
from foveate.wire.body import as_record, as_text, compact, inner_fields, value

HASH_BYTES = 16

# So many messages are looked up at once: their bytes are hashed in one go, at ten times the speed.
_GROUP = 64
_KEPT_GROUPS = 4 * 1024
_KEPT_LINKS = 16 * 1024
# Messages that are longer, and new, are read beside the event loop.
_LONG_BYTES = 64 * 1024

# Hashes that are kept must never mean something else: what is said here changes with what is hashed.
_SEED = b"foveate chain 1"

_SYSTEM_ROLES = frozenset(("system", "developer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The hash of each message with all before it, without the `head` system messages that stand first.

    `spellings` are, in a row, the digests of each message alone as it is counted: with the order of its keys.
    """

    head: int
    hashes: tuple[bytes, ...]
    spellings: bytes

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self.hashes)

    def spelling(self, position: int) -> bytes:
        """The digest of one message alone."""
        return self.spellings[position * HASH_BYTES : (position + 1) * HASH_BYTES]


class _Links:
    """What was made of messages seen before, by the hash before them and their bytes."""

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Forget all of them."""
        self.groups: Memo[bytes] = Memo(_KEPT_GROUPS)
        self.single: Memo[bytes] = Memo(_KEPT_LINKS)


_SEEN = _Links()
register(_SEEN)


def chain_of(request: Request) -> Chain:
    """The chain of a request's messages; a long conversation costs hashing its bytes, and reading what is new.

    Raises:
        MalformedRequest: a message cannot be read, or is nested too deeply.
    """
    return _chain(request, _system_messages(request.messages))


async def chain_beside(request: Request) -> Chain:
    """The chain of a request's messages, made beside the event loop where much of it is new.

    Raises:
        MalformedRequest: as `chain_of`.
    """
    head = _system_messages(request.messages)
    if _new_bytes(request, head) < _LONG_BYTES:
        return _chain(request, head)
    return await asyncio.to_thread(_chain, request, head)


def _new_bytes(request: Request, head: int) -> int:
    """How long the messages are from the first on that was never seen after those before it."""
    reached = _begun(request)
    at = head
    while at + _GROUP <= len(request.messages):
        known = _SEEN.groups.get(_short(reached + b"".join(request.messages[at : at + _GROUP])))
        if known is None:
            break
        reached = known[len(known) // 2 - HASH_BYTES : len(known) // 2]
        at += _GROUP
    while at < len(request.messages):
        link = _SEEN.single.get(_short(reached + request.messages[at]))
        if link is None:
            break
        reached = link[:HASH_BYTES]
        at += 1
    return sum(map(len, request.messages[at:]))


def _begun(request: Request) -> bytes:
    return _short(_SEED + b"\0" + request.format.encode())


def _chain(request: Request, head: int) -> Chain:
    reached = _begun(request)
    hashes, spellings = b"", b""
    for start in range(head, len(request.messages), _GROUP):
        links = _linked(request, reached, request.messages[start : start + _GROUP])
        half = len(links) // 2
        hashes += links[:half]
        spellings += links[half:]
        reached = hashes[-HASH_BYTES:]
    ends = range(HASH_BYTES, len(hashes) + 1, HASH_BYTES)
    return Chain(head=head, hashes=tuple([hashes[end - HASH_BYTES : end] for end in ends]), spellings=spellings)


def spelling(raw: bytes) -> bytes:
    """A digest of one message as it is counted: without marks and spacing, with the order of its keys.

    Raises:
        MalformedRequest: the message cannot be read, or is nested too deeply.
    """
    return _short(compact(value(wire.unmarked(raw))))


def _system_messages(messages: tuple[bytes, ...]) -> int:
    """How many stand first. Later ones are part of the conversation."""
    for number, raw in enumerate(messages):
        if as_text(value(inner_fields(raw).get("role"))) not in _SYSTEM_ROLES:
            return number
    return len(messages)


def _linked(request: Request, reached: bytes, raws: tuple[bytes, ...]) -> bytes:
    """The hashes of some messages after `reached`, and behind these their spellings."""
    if len(raws) < _GROUP:
        return _linked_singly(request, reached, raws)
    # JSON objects in a row can be read in one way only, so their bytes need no seams.
    key = _short(reached + b"".join(raws))
    known = _SEEN.groups.get(key)
    if known is None:
        known = _linked_singly(request, reached, raws)
        _SEEN.groups.put(key, known)
    return known


def _linked_singly(request: Request, reached: bytes, raws: tuple[bytes, ...]) -> bytes:
    hashes, spellings = b"", b""
    said: list[list[bytes]] = []  # of the messages from the first new one on: what follows it is new too
    for number, raw in enumerate(raws):
        key = _short(reached + raw)
        link = _SEEN.single.get(key)
        if link is None:
            said = said or _said(request, raws[number:])
            link = digest(reached, *said[number - len(raws)])[:HASH_BYTES] + spelling(raw)
            _SEEN.single.put(key, link)
        reached = link[:HASH_BYTES]
        hashes += reached
        spellings += link[HASH_BYTES:]
    return hashes + spellings


def _said(request: Request, raws: tuple[bytes, ...]) -> list[list[bytes]]:
    """Of each message who speaks, and each of its blocks in one spelling."""
    blocks: list[list[Block]] = [[] for _ in raws]
    for block in wire.blocks(replace(request, body=b"{}", tools=(), messages=raws)):
        blocks[block.place.index].append(block)
    return [_message(request.format, raw, own) for raw, own in zip(raws, blocks, strict=True)]


def _message(spoken: Format, raw: bytes, blocks: list[Block]) -> list[bytes]:
    role = blocks[0].role if blocks else wire.message(spoken, raw).role
    inside = [block for block in blocks if not _is_beside(block, spoken)]
    beside = [block for block in blocks if _is_beside(block, spoken)]
    said = [_spelled(block, spoken) for block in inside]
    return [(role or "user").encode("utf-8", "replace"), *said, *sorted(_spelled(b, spoken) for b in beside)]


def _is_beside(block: Block, spoken: Format) -> bool:
    """Whether it stands beside the content of a chat message, where blocks come in the order of the keys."""
    return spoken is Format.CHAT and as_record(value(block.said)).keys() == {block.kind}


def _spelled(block: Block, spoken: Format) -> bytes:
    found = value(block.said)
    if spoken is Format.ANTHROPIC and block.kind == "tool_result" and isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return msgspec.json.encode(found, order="sorted")


def _short(data: bytes) -> bytes:
    return blake3(data).digest(HASH_BYTES)
