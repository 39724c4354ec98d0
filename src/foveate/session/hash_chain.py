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

from foveate import formats
from foveate.caching import hash_bytes, register
from foveate.formats.incremental.history import HistoryCache, count_memoized
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.json_text.parse import as_text, parse_json, parse_message_object, to_json
from foveate.model import Format, Request
from foveate.tokens.threads import run_in_thread

HASH_BYTES = 16

# Messages that are longer, and new, are read beside the event loop.
_THREAD_BYTES = 64 * 1024
# A message takes as long as so many bytes of a long one, however short it is.
_MESSAGE_OVERHEAD_BYTES = 512
_SHORT_CHAIN_MESSAGES = 16

# Hashes that are kept must never mean something else: what is said here changes with what is hashed.
_SEED = b"foveate chain 1"

# Under which a link has its hash and its spelling.
_HASH_KEY = object()


class HashChain(msgspec.Struct, frozen=True, kw_only=True):
    """The hash of each message with all before it, without the `head` system messages that stand first.

    `spellings` are, in a row, the digests of each message alone as it is counted: with the order of its keys.
    """

    leading_system_messages: int
    hashes: tuple[bytes, ...]
    spellings: bytes

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self.hashes)

    def spelling(self, position: int) -> bytes:
        """The digest of one message alone."""
        return self.spellings[position * HASH_BYTES : (position + 1) * HASH_BYTES]


_EMPTY_CHAIN = HashChain(leading_system_messages=0, hashes=(), spellings=b"")
_CHAINS: HistoryCache[HashChain] = HistoryCache()
register(_CHAINS)


def compute_chain(request: Request) -> HashChain:
    """The chain of a request's messages; a long conversation costs a look at each, and reading what is new.

    Raises:
        MalformedRequest: a message cannot be read, or is nested too deeply.
    """
    history = formats.message_history(request)
    return _extend_chain(request, history, count_memoized(history.nodes, _HASH_KEY))


async def compute_chain_in_thread(request: Request) -> HashChain:
    """The chain of a request's messages, made beside the event loop where much of it is new.

    Raises:
        MalformedRequest: as `chain_of`.
    """
    size_bytes = len(request.body) + _MESSAGE_OVERHEAD_BYTES * len(request.messages)
    if size_bytes >= LARGE_BYTES:
        return await run_in_thread(lambda: compute_chain(request), size_bytes)
    history = formats.message_history(request)
    known = count_memoized(history.nodes, _HASH_KEY)
    if sum([len(node.raw) + _MESSAGE_OVERHEAD_BYTES for node in history.nodes[known:]]) < _THREAD_BYTES:
        return _extend_chain(request, history, known)
    return await asyncio.to_thread(_extend_chain, request, history, known)


def _extend_chain(request: Request, history: formats.MessageHistory, known: int) -> HashChain:
    nodes = history.nodes
    if known < len(nodes):
        chain_hash = nodes[known - 1].memo[_HASH_KEY][0] if known else _initial_hash(request.format)
        for at in range(known, len(nodes)):
            message = parse_message_object(nodes[at].raw)
            chain_hash = hash_bytes(chain_hash, *_canonical_message(request, history, at, message))[:HASH_BYTES]
            nodes[at].memo[_HASH_KEY] = chain_hash, _hash_spelling(nodes[at].raw, message)
    # A short one is put together sooner than it is found.
    is_long = len(nodes) > _SHORT_CHAIN_MESSAGES
    size, before = (_CHAINS.find_prefix(nodes) if is_long else None) or (0, _EMPTY_CHAIN)
    found = [node.memo[_HASH_KEY] for node in nodes[size:]]
    chain = HashChain(
        leading_system_messages=history.leading_system_messages,
        hashes=before.hashes + tuple([chain_hash for chain_hash, _ in found]),
        spellings=before.spellings + b"".join([spelling for _, spelling in found]),
    )
    if is_long:
        _CHAINS.put(nodes, chain, replaces=size)
    return chain


@cache
def _initial_hash(api_format: Format) -> bytes:
    return _hash(_SEED + b"\0" + api_format.encode())


def _hash_spelling(raw: bytes, message: dict[str, Any]) -> bytes:
    """A digest of one message as it is counted: without marks and spacing, with the order of its keys."""
    stripped = formats.strip_breakpoints(raw)
    return _hash(to_json(message) if stripped is raw else stripped)


def _canonical_message(
    request: Request, history: formats.MessageHistory, at: int, message: dict[str, Any]
) -> list[bytes]:
    """Who speaks, and what is said."""
    api_format = request.format
    plain_block = formats.FORMATS[api_format].LAYOUT.make_plain_text_block(message)
    if plain_block is not None:  # its block is made when somebody looks at it
        return [_encode_role(message.get("role")), to_json(plain_block, order="sorted")]
    blocks = formats.blocks_at(request, history, at)
    role = blocks[0].role if blocks else formats.parse_message(api_format, history.nodes[at].raw).role
    content: list[bytes] = []
    # What stands beside the content of a chat message, where blocks come in the order of the keys.
    other_fields: list[bytes] = []
    for block in blocks:
        inner = parse_json(block.canonical_json)
        is_other_field = api_format is Format.CHAT and isinstance(inner, dict) and inner.keys() == {block.kind}
        (other_fields if is_other_field else content).append(_canonical_block(inner, block.kind, api_format))
    return [_encode_role(role), *content, *sorted(other_fields)]


def _encode_role(role: object) -> bytes:
    return (as_text(role) or "user").encode("utf-8", "replace")


def _canonical_block(block: Any, kind: str, api_format: Format) -> bytes:
    if api_format is Format.ANTHROPIC and kind == "tool_result" and isinstance(block.get("content"), str):
        block["content"] = [{"type": "text", "text": block["content"]}]
    return to_json(block, order="sorted")


def _hash(data: bytes) -> bytes:
    return blake3(data).digest(HASH_BYTES)
