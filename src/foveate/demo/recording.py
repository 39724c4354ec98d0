"""Load a recorded session as the list of requests that the demo sends."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from foveate.errors import UnreadableInput
from foveate.formats.layout import remove_breakpoints
from foveate.model import Format
from foveate.replay.recording import MissingPart, RecordedCall, Recording
from foveate.replay.recording_files import read_recordings
from foveate.sandbox.models import find_model

ENDPOINT_PATHS = {
    Format.ANTHROPIC: "/v1/messages",
    Format.CHAT: "/v1/chat/completions",
    Format.RESPONSES: "/v1/responses",
}
_MESSAGE_FIELDS = {Format.ANTHROPIC: "messages", Format.CHAT: "messages", Format.RESPONSES: "input"}
_DEFAULT_MODELS = {Format.ANTHROPIC: "claude-sonnet-4-5", Format.CHAT: "gpt-5", Format.RESPONSES: "gpt-5"}
_MAX_OUTPUT_TOKENS = 1024
# Assumed times if none are recorded: a step of an agent, and the next question of a user.
STEP_SECONDS, QUESTION_SECONDS, BREAK_SECONDS, BREAK_EVERY = 20.0, 120.0, 900.0, 3
# A message is part of every later request, but parsed once.
_cached = lru_cache(maxsize=4096)
_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
# Signed by the provider, so other servers reject them.
_SIGNED_KINDS = frozenset(("thinking", "redacted_thinking"))


@dataclass(frozen=True, slots=True)
class DemoRequest:
    body: bytes
    after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSession:
    """A session as the demo sends it.

    `has_times` tells whether its times were recorded. `missing_parts` are not in the recording,
    `is_thinking_removed` tells that thinking was left out, `left_out` counts the requests that are not sent,
    and `broken_lines` the lines that could not be read.
    """

    name: str
    model: str
    format: Format
    requests: Sequence[DemoRequest]
    has_times: bool = False
    missing_parts: frozenset[MissingPart] = frozenset()
    is_thinking_removed: bool = False
    left_out: int = 0
    broken_lines: int = 0


def load_session(path: Path, *, max_steps: int | None = None) -> DemoSession:
    """Load the longest session of a recording, with the full body of each request.

    Raises:
        UnreadableInput: it is not a recording, or has no session in a format of the sandbox.
    """
    recordings = [
        recording
        for recording in read_recordings(path)
        if recording.format in ENDPOINT_PATHS and recording.calls
    ]
    if not recordings:
        formats = ", ".join(api_format.value for api_format in ENDPOINT_PATHS)
        raise UnreadableInput(str(path), f"contains no session in a format of the sandbox: {formats}")
    longest = max(recordings, key=lambda recording: len(recording.calls))
    all_calls = _main_conversation(longest)
    calls = all_calls[:max_steps]
    api_format = longest.format
    recorded_model = next((call.model for call in calls if call.model), "")
    model = (
        recorded_model
        if recorded_model and find_model(api_format, recorded_model) is not None
        else _DEFAULT_MODELS[api_format]
    )
    return DemoSession(
        name=longest.name,
        model=model,
        format=api_format,
        requests=[
            DemoRequest(_request_body(call, api_format, model), gap)
            for call, gap in zip(calls, _request_gaps(calls), strict=True)
        ],
        has_times=all(call.at for call in calls),
        left_out=len(all_calls) - len(calls),
        broken_lines=len(longest.unreadable),
        missing_parts=longest.missing & {MissingPart.SYSTEM, MissingPart.TOOLS},
        is_thinking_removed=api_format is Format.ANTHROPIC
        and any(_has_thinking(message.raw) for message in calls[-1].last_message.history()),
    )


def add_client_breakpoints(session: DemoSession) -> DemoSession:
    """Add the cache breakpoints that coding agents usually place.

    They are on the system prompt (or the tools, without one) and on the last two user messages. Providers other
    than Anthropic cache without breakpoints: their requests are returned unchanged.
    """
    if session.format is not Format.ANTHROPIC:
        return session
    return replace(
        session, requests=[replace(step, body=_add_breakpoints(step.body)) for step in session.requests]
    )


def _add_breakpoints(body: bytes) -> bytes:
    request: dict[str, Any] = json.loads(body)
    user_messages = [message for message in request["messages"] if message.get("role") == "user"]
    for message in user_messages[-2:]:
        message["content"] = _add_content_breakpoint(message.get("content"))
    if request.get("system"):
        request["system"] = _add_content_breakpoint(request["system"])
    elif request.get("tools"):
        request["tools"][-1] |= _BREAKPOINT
    return json.dumps(request).encode()


def _add_content_breakpoint(content: Any) -> Any:
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    for index in reversed(range(len(blocks))):
        if isinstance(blocks[index], dict) and str(blocks[index].get("text", "x")).strip():
            blocks[index] = {**blocks[index], **_BREAKPOINT}
            break
    return blocks


def _main_conversation(recording: Recording) -> list[RecordedCall]:
    """Return the calls of the longest conversation, without those of sub-agents."""
    by_conversation: dict[str, list[RecordedCall]] = {}
    for call in recording.calls:
        by_conversation.setdefault(call.conversation, []).append(call)
    return max(by_conversation.values(), key=len)


def _request_gaps(calls: Sequence[RecordedCall]) -> list[float]:
    if all(call.at for call in calls):
        times = [call.at for call in calls]
        return [0.0, *(max(0.0, now - before) for before, now in pairwise(times))]
    gaps, questions = [], 0
    for call in calls:
        is_question = b'"tool_result"' not in call.last_message.raw and call.last_message.role == "user"
        questions += is_question
        is_after_break = is_question and questions % BREAK_EVERY == 0
        gaps.append(BREAK_SECONDS if is_after_break else QUESTION_SECONDS if is_question else STEP_SECONDS)
    return [0.0, *gaps[1:]]


def _request_body(call: RecordedCall, api_format: Format, model: str) -> bytes:
    """Build the request as far as it was recorded, without thinking.

    Cache breakpoints are removed too: each variant places its own.
    """
    envelope: dict[str, Any] = json.loads(call.envelope) if call.envelope else {}
    for name in ("system", "tools"):
        if isinstance(envelope.get(name), list):
            envelope[name] = [remove_breakpoints(entry) for entry in envelope[name]]
    envelope["model"] = model
    envelope.pop("stream", None)
    messages = [message.raw for message in call.last_message.history()]
    if api_format is Format.ANTHROPIC:
        envelope.setdefault("max_tokens", _MAX_OUTPUT_TOKENS)
        envelope.pop("thinking", None)
        messages = _order_tool_results(
            [_remove_thinking(raw) if _has_thinking(raw) else raw for raw in messages]
        )
        names = [] if envelope.get("tools") else _tools_used(messages)
        if names:  # tools must be declared if they were used
            envelope["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    head = json.dumps(envelope).encode()
    return head[:-1] + b', "' + _MESSAGE_FIELDS[api_format].encode() + b'": [' + b",".join(messages) + b"]}"


def _has_thinking(raw: bytes) -> bool:
    return b'"thinking"' in raw or b'"redacted_thinking"' in raw


@_cached
def _remove_thinking(raw: bytes) -> bytes:
    message = json.loads(raw)
    if not isinstance(message.get("content"), list):
        return raw
    remaining = [
        block
        for block in message["content"]
        if not (isinstance(block, dict) and block.get("type") in _SIGNED_KINDS)
    ]
    message["content"] = remaining or [{"type": "text", "text": "(thinking)"}]
    return json.dumps(message).encode()


def _order_tool_results(raw_messages: Sequence[bytes]) -> list[bytes]:
    """Put tool results directly after their calls, as the provider requires.

    Logs have them in order of arrival, with reminders in between, and lack those of aborted calls.
    """
    ordered: list[bytes] = []
    pending_ids: tuple[str, ...] = ()
    for raw in raw_messages:
        if pending_ids and not _is_user_message(raw):
            ordered.append(_placeholder_message(pending_ids))
            pending_ids = ()
        ordered.append(_put_results_first(raw, pending_ids) if pending_ids or b'"tool_result"' in raw else raw)
        pending_ids = () if _is_user_message(raw) else _tool_call_values(raw, "id")
    return [*ordered, _placeholder_message(pending_ids)] if pending_ids else ordered


@_cached
def _is_user_message(raw: bytes) -> bool:
    return bool(json.loads(raw).get("role") == "user")


@_cached
def _put_results_first(raw: bytes, pending_ids: tuple[str, ...]) -> bytes:
    """Make a user message answer exactly the pending tool calls."""
    message = json.loads(raw)
    content = message.get("content") or []
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    results = {block["tool_use_id"]: block for block in blocks if _is_result(block, pending_ids)}
    placeholders = [_placeholder_result(id_) for id_ in pending_ids if id_ not in results]
    others = [_orphan_result_to_text(block) for block in blocks if not _is_result(block, pending_ids)]
    reordered = [*results.values(), *placeholders, *others]
    return raw if reordered == content else json.dumps({**message, "content": reordered}).encode()


def _is_result(block: object, pending_ids: Sequence[str]) -> bool:
    return (
        isinstance(block, dict)
        and block.get("type") == "tool_result"
        and block.get("tool_use_id") in pending_ids
    )


def _orphan_result_to_text(block: Any) -> Any:
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        return block
    return {"type": "text", "text": f"(a result) {json.dumps(block.get('content'))}"}


def _placeholder_message(ids: Sequence[str]) -> bytes:
    return json.dumps({"role": "user", "content": [_placeholder_result(id_) for id_ in ids]}).encode()


def _placeholder_result(id_: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": "(broken off)", "is_error": True}


@_cached
def _tool_call_values(raw: bytes, name: str) -> tuple[str, ...]:
    content = json.loads(raw).get("content") if b'"tool_use"' in raw else None
    return tuple(
        block[name]
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_use" and isinstance(block.get(name), str)
    )


def _tools_used(raw_messages: Iterable[bytes]) -> list[str]:
    return list(dict.fromkeys(name for raw in raw_messages for name in _tool_call_values(raw, "name")))
