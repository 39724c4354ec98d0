"""Answers as OpenAI's chat completions give them: a completion, or the chunks that stream one.

After https://platform.openai.com/docs/api-reference/chat-streaming (read November 2026).
"""

from collections.abc import Iterator
from typing import Any

from foveate.sandbox.answers import Answer, Called, Said, Stop, Wish, pieces
from foveate.sandbox.openai_rules import named
from foveate.sandbox.rendering import Sheet, event
from foveate.wire.body import as_list, as_record, as_text, compact

_STOPS = {
    Stop.DONE: "stop",
    Stop.CALLED: "tool_calls",
    Stop.LIMIT: "length",
    Stop.SEQUENCE: "stop",
    Stop.WINDOW: "length",
}
DONE = b"data: [DONE]\n\n"
_FINGERPRINT = "fp_sandbox"


def wish(asked: dict[str, Any], room_tokens: int | None) -> Wish:
    """What an accepted request wants of its answer."""
    stops = asked.get("stop")
    limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
    tools = [as_record(tool) for tool in as_list(asked.get("tools"))]
    called = [as_record(tool.get(as_text(tool.get("type")))) for tool in tools]
    forced = must_call(asked.get("tool_choice"))
    if not tools:  # or in the words of 2023
        called = as_list(asked.get("functions"))
        forced = as_record(asked.get("function_call")).get("name")
    output = as_record(asked.get("response_format"))
    schema = as_record(as_record(output.get("json_schema")).get("schema"))
    last = as_record(asked["messages"][-1]).get("content")
    return Wish(
        model=as_text(asked["model"]),
        streams=bool(asked.get("stream")),
        tools=tuple((as_text(tool.get("name")), as_record(tool.get("parameters"))) for tool in called),
        must_call=forced,
        text_tools=text_tools(tools),
        schema={"json_schema": schema, "json_object": {}}.get(as_text(output.get("type"))),
        limit_tokens=limit,
        room_tokens=room_tokens,
        stops=(stops,) if isinstance(stops, str) else tuple(as_list(stops)),
        text=last if isinstance(last, str) else text_of(last),
    )


def must_call(choice: object) -> str | None:
    """The tool that has to be called: its name, empty for any, None where none has to be."""
    if choice == "required":
        return ""
    chosen = as_record(choice)
    kind = chosen.get("type")
    if kind == "allowed_tools":
        allowed = as_record(chosen.get("allowed_tools")) or chosen
        names = [named(as_record(tool)) for tool in as_list(allowed.get("tools"))]
        return next(filter(None, names), None) if allowed.get("mode") == "required" else None
    return named(chosen) if kind in ("function", "custom") else None


def text_tools(tools: list[dict[str, Any]]) -> frozenset[str]:
    """The names of the tools that take any text."""
    return frozenset(named(tool) for tool in tools if tool.get("type") == "custom")


def choices(asked: dict[str, Any]) -> int:
    """How many answers are wanted, each of which is billed."""
    return asked.get("n") or 1


def text_of(parts: object) -> str:
    """What the parts of a content say."""
    return "\n".join(as_text(part.get("text")) for part in map(as_record, as_list(parts)))


class Rendered:
    """An answer in the words of chat completions, as often as it is wanted."""

    def __init__(self, answer: Answer, sheet: Sheet, asked: dict[str, Any]) -> None:
        self._sheet = sheet
        self._id = sheet.new_id("chatcmpl-")
        self._tells_usage = as_record(asked.get("stream_options")).get("include_usage") is True
        self._is_older = not asked.get("tools") and bool(asked.get("functions"))
        called = [part for part in answer.parts if isinstance(part, Called)]
        older = self._is_older and answer.stop is Stop.CALLED
        self._finish = "function_call" if older else _STOPS[answer.stop]
        self._text = "".join(part.text for part in answer.parts if isinstance(part, Said))
        self._choices = [[_call(part, sheet) for part in called] for _ in range(choices(asked))]

    def body(self) -> bytes:
        """The completion."""
        told = [
            {"index": index, "message": self._message(calls), "logprobs": None, "finish_reason": self._finish}
            for index, calls in enumerate(self._choices)
        ]
        return compact(self._frame("chat.completion") | {"choices": told, "usage": usage_block(self._sheet)})

    def _message(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None, "refusal": None}
        if calls and self._is_older:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message | {"annotations": []}

    def events(self) -> Iterator[bytes]:
        """The same as a stream."""
        for index, calls in enumerate(self._choices):
            opening = {"role": "assistant", "content": None if calls else "", "refusal": None}
            yield self._chunk(index, opening)
            for piece in pieces(self._text):
                yield self._chunk(index, {"content": piece})
            for number, call in enumerate(calls[:1] if self._is_older else calls):
                for delta in _deltas(call):
                    whole = {"tool_calls": [{"index": number, **delta}]}
                    yield self._chunk(index, {"function_call": delta["function"]} if self._is_older else whole)
            yield self._chunk(index, {}, finish=self._finish)
        if self._tells_usage:
            frame = self._frame("chat.completion.chunk")
            yield event(frame | {"choices": [], "usage": usage_block(self._sheet)})
        yield DONE

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._frame("chat.completion.chunk") | {"choices": [choice]}
        return event(chunk | {"usage": None} if self._tells_usage else chunk)

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": int(self._sheet.created_at),
            "model": self._sheet.model,
            "service_tier": "default",
            "system_fingerprint": _FINGERPRINT,
        }


def _call(part: Called, sheet: Sheet) -> dict[str, Any]:
    kind, field = ("custom", "input") if part.is_text else ("function", "arguments")
    return {"id": sheet.new_id("call_"), "type": kind, kind: {"name": part.name, field: part.arguments}}


def _deltas(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A call as it is streamed: first who is called, then with what."""
    kind = call["type"]
    field = "input" if kind == "custom" else "arguments"
    yield call | {kind: call[kind] | {field: ""}}
    for piece in pieces(call[kind][field]):
        yield {kind: {field: piece}}


def usage_block(sheet: Sheet) -> dict[str, Any]:
    """A bill as chat completions write it: the prompt includes what was read and written."""
    cache, output = sheet.usage.cache, sheet.usage.output_tokens
    details = {"cached_tokens": cache.read, "audio_tokens": 0}
    if sheet.writes:
        details["cache_write_tokens"] = cache.written_5m + cache.written_1h
    return {
        "prompt_tokens": cache.input_tokens,
        "completion_tokens": output,
        "total_tokens": cache.input_tokens + output,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": sheet.usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
