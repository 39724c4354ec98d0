"""Renders responses of OpenAI's Responses API, or the events of a stream.

After https://platform.openai.com/docs/api-reference/responses-streaming (read November 2026).
"""

import base64
from collections.abc import Iterator
from itertools import count
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.sandbox.rendering.openai_chat import find_forced_tool, join_text, text_tool_names
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

_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Request fields that the response echoes, with their defaults.
_ECHOED_DEFAULTS: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def read_response_spec(body: dict[str, Any], room_tokens: int | None) -> ResponseSpec:
    effort = as_text(as_dict(body.get("reasoning")).get("effort"))
    output = as_dict(as_dict(body.get("text")).get("format"))
    input_value = body.get("input")
    last = (
        as_dict(input_value[-1]).get("content")
        if isinstance(input_value, list) and input_value
        else input_value
    )
    tools = _records(body.get("tools"))
    tools += [
        inner for tool in tools if tool.get("type") == "namespace" for inner in _records(tool.get("tools"))
    ]
    schemas = {"json_schema": as_dict(output.get("schema")), "json_object": {}}
    return ResponseSpec(
        model=as_text(body["model"]),
        is_streaming=bool(body.get("stream")),
        includes_thinking=effort not in ("", "none", "minimal"),
        tools=tuple(
            (as_text(tool.get("name")), as_dict(tool.get("parameters")))
            for tool in tools
            if tool.get("type") in ("function", "custom")
        ),
        forced_tool=find_forced_tool(body.get("tool_choice")),
        text_tools=text_tool_names(tools),
        schema=schemas.get(as_text(output.get("type"))),
        limit_tokens=body.get("max_output_tokens"),
        window_tokens_left=room_tokens,
        last_message_text=last if isinstance(last, str) else join_text(last),
    )


def _records(values: object) -> list[dict[str, Any]]:
    return [as_dict(item) for item in as_list(values)]


def _tool_namespaces(body: dict[str, Any]) -> dict[str, str]:
    return {
        as_text(inner.get("name")): as_text(tool.get("name"))
        for tool in _records(body.get("tools"))
        if tool.get("type") == "namespace"
        for inner in _records(tool.get("tools"))
    }


class ResponsesResponse:
    def __init__(self, generated: GeneratedResponse, metadata: ResponseMetadata, body: dict[str, Any]) -> None:
        self.id = metadata.new_id("resp_")
        self._metadata = metadata
        self._body = body
        self._is_incomplete = generated.stop in (StopReason.LIMIT, StopReason.WINDOW)
        is_encrypted = _ENCRYPTED_REASONING in as_list(body.get("include"))
        self.output = [_render_item(part, metadata, is_encrypted=is_encrypted) for part in generated.parts]
        namespaces = _tool_namespaces(body)
        for item in self.output:
            if item.get("name") in namespaces:
                item["namespace"] = namespaces[item["name"]]
        if self._is_incomplete and self.output:
            self.output[-1] |= {"status": "incomplete"}

    def body(self) -> bytes:
        return to_json(self._finished_response())

    def events(self) -> Iterator[bytes]:
        numbers = count()

        def encode_numbered_event(kind: str, **fields: Any) -> bytes:
            return encode_event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        response = self._response("in_progress", [])
        yield encode_numbered_event("response.created", response=response)
        yield encode_numbered_event("response.in_progress", response=response)
        for index, item in enumerate(self.output):
            yield encode_numbered_event(
                "response.output_item.added", output_index=index, item=_empty_item(item)
            )
            for kind, fields in _item_events(item):
                yield encode_numbered_event(kind, item_id=item["id"], output_index=index, **fields)
            yield encode_numbered_event("response.output_item.done", output_index=index, item=item)
        ending = "response.incomplete" if self._is_incomplete else "response.completed"
        yield encode_numbered_event(ending, response=self._finished_response())

    def _finished_response(self) -> dict[str, Any]:
        response = self._response("incomplete" if self._is_incomplete else "completed", self.output)
        if self._is_incomplete:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | {"usage": usage_block(self._metadata)}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        echoed = {
            name: default if self._body.get(name) is None else self._body[name]
            for name, default in _ECHOED_DEFAULTS.items()
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._metadata.created_at),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._metadata.model,
            "output": output,
            **echoed,
            "usage": None,
        }


def usage_block(metadata: ResponseMetadata) -> dict[str, Any]:
    """Render usage as the Responses API does: the input includes cache reads and writes."""
    cache, output = metadata.usage.cache, metadata.usage.output_tokens
    details: dict[str, Any] = {
        "cached_tokens": cache.read,
        "cache_write_tokens": cache.written_5m + cache.written_1h,
    }
    if metadata.charges_cache_writes:
        written = {"ttl_30m_tokens": cache.written_5m, "ttl_12h_tokens": cache.written_1h}
        details["cache_write_tokens_details"] = written
    return {
        "input_tokens": cache.input_tokens,
        "input_tokens_details": details,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": metadata.usage.reasoning_tokens},
        "total_tokens": cache.input_tokens + output,
    }


def _render_item(
    part: ThinkingPart | TextPart | ToolCallPart, metadata: ResponseMetadata, *, is_encrypted: bool
) -> dict[str, Any]:
    match part:
        case ThinkingPart(text):
            reasoning: dict[str, Any] = {"id": metadata.new_id("rs_"), "type": "reasoning", "summary": []}
            return reasoning | (
                {"encrypted_content": base64.b64encode(text.encode()).decode()} if is_encrypted else {}
            )
        case TextPart(text):
            return {
                "id": metadata.new_id("msg_"),
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [_text_part(text)],
            }
        case ToolCallPart(name, arguments, is_text):
            kind, prefix, field = (
                ("custom_tool_call", "ctc_", "input") if is_text else ("function_call", "fc_", "arguments")
            )
            return {
                "id": metadata.new_id(prefix),
                "type": kind,
                "status": "completed",
                "call_id": metadata.new_id("call_"),
                "name": name,
                field: arguments,
            }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _empty_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item without content, as it is when its stream begins."""
    match item["type"]:
        case "message":
            return item | {"status": "in_progress", "content": []}
        case "function_call":
            return item | {"status": "in_progress", "arguments": ""}
        case "custom_tool_call":
            return item | {"status": "in_progress", "input": ""}
        case _:
            return item


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "message":
        text = item["content"][0]["text"]
        yield "response.content_part.added", {"content_index": 0, "part": _text_part("")}
        for chunk in split_chunks(text):
            yield "response.output_text.delta", {"content_index": 0, "delta": chunk, "logprobs": []}
        yield "response.output_text.done", {"content_index": 0, "text": text, "logprobs": []}
        yield "response.content_part.done", {"content_index": 0, "part": _text_part(text)}
    if item["type"] == "function_call":
        for chunk in split_chunks(item["arguments"]):
            yield "response.function_call_arguments.delta", {"delta": chunk}
        fields = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", fields
    if item["type"] == "custom_tool_call":
        for chunk in split_chunks(item["input"]):
            yield "response.custom_tool_call_input.delta", {"delta": chunk}
        yield "response.custom_tool_call_input.done", {"input": item["input"]}
