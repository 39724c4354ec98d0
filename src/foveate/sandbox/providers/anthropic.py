"""Anthropic's Messages API: validates requests, and renders responses or the events of a stream.

After https://platform.claude.com/docs/en/api/messages, the pages on tool use,
https://platform.claude.com/docs/en/build-with-claude/prompt-caching,
https://platform.claude.com/docs/en/build-with-claude/streaming and recorded error responses of the API (read
November 2026). Since October 2024 roles need not alternate, and the first message may be the assistant's. The
checks of breakpoints are written independently of how Foveate places them, so that an error in one shows in the
other; the numbers come from `prompt_cache/rules`.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from foveate.budget.model_limits import find_context_window
from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_json, to_json
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl, Usage
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.sandbox import thinking_signatures
from foveate.sandbox.models import SandboxModel, find_model
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    encode_event,
    split_chunks,
)
from foveate.sandbox.schema import SchemaError, SchemaPath, TypeTag, Violation, schemas_for
from foveate.sandbox.thinking_signatures import content_blocks

_TYPE_NAMES = {
    "string": "string",
    "base64": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "list": "list",
    "object": "dictionary",
}
_ORDER_NOTE = "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MIN_TOP_P = 0.95  # with thinking
# https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (read November 2026)
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_THINKING_TYPES = ("thinking", "redacted_thinking")
_ROLES = ("user", "assistant", "system")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SYSTEM_BLOCK_TYPES = ("text", "tool_addition", "tool_removal")
_ASSISTANT_BLOCK_TYPES = frozenset(("tool_use", "thinking", "redacted_thinking", "server_tool_use"))
_DIRECTIVE_NOTE = "; the directive-only form (content: [] with output_config) is accepted at any position"


def to_error_response(schema_error: SchemaError) -> ErrorResponse:
    return ErrorResponse(message=f"{_format_path(schema_error.path)}: {_describe_error(schema_error)}")


def join_choices(choices: tuple[str, ...]) -> str:
    """Join words as in `'a', 'b' or 'c'`."""
    *rest, last = (f"'{word}'" for word in choices)
    return f"{', '.join(rest)} or {last}" if rest else last


def _describe_error(schema_error: SchemaError) -> str:
    match schema_error.violation:
        case Violation.MISSING:
            return "Field required"
        case Violation.UNKNOWN:
            return "Extra inputs are not permitted"
        case Violation.TYPE:
            return f"Input should be a valid {_TYPE_NAMES[schema_error.expected_type.name]}"
        case Violation.VALUE:
            return f"Input should be {join_choices(schema_error.allowed)}"
        case Violation.TAG:
            tags = ", ".join(f"'{word}'" for word in schema_error.allowed)
            return (
                f"Input tag '{schema_error.found}' found using '{schema_error.tag}' does not match any of the "
                f"expected tags: {tags}"
            )
        case Violation.LOW | Violation.HIGH if schema_error.expected_type.name == "number":
            return f"range: {schema_error.expected_type.minimum}..{schema_error.expected_type.maximum}"
        case Violation.LOW:
            return f"Input should be greater than or equal to {schema_error.expected_type.minimum}"
        case Violation.HIGH:
            return f"Input should be less than or equal to {schema_error.expected_type.maximum}"
        case Violation.SHORT:
            return f"List should have at least {schema_error.expected_type.minimum} item after validation"
        case Violation.LONG:
            return f"List should have at most {schema_error.expected_type.maximum} items after validation"
        case Violation.BASE64:
            return "invalid base64 data"


def _format_path(path: SchemaPath) -> str:
    return ".".join(step.name if isinstance(step, TypeTag) else str(step) for step in path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CacheableBlock:
    """A tool or block, with its path and tag as in errors."""

    path: str
    tag: str
    kind: str
    cache_breakpoint: Any
    is_empty: bool


def check_breakpoints(body: dict[str, Any], rules: CacheRules) -> Iterator[ErrorResponse]:
    blocks = list(_find_cacheable_blocks(body))
    automatic = body.get("cache_control")
    for block in blocks:
        if block.cache_breakpoint is not None:
            path = f"{block.path}.{block.tag}" if block.tag else block.path
            if block.kind not in rules.breakpoint_kinds:
                yield ErrorResponse(message=f"{path}.cache_control: Extra inputs are not permitted")
            yield from _check_breakpoint(f"{path}.cache_control", block.cache_breakpoint, rules)
    if automatic is not None:
        yield from _check_breakpoint("cache_control", automatic, rules)
    with_breakpoint = [block for block in blocks if block.cache_breakpoint is not None]
    yield from _check_count(len(with_breakpoint) + (automatic is not None), rules)
    yield from _check_ttl_order(with_breakpoint)
    if automatic is not None:
        yield from _check_automatic(blocks, with_breakpoint, _read_ttl(automatic), rules)


def _find_cacheable_blocks(body: dict[str, Any]) -> Iterator[_CacheableBlock]:
    for i, tool in enumerate(map(as_dict, as_list(body.get("tools")))):
        tag = as_text(tool.get("type")) or "custom"
        cache_breakpoint = tool.get("cache_control")
        yield _CacheableBlock(
            path=f"tools.{i}", tag=tag, kind="tool", cache_breakpoint=cache_breakpoint, is_empty=False
        )
    for j, block in enumerate(map(as_dict, as_list(body.get("system")))):
        yield _to_cacheable_block(f"system.{j}", block, tag="")
    for i, message in enumerate(map(as_dict, as_list(body.get("messages")))):
        for j, block in enumerate(content_blocks(message)):
            yield _to_cacheable_block(f"messages.{i}.content.{j}", block, tag=as_text(block.get("type")))


def _to_cacheable_block(path: str, block: dict[str, Any], *, tag: str) -> _CacheableBlock:
    kind = as_text(block.get("type"))
    is_empty = kind == "text" and not as_text(block.get("text")).strip()
    return _CacheableBlock(
        path=path, tag=tag, kind=kind, cache_breakpoint=block.get("cache_control"), is_empty=is_empty
    )


def _check_breakpoint(path: str, cache_breakpoint: Any, rules: CacheRules) -> Iterator[ErrorResponse]:
    if not isinstance(cache_breakpoint, dict):
        yield ErrorResponse(message=f"{path}: Input should be a valid dictionary or object")
        return
    if cache_breakpoint.get("type") != "ephemeral":
        yield ErrorResponse(message=f"{path}.type: Input should be 'ephemeral'")
    if cache_breakpoint.get("ttl") is not None and cache_breakpoint["ttl"] not in rules.ttls:
        ttls = " or ".join(f"'{ttl}'" for ttl in rules.ttls)
        yield ErrorResponse(message=f"{path}.ttl: Input should be {ttls}")
    for field in (name for name in cache_breakpoint if name not in ("type", "ttl")):
        yield ErrorResponse(message=f"{path}.{field}: Extra inputs are not permitted")


def _check_count(count: int, rules: CacheRules) -> Iterator[ErrorResponse]:
    if count > rules.max_breakpoints:
        yield ErrorResponse(
            message=f"A maximum of {rules.max_breakpoints} blocks with cache_control may be provided. "
            f"Found {count}."
        )


def _check_ttl_order(with_breakpoint: list[_CacheableBlock]) -> Iterator[ErrorResponse]:
    shorter = False
    for block in with_breakpoint:
        ttl = _read_ttl(block.cache_breakpoint)
        if shorter and ttl is Ttl.ONE_HOUR:
            yield _ttl_order_error(f"{block.path}.cache_control.ttl")
        shorter = shorter or ttl is Ttl.FIVE_MINUTES


def _check_automatic(
    blocks: list[_CacheableBlock], with_breakpoint: list[_CacheableBlock], ttl: Ttl, rules: CacheRules
) -> Iterator[ErrorResponse]:
    """Check the breakpoint of the whole request, which applies to the last cacheable block."""
    last_block = next(
        (block for block in reversed(blocks) if block.kind in rules.breakpoint_kinds and not block.is_empty),
        None,
    )
    if last_block is None:
        return
    if last_block.cache_breakpoint is not None and _read_ttl(last_block.cache_breakpoint) is not ttl:
        yield ErrorResponse(
            message=f"cache_control: the last cacheable block ({last_block.path}) already has cache_control "
            f"with a different ttl ('{_read_ttl(last_block.cache_breakpoint)}', not '{ttl}')"
        )
    if ttl is Ttl.ONE_HOUR and any(
        _read_ttl(block.cache_breakpoint) is Ttl.FIVE_MINUTES for block in with_breakpoint
    ):
        yield _ttl_order_error("cache_control.ttl")


def _ttl_order_error(path: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"{path}: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
        f"{_ORDER_NOTE}"
    )


def _read_ttl(cache_breakpoint: Any) -> Ttl:
    return Ttl.ONE_HOUR if as_dict(cache_breakpoint).get("ttl") == Ttl.ONE_HOUR else Ttl.FIVE_MINUTES


def find_error(
    body: dict[str, Any], *, counting: bool = False, betas: Collection[str] = ()
) -> ErrorResponse | None:
    """Return the first error of a request, or None.

    With `counting`, the request is for `count_tokens`, which takes no output limit. `betas` are those of its
    header.
    """
    return next(_check_request(body, counting, betas), None)


def _check_request(body: dict[str, Any], counting: bool, betas: Collection[str]) -> Iterator[ErrorResponse]:
    yield from _check_parameters(body, counting)
    yield from _check_block_binding(as_dict(body.get("thinking")), betas)
    name = as_text(body["model"])
    model = find_model(Format.ANTHROPIC, name)
    if model is None:
        yield ErrorResponse(message=f"model: {name}", status=404, kind="not_found_error")
        return
    rules = rules_for(name, "anthropic")
    yield from chain(
        _check_output_limit(body, model) if not counting else (),
        _check_messages(body["messages"], takes_system=model.takes_system),
        _check_system(body.get("system")),
        _check_tools(body),
        _check_thinking(body),
        _check_last_turn(body, model),
        check_breakpoints(body, rules),
        thinking_signatures.check_signatures(body, binds=rules.binds_thinking),
    )


def _check_parameters(body: dict[str, Any], counting: bool) -> Iterator[ErrorResponse]:
    yield from _check_roles(as_list(body.get("messages")))
    for schema_error in schemas_for(Format.ANTHROPIC).find_errors("counted" if counting else "request", body):
        yield to_error_response(schema_error)


def _check_block_binding(thinking: dict[str, Any], betas: Collection[str]) -> Iterator[ErrorResponse]:
    """Check that `block_binding` is only used with its beta; otherwise it is an unknown field."""
    if thinking.get("block_binding") is not None and _BINDING_BETA not in betas:
        path = f"thinking.{thinking['type']}.block_binding"
        yield ErrorResponse(message=f"{path}: Extra inputs are not permitted")


def _check_output_limit(body: dict[str, Any], model: SandboxModel) -> Iterator[ErrorResponse]:
    max_tokens = body["max_tokens"]
    if max_tokens > model.max_output_tokens:
        yield ErrorResponse(
            message=f"max_tokens: {max_tokens} > {model.max_output_tokens}, which is the maximum allowed "
            f"number of output tokens for {model.name}"
        )
    if max_tokens == 0 and body.get("stream"):  # such a request only warms the cache
        yield ErrorResponse(message="max_tokens: 0 is not supported with streaming")
    if any(not stop.strip() for stop in body.get("stop_sequences") or ()):
        yield ErrorResponse(message="stop_sequences: each stop sequence must contain non-whitespace")


def _check_system(system: Any) -> Iterator[ErrorResponse]:
    yield from _check_text_blocks("system", "system", [as_dict(b) for b in as_list(system)])


def _check_tools(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    names = []
    for i, tool in enumerate(as_list(body.get("tools"))):
        if "name" not in tool:  # a toolset, whose tools the provider names
            continue
        names.append(tool["name"])
        if not _TOOL_NAME.fullmatch(tool["name"]):
            kind = tool.get("type") or "custom"
            yield ErrorResponse(
                message=f"tools.{i}.{kind}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )
    if len(names) != len(set(names)):
        yield ErrorResponse(message="tools: Tool names must be unique.")
    yield from _check_tool_choice(as_dict(body.get("tool_choice")), names)


def _check_tool_choice(choice: dict[str, Any], names: list[str]) -> Iterator[ErrorResponse]:
    kind = choice.get("type")
    if kind in ("any", "tool") and not names:
        yield ErrorResponse(message="tool_choice: tool_choice may only be specified while providing tools.")
    if kind == "tool" and choice["name"] not in names:
        yield ErrorResponse(message=f"tool_choice: Tool '{choice['name']}' not found in provided tools")


def is_thinking_enabled(body: dict[str, Any]) -> bool:
    return as_dict(body.get("thinking")).get("type") in ("enabled", "adaptive")


def _check_thinking(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    thinking = as_dict(body.get("thinking"))
    kind, limit = thinking.get("type"), body.get("max_tokens")
    if kind == "enabled" and limit is not None and thinking["budget_tokens"] >= limit:
        yield ErrorResponse(
            message="`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our "
            "documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
            "#max-tokens-and-context-window-size"
        )
    if not is_thinking_enabled(body):
        return
    if limit == 0:
        yield ErrorResponse(message="max_tokens: 0 is not supported when thinking is enabled")
    if body.get("temperature") not in (None, 1):
        yield ErrorResponse(message="`temperature` may only be set to 1 when thinking is enabled.")
    if body.get("top_k") not in (None, -1):
        yield ErrorResponse(message="`top_k` must be unset when thinking is enabled.")
    top_p = body.get("top_p")
    if top_p is not None and top_p < _MIN_TOP_P:
        yield ErrorResponse(
            message=f"`top_p` must be greater than or equal to {_MIN_TOP_P} or unset when thinking is enabled."
        )
    # Recorded requests show that adaptive models skip thinking instead.
    if kind == "enabled" and as_dict(body.get("tool_choice")).get("type") in ("any", "tool"):
        yield ErrorResponse(message="Thinking may not be enabled when tool_choice forces tool use.")


def _check_last_turn(body: dict[str, Any], model: SandboxModel) -> Iterator[ErrorResponse]:
    messages = body["messages"]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        return
    blocks = content_blocks(messages[turns[-1]])
    # A turn that a server tool paused is sent back to be continued.
    is_paused = any(block.get("type") == "server_tool_use" for block in blocks)
    is_prefill = turns[-1] == len(messages) - 1 and not is_paused
    if is_prefill and blocks and not model.takes_prefill:
        yield ErrorResponse(
            message="This model does not support assistant message prefill. The conversation must end with a "
            "user message."
        )
    if not blocks or not is_thinking_enabled(body):
        return
    # An adaptive model may call a tool without thinking.
    has_tool_use = any(block.get("type") == "tool_use" for block in blocks)
    if as_dict(body["thinking"])["type"] == "enabled" and (is_prefill or has_tool_use):
        first = blocks[0].get("type")
        if first not in _THINKING_TYPES:
            yield ErrorResponse(
                message=f"messages.{turns[-1]}.content.0.type: Expected `thinking` or `redacted_thinking`, but "
                f"found `{first}`. When `thinking` is enabled, a final `assistant` message must start with a "
                "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). To avoid "
                "this requirement, disable `thinking`."
            )
    if is_prefill and blocks[0].get("type") not in _THINKING_TYPES:
        yield ErrorResponse(
            message="Prefilling assistant messages is not supported when `thinking` is enabled."
        )


def _check_messages(messages: list[dict[str, Any]], *, takes_system: bool) -> Iterator[ErrorResponse]:
    yield from _check_blocks(messages)
    yield from _check_system_messages(messages, takes_system)
    yield from _check_texts(messages)
    yield from _check_tool_pairs(messages)


def _check_roles(messages: list[Any]) -> Iterator[ErrorResponse]:
    for message in messages:
        if isinstance(message, dict) and message.get("role", _ROLES[0]) not in _ROLES:
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
        yield from _check_text_blocks("messages", f"messages.{i}.content", blocks)
        if is_last and message["role"] == "assistant" and blocks:
            text = as_text(blocks[-1].get("text"))
            if blocks[-1].get("type") == "text" and text != text.rstrip():
                yield ErrorResponse(
                    message="messages: final assistant content cannot end with trailing whitespace"
                )


def _check_text_blocks(area: str, at: str, blocks: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
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


def find_window_error(body: dict[str, Any], prompt_tokens: int) -> ErrorResponse | None:
    model, window = find_model(Format.ANTHROPIC, body["model"]), find_context_window(body["model"])
    if model is None or window is None:
        return None
    if prompt_tokens > window.tokens:
        return ErrorResponse(message=f"prompt is too long: {prompt_tokens} tokens > {window.tokens} maximum")
    if model.adds_output and prompt_tokens + body["max_tokens"] > window.tokens:
        return ErrorResponse(
            message=f"input length and `max_tokens` exceed context limit: {prompt_tokens} + "
            f"{body['max_tokens']} > {window.tokens}, decrease input length or `max_tokens` and try again"
        )
    return None


_STOP_REASONS = {
    StopReason.DONE: "end_turn",
    StopReason.TOOL_CALL: "tool_use",
    StopReason.LIMIT: "max_tokens",
    StopReason.SEQUENCE: "stop_sequence",
    StopReason.WINDOW: "model_context_window_exceeded",
}
_JSON = "json_schema"
# Tools that the provider defines and the client runs. The provider runs its other tools itself.
_CLIENT_TOOL_PREFIXES = ("bash_", "text_editor_", "computer_2", "memory_")


def read_response_spec(body: dict[str, Any], room_tokens: int | None) -> ResponseSpec:
    choice = as_dict(body.get("tool_choice"))
    forced = {"any": "", "tool": as_text(choice.get("name"))}.get(as_text(choice.get("type")))
    output = as_dict(as_dict(body.get("output_config")).get("format") or body.get("output_format"))
    last = content_blocks(as_dict(body["messages"][-1]))
    return ResponseSpec(
        model=as_text(body["model"]),
        is_streaming=bool(body.get("stream")),
        includes_thinking=is_thinking_enabled(body),
        tools=tuple(
            (as_text(tool.get("name")), as_dict(tool.get("input_schema")))
            for tool in map(as_dict, as_list(body.get("tools")))
            if "input_schema" in tool or as_text(tool.get("type")).startswith(_CLIENT_TOOL_PREFIXES)
        ),
        forced_tool=forced,
        schema=as_dict(output.get("schema")) if output.get("type") == _JSON else None,
        limit_tokens=body["max_tokens"],
        window_tokens_left=room_tokens,
        stop_sequences=tuple(as_list(body.get("stop_sequences"))),
        last_message_text="\n".join(as_text(block.get("text")) for block in last),
    )


def visible_thinking(body: dict[str, Any], thinking: str) -> str:
    """Return the thinking text that the response shows; it may be omitted, and only its signature sent."""
    return "" if as_dict(body.get("thinking")).get("display") == "omitted" else thinking


class AnthropicResponse:
    """A rendered response. `sign` returns the signature of the visible thinking."""

    def __init__(
        self,
        generated: GeneratedResponse,
        metadata: ResponseMetadata,
        *,
        show: Callable[[str], str],
        sign: Callable[[str], str],
    ) -> None:
        self._generated = generated
        self._metadata = metadata
        self.id = metadata.new_id("msg_01")
        self.content = [_render_block(part, metadata, show, sign) for part in generated.parts]

    def body(self) -> bytes:
        usage = usage_block(self._metadata.usage)
        return to_json(self._message(self.content, self._stop_fields(), usage))

    def events(self) -> Iterator[bytes]:
        initial_usage = usage_block(self._metadata.usage) | {"output_tokens": 1}
        silent: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        yield _encode_typed_event(
            {"type": "message_start", "message": self._message([], silent, initial_usage)}
        )
        for index, block in enumerate(self.content):
            empty, deltas = _split_deltas(block)
            yield _encode_typed_event({"type": "content_block_start", "index": index, "content_block": empty})
            if index == 0:
                yield _encode_typed_event({"type": "ping"})
            for delta in deltas:
                yield _encode_typed_event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _encode_typed_event({"type": "content_block_stop", "index": index})
        usage = usage_block(self._metadata.usage)
        del usage["cache_creation"], usage["service_tier"]
        yield _encode_typed_event({"type": "message_delta", "delta": self._stop_fields(), "usage": usage})
        yield _encode_typed_event({"type": "message_stop"})

    def _stop_fields(self) -> dict[str, str | None]:
        return {
            "stop_reason": _STOP_REASONS[self._generated.stop],
            "stop_sequence": self._generated.stop_sequence,
        }

    def _message(
        self, blocks: list[dict[str, Any]], ending: dict[str, str | None], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._metadata.model,
            "content": blocks,
            **ending,
            "usage": usage,
        }


def usage_block(usage: Usage) -> dict[str, Any]:
    """Render usage as Anthropic does: cache reads and writes are not part of the input tokens."""
    cache = usage.cache
    return {
        "input_tokens": cache.uncached,
        "cache_creation_input_tokens": cache.written_5m + cache.written_1h,
        "cache_read_input_tokens": cache.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cache.written_5m,
            "ephemeral_1h_input_tokens": cache.written_1h,
        },
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def error_event(message: str) -> bytes:
    return _encode_typed_event({"type": "error", "error": {"type": "overloaded_error", "message": message}})


def _render_block(
    part: ThinkingPart | TextPart | ToolCallPart,
    metadata: ResponseMetadata,
    show: Callable[[str], str],
    sign: Callable[[str], str],
) -> dict[str, Any]:
    match part:
        case ThinkingPart(text):
            return {"type": "thinking", "thinking": show(text), "signature": sign(show(text))}
        case TextPart(text):
            return {"type": "text", "text": text}
        case ToolCallPart(name, arguments, _):
            tool_input = parse_json(arguments.encode())
            return {"type": "tool_use", "id": metadata.new_id("toolu_01"), "name": name, "input": tool_input}


def _split_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": chunk} for chunk in split_chunks(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [
                {"type": "text_delta", "text": chunk} for chunk in split_chunks(block["text"])
            ]
        case _:
            encoded_input = to_json(block["input"]).decode()
            deltas = [
                {"type": "input_json_delta", "partial_json": chunk}
                for chunk in ("", *split_chunks(encoded_input))
            ]
            return block | {"input": {}}, deltas


def _encode_typed_event(data: dict[str, Any]) -> bytes:
    return encode_event(data, data["type"])
