"""Lists of messages hung into one tree: what two of them begin with alike is held once, and is the same."""

from collections.abc import Iterable
from typing import Any

import msgspec

from foveate.replay.recordings import Said
from foveate.wire.body import as_text, compact, value
from foveate.wire.marks import MEMBERS, POINT, is_point, without_marks

_MARKS = tuple(f'"{name}"'.encode() for name in (*MEMBERS, POINT))
_SYSTEM = frozenset(("system", "developer"))
# What the parts of a conversation with OpenAI's Responses are, where they do not say who speaks.
_ANSWERED = frozenset(
    ("function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
     "mcp_approval_response")
)  # fmt: skip
# The head of a message whose content is blocks of which the first is a text.
_HEAD_BYTES = 96
_ROLES = {"model": "assistant", "ai": "assistant", "human": "user", "function": "tool"}


class _Head(msgspec.Struct):
    role: Any = None
    type: Any = None


_HEADS = msgspec.json.Decoder(_Head)


class Growing:
    """A tree of messages of one format; each message hangs on the one before it."""

    def __init__(self) -> None:
        self._after: dict[tuple[Said | None, bytes], Said] = {}
        self._roots: dict[Said, Said] = {}

    def last(self, raws: Iterable[bytes], before: Said | None = None) -> Said | None:
        """The last of these messages, hung on all before it; None where there are none."""
        here = before
        for raw in raws:
            here = self.hung(here, raw)
        return here

    def hung(self, before: Said | None, raw: bytes) -> Said:
        """A message behind the one before it: the same for who says the same behind the same."""
        known = self._after.get((before, raw))
        if known is not None:
            return known
        said = unmarked(raw)
        found = self._after.get((before, said))
        if found is None:
            found = Said(before=before, role=role_of(said), raw=said, depth=before.depth + 1 if before else 0)
            self._after[before, said] = found
            root = self._roots.get(before) if before is not None else None
            if root is not None or found.role not in _SYSTEM:
                self._roots[found] = root or found
        if raw != said:  # the next body has it in the same spelling
            self._after[before, raw] = found
        return found

    def root(self, last: Said) -> Said:
        """With what the conversation of `last` begins, system prompts left out."""
        return self._roots.get(last, last)


def unmarked(raw: bytes) -> bytes:
    """A message in one spelling and without its marks, which move on while it stays."""
    is_marked = any(name in raw for name in _MARKS)
    head = raw[:_HEAD_BYTES]
    if not (is_marked or b"\\u" in raw or b'": ' in head or b'"content":[{' in head):
        return raw
    said = value(raw)
    if is_marked:
        said = without_marks(said)
        if isinstance(said, dict) and isinstance(said.get("content"), list):
            said["content"] = [block for block in said["content"] if not is_point(block)]
    return compact(_plain(said))


def _plain(said: Any) -> Any:
    """A message whose content is one text, as the mere string that means the same."""
    content = said.get("content") if isinstance(said, dict) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if block.keys() == {"type", "text"} and block["type"] == "text" and isinstance(block["text"], str):
            return {**said, "content": block["text"]}
    return said


def role_of(raw: bytes) -> str:
    """Who says a message, in the words of chat completions."""
    try:
        head = _HEADS.decode(raw)
    except msgspec.DecodeError:
        return "user"
    role = as_text(head.role)
    if role:
        return _ROLES.get(role, role)
    kind = as_text(head.type)
    return "user" if not kind or kind in _ANSWERED else "assistant"
