"""Tree of recorded messages, in which lists with the same beginning share it, and helpers to normalize
messages.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from foveate.formats.json_text.parse import as_text, parse_json, to_json
from foveate.formats.layout import BREAKPOINT_FIELDS, CACHE_POINT_FIELD, is_cache_point, remove_breakpoints
from foveate.model import SYSTEM_ROLES, Ttl
from foveate.replay.recording import RecordedMessage

# In a string, the quotes would be escaped.
_BREAKPOINT_NAMES = tuple(f'"{name}"'.encode() for name in (*BREAKPOINT_FIELDS, CACHE_POINT_FIELD))
# Items of the Responses API without a role that come from the client.
_USER_ITEMS = frozenset(
    ("function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
     "mcp_approval_response")
)  # fmt: skip
# Enough to see whether the content of a message is blocks that start with a text.
_HEAD_BYTES = 96
_ROLES = {"model": "assistant", "ai": "assistant", "human": "user", "function": "tool"}
_LONG_TTL = re.compile(
    rb'"(?:%s)"\s*:\s*\{[^{}]*"ttl"\s*:\s*"1h"' % "|".join((*BREAKPOINT_FIELDS, CACHE_POINT_FIELD)).encode()
)


class _MessageHead(msgspec.Struct):
    role: Any = None
    type: Any = None


_HEAD_DECODER = msgspec.json.Decoder(_MessageHead)


class MessageTree:
    """A tree of messages in one format; each message follows its parent."""

    def __init__(self) -> None:
        self._children: dict[tuple[RecordedMessage | None, bytes], RecordedMessage] = {}
        self._roots: dict[RecordedMessage, RecordedMessage] = {}

    def append_all(
        self, raws: Iterable[bytes], parent: RecordedMessage | None = None
    ) -> RecordedMessage | None:
        message = parent
        for raw in raws:
            message = self.append(message, raw)
        return message

    def append(self, parent: RecordedMessage | None, raw: bytes) -> RecordedMessage:
        """The same message after the same parent gives the same object."""
        known = self._children.get((parent, raw))
        if known is not None:
            return known
        normalized = normalize_message(raw)
        message = self._children.get((parent, normalized))
        if message is None:
            message = RecordedMessage(
                previous=parent,
                role=read_role(normalized),
                raw=normalized,
                depth=parent.depth + 1 if parent else 0,
            )
            self._children[parent, normalized] = message
            root = self._roots.get(parent) if parent is not None else None
            if root is not None or message.role not in SYSTEM_ROLES:
                self._roots[message] = root or message
        if raw != normalized:  # the next body spells it the same way
            self._children[parent, raw] = message
        return message

    def find_root(self, last: RecordedMessage) -> RecordedMessage:
        """The first message of a conversation that is not a system prompt."""
        return self._roots.get(last, last)


def normalize_message(raw: bytes) -> bytes:
    """Normalize a message, without breakpoints, which move while the message stays."""
    has_breakpoints = any(name in raw for name in _BREAKPOINT_NAMES)
    head = raw[:_HEAD_BYTES]
    if not (has_breakpoints or b"\\u" in raw or b'": ' in head or b'"content":[{' in head):
        return raw
    message = parse_json(raw)
    if has_breakpoints:
        message = remove_breakpoints(message)
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            message["content"] = [block for block in message["content"] if not is_cache_point(block)]
    return to_json(_flatten_single_text(message))


def _flatten_single_text(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if block.keys() == {"type", "text"} and block["type"] == "text" and isinstance(block["text"], str):
            return {**message, "content": block["text"]}
    return message


def read_role(raw: bytes) -> str:
    """The role of a message, in the terms of chat completions."""
    try:
        head = _HEAD_DECODER.decode(raw)
    except msgspec.DecodeError:
        return "user"
    role = as_text(head.role)
    if role:
        return _ROLES.get(role, role)
    kind = as_text(head.type)
    return "user" if not kind or kind in _USER_ITEMS else "assistant"


def find_breakpoint_ttl(text: bytes) -> Ttl | None:
    if not any(name in text for name in _BREAKPOINT_NAMES):
        return None
    return Ttl.ONE_HOUR if _LONG_TTL.search(text) else Ttl.FIVE_MINUTES
