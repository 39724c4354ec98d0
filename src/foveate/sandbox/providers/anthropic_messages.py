"""Validates messages as Anthropic does: roles, blocks, texts, and tool calls with their results.

After https://platform.claude.com/docs/en/api/messages, the pages on tool use, and recorded error responses of
its API (read November 2026). Since October 2024 roles need not alternate, and the first message may be the
assistant's.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.errors import ErrorResponse

ROLES = ("user", "assistant", "system")

_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")

_SYSTEM_BLOCK_TYPES = ("text", "tool_addition", "tool_removal")
_ASSISTANT_BLOCK_TYPES = frozenset(("tool_use", "thinking", "redacted_thinking", "server_tool_use"))
_DIRECTIVE_NOTE = "; the directive-only form (content: [] with output_config) is accepted at any position"


def check_messages(messages: list[dict[str, Any]], *, takes_system: bool) -> Iterator[ErrorResponse]:
    """Yield the errors in messages that conform to the schema; the model may accept system messages."""
    yield from _check_blocks(messages)
    yield from _check_system_messages(messages, takes_system)
    yield from _check_texts(messages)
    yield from _check_tool_pairs(messages)


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message's blocks. A string is one text block, an empty string none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [as_dict(block) for block in as_list(content)]


def check_roles(messages: list[Any]) -> Iterator[ErrorResponse]:
    for message in messages:
        if isinstance(message, dict) and message.get("role", ROLES[0]) not in ROLES:
            role = as_text(message["role"])
            allowed = '"user", "assistant" or "system"'
            yield ErrorResponse(message=f'messages: Unexpected role "{role}". Allowed roles are {allowed}.')


def _check_blocks(messages: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    if not messages:
        yield ErrorResponse(message="messages: at least one message is required")
    for i, message in enumerate(messages):
        for j, block in enumerate(content_blocks(message)):
            yield from _check_block(f"messages.{i}", f"messages.{i}.content.{j}", block, message["role"])


def _check_block(turn: str, at: str, block: dict[str, Any], role: str) -> Iterator[ErrorResponse]:
    kind = block["type"]
    if role != "assistant" and kind in _ASSISTANT_BLOCK_TYPES:
        yield ErrorResponse(message=f"{at}: `{kind}` blocks can only be in `assistant` messages")
    if role != "user" and kind == "tool_result":
        yield ErrorResponse(message=f"{at}: `tool_result` blocks can only be in `user` messages")
    if role == "assistant" and kind == "image":
        yield ErrorResponse(message=f"{turn}.content: 'image' blocks are not permitted within assistant turns.")
    if role == "system" and kind not in _SYSTEM_BLOCK_TYPES:
        yield ErrorResponse(message=f"{at}: `{kind}` blocks cannot be in `system` messages")
    if kind == "tool_use":
        if not _TOOL_ID.fullmatch(block["id"]):
            yield ErrorResponse(message=f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        if not block["name"]:
            yield ErrorResponse(message=f"{at}.tool_use.name: String should have at least 1 character")
    if kind == "tool_result":
        yield from _check_tool_result(at, block)


def _check_tool_result(at: str, block: dict[str, Any]) -> Iterator[ErrorResponse]:
    content = block.get("content")
    inner = [as_dict(part) for part in as_list(content)]
    if block.get("is_error") is True:
        if not content:
            yield ErrorResponse(message=f"{at}: tool_result: content cannot be empty if `is_error` is true")
        if any(part["type"] != "text" for part in inner):
            yield ErrorResponse(
                message=f"{at}: tool_result: all content must be type 'text' if `is_error` is true"
            )
    for k, part in enumerate(inner):
        if part["type"] == "text" and not part["text"]:
            yield ErrorResponse(message="messages: text content blocks must be non-empty")
        if part.get("cache_control") is not None:  # only the result itself can have a breakpoint
            path = f"{at}.tool_result.content.{k}.{part['type']}"
            yield ErrorResponse(message=f"{path}.cache_control: Extra inputs are not permitted")


def _check_system_messages(messages: list[dict[str, Any]], takes_system: bool) -> Iterator[ErrorResponse]:
    """Check that system messages follow a user turn and precede an assistant turn or the end.

    https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (read November 2026).
    Consecutive ones are checked together. The error texts are recorded from its API in September and October
    2026.
    """
    roles = [message["role"] for message in messages]
    if "system" in roles and not takes_system:
        yield ErrorResponse(message="role 'system' is not supported on this model")
    numbered = [(i, message) for i, message in enumerate(messages) if not _is_directive(message)]
    for role, row in groupby(enumerate(numbered), lambda entry: entry[1][1]["role"]):
        if role != "system":
            continue
        run = list(row)
        (first, (i, _)), (last, (j, _)) = run[0], run[-1]
        if not first:
            rule = "use the top-level 'system' parameter for the initial system prompt"
            yield ErrorResponse(message=f"messages.{i}: {rule}{_DIRECTIVE_NOTE}")
        if first and not _may_precede_system(numbered[first - 1][1]):
            rule = "must follow a 'user' message or an 'assistant' message ending in a server tool result"
            yield ErrorResponse(message=f"messages.{i}: role 'system' {rule}{_DIRECTIVE_NOTE}")
        if last + 1 < len(numbered) and numbered[last + 1][1]["role"] != "assistant":
            rule = "must precede an 'assistant' message or end the array"
            yield ErrorResponse(message=f"messages.{j}: role 'system' {rule}{_DIRECTIVE_NOTE}")
        for _, (k, system_message) in run:
            if not content_blocks(system_message):
                yield ErrorResponse(message=f"messages.{k}: system content must contain at least one block")


def _is_directive(message: dict[str, Any]) -> bool:
    """Return whether a message has no content and only sets options for the responses that follow."""
    return message["role"] == "system" and message["content"] == [] and "output_config" in message


def _may_precede_system(message: dict[str, Any]) -> bool:
    kinds = [as_text(block.get("type")) for block in content_blocks(message)]
    is_searching = bool(kinds) and (kinds[-1] == "server_tool_use" or kinds[-1].endswith("_tool_result"))
    return message["role"] == "user" or is_searching


def _check_texts(messages: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    for i, message in enumerate(messages):
        is_last = i == len(messages) - 1
        blocks = content_blocks(message)
        if _is_directive(message):
            continue
        if not blocks and not (is_last and message["role"] == "assistant"):
            yield ErrorResponse(
                message=f"messages.{i}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
        yield from check_texts("messages", f"messages.{i}.content", blocks)
        if is_last and message["role"] == "assistant" and blocks:
            text = as_text(blocks[-1].get("text"))
            if blocks[-1].get("type") == "text" and text != text.rstrip():
                yield ErrorResponse(
                    message="messages: final assistant content cannot end with trailing whitespace"
                )


def check_texts(area: str, at: str, blocks: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that texts are not empty."""
    for j, block in enumerate(blocks):
        if block.get("type") != "text":
            continue
        text = as_text(block.get("text"))
        if not text and block.get("cache_control") is not None:
            yield ErrorResponse(message=f"{at}.{j}.text: cache_control cannot be set for empty text blocks")
        if not text:
            yield ErrorResponse(message=f"{area}: text content blocks must be non-empty")
        if text.isspace():
            yield ErrorResponse(message=f"{area}: text content blocks must contain non-whitespace text")


