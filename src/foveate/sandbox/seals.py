"""Signatures of thinking: who thought it, what it says, and what stood before it.

Models with preserved thinking take a thought back only after the system prompt, tools and messages that it was
thought after: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (read November 2026).
Cache marks are left out of the comparison, and so is how a message is cut into several of one role.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from foveate.sandbox.anthropic_turns import blocks_of
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

_KEY = blake3(b"the seal of the foveate sandbox").digest()
_DIGEST_BYTES = 16
_JSON = msgspec.json.Encoder(order="sorted")
_THOUGHTS = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Seal:
    """What a signature says: by whom, after what, and which words, the last two by digest."""

    model: str
    prefix: bytes
    said: bytes


class Prefix:
    """Everything that stands before a place, taken in block by block."""

    def __init__(self, asked: dict[str, Any]) -> None:
        """The beginning of a request: its tools and system prompt."""
        self._chain = blake3()
        for tool in as_list(asked.get("tools")):
            self._take("tool", tool)
        system = asked.get("system")
        for block in blocks_of({"content": system}):
            self._take("system", block)

    def take(self, role: str, block: object) -> None:
        """One more block."""
        self._take(f"message {role}", block)

    def digest(self) -> bytes:
        """What tells it from every other one."""
        return self._chain.digest(_DIGEST_BYTES)

    def _take(self, where: str, block: object) -> None:
        self._chain.update(_JSON.encode([where, _plain(block)]))


def prefix_of(asked: dict[str, Any]) -> Prefix:
    """What an answer to a request stands after."""
    prefix = Prefix(asked)
    for message in map(as_record, as_list(asked.get("messages"))):
        for block in blocks_of(message):
            prefix.take(as_text(message.get("role")), block)
    return prefix


def signature(model: str, prefix: bytes, text: str) -> str:
    """The signature of a thought; with an empty text, of one that is not shown."""
    body = prefix + _said(text) + model.encode()
    return base64.b64encode(_mac(body) + body).decode()


def read(found: str) -> Seal | None:
    """What a signature says, or None where the sandbox did not give it."""
    try:
        data = base64.b64decode(found, validate=True)
        mac, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        model = body[2 * _DIGEST_BYTES :].decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    if not model or mac != _mac(body):
        return None
    return Seal(model, body[:_DIGEST_BYTES], body[_DIGEST_BYTES : 2 * _DIGEST_BYTES])


def problems(asked: dict[str, Any], *, binds: bool) -> Iterator[Refusal]:
    """Thoughts in a request that were not thought here or, where the model `binds` them, not after this."""
    model = as_text(asked.get("model"))
    drops = _drops(asked)
    prefix = Prefix(asked)
    for i, message in enumerate(map(as_record, as_list(asked.get("messages")))):
        for j, block in enumerate(blocks_of(message)):
            if block.get("type") in _THOUGHTS:
                seal = read(as_text(block.get("signature")) or as_text(block.get("data")))
                at = f"messages.{i}.content.{j}"
                if seal is None or seal.said != _said(as_text(block.get("thinking"))):
                    yield Refusal(message=f"{at}: Invalid `signature` in `{block['type']}` block")
                elif binds and not drops and seal.model == model and seal.prefix != prefix.digest():
                    yield _edited(at)
            prefix.take(as_text(message.get("role")), block)


def _edited(at: str) -> Refusal:
    return Refusal(
        message=f"{at}: prefix_mismatch: the `system` prompt, `tools` or `messages` before this `thinking` "
        "block are not those that it was produced after. Send earlier turns back unchanged, leave the block "
        "out, or set `thinking.block_binding.prefix_mismatch_behavior` to `drop_block`."
    )


def _drops(asked: dict[str, Any]) -> bool:
    binding = as_record(as_record(asked.get("thinking")).get("block_binding"))
    return binding.get("prefix_mismatch_behavior") == "drop_block"


def _plain(block: object) -> object:
    """A block without its mark, and without fields that say nothing, which clients add and leave out."""
    if not isinstance(block, dict):
        return block
    return {name: inner for name, inner in block.items() if name != "cache_control" and inner is not None}


def _said(text: str) -> bytes:
    return blake3(text.encode("utf-8", "replace")).digest(_DIGEST_BYTES)


def _mac(body: bytes) -> bytes:
    return blake3(body, key=_KEY).digest(_DIGEST_BYTES)
