"""OpenAI's Responses API: validates requests, and renders responses or the events of a stream.

After https://platform.openai.com/docs/api-reference/responses,
https://platform.openai.com/docs/api-reference/responses-streaming and recorded error responses of the API (read
November 2026).
"""

import base64
from collections.abc import Iterator
from itertools import chain, count, pairwise
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl
from foveate.sandbox.models import find_model
from foveate.sandbox.providers import openai
from foveate.sandbox.providers.openai import (
    invalid_value,
    list_content_parts,
    missing_parameter,
    unsupported_parameter,
)
from foveate.sandbox.providers.openai_chat import find_forced_tool, join_text, text_tool_names
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

_OUTPUT_BY_CALL_TYPE = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_SOURCE_FIELDS = {"input_image": ("image_url", "file_id"), "input_file": ("file_id", "file_data", "file_url")}
_OUTPUT_PARTS = ("output_text", "refusal")
_TTLS = (Ttl.THIRTY_MINUTES, Ttl.TWELVE_HOURS)
_MIN_OUTPUT_TOKENS = 16
# Fields that refer to earlier items, which the body does not contain.
_STORED_HISTORY_FIELDS = ("previous_response_id", "conversation")


def find_error(body: dict[str, Any]) -> ErrorResponse | None:
    return next(_check_request(body), None)


def find_window_error(body: dict[str, Any], prompt_tokens: int) -> ErrorResponse | None:
    """Return an error if prompt and output limit exceed the window, unless truncation is enabled."""
    if body.get("truncation") == "auto":
        return None
    return openai.window_error(body["model"], prompt_tokens, body.get("max_output_tokens") or 0, "input")


def _check_request(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    yield from openai.check_model(body)
    yield from openai.check_schema(Format.RESPONSES, body)
    input_value = body.get("input")
    is_continued = any(body.get(field) is not None for field in (*_STORED_HISTORY_FIELDS, "prompt"))
    if input_value is None and not is_continued:
        yield ErrorResponse(
            message="One of 'input', 'previous_response_id', 'conversation' or 'prompt' must be provided.",
            param="input",
            code="missing_required_parameter",
        )
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        yield ErrorResponse(
            message="Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = as_list(input_value)
    yield from chain(
        _check_parts(items),
        _check_tool_pairs(items, body),
        _check_reasoning(items),
        _check_tools(body),
        _check_options(body),
        _check_breakpoints(body, items),
    )


def _check_parts(items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that messages of the model and of others have their own kinds of parts."""
    for i, item in enumerate(items):
        if item.get("type", "message") == "message":
            allowed = _OUTPUT_PARTS if item["role"] == "assistant" else _INPUT_PARTS
            for path, _, part in list_content_parts(
                f"input[{i}].content", item["content"], is_from_model=False
            ):
                if part["type"] not in allowed:
                    yield invalid_value(f"{path}.type", part["type"], allowed)
                yield from _check_source(path, part)


def _check_source(path: str, part: dict[str, Any]) -> Iterator[ErrorResponse]:
    fields = _SOURCE_FIELDS.get(part["type"], ())
    if fields and all(part.get(field) is None for field in fields):
        yield missing_parameter(f"{path}.{fields[0]}")


def _check_tool_pairs(items: list[dict[str, Any]], body: dict[str, Any]) -> Iterator[ErrorResponse]:
    """Check that every output follows its call and every call has an output, unless the call is stored."""
    is_continued = any(body.get(field) is not None for field in _STORED_HISTORY_FIELDS)
    for call_kind, output_kind in _OUTPUT_BY_CALL_TYPE.items():
        call_ids: list[str] = []
        searched: set[str] = set()  # a tool search may be answered by a tool output
        answered_ids: set[str] = set()
        for item in items:
            call = as_text(item.get("call_id"))
            if item.get("type") == call_kind:
                if call in call_ids:
                    yield ErrorResponse(message=f"Duplicate call_id {call} in input.", param="input")
                call_ids.append(call)
            elif item.get("type") == "tool_search_call":
                searched.add(call)
            elif item.get("type") == output_kind:
                if call not in call_ids and call not in searched and not is_continued:
                    yield ErrorResponse(
                        message=f"No tool call found for function call output with call_id {call}.",
                        param="input",
                    )
                if call in answered_ids:
                    yield ErrorResponse(
                        message=f"Duplicate output for function call {call} in input.", param="input"
                    )
                answered_ids.add(call)
        for call in call_ids:
            if call not in answered_ids:
                yield ErrorResponse(message=f"No tool output found for function call {call}.", param="input")


def _check_reasoning(items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that a reasoning item is followed by what it led to."""
    for item, following in pairwise((*items, {})):
        if item.get("type") == "reasoning":
            kind = following.get("type", "message")
            is_from_model = (
                following.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")
            )
            if not following or not is_from_model:
                yield ErrorResponse(
                    message=f"Item '{item.get('id', '')}' of type 'reasoning' was provided without its "
                    "required following item.",
                    param="input",
                )


def _check_tools(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    tools = as_list(body.get("tools"))
    callable_tools = [
        openai.CallableTool(
            path=f"tools[{i}]",
            name=tool["name"],
            schema=tool.get("parameters"),
            is_strict=tool.get("strict") is True,
        )
        for i, tool in enumerate(tools)
        if tool["type"] in ("function", "custom")
    ]
    yield from openai.check_tools(callable_tools)
    names = [tool.name for tool in callable_tools]
    yield from openai.check_tool_choice(body.get("tool_choice"), names, has_tools=bool(tools))


def _check_options(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    yield from openai.check_output_limit(body, "max_output_tokens", minimum=_MIN_OUTPUT_TOKENS)
    yield from openai.check_sampling(Format.RESPONSES, body)
    if body.get("stream_options") is not None and not body.get("stream"):
        yield ErrorResponse(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    model = find_model(Format.RESPONSES, body["model"])
    if model is not None and not model.reasons and as_dict(body.get("reasoning")).get("effort") is not None:
        yield unsupported_parameter("reasoning.effort")
    yield from _check_text_format(body)


def _check_text_format(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    text_format = as_dict(as_dict(body.get("text")).get("format"))
    if text_format.get("type") == "json_schema":
        yield from openai.check_json_schema("text.format", text_format)
    is_continued = any(body.get(field) is not None for field in (*_STORED_HISTORY_FIELDS, "prompt"))
    if text_format.get("type") == "json_object" and not is_continued:
        contents = str([body.get("instructions"), body.get("input")])
        if "json" not in contents.lower():
            yield ErrorResponse(
                message="Response input messages must contain the word 'json' in some form to use "
                "'text.format' of type 'json_object'.",
                param="input",
            )


def _check_breakpoints(body: dict[str, Any], items: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    parts = []
    for i, item in enumerate(items):
        is_from_model = item.get("role") == "assistant"
        parts += list_content_parts(f"input[{i}].content", item.get("content"), is_from_model=is_from_model)
        parts += list_content_parts(f"input[{i}].output", item.get("output"), is_from_model=False)
    return openai.check_breakpoints(body, parts, _TTLS)


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
