"""Parse request bodies of any format and apply edits to them.

`parse_request` detects the format and reads what every request needs. `parse_message` and `parse_tool` read one
part when it is needed, `request_blocks` gives the whole request as a provider's cache sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats import anthropic, bedrock, gemini, openai_chat, openai_responses
from foveate.formats.blocks import (
    read_automatic_breakpoint,
    read_history_blocks,
    read_message_blocks,
    read_preamble_blocks,
    read_request_blocks,
)
from foveate.formats.edits.writer import write_edits
from foveate.formats.incremental.body_cache import (
    BODY_CACHE,
    MAX_BODY_BYTES,
    ContinuedBody,
    MessageOffsets,
    is_too_large_to_cache,
)
from foveate.formats.incremental.envelope import ENVELOPES, Envelope, RequestFields
from foveate.formats.incremental.history import MessageHistory, UncachedHistory, find_history
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.large_json import contains
from foveate.formats.json_text.offsets import ByteSpan
from foveate.formats.json_text.parse import (
    TOO_DEEP_MESSAGE,
    Fields,
    as_text,
    is_list,
    parse_fields,
    parse_inner_fields,
    parse_items,
    parse_json,
    to_bytes,
    to_json,
)
from foveate.formats.layout import BREAKPOINT_FIELDS, FormatLayout, remove_breakpoints
from foveate.formats.request_limits import RequestLimits
from foveate.model import Block, BreakpointStyle, Edit, Format, Message, Request, Tool, Ttl


class FormatModule(Protocol):
    LAYOUT: FormatLayout

    def parse_request(self, body: bytes, fields: Fields) -> Request: ...

    def split_messages(self, fields: Fields) -> tuple[bytes, ...]: ...

    def parse_message(self, raw: bytes) -> Message: ...

    def parse_tool(self, raw: bytes) -> Tool: ...


FORMATS: dict[Format, FormatModule] = {
    Format.ANTHROPIC: anthropic,
    Format.CHAT: openai_chat,
    Format.RESPONSES: openai_responses,
    Format.GEMINI: gemini,
    Format.BEDROCK: bedrock,
}

_CHAT_FIELDS = frozenset(
    ("response_format", "max_completion_tokens", "functions", "logit_bias", "n", "reasoning_effort",
     "parallel_tool_calls", "stream_options", "frequency_penalty", "presence_penalty", "logprobs")
)  # fmt: skip
_ANTHROPIC_FIELDS = frozenset(
    ("system", "anthropic_version", "anthropic_beta", "mcp_servers", "output_config", "output_format",
     "context_management", "container")
)  # fmt: skip
_ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "redacted_thinking", "image", "document"))
_CHAT_BLOCKS = frozenset(("image_url", "file"))
_RESPONSES_BLOCKS = frozenset(("input_text", "output_text", "input_image", "input_file"))
_CACHE_CONTROL_KEY, _BREAKPOINT_KEY = (f'"{name}"'.encode() for name in BREAKPOINT_FIELDS)
_MAX_INSPECTED_MESSAGES = 8  # at the start and at the end: a long chat in plain strings has no sign at all
_MESSAGE_LIST_DEPTH = 2  # the request, and the list of messages
_CHAT_ROLES = frozenset(("system", "developer", "tool", "function"))


def parse_request(
    body: Mapping[str, Any] | str | bytes,
    api_format: Format | None = None,
    *,
    limits: RequestLimits | None = None,
    model: str = "",
) -> Request:
    """Parse a request body. The format is detected unless it is given.

    `model` replaces the model in the body, for APIs that have it in the path.

    Raises:
        DuplicateKey: an object has the same key twice.
        MalformedRequest: not JSON, not an object, or none of the known formats.
        RequestLimitExceeded: it exceeds one of `limits`.
    """
    data = to_bytes(body)

    def check_rest(rest: ByteSpan) -> None:
        if limits is not None:
            limits.check_rest(data, rest, _MESSAGE_LIST_DEPTH)

    continued = BODY_CACHE.read(api_format, data, check_rest) if api_format is not None else None
    if continued is None and limits is not None:
        limits.check(data)
    request = _parse(data, api_format, continued, model)
    if limits is not None:
        limits.check_messages(len(request.messages))
        limits.check_tools(len(request.tools))
    if is_too_large_to_cache(data) if continued is None else len(data) > MAX_BODY_BYTES:
        return replace(request, history=UncachedHistory.from_messages(request.messages))
    if api_format is not None and continued is None and request.envelope is not None:
        BODY_CACHE.put(request)
    return request


def _parse(data: bytes, api_format: Format | None, continued: ContinuedBody | None, model: str) -> Request:
    if continued is not None and api_format is not None:
        envelope = ENVELOPES.get(api_format, _replace_model(continued.fields, model))
        if envelope is not None and envelope.request is not None:
            return _replace_messages(
                envelope.request, envelope, data, continued.messages, continued.message_offsets
            )
    top_fields: Fields = parse_fields(data)
    check_unique_keys(data, top_fields)
    api_format = api_format or detect_format(top_fields)
    body_fields, top_fields = top_fields, _replace_model(top_fields, model)
    try:
        envelope = ENVELOPES.get(api_format, top_fields)
        if envelope is None:
            request = FORMATS[api_format].parse_request(data, top_fields)
            return replace(request, model=model or request.model, envelope=RequestFields(body_fields))
        if envelope.request is not None:
            return _replace_messages(
                envelope.request, envelope, data, FORMATS[api_format].split_messages(top_fields)
            )
        request_with_body = FORMATS[api_format].parse_request(data, top_fields)
        envelope.request = replace(request_with_body, body=b"", messages=())
        return _replace_messages(envelope.request, envelope, data, request_with_body.messages)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def _replace_model(fields: Fields, model: str) -> Fields:
    """Return the fields as if the body named `model`, because caches are keyed by them."""
    return {**fields, "model": msgspec.Raw(to_json(model))} if model else fields


def known_bytes(data: bytes, api_format: Format) -> int:
    return BODY_CACHE.known_bytes(api_format, data)


def _replace_messages(
    template: Request,
    envelope: Envelope,
    body: bytes,
    messages: tuple[bytes, ...],
    message_offsets: MessageOffsets | None = None,
) -> Request:
    """Copy a request with other messages, in a third of the time of `dataclasses.replace`."""
    return Request(
        format=template.format,
        model=template.model,
        body=body,
        system=template.system,
        tools=template.tools,
        messages=messages,
        tool_choice=template.tool_choice,
        thinking=template.thinking,
        schema=template.schema,
        extras=template.extras,
        unexplained=template.unexplained,
        envelope=envelope,
        message_offsets=message_offsets,
    )


def message_history(request: Request) -> MessageHistory:
    """Return the messages of a request as nodes of the history tree.

    Raises:
        MalformedRequest: a message cannot be parsed.
    """
    return find_history(request)


def parse_message(api_format: Format, raw: bytes) -> Message:
    """Parse one message of a request.

    Raises:
        MalformedRequest: not UTF-8, or nested too deeply.
    """
    try:
        return FORMATS[api_format].parse_message(raw)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def parse_tool(api_format: Format, raw: bytes) -> Tool:
    """Parse one tool of a request.

    Raises:
        MalformedRequest: not UTF-8, or nested too deeply.
    """
    try:
        return FORMATS[api_format].parse_tool(raw)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def detect_format(fields: Fields) -> Format:
    """Detect the format of a body by its fields.

    Raises:
        MalformedRequest: it has no messages under any of the known names.
    """
    names = fields.keys()
    if "contents" in names or "generateContentRequest" in names:
        return Format.GEMINI
    if "input" in names and "messages" not in names:
        return Format.RESPONSES
    if "messages" not in names:
        raise MalformedRequest(
            "no messages in the request: expected `messages` (Anthropic, OpenAI chat, Bedrock), "
            "`input` (OpenAI Responses) or `contents` (Gemini)"
        )
    if names & {"inferenceConfig", "toolConfig", "modelId", "additionalModelRequestFields"}:
        return Format.BEDROCK
    return _detect_by_content(fields)


def _detect_by_content(fields: Fields) -> Format:
    """Tell Anthropic, chat and Bedrock apart, which all have `messages`: the strongest sign decides."""
    system = map(parse_inner_fields, parse_items(fields.get("system")))
    if any(map(_is_untyped, system)):
        return Format.BEDROCK
    if fields.keys() & _ANTHROPIC_FIELDS:
        return Format.ANTHROPIC
    if fields.keys() & _CHAT_FIELDS:
        return Format.CHAT
    for tool in map(parse_inner_fields, parse_items(fields.get("tools"))):
        if "function" in tool:
            return Format.CHAT
        if "input_schema" in tool:
            return Format.ANTHROPIC
    messages = parse_items(fields["messages"])
    for message in map(
        parse_inner_fields,
        (*messages[:_MAX_INSPECTED_MESSAGES], *messages[_MAX_INSPECTED_MESSAGES:][-_MAX_INSPECTED_MESSAGES:]),
    ):
        if _read_text(message, "role") in _CHAT_ROLES or "tool_calls" in message:
            return Format.CHAT
        for block in map(parse_inner_fields, parse_items(message.get("content"))):
            if _is_untyped(block):
                return Format.BEDROCK
            if _read_text(block, "type") in _ANTHROPIC_BLOCKS:
                return Format.ANTHROPIC
    return Format.ANTHROPIC if _read_text(fields, "model").startswith("claude") else Format.CHAT


def wrap_messages(messages: Sequence[bytes], api_format: Format) -> bytes:
    field = FORMATS[api_format].LAYOUT.message_fields[0]
    return b'{"' + field.encode() + b'":[' + b",".join(messages) + b"]}"


def detect_message_format(messages: Sequence[bytes], model: str = "") -> Format:
    """Detect the format of messages without their request.

    The first message that only one format allows decides. Messages with only a role and a text are the same in
    several formats: they are Anthropic's if the name of the model starts with `claude`, and otherwise those of
    OpenAI's chat completions.
    """
    has_system = False
    for fields in map(parse_inner_fields, messages):
        if detected := _detect_message(fields):
            return detected
        has_system = has_system or _read_text(fields, "role") in _CHAT_ROLES
    return Format.ANTHROPIC if model.startswith("claude") and not has_system else Format.CHAT


def _detect_message(fields: Fields) -> Format | None:
    if "parts" in fields:
        return Format.GEMINI
    if "tool_calls" in fields or _read_text(fields, "role") in ("tool", "function"):
        return Format.CHAT
    kind = _read_text(fields, "type")
    if kind and (kind != "message" or not is_list(fields.get("content", b""))):
        return Format.RESPONSES
    for block in map(parse_inner_fields, parse_items(fields.get("content"))):
        if _is_untyped(block):
            return Format.BEDROCK
        block_kind = _read_text(block, "type")
        if block_kind in _ANTHROPIC_BLOCKS or "signature" in block:
            return Format.ANTHROPIC
        if block_kind in _CHAT_BLOCKS:
            return Format.CHAT
        if block_kind in _RESPONSES_BLOCKS:
            return Format.RESPONSES
    return None


def _is_untyped(block: Fields) -> bool:
    """Return whether it is a Converse block, which is named by its key instead of a `type`."""
    return bool(block) and "type" not in block


def _read_text(fields: Fields, name: str) -> str:
    """Return a string field. Other fields are not parsed, because tool arguments need not be valid."""
    raw = fields.get(name)
    return as_text(parse_json(raw)) if raw is not None and bytes(raw).startswith(b'"') else ""


def strip_breakpoints(raw: bytes) -> bytes:
    """Return a message without cache breakpoints, which move from turn to turn and are never counted."""
    if not contains(raw, _CACHE_CONTROL_KEY) and not contains(raw, _BREAKPOINT_KEY):
        return raw
    try:
        return to_json(remove_breakpoints(parse_json(raw)))
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def request_blocks(request: Request) -> tuple[Block, ...]:
    """Return all blocks in the order in which the provider reads them: tools, system prompt, messages.

    Raises:
        MalformedRequest: a part cannot be parsed, or is nested too deeply.
    """
    try:
        return read_request_blocks(request, FORMATS[request.format].LAYOUT)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def preamble_blocks(request: Request, history: MessageHistory) -> tuple[Block, ...]:
    """Return the blocks before the messages of `history`: tools, system prompt, leading system messages.

    Raises:
        MalformedRequest: a part cannot be parsed, or is nested too deeply.
    """
    try:
        return read_preamble_blocks(request, FORMATS[request.format].LAYOUT, history)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def blocks_at(
    request: Request, history: MessageHistory, position: int, message: Mapping[str, Any] | None = None
) -> tuple[Block, ...]:
    """Return the blocks of the message at `position` in `history`; `message` is the message if it was parsed.

    Raises:
        MalformedRequest: it cannot be parsed, or is nested too deeply.
    """
    try:
        return read_history_blocks(request, FORMATS[request.format].LAYOUT, history, position, message)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def message_blocks(api_format: Format, raw: bytes, index: int = 0) -> tuple[Block, ...]:
    """Return the blocks of one message, as if it were at `index`.

    Raises:
        MalformedRequest: it cannot be parsed, or is nested too deeply.
    """
    try:
        return read_message_blocks(api_format, FORMATS[api_format].LAYOUT, raw, index)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def automatic_breakpoint(request: Request) -> Ttl | None:
    """Return the TTL of a breakpoint on the request as a whole, which only Anthropic has."""
    return read_automatic_breakpoint(request)


def apply_edits(
    request: Request, edits: Sequence[Edit], *, breakpoint_style: BreakpointStyle | None = None
) -> bytes:
    """Return the body with `edits`, or the same bytes if there are none.

    Places in edits refer to the original request. `breakpoint_style` selects how breakpoints are written if the
    format allows several styles; chat completions use Anthropic's by default.

    Raises:
        BadEdit: an edit names something missing, cannot be written in this format, or contradicts another.
        MalformedRequest: the request is nested too deeply.
    """
    try:
        return write_edits(request, edits, FORMATS[request.format].LAYOUT, breakpoint_style)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None
