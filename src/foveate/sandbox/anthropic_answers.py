"""Answers as Anthropic gives them: a message, or the events that stream one.

After https://platform.claude.com/docs/en/build-with-claude/streaming (read November 2026).
"""

from collections.abc import Callable, Iterator
from typing import Any

from foveate.sandbox.answers import Answer, Called, Said, Stop, Thought, Wish, pieces
from foveate.sandbox.anthropic_rules import thinks
from foveate.sandbox.anthropic_turns import blocks_of
from foveate.sandbox.rendering import Sheet, event
from foveate.values import Usage
from foveate.wire.body import as_list, as_record, as_text, compact, value

_STOPS = {
    Stop.DONE: "end_turn",
    Stop.CALLED: "tool_use",
    Stop.LIMIT: "max_tokens",
    Stop.SEQUENCE: "stop_sequence",
    Stop.WINDOW: "model_context_window_exceeded",
}
_JSON = "json_schema"
# Tools that the provider defines and the client runs; all others of its own it runs itself.
_BY_CLIENT = ("bash_", "text_editor_", "computer_2", "memory_")


def wish(asked: dict[str, Any], room_tokens: int | None) -> Wish:
    """What an accepted request wants of its answer."""
    choice = as_record(asked.get("tool_choice"))
    forced = {"any": "", "tool": as_text(choice.get("name"))}.get(as_text(choice.get("type")))
    output = as_record(as_record(asked.get("output_config")).get("format") or asked.get("output_format"))
    last = blocks_of(as_record(asked["messages"][-1]))
    return Wish(
        model=as_text(asked["model"]),
        streams=bool(asked.get("stream")),
        thinks=thinks(asked),
        tools=tuple(
            (as_text(tool.get("name")), as_record(tool.get("input_schema")))
            for tool in map(as_record, as_list(asked.get("tools")))
            if "input_schema" in tool or as_text(tool.get("type")).startswith(_BY_CLIENT)
        ),
        must_call=forced,
        schema=as_record(output.get("schema")) if output.get("type") == _JSON else None,
        limit_tokens=asked["max_tokens"],
        room_tokens=room_tokens,
        stops=tuple(as_list(asked.get("stop_sequences"))),
        text="\n".join(as_text(block.get("text")) for block in last),
    )


def shown(asked: dict[str, Any], thought: str) -> str:
    """What is shown of a thought; its signature stands for the rest."""
    return "" if as_record(asked.get("thinking")).get("display") == "omitted" else thought


class Rendered:
    """An answer in Anthropic's words. `sign` gives the signature of a thought as it is shown."""

    def __init__(
        self, answer: Answer, sheet: Sheet, *, show: Callable[[str], str], sign: Callable[[str], str]
    ) -> None:
        self._answer = answer
        self._sheet = sheet
        self.id = sheet.new_id("msg_01")
        self.content = [_block(part, sheet, show, sign) for part in answer.parts]

    def body(self) -> bytes:
        """The message."""
        usage = usage_block(self._sheet.usage)
        return compact(self._message(self.content, self._ending(), usage))

    def events(self) -> Iterator[bytes]:
        """The same as a stream."""
        begun = usage_block(self._sheet.usage) | {"output_tokens": 1}
        silent: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        yield _event({"type": "message_start", "message": self._message([], silent, begun)})
        for index, block in enumerate(self.content):
            empty, deltas = _streamed(block)
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            if index == 0:
                yield _event({"type": "ping"})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        usage = usage_block(self._sheet.usage)
        del usage["cache_creation"], usage["service_tier"]
        yield _event({"type": "message_delta", "delta": self._ending(), "usage": usage})
        yield _event({"type": "message_stop"})

    def _ending(self) -> dict[str, str | None]:
        return {"stop_reason": _STOPS[self._answer.stop], "stop_sequence": self._answer.stop_sequence}

    def _message(
        self, blocks: list[dict[str, Any]], ending: dict[str, str | None], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._sheet.model,
            "content": blocks,
            **ending,
            "usage": usage,
        }


def usage_block(usage: Usage) -> dict[str, Any]:
    """A bill as Anthropic writes it: what is read and written comes beside the uncached input."""
    cache = usage.cache
    return {
        "input_tokens": cache.uncached,
        "cache_creation_input_tokens": cache.written_5m + cache.written_1h,
        "cache_read_input_tokens": cache.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cache.written_5m,
            "ephemeral_1h_input_tokens": cache.written_1h,
        },
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def failure(message: str) -> bytes:
    """A stream that breaks off with an error, which is then its last event."""
    return _event({"type": "error", "error": {"type": "overloaded_error", "message": message}})


def _block(
    part: Thought | Said | Called, sheet: Sheet, show: Callable[[str], str], sign: Callable[[str], str]
) -> dict[str, Any]:
    match part:
        case Thought(text):
            return {"type": "thinking", "thinking": show(text), "signature": sign(show(text))}
        case Said(text):
            return {"type": "text", "text": text}
        case Called(name, arguments, _):
            said = value(arguments.encode())
            return {"type": "tool_use", "id": sheet.new_id("toolu_01"), "name": name, "input": said}


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block before anything is said in it, and the deltas that say it."""
    match block["type"]:
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [
                {"type": "text_delta", "text": piece} for piece in pieces(block["text"])
            ]
        case _:
            said = compact(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(said))]
            return block | {"input": {}}, deltas


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])
