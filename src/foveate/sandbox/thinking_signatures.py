"""Signatures of thinking blocks: the model, the text, and everything before the block.

Models with preserved thinking accept a thinking block only after the system prompt, tools and messages that
preceded it when it was generated: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking
(read November 2026). Cache breakpoints, and how a turn is split into messages, make no difference.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.errors import ErrorResponse

_KEY = blake3(b"the seal of the foveate sandbox").digest()
_DIGEST_BYTES = 16
_JSON = msgspec.json.Encoder(order="sorted")
_THINKING_TYPES = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class ThinkingSignature:
    model: str
    prefix_digest: bytes
    text_digest: bytes


class PrefixHash:
    """A hash of everything before a position, computed block by block."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._chain = blake3()
        for tool in as_list(body.get("tools")):
            self._add("tool", tool)
        system = body.get("system")
        for block in content_blocks({"content": system}):
            self._add("system", block)

    def add_block(self, role: str, block: object) -> None:
        self._add(f"message {role}", block)

    def digest(self) -> bytes:
        return self._chain.digest(_DIGEST_BYTES)

    def _add(self, label: str, block: object) -> None:
        self._chain.update(_JSON.encode([label, _normalize_block(block)]))


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A string is one text block, an empty string none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [as_dict(block) for block in as_list(content)]


def hash_prefix(body: dict[str, Any]) -> PrefixHash:
    prefix = PrefixHash(body)
    for message in map(as_dict, as_list(body.get("messages"))):
        for block in content_blocks(message):
            prefix.add_block(as_text(message.get("role")), block)
    return prefix


def sign_thinking(model: str, prefix: bytes, text: str) -> str:
    body = prefix + _digest_text(text) + model.encode()
    return base64.b64encode(_mac(body) + body).decode()


def parse_signature(encoded: str) -> ThinkingSignature | None:
    try:
        data = base64.b64decode(encoded, validate=True)
        mac, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        model = body[2 * _DIGEST_BYTES :].decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    if not model or mac != _mac(body):
        return None
    return ThinkingSignature(model, body[:_DIGEST_BYTES], body[_DIGEST_BYTES : 2 * _DIGEST_BYTES])


def check_signatures(body: dict[str, Any], *, binds: bool) -> Iterator[ErrorResponse]:
    """Yield errors for thinking blocks of other origin or, if the model `binds` them, of another prefix."""
    model = as_text(body.get("model"))
    drops = _drops_mismatched_blocks(body)
    prefix = PrefixHash(body)
    for i, message in enumerate(map(as_dict, as_list(body.get("messages")))):
        for j, block in enumerate(content_blocks(message)):
            if block.get("type") in _THINKING_TYPES:
                signature = parse_signature(as_text(block.get("signature")) or as_text(block.get("data")))
                at = f"messages.{i}.content.{j}"
                if signature is None or signature.text_digest != _digest_text(as_text(block.get("thinking"))):
                    yield ErrorResponse(message=f"{at}: Invalid `signature` in `{block['type']}` block")
                elif (
                    binds
                    and not drops
                    and signature.model == model
                    and signature.prefix_digest != prefix.digest()
                ):
                    yield _prefix_mismatch(at)
            prefix.add_block(as_text(message.get("role")), block)


def _prefix_mismatch(at: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"{at}: prefix_mismatch: the `system` prompt, `tools` or `messages` before this `thinking` "
        "block are not those that it was produced after. Send earlier turns back unchanged, leave the block "
        "out, or set `thinking.block_binding.prefix_mismatch_behavior` to `drop_block`."
    )


def _drops_mismatched_blocks(body: dict[str, Any]) -> bool:
    binding = as_dict(as_dict(body.get("thinking")).get("block_binding"))
    return binding.get("prefix_mismatch_behavior") == "drop_block"


def _normalize_block(block: object) -> object:
    """Return a block without its breakpoint and without null fields, which clients add and leave out."""
    if not isinstance(block, dict):
        return block
    return {name: inner for name, inner in block.items() if name != "cache_control" and inner is not None}


def _digest_text(text: str) -> bytes:
    return blake3(text.encode("utf-8", "replace")).digest(_DIGEST_BYTES)


def _mac(body: bytes) -> bytes:
    return blake3(body, key=_KEY).digest(_DIGEST_BYTES)
