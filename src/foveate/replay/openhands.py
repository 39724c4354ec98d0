"""LLM logs of OpenHands: one JSON file for each call, with the messages, the response, the usage and the cost.

OpenHands writes them into one folder (`log_completions_folder`), so that the files of a folder belong
together. The model is the one that the response names. A failed request leaves a file with an `error` and
without a response.
"""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.replay.log_files import LogFile, trouble
from foveate.replay.recognising import Fields, fields_of, items_of, text_of
from foveate.replay.recordings import Call, Lacking, Recording, Source
from foveate.replay.request_logs import Conversations
from foveate.replay.rows import Row, said_in
from foveate.replay.times import seconds
from foveate.values import Format, Usage
from foveate.wire.body import value

# LiteLLM's name for a proxy of its own, before the model's name.
_PROXY = "litellm_proxy/"
_INSTRUCTIONS = "instructions"
_MAX_NUMBER = 1e6  # of dollars, and of seconds: what is larger is a mistake


def read_openhands(files: Sequence[LogFile], model: str | None = None) -> list[Recording]:
    """Read the conversations in the files of one folder.

    Raises:
        UnreadableInput: a file cannot be opened.
    """
    name = files[0].path.parent.name or files[0].name if len(files) > 1 else files[0].name
    conversations = Conversations(Source.OPENHANDS, name)
    has_all_tools = True
    for file in files:
        for number, document in file.documents():
            fields = fields_of(document)
            if "response" not in fields:
                if "error" not in fields:
                    file.broke(number, trouble(document, "holds no response"))
                continue
            row = _row(fields, model)
            has_all_tools = has_all_tools and _has_tools(fields, row)
            try:
                conversations.add(row, f"{file.path}:{number}")
            except MalformedRequest as error:
                file.broke(number, str(error))
    broken = tuple(line for file in files for line in file.broken)
    size_bytes = sum(file.size_bytes for file in files)
    recordings = [_with_cost(recording, has_all_tools) for recording in conversations.recordings()]
    return [
        replace(recording, broken=broken, size_bytes=size_bytes) if not number else recording
        for number, recording in enumerate(recordings)
    ]


def _row(fields: Fields, model: str | None) -> Row:
    # With tools described in the prompt, `response` is the translated one.
    response = fields.get("raw_response", fields["response"])
    answer = fields_of(response)
    named = text_of(answer, "model") or text_of(fields_of(fields.get("kwargs", b"")), "model") or model or ""
    body = _body(fields)
    api_format = Format.RESPONSES if "input" in body else Format.CHAT
    answered_at = _seconds(fields, "timestamp")
    latency_seconds = _number(fields, "latency_sec")
    return Row(
        body=body,
        format=api_format,
        model=named.removeprefix(_PROXY),
        answer=said_in(api_format, bytes(response)),
        billed=_usage(fields, api_format),
        at=max(answered_at - latency_seconds, 0.0),
        answers_at=answered_at,
        id=text_of(answer, "id"),
    )


def _body(fields: Fields) -> Fields:
    """Put together the request: messages, and tools unless they were described in the prompt instead."""
    name = "input" if "input" in fields and "messages" not in fields else "messages"
    body = {name: fields[name]} if name in fields else {}
    if name == "input" and text_of(fields, _INSTRUCTIONS):
        body[_INSTRUCTIONS] = fields[_INSTRUCTIONS]
    tools = [tool for tool in _logged_tools(fields) if _is_sent(tool)]
    if tools and "raw_messages" not in fields and "fncall_messages" not in fields:
        body["tools"] = msgspec.Raw(b"[" + b",".join(map(bytes, tools)) + b"]")
    return body


def _logged_tools(fields: Fields) -> list[msgspec.Raw]:
    inside = fields_of(fields.get("kwargs", b""))
    return items_of(fields.get("tools", b"")) or items_of(inside.get("tools", b""))


def _is_sent(tool: msgspec.Raw) -> bool:
    """Tell a tool as it is sent from a description of OpenHands' own object."""
    members = fields_of(tool)
    return "function" in members or {"name", "parameters"} <= members.keys()


def _has_tools(fields: Fields, row: Row) -> bool:
    """Tell whether the log shows the tools that were sent, if any were."""
    return (
        not _logged_tools(fields)
        or "tools" in row.body
        or "raw_messages" in fields
        or "fncall_messages" in fields
    )


def _usage(fields: Fields, api_format: Format) -> Usage | None:
    usage = wire.reply_usage(api_format, bytes(fields["response"]))
    cost = _number(fields, "cost")
    if usage is None or not cost:
        return usage
    return msgspec.structs.replace(usage, said_dollars=Decimal(repr(cost)))


def _with_cost(recording: Recording, has_all_tools: bool) -> Recording:
    costs = [cost for call in recording.calls if (cost := _cost(call)) is not None]
    lacks = recording.lacks if has_all_tools else recording.lacks | {Lacking.TOOLS}
    return replace(recording, said_dollars=sum(costs, Decimal(0)) if costs else None, lacks=lacks)


def _cost(call: Call) -> Decimal | None:
    return call.billed.said_dollars if call.billed is not None else None


def _number(fields: Fields, name: str) -> float:
    found = value(fields[name]) if name in fields else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0.0
    return float(found) if 0 <= found < _MAX_NUMBER else 0.0


def _seconds(fields: Fields, name: str) -> float:
    return seconds(value(fields[name])) if name in fields else 0.0
