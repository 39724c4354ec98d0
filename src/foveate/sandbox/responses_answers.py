"""Answers as OpenAI's Responses give them: a response, or the events that stream one.

After https://platform.openai.com/docs/api-reference/responses-streaming (read November 2026).
"""

import base64
from collections.abc import Iterator
from itertools import count
from typing import Any

from foveate.sandbox.answers import Answer, Called, Said, Stop, Thought, Wish, pieces
from foveate.sandbox.chat_answers import must_call, text_of, text_tools
from foveate.sandbox.rendering import Sheet, event
from foveate.wire.body import as_list, as_record, as_text, compact

_SEALED = "reasoning.encrypted_content"
# What a response repeats of its request, and what it says where the request said nothing.
_REPEATED: dict[str, Any] = {
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


def wish(asked: dict[str, Any], room_tokens: int | None) -> Wish:
    """What an accepted request wants of its answer."""
    effort = as_text(as_record(asked.get("reasoning")).get("effort"))
    output = as_record(as_record(asked.get("text")).get("format"))
    given = asked.get("input")
    last = as_record(given[-1]).get("content") if isinstance(given, list) and given else given
    tools = _records(asked.get("tools"))
    tools += [
        inner for tool in tools if tool.get("type") == "namespace" for inner in _records(tool.get("tools"))
    ]
    schemas = {"json_schema": as_record(output.get("schema")), "json_object": {}}
    return Wish(
        model=as_text(asked["model"]),
        streams=bool(asked.get("stream")),
        thinks=effort not in ("", "none", "minimal"),
        tools=tuple(
            (as_text(tool.get("name")), as_record(tool.get("parameters")))
            for tool in tools
            if tool.get("type") in ("function", "custom")
        ),
        must_call=must_call(asked.get("tool_choice")),
        text_tools=text_tools(tools),
        schema=schemas.get(as_text(output.get("type"))),
        limit_tokens=asked.get("max_output_tokens"),
        room_tokens=room_tokens,
        text=last if isinstance(last, str) else text_of(last),
    )


def _records(given: object) -> list[dict[str, Any]]:
    return [as_record(one) for one in as_list(given)]


def _namespaces(asked: dict[str, Any]) -> dict[str, str]:
    """Return the namespaces of the tools that are in one, by the names of the tools."""
    return {
        as_text(inner.get("name")): as_text(tool.get("name"))
        for tool in _records(asked.get("tools"))
        if tool.get("type") == "namespace"
        for inner in _records(tool.get("tools"))
    }


class Rendered:
    """An answer in the words of Responses; `output` are its items."""

    def __init__(self, answer: Answer, sheet: Sheet, asked: dict[str, Any]) -> None:
        self.id = sheet.new_id("resp_")
        self._sheet = sheet
        self._asked = asked
        self._is_cut = answer.stop in (Stop.LIMIT, Stop.WINDOW)
        is_sealed = _SEALED in as_list(asked.get("include"))
        self.output = [_item(part, sheet, sealed=is_sealed) for part in answer.parts]
        namespaces = _namespaces(asked)
        for item in self.output:
            if item.get("name") in namespaces:
                item["namespace"] = namespaces[item["name"]]
        if self._is_cut and self.output:
            self.output[-1] |= {"status": "incomplete"}

    def body(self) -> bytes:
        """The response."""
        return compact(self._ended())

    def events(self) -> Iterator[bytes]:
        """The same as a stream."""
        numbers = count()

        def numbered(kind: str, **said: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers), **said}, kind)

        begun = self._response("in_progress", [])
        yield numbered("response.created", response=begun)
        yield numbered("response.in_progress", response=begun)
        for index, item in enumerate(self.output):
            yield numbered("response.output_item.added", output_index=index, item=_empty(item))
            for kind, said in _steps(item):
                yield numbered(kind, item_id=item["id"], output_index=index, **said)
            yield numbered("response.output_item.done", output_index=index, item=item)
        ending = "response.incomplete" if self._is_cut else "response.completed"
        yield numbered(ending, response=self._ended())

    def _ended(self) -> dict[str, Any]:
        done = self._response("incomplete" if self._is_cut else "completed", self.output)
        if self._is_cut:
            done["incomplete_details"] = {"reason": "max_output_tokens"}
        return done | {"usage": usage_block(self._sheet)}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        repeated = {
            name: usual if self._asked.get(name) is None else self._asked[name]
            for name, usual in _REPEATED.items()
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._sheet.created_at),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._sheet.model,
            "output": output,
            **repeated,
            "usage": None,
        }


def usage_block(sheet: Sheet) -> dict[str, Any]:
    """A bill as Responses write it: the input includes what was read and written."""
    cache, output = sheet.usage.cache, sheet.usage.output_tokens
    details: dict[str, Any] = {
        "cached_tokens": cache.read,
        "cache_write_tokens": cache.written_5m + cache.written_1h,
    }
    if sheet.writes:
        written = {"ttl_30m_tokens": cache.written_5m, "ttl_12h_tokens": cache.written_1h}
        details["cache_write_tokens_details"] = written
    return {
        "input_tokens": cache.input_tokens,
        "input_tokens_details": details,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": sheet.usage.reasoning_tokens},
        "total_tokens": cache.input_tokens + output,
    }


def _item(part: Thought | Said | Called, sheet: Sheet, *, sealed: bool) -> dict[str, Any]:
    match part:
        case Thought(text):
            thought: dict[str, Any] = {"id": sheet.new_id("rs_"), "type": "reasoning", "summary": []}
            return thought | ({"encrypted_content": base64.b64encode(text.encode()).decode()} if sealed else {})
        case Said(text):
            return {
                "id": sheet.new_id("msg_"),
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [_part(text)],
            }
        case Called(name, arguments, is_text):
            kind, prefix, field = (
                ("custom_tool_call", "ctc_", "input") if is_text else ("function_call", "fc_", "arguments")
            )
            return {
                "id": sheet.new_id(prefix),
                "type": kind,
                "status": "completed",
                "call_id": sheet.new_id("call_"),
                "name": name,
                field: arguments,
            }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """An item before anything is said in it."""
    match item["type"]:
        case "message":
            return item | {"status": "in_progress", "content": []}
        case "function_call":
            return item | {"status": "in_progress", "arguments": ""}
        case "custom_tool_call":
            return item | {"status": "in_progress", "input": ""}
        case _:
            return item


def _steps(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What happens between an item's beginning and its end."""
    if item["type"] == "message":
        text = item["content"][0]["text"]
        yield "response.content_part.added", {"content_index": 0, "part": _part("")}
        for piece in pieces(text):
            yield "response.output_text.delta", {"content_index": 0, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {"content_index": 0, "text": text, "logprobs": []}
        yield "response.content_part.done", {"content_index": 0, "part": _part(text)}
    if item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {"delta": piece}
        said = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", said
    if item["type"] == "custom_tool_call":
        for piece in pieces(item["input"]):
            yield "response.custom_tool_call_input.delta", {"delta": piece}
        yield "response.custom_tool_call_input.done", {"input": item["input"]}
