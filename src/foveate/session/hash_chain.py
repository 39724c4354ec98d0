"""Conversations as chains of hashes, one per message, which identify them when they are sent again.

Two messages are equal if their role and blocks are. A string equals the equivalent text block; cache
breakpoints, whitespace, escapes and the order of keys at any depth are ignored (databases and some languages
change the order of keys). Everything else in a block counts, with these exceptions: lone surrogates all equal
U+FFFD; numbers are compared as doubles; a role that is not a string is `user`; fields of a message outside of
its blocks are ignored, such as unknown ones in Anthropic's format, or `phase` in Responses. System prompt,
tools and system messages at the start are not part of the chain, because they contain the time of day. The
format is part of it.
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
from foveate.tokens.worker_threads import run_in_thread

HASH_BYTES = 16

# New messages that are longer are parsed in a thread.
_THREAD_BYTES = 64 * 1024
# Fixed cost of a message, in bytes of a long one.
_MESSAGE_OVERHEAD_BYTES = 512
_SHORT_CHAIN_MESSAGES = 16

# Stored hashes must keep their meaning: change this whenever the hashed content changes.
_SEED = b"foveate chain 1"

# Key of the hash and the spelling in the memo of a node.
_HASH_KEY = object()


class HashChain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The hash of each message with all before it, without the system messages at the start.

    `spellings` concatenates the digests of each message as it is counted: with the order of its keys.
    """

    leading_system_messages: int
    hashes: tuple[bytes, ...]
    spellings: bytes

    def __len__(self) -> int:
        return len(self.hashes)

    def spelling(self, position: int) -> bytes:
        return self.spellings[position * HASH_BYTES : (position + 1) * HASH_BYTES]


_EMPTY_CHAIN = HashChain(leading_system_messages=0, hashes=(), spellings=b"")
_CHAINS: HistoryCache[HashChain] = HistoryCache()
register(_CHAINS)


def compute_chain(request: Request) -> HashChain:
    """Return the chain of a request. Only new messages are parsed.

    Raises:
        MalformedRequest: a message cannot be parsed, or is nested too deeply.
    """
    history = formats.message_history(request)
    return _extend_chain(request, history, count_memoized(history.nodes, _HASH_KEY))


async def compute_chain_in_thread(request: Request) -> HashChain:
    """Return the chain of a request, computed in a thread if much of it is new.

    Raises:
        MalformedRequest: as in `compute_chain`.
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
    # A short chain is built faster than it is looked up.
    is_long = len(nodes) > _SHORT_CHAIN_MESSAGES
    size, before = (_CHAINS.find_prefix(nodes) if is_long else None) or (0, _EMPTY_CHAIN)
    hashed = [node.memo[_HASH_KEY] for node in nodes[size:]]
    chain = HashChain(
        leading_system_messages=history.leading_system_messages,
        hashes=before.hashes + tuple([chain_hash for chain_hash, _ in hashed]),
        spellings=before.spellings + b"".join([spelling for _, spelling in hashed]),
    )
    if is_long:
        _CHAINS.put(nodes, chain, replaces=size)
    return chain


@cache
def _initial_hash(api_format: Format) -> bytes:
    return _hash(_SEED + b"\0" + api_format.encode())


def _hash_spelling(raw: bytes, message: dict[str, Any]) -> bytes:
    """Hash one message as it is counted: without breakpoints and whitespace, with the order of its keys."""
    stripped = formats.strip_breakpoints(raw)
    return _hash(to_json(message) if stripped is raw else stripped)


def _canonical_message(
    request: Request, history: formats.MessageHistory, at: int, message: dict[str, Any]
) -> list[bytes]:
    api_format = request.format
    plain_block = formats.FORMATS[api_format].LAYOUT.make_plain_text_block(message)
    if plain_block is not None:  # its block need not be created
        return [_encode_role(message.get("role")), to_json(plain_block, order="sorted")]
    blocks = formats.blocks_at(request, history, at, message)
    role = blocks[0].role if blocks else formats.parse_message(api_format, history.nodes[at].raw).role
    content: list[bytes] = []
    # Fields of a chat message besides its content, whose blocks have the order of the keys.
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