def _check_tool_pairs(messages: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that every tool call has one result, at the start of the next turn.

    Consecutive messages of one role are one turn, and a later turn may reuse an id: recorded requests with
    either were accepted and charged.
    """
    call_ids: list[str] = []
    last_index = 0
    for _, turn in groupby(enumerate(messages), lambda entry: entry[1]["role"]):
        numbered = list(turn)
        placed = [
            (f"messages.{i}.content.{j}", block)
            for i, message in numbered
            for j, block in enumerate(content_blocks(message))
        ]
        yield from _check_result_ids(placed, call_ids)
        result_ids = _leading_result_ids([block for _, block in placed])
        missing = [call for call in call_ids if call not in result_ids]
        if missing:
            yield _missing_results(last_index, missing)
        last_index = numbered[-1][0]
        call_ids = [as_text(block.get("id")) for _, block in placed if block.get("type") == "tool_use"]
        if len(call_ids) > len(set(call_ids)):
            yield ErrorResponse(message=f"messages.{last_index}: `tool_use` ids must be unique")
    if call_ids:
        yield _missing_results(last_index, call_ids)


def _check_result_ids(placed: list[tuple[str, dict[str, Any]]], call_ids: list[str]) -> Iterator[ErrorResponse]:
    result_ids: set[str] = set()
    for at, block in placed:
        if block.get("type") != "tool_result":
            continue
        call = as_text(block.get("tool_use_id"))
        if call not in call_ids:
            yield ErrorResponse(
                message=f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call in result_ids:
            yield ErrorResponse(
                message=f"{at}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {call}"
            )
        result_ids.add(call)


def _leading_result_ids(blocks: list[dict[str, Any]]) -> set[str]:
    result_ids = set()
    for block in blocks:
        if block.get("type") != "tool_result":
            break
        result_ids.add(as_text(block.get("tool_use_id")))
    return result_ids


def _missing_results(i: int, calls: list[str]) -> ErrorResponse:
    return ErrorResponse(
        message=f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(calls)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message."
    )
