"""What Anthropic takes for messages: their shape, texts that say something, calls next to their results.

After https://platform.claude.com/docs/en/api/messages, the pages on tool use, and what its API answered to
others (read November 2026). Since October 2024 roles need not alternate, and the assistant may speak first.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from foveate.sandbox.refusals import Refusal
from foveate.wire.body import as_list, as_record, as_text

ROLES = ("user", "assistant", "system")

_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")

# The blocks of a message and, of those that are looked into, all fields; a field that is not there is refused.
BLOCKS: dict[str, frozenset[str] | None] = {
    "text": frozenset(("type", "text", "cache_control", "citations")),
    "tool_use": frozenset(("type", "id", "name", "input", "cache_control", "caller", "toolset_name")),
    "tool_result": frozenset(("type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name")),
    "thinking": frozenset(("type", "thinking", "signature")),
    "redacted_thinking": frozenset(("type", "data")),
    "image": frozenset(("type", "source", "cache_control", "transformations")),
    "document": frozenset(("type", "source", "cache_control", "title", "context", "citations")),
    "search_result": frozenset(("type", "source", "title", "content", "citations", "cache_control")),
    **dict.fromkeys(
        ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
         "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
         "container_upload", "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "advisor_tool_result",
         "compaction", "fallback", "tool_addition", "tool_removal")
    ),
}  # fmt: skip
_REQUIRED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "image": ("source",),
    "document": ("source",),
}
# What may stand in the content of a tool's result.
_IN_RESULTS = frozenset(("text", "image", "document", "search_result", "tool_reference", "browser_state"))
_BY_SYSTEM = ("text", "tool_addition", "tool_removal")
_BY_ASSISTANT_ONLY = frozenset(("tool_use", "thinking", "redacted_thinking", "server_tool_use"))


def problems(messages: list[Any]) -> Iterator[Refusal]:
    """What is wrong with the messages, the first thing first."""
    yield from _shapes(messages)
    yield from _texts(messages)
    yield from _pairs(messages)


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message's blocks, a string being one text block; of a string that is empty, none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [as_record(block) for block in as_list(content)]


def _shapes(messages: list[Any]) -> Iterator[Refusal]:
    if not messages:
        yield Refusal(message="messages: at least one message is required")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            yield Refusal(message=f"messages.{i}: Input should be a valid dictionary")
            return
        at = f"messages.{i}"
        for field in ("role", "content"):
            if field not in message:
                yield Refusal(message=f"{at}.{field}: Field required")
        if message.get("role") not in ROLES:
            role = as_text(message.get("role"))
            allowed = '"user", "assistant" or "system"'
            yield Refusal(message=f'messages: Unexpected role "{role}". Allowed roles are {allowed}.')
        for field in message.keys() - {"role", "content"}:
            yield Refusal(message=f"{at}.{field}: Extra inputs are not permitted")
        if not isinstance(message.get("content"), (str, list)):
            yield Refusal(message=f"{at}.content: Input should be a valid list")
        for j, block in enumerate(as_list(message.get("content"))):
            yield from _block(f"{at}.content.{j}", block, as_text(message.get("role")))


def _block(at: str, block: Any, role: str) -> Iterator[Refusal]:
    if not isinstance(block, dict):
        yield Refusal(message=f"{at}: Input should be a valid dictionary")
        return
    kind = as_text(block.get("type"))
    if kind not in BLOCKS:
        tags = ", ".join(f"'{tag}'" for tag in BLOCKS)
        yield Refusal(
            message=f"{at}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
            f"{tags}"
        )
        return
    for field in _REQUIRED.get(kind, ()):
        if field not in block:
            yield Refusal(message=f"{at}.{kind}.{field}: Field required")
    for field in block.keys() - (BLOCKS[kind] or block.keys()):
        yield Refusal(message=f"{at}.{kind}.{field}: Extra inputs are not permitted")
    if role != "assistant" and kind in _BY_ASSISTANT_ONLY:
        yield Refusal(message=f"{at}: `{kind}` blocks can only be in `assistant` messages")
    if role != "user" and kind == "tool_result":
        yield Refusal(message=f"{at}: `tool_result` blocks can only be in `user` messages")
    if role == "system" and kind not in _BY_SYSTEM:
        yield Refusal(message=f"{at}: `{kind}` blocks cannot be in `system` messages")
    yield from _inside(at, kind, block)


def _inside(at: str, kind: str, block: dict[str, Any]) -> Iterator[Refusal]:
    match kind:
        case "text" if not isinstance(block.get("text"), str):
            yield Refusal(message=f"{at}.text.text: Input should be a valid string")
        case "tool_use":
            if not _TOOL_ID.fullmatch(as_text(block.get("id"))):
                yield Refusal(message=f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not isinstance(block.get("input"), dict):
                yield Refusal(message=f"{at}.tool_use.input: Input should be a valid dictionary")
            if not as_text(block.get("name")):
                yield Refusal(message=f"{at}.tool_use.name: String should have at least 1 character")
        case "tool_result":
            yield from _result(at, block)
        case _:
            pass


def _result(at: str, block: dict[str, Any]) -> Iterator[Refusal]:
    content = block.get("content")
    if not isinstance(content, (str, list, type(None))):
        yield Refusal(message=f"{at}.tool_result.content: Input should be a valid list")
    if block.get("is_error") is True and not content:
        yield Refusal(message=f"{at}: tool_result: content cannot be empty if `is_error` is true")
    for k, inner in enumerate(as_list(content)):
        found = as_record(inner)
        kind = as_text(found.get("type"))
        where = f"{at}.tool_result.content.{k}"
        if kind not in _IN_RESULTS:
            tags = ", ".join(f"'{tag}'" for tag in sorted(_IN_RESULTS))
            yield Refusal(
                message=f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected "
                f"tags: {tags}"
            )
        if found.get("cache_control") is not None:  # the result as a whole can be marked
            yield Refusal(message=f"{where}.{kind}.cache_control: Extra inputs are not permitted")


def _texts(messages: list[dict[str, Any]]) -> Iterator[Refusal]:
    for i, message in enumerate(messages):
        is_last = i == len(messages) - 1
        blocks = blocks_of(message)
        if not blocks and not (is_last and message["role"] == "assistant"):
            yield Refusal(
                message=f"messages.{i}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
        yield from text_problems("messages", f"messages.{i}.content", blocks)
        if is_last and message["role"] == "assistant" and blocks:
            said = as_text(blocks[-1].get("text"))
            if blocks[-1].get("type") == "text" and said != said.rstrip():
                yield Refusal(message="messages: final assistant content cannot end with trailing whitespace")


def text_problems(area: str, at: str, blocks: list[dict[str, Any]]) -> Iterator[Refusal]:
    """Texts that say nothing."""
    for j, block in enumerate(blocks):
        if block.get("type") != "text":
            continue
        said = as_text(block.get("text"))
        if not said and block.get("cache_control") is not None:
            yield Refusal(message=f"{at}.{j}.text: cache_control cannot be set for empty text blocks")
        if not said:
            yield Refusal(message=f"{area}: text content blocks must be non-empty")
        if said.isspace():
            yield Refusal(message=f"{area}: text content blocks must contain non-whitespace text")


def _pairs(messages: list[dict[str, Any]]) -> Iterator[Refusal]:
    """Every call has one result, in the next turn and before anything else there.

    Messages in a row by one speaker are one turn, and another turn may use an id again: recorded requests with
    either were taken and billed.
    """
    called: list[str] = []
    spoken_at = 0
    for _, turn in groupby(enumerate(messages), lambda entry: entry[1]["role"]):
        numbered = list(turn)
        placed = [
            (f"messages.{i}.content.{j}", block)
            for i, message in numbered
            for j, block in enumerate(blocks_of(message))
        ]
        yield from _results(placed, called)
        answered = _leading_results([block for _, block in placed])
        missing = [call for call in called if call not in answered]
        if missing:
            yield _unanswered(spoken_at, missing)
        spoken_at = numbered[-1][0]
        called = [as_text(block.get("id")) for _, block in placed if block.get("type") == "tool_use"]
        if len(called) > len(set(called)):
            yield Refusal(message=f"messages.{spoken_at}: `tool_use` ids must be unique")
    if called:
        yield _unanswered(spoken_at, called)


def _results(placed: list[tuple[str, dict[str, Any]]], called: list[str]) -> Iterator[Refusal]:
    answered: set[str] = set()
    for at, block in placed:
        if block.get("type") != "tool_result":
            continue
        call = as_text(block.get("tool_use_id"))
        if call not in called:
            yield Refusal(
                message=f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call in answered:
            yield Refusal(
                message=f"{at}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {call}"
            )
        answered.add(call)


def _leading_results(blocks: list[dict[str, Any]]) -> set[str]:
    found = set()
    for block in blocks:
        if block.get("type") != "tool_result":
            break
        found.add(as_text(block.get("tool_use_id")))
    return found


def _unanswered(i: int, calls: list[str]) -> Refusal:
    return Refusal(
        message=f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(calls)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message."
    )
