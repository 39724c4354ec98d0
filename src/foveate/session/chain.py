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
from functools import cache
from typing import Any

import msgspec
from blake3 import blake3

from foveate import wire
from foveate.tokens.caches import register
from foveate.tokens.memo import digest
from foveate.tokens.threads import run_in_thread
from foveate.values import Format, Request
from foveate.wire.body import as_text, compact, message_record, value
from foveate.wire.large_json import LARGE_BYTES
from foveate.wire.trails import Latest, noted

HASH_BYTES = 16

# Messages that are longer, and new, are read beside the event loop.
_LONG_BYTES = 64 * 1024
# A message takes as long as so many bytes of a long one, however short it is.
_MESSAGE_BYTES = 512
_FEW_MESSAGES = 16

# Hashes that are kept must never mean something else: what is said here changes with what is hashed.
_SEED = b"foveate chain 1"

# Under which a link has its hash and its spelling.
_LINK = object()


class Chain(msgspec.Struct, frozen=True, kw_only=True):
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


_NO_CHAIN = Chain(head=0, hashes=(), spellings=b"")
_CHAINS: Latest[Chain] = Latest()
register(_CHAINS)


def chain_of(request: Request) -> Chain:
    """The chain of a request's messages; a long conversation costs a look at each, and reading what is new.

    Raises:
        MalformedRequest: a message cannot be read, or is nested too deeply.
    """
    trail = wire.trail(request)
    return _chain(request, trail, noted(trail.links, _LINK))


async def chain_beside(request: Request) -> Chain:
    """The chain of a request's messages, made beside the event loop where much of it is new.

    Raises:
        MalformedRequest: as `chain_of`.
    """
    size_bytes = len(request.body) + _MESSAGE_BYTES * len(request.messages)
    if size_bytes >= LARGE_BYTES:
        return await run_in_thread(lambda: chain_of(request), size_bytes)
    trail = wire.trail(request)
    known = noted(trail.links, _LINK)
    if sum([len(link.raw) + _MESSAGE_BYTES for link in trail.links[known:]]) < _LONG_BYTES:
        return _chain(request, trail, known)
    return await asyncio.to_thread(_chain, request, trail, known)


def _chain(request: Request, trail: wire.Trail, known: int) -> Chain:
    links = trail.links
    if known < len(links):
        reached = links[known - 1].known[_LINK][0] if known else _begun(request.format)
        for at in range(known, len(links)):
            message = message_record(links[at].raw)
            reached = digest(reached, *_said(request, trail, at, message))[:HASH_BYTES]
            links[at].known[_LINK] = reached, _spelling(links[at].raw, message)
    # A short one is put together sooner than it is found.
    is_long = len(links) > _FEW_MESSAGES
    size, before = (_CHAINS.before(links) if is_long else None) or (0, _NO_CHAIN)
    found = [link.known[_LINK] for link in links[size:]]
    chain = Chain(
        head=trail.head,
        hashes=before.hashes + tuple([reached for reached, _ in found]),
        spellings=before.spellings + b"".join([spelled for _, spelled in found]),
    )
    if is_long:
        _CHAINS.put(links, chain, instead_of=size)
    return chain


@cache
def _begun(spoken: Format) -> bytes:
    return _short(_SEED + b"\0" + spoken.encode())


def _spelling(raw: bytes, message: dict[str, Any]) -> bytes:
    """A digest of one message as it is counted: without marks and spacing, with the order of its keys."""
    unmarked = wire.unmarked(raw)
    return _short(compact(message) if unmarked is raw else unmarked)


def _said(request: Request, trail: wire.Trail, at: int, message: dict[str, Any]) -> list[bytes]:
    """Who speaks, and what is said."""
    spoken = request.format
    plain = wire.FORMATS[spoken].SHAPE.plain_block(message)
    if plain is not None:  # its block is made when somebody looks at it
        return [_role(message.get("role")), compact(plain, order="sorted")]
    blocks = wire.blocks_at(request, trail, at)
    role = blocks[0].role if blocks else wire.message(spoken, trail.links[at].raw).role
    inside: list[bytes] = []
    # What stands beside the content of a chat message, where blocks come in the order of the keys.
    beside: list[bytes] = []
    for block in blocks:
        inner = value(block.said)
        is_beside = spoken is Format.CHAT and isinstance(inner, dict) and inner.keys() == {block.kind}
        (beside if is_beside else inside).append(_spelled(inner, block.kind, spoken))
    return [_role(role), *inside, *sorted(beside)]


def _role(said: object) -> bytes:
    return (as_text(said) or "user").encode("utf-8", "replace")


def _spelled(found: Any, kind: str, spoken: Format) -> bytes:
    if spoken is Format.ANTHROPIC and kind == "tool_result" and isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return compact(found, order="sorted")


def _short(data: bytes) -> bytes:
    return blake3(data).digest(HASH_BYTES)
