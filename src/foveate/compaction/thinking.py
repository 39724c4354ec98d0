"""Drop thinking blocks that a model rejects because the messages before them have changed."""

from collections.abc import Collection, Sequence

from foveate import formats
from foveate.compaction.boundary import has_signed_thinking
from foveate.formats.json_text.parse import as_dict, parse_fields, parse_items, parse_object
from foveate.model import (
    Edit,
    Format,
    Message,
    Opaque,
    Part,
    ReplaceMessages,
    Request,
    SetParameter,
    Text,
    Thinking,
    ToolCall,
)
from foveate.prompt_cache.rules import rules_for

OMITTED_THINKING = "[thinking left out]"

# Kinds of blocks that contain thinking, in the formats that sign it.
_THINKING_BLOCK_KINDS = {
    Format.ANTHROPIC: ("thinking", "redacted_thinking"),
    Format.BEDROCK: ("reasoningContent",),
}
# https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (read November 2026): the provider
# drops thinking whose prefix was changed instead of rejecting the request. Without the beta this setting is a
# 400.
_MISMATCH_SETTING = ("block_binding", "prefix_mismatch_behavior")
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_DROP_BLOCK = "drop_block"
# How these models think if a request does not say: ".../fix-bound-to-a-different-conversation" below that page,
# read November 2026. With thinking disabled, thinking blocks must be removed instead.
_DEFAULT_THINKING = "adaptive"
_CONFIGURABLE_THINKING = frozenset(("", _DEFAULT_THINKING, "enabled"))
_BAD_REQUEST, _MISMATCH_ERROR = 400, b"prefix_mismatch"


def required_betas(edits: Sequence[Edit]) -> tuple[str, ...]:
    """The betas that Anthropic requires for a request with these edits.

    They go into the header `anthropic-beta` in addition to the client's own, or on Bedrock into the body's list
    `anthropic_beta`.
    """
    are_mismatch_settings = (
        isinstance(edit, SetParameter) and edit.path[-len(_MISMATCH_SETTING) :] == _MISMATCH_SETTING
        for edit in edits
    )
    return (_BINDING_BETA,) if any(are_mismatch_settings) else ()


def is_prefix_mismatch(status: int, body: bytes) -> bool:
    """Return whether a response rejects thinking because the messages before it differ."""
    return status == _BAD_REQUEST and _MISMATCH_ERROR in body


def let_provider_drop_thinking(request: Request, model: str) -> tuple[SetParameter, ...]:
    """Edits that make the provider drop invalid thinking instead of rejecting it; see `required_betas`.

    None if the provider would not reject it, if the setting is not possible, as with thinking disabled, or if
    the client has set it itself.
    """
    if request.format is not Format.ANTHROPIC or not rules_for(model).binds_thinking:
        return ()
    if request.thinking not in _CONFIGURABLE_THINKING or _client_mismatch_setting(request) is not None:
        return ()
    reason = "the provider rejected thinking blocks whose earlier messages changed; it drops them instead"
    path = _thinking_path(request)
    drop_blocks = SetParameter(path=(*path, *_MISMATCH_SETTING), value=_DROP_BLOCK, reason=reason)
    if request.thinking:
        return (drop_blocks,)
    return SetParameter(
        path=(*path, "type"), value=_DEFAULT_THINKING, reason="the default mode of thinking of these models"
    ), drop_blocks


def drop_all_thinking(request: Request, model: str) -> tuple[Edit, ...]:
    """Edits that remove all thinking; none if that is impossible or the client has set the behavior itself."""
    return (
        ()
        if _client_mismatch_setting(request) is not None
        else drop_invalid_thinking(request, model, changed_from=0) or ()
    )


def drop_invalid_thinking(
    request: Request,
    model: str,
    *,
    changed_from: int,
    removed: Collection[int] = (),
    end: int | None = None,
    within: Sequence[range] | None = None,
) -> tuple[Edit, ...] | None:
    """Edits that remove thinking which the model would reject because earlier messages are changed.

    `changed_from` is the first changed message; `removed` messages are not sent. Only thinking before `end` and
    `within` these ranges is removed, if given. There are no edits for models that do not bind thinking.

    If an open turn must start with its thinking, the provider is told to drop invalid thinking instead, which
    takes a beta: see `required_betas`.

    None if thinking can be neither sent nor removed, because a chat completion's message with tool calls cannot
    be rewritten. Then nothing before it may change.
    """
    if not rules_for(model).binds_thinking:
        return ()
    size = len(request.messages)
    history = formats.message_history(request)
    with_thinking = [
        index
        for index in range(changed_from, size if end is None else min(end, size))
        if index not in removed
        and (within is None or any(index in positions for positions in within))
        and has_signed_thinking(request, history, index)
    ]
    if not with_thinking or _client_mismatch_setting(request) == _DROP_BLOCK:
        return ()
    reason = "the messages before these thinking blocks changed, and the model accepts them only unchanged"
    if (
        request.thinking == "enabled"
        and request.format in _THINKING_BLOCK_KINDS
        and _is_turn_open(request, with_thinking[-1])
    ):
        path = _thinking_path(request)
        return (SetParameter(path=(*path, *_MISMATCH_SETTING), value=_DROP_BLOCK, reason=reason),)
    stripped = {index: _message_without_thinking(request, index) for index in with_thinking}
    rewritten_messages = {index: message for index, message in stripped.items() if message is not None}
    if len(rewritten_messages) < len(stripped):
        return None
    return tuple(
        ReplaceMessages(start=index, end=index + 1, messages=(message,), reason=reason)
        for index, message in rewritten_messages.items()
    )


def _is_turn_open(request: Request, index: int) -> bool:
    """Return whether the message is the model's last and calls tools, so that its turn is not finished."""
    message, *later = (formats.parse_message(request.format, raw) for raw in request.messages[index:])
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    return calls and all(other.role != "assistant" for other in later)


def _message_without_thinking(request: Request, index: int) -> Message | None:
    raw = request.messages[index]
    message = formats.parse_message(request.format, raw)
    kinds = _THINKING_BLOCK_KINDS.get(request.format)
    if kinds is None:
        other_parts: tuple[Part, ...] = tuple(part for part in message.parts if not isinstance(part, Thinking))
        if not all(isinstance(part, Text | Opaque) for part in other_parts):
            return None
    else:
        blocks = [(_block_kind(block), block) for block in parse_items(parse_fields(raw).get("content"))]
        other_parts = tuple(Opaque(kind, block) for kind, block in blocks if kind not in kinds)
    return Message(role=message.role, parts=other_parts or (Text(OMITTED_THINKING),), name=message.name)


def _block_kind(block: bytes) -> str:
    fields_of_block = parse_object(block)
    return str(fields_of_block.get("type") or next(iter(fields_of_block), ""))


def _thinking_path(request: Request) -> tuple[str, ...]:
    return ("additionalModelRequestFields", "thinking") if request.format is Format.BEDROCK else ("thinking",)


def _client_mismatch_setting(request: Request) -> object:
    path = (*_thinking_path(request), *_MISMATCH_SETTING)
    setting: object = parse_object(parse_fields(request.body).get(path[0]))
    for name in path[1:]:
        setting = as_dict(setting).get(name)
    return setting
