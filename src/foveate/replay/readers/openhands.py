"""Reads LLM logs of OpenHands: one JSON file per call, with messages, response, usage and cost.

OpenHands writes them into one folder (`log_completions_folder`), so the files of a folder belong together.
The model is the one that the response names. A failed request leaves a file with an `error` and without a
response.
"""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import parse_json
from foveate.model import Format, Usage
from foveate.replay.readers.format_detection import Fields, read_fields, read_items, read_text
from foveate.replay.readers.log_file import LogFile, describe_problem, parse_time
from foveate.replay.readers.request_logs import LoggedConversations, LoggedRequest, extract_message
from foveate.replay.recording import MissingPart, RecordedCall, Recording, RecordingSource

# LiteLLM's prefix of model names behind its own proxy.
_PROXY = "litellm_proxy/"
_INSTRUCTIONS = "instructions"
_MAX_NUMBER = 1e6  # of dollars and of seconds: larger values are mistakes


def read_openhands(files: Sequence[LogFile], model: str | None = None) -> list[Recording]:
    """Read the conversations in the files of one folder.

    Raises:
        UnreadableInput: a file cannot be opened.
    """
    name = files[0].path.parent.name or files[0].name if len(files) > 1 else files[0].name
    conversations = LoggedConversations(RecordingSource.OPENHANDS, name)
    has_all_tools = True
    for file in files:
        for number, document in file.documents():
            fields = read_fields(document)
            if "response" not in fields:
                if "error" not in fields:
                    file.report_unreadable(number, describe_problem(document, "contains no response"))
                continue
            row = _make_row(fields, model)
            has_all_tools = has_all_tools and _has_tools(fields, row)
            try:
                conversations.add(row, f"{file.path}:{number}")
            except MalformedRequest as error:
                file.report_unreadable(number, str(error))
    broken = tuple(line for file in files for line in file.unreadable)
    size_bytes = sum(file.size_bytes for file in files)
    recordings = [_with_cost(recording, has_all_tools) for recording in conversations.recordings()]
    return [
        replace(recording, unreadable=broken, size_bytes=size_bytes) if not number else recording
        for number, recording in enumerate(recordings)
    ]


def _make_row(fields: Fields, model: str | None) -> LoggedRequest:
    # If tools were described in the prompt, `response` is the translated one.
    response = fields.get("raw_response", fields["response"])
    response_fields = read_fields(response)
    model_name = (
        read_text(response_fields, "model")
        or read_text(read_fields(fields.get("kwargs", b"")), "model")
        or model
        or ""
    )
    body = _make_body(fields)
    api_format = Format.RESPONSES if "input" in body else Format.CHAT
    response_at = _read_time(fields, "timestamp")
    latency_seconds = _read_number(fields, "latency_sec")
    return LoggedRequest(
        body=body,
        format=api_format,
        model=model_name.removeprefix(_PROXY),
        response=extract_message(api_format, bytes(response)),
        usage=_read_usage(fields, api_format),
        at=max(response_at - latency_seconds, 0.0),
        response_at=response_at,
        id=read_text(response_fields, "id"),
    )


def _make_body(fields: Fields) -> Fields:
    """Build the request: messages, and tools unless they were described in the prompt instead."""
    name = "input" if "input" in fields and "messages" not in fields else "messages"
    body = {name: fields[name]} if name in fields else {}
    if name == "input" and read_text(fields, _INSTRUCTIONS):
        body[_INSTRUCTIONS] = fields[_INSTRUCTIONS]
    tools = [tool for tool in _logged_tools(fields) if _is_sent(tool)]
    if tools and "raw_messages" not in fields and "fncall_messages" not in fields:
        body["tools"] = msgspec.Raw(b"[" + b",".join(map(bytes, tools)) + b"]")
    return body


def _logged_tools(fields: Fields) -> list[msgspec.Raw]:
    inside = read_fields(fields.get("kwargs", b""))
    return read_items(fields.get("tools", b"")) or read_items(inside.get("tools", b""))


def _is_sent(tool: msgspec.Raw) -> bool:
    """Tell a tool as it is sent from a description of OpenHands' own object."""
    members = read_fields(tool)
    return "function" in members or {"name", "parameters"} <= members.keys()


def _has_tools(fields: Fields, row: LoggedRequest) -> bool:
    """Return whether the log shows the tools that were sent, if any were."""
    return (
        not _logged_tools(fields)
        or "tools" in row.body
        or "raw_messages" in fields
        or "fncall_messages" in fields
    )


def _read_usage(fields: Fields, api_format: Format) -> Usage | None:
    usage = formats.read_response_usage(api_format, bytes(fields["response"]))
    cost = _read_number(fields, "cost")
    if usage is None or not cost:
        return usage
    return msgspec.structs.replace(usage, reported_dollars=Decimal(repr(cost)))


def _with_cost(recording: Recording, has_all_tools: bool) -> Recording:
    costs = [cost for call in recording.calls if (cost := _cost(call)) is not None]
    lacks = recording.missing if has_all_tools else recording.missing | {MissingPart.TOOLS}
    return replace(recording, reported_dollars=sum(costs, Decimal(0)) if costs else None, missing=lacks)


def _cost(call: RecordedCall) -> Decimal | None:
    return call.usage.reported_dollars if call.usage is not None else None


def _read_number(fields: Fields, name: str) -> float:
    value = parse_json(fields[name]) if name in fields else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < _MAX_NUMBER else 0.0


def _read_time(fields: Fields, name: str) -> float:
    return parse_time(parse_json(fields[name])) if name in fields else 0.0
