"""Thoughts that a model binds to what it had read before: left out where that is changed, or refused."""

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

# The blocks that hold a thought, in the formats that seal them.
_THINKING_BLOCK_KINDS = {
    Format.ANTHROPIC: ("thinking", "redacted_thinking"),
    Format.BEDROCK: ("reasoningContent",),
}
# https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (read November 2026): the provider
# leaves out thoughts whose prefix was changed, instead of refusing them. Without the beta this is a 400.
_MISMATCH_SETTING = ("block_binding", "prefix_mismatch_behavior")
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_DROP_BLOCK = "drop_block"
# Where a request does not say how to think, these models think so: ".../fix-bound-to-a-different-conversation"
# below that page, read November 2026. With thinking switched off, its thoughts have to be taken out instead.
_DEFAULT_THINKING = "adaptive"
_CONFIGURABLE_THINKING = frozenset(("", _DEFAULT_THINKING, "enabled"))
_BAD_REQUEST, _MISMATCH_ERROR = 400, b"prefix_mismatch"


def required_betas(edits: Sequence[Edit]) -> tuple[str, ...]:
    """The betas without which Anthropic refuses what is sent with such edits.

    They go into the header `anthropic-beta` beside the client's own, and at Bedrock into the list
    `anthropic_beta` of the body.
    """
    asking = (
        isinstance(edit, SetParameter) and edit.path[-len(_MISMATCH_SETTING) :] == _MISMATCH_SETTING
        for edit in edits
    )
    return (_BINDING_BETA,) if any(asking) else ()


def is_prefix_mismatch(status: int, body: bytes) -> bool:
    """Whether an answer refuses a thought, since what stands before it is not what it was thought after."""
    return status == _BAD_REQUEST and _MISMATCH_ERROR in body


def let_provider_drop_thinking(request: Request, model: str) -> tuple[SetParameter, ...]:
    """What has the provider leave out thoughts that do not fit, instead of refusing them; see `betas_of`.

    Nothing where it would not refuse them, where it cannot be asked to, as with thinking switched off, and
    where the client has said itself what is to be done with them.
    """
    if request.format is not Format.ANTHROPIC or not rules_for(model).binds_thinking:
        return ()
    if request.thinking not in _CONFIGURABLE_THINKING or _client_mismatch_setting(request) is not None:
        return ()
    reason = "a thought was refused that had stood after something else; such are to be left out"
    path = _thinking_path(request)
    drop_blocks = SetParameter(path=(*path, *_MISMATCH_SETTING), value=_DROP_BLOCK, reason=reason)
    if request.thinking:
        return (drop_blocks,)
    return SetParameter(
        path=(*path, "type"), value=_DEFAULT_THINKING, reason="these models think so unasked"
    ), drop_blocks


def drop_all_thinking(request: Request, model: str) -> tuple[Edit, ...]:
    """What leaves out all thoughts; nothing where it cannot be done, or the client has said what is to be."""
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
    """What keeps thoughts from being refused since something before them is changed: they are left out.

    Nothing on models that take them all the same. `changed_from` is the first message that is changed, `gone`
    are those that are not sent. Only thoughts in the first `before` messages, and `within` these places, are
    left out, where that is said.

    Where a turn under way must begin with its thought, the provider is asked to leave out those that no longer
    fit, which takes a beta: see `betas_of`.

    None where a thought can be neither sent nor left out: the message of a chat completion that calls tools
    cannot be written anew. Then nothing before it may be changed.
    """
    if not rules_for(model).binds_thinking:
        return ()
    size = len(request.messages)
    trail = formats.message_history(request)
    with_thinking = [
        index
        for index in range(changed_from, size if end is None else min(end, size))
        if index not in removed
        and (within is None or any(index in positions for positions in within))
        and has_signed_thinking(request, trail, index)
    ]
    if not with_thinking or _client_mismatch_setting(request) == _DROP_BLOCK:
        return ()
    reason = "what stood before these thoughts is changed, and this model takes them only after it"
    if (
        request.thinking == "enabled"
        and request.format in _THINKING_BLOCK_KINDS
        and _is_turn_open(request, with_thinking[-1])
    ):
        path = _thinking_path(request)
        return (SetParameter(path=(*path, *_MISMATCH_SETTING), value=_DROP_BLOCK, reason=reason),)
    stripped = {index: _message_without_thinking(request, index) for index in with_thinking}
    written = {index: message for index, message in stripped.items() if message is not None}
    if len(written) < len(stripped):
        return None
    return tuple(
        ReplaceMessages(start=index, end=index + 1, messages=(message,), reason=reason)
        for index, message in written.items()
    )


def _is_turn_open(request: Request, index: int) -> bool:
    """Whether a message is the last of the model's, and calls tools, so that its turn is not over."""
    message, *later = (formats.parse_message(request.format, raw) for raw in request.messages[index:])
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    return calls and all(other.role != "assistant" for other in later)


def _message_without_thinking(request: Request, index: int) -> Message | None:
    """A message without its thoughts, its other blocks as they came; None where these cannot be written."""
    raw = request.messages[index]
    message = formats.parse_message(request.format, raw)
    kinds = _THINKING_BLOCK_KINDS.get(request.format)
    if kinds is None:
        rest: tuple[Part, ...] = tuple(part for part in message.parts if not isinstance(part, Thinking))
        if not all(isinstance(part, Text | Opaque) for part in rest):
            return None
    else:
        blocks = [(_block_kind(block), block) for block in parse_items(parse_fields(raw).get("content"))]
        rest = tuple(Opaque(kind, block) for kind, block in blocks if kind not in kinds)
    return Message(role=message.role, parts=rest or (Text(OMITTED_THINKING),), name=message.name)


def _block_kind(block: bytes) -> str:
    found = parse_object(block)
    return str(found.get("type") or next(iter(found), ""))


def _thinking_path(request: Request) -> tuple[str, ...]:
    return ("additionalModelRequestFields", "thinking") if request.format is Format.BEDROCK else ("thinking",)


def _client_mismatch_setting(request: Request) -> object:
    """What the client itself has the provider do with thoughts that do not fit; None where it does not say."""
    path = (*_thinking_path(request), *_MISMATCH_SETTING)
    found: object = parse_object(parse_fields(request.body).get(path[0]))
    for name in path[1:]:
        found = as_dict(found).get(name)
    return found
