"""litellm's `token_counter` on request bodies of every format, under the best conditions for it.

It accepts messages and tools in OpenAI chat format, and Anthropic's content blocks; everything else is
converted to chat format first. If it tries to download a tokenizer, it fails at once for lack of a network, and
falls back to its bundled one.
"""

import base64
import os
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.recorded import RecordedCall
from foveate import formats
from foveate.formats.json_text.parse import parse_json
from foveate.model import (
    Document,
    Format,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

Chat = dict[str, Any]

os.environ["HF_HUB_OFFLINE"] = "1"  # read when litellm loads its parts, else it tries for half a minute a call

import litellm  # noqa: E402

litellm.suppress_debug_info = True

# litellm prices an image without a stated detail without decoding it, so the data does not matter.
_IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def count(call: RecordedCall, request: Request) -> int | None:
    """Return litellm's count for a recorded call; None if it raises."""
    messages, tools = _chat(call, request)
    choice = call.body.get("tool_choice")
    named = isinstance(choice, dict) and isinstance(choice.get("function"), dict)
    try:
        found: int = litellm.token_counter(
            model=_litellm_name(call.model),
            messages=messages,
            tools=tools or None,
            tool_choice=choice if named or choice == "none" else None,
        )
    except Exception:  # noqa: BLE001  # whatever it raises is what is counted: it gave no number
        return None
    return found


def _litellm_name(model: str) -> str:
    """Return litellm's name for `model`, so that it selects the right tokenizer."""
    bare = model.rpartition("/")[2]
    known = bare in litellm.open_ai_chat_completion_models or bare in litellm.anthropic_models
    return bare if known else model


def _chat(call: RecordedCall, request: Request) -> tuple[list[Chat], list[Any]]:
    """Return messages and tools, with the system prompt among the messages."""
    body = call.body
    if request.format is Format.CHAT:
        functions = [{"type": "function", "function": entry} for entry in body.get("functions") or ()]
        return list(body.get("messages") or ()), [*(body.get("tools") or ()), *functions]
    system: list[Chat] = []
    if request.system:
        system = list(_messages(Message(role="system", parts=request.system)))
    if request.format is Format.ANTHROPIC:
        return [*system, *(body.get("messages") or ())], list(body.get("tools") or ())
    messages = [formats.parse_message(request.format, raw) for raw in request.messages]
    tools = [_function(formats.parse_tool(request.format, raw)) for raw in request.tools]
    return [*system, *(made for message in messages for made in _messages(message))], tools


def _function(tool: Tool) -> Chat:
    parameters = parse_json(tool.parameters)
    inner = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": inner}


def _messages(message: Message) -> Iterable[Chat]:
    """Convert a message to chat format: separate messages for results, calls next to the text."""
    for part in message.parts:
        if isinstance(part, ToolResult):
            yield {"role": "tool", "tool_call_id": part.id, "content": _content(part.parts)}
    texts = [part for part in message.parts if not isinstance(part, ToolResult | ToolCall)]
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    if not texts and not calls:
        return
    role = "assistant" if message.role == "model" else message.role
    found: Chat = {"role": role, "content": _content(texts)}
    if calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    yield found


def _content(parts: Sequence[Part]) -> list[Chat]:
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: Part) -> Chat | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Thinking(text=text):
            return {"type": "thinking", "thinking": text}
        case Document(text=text, pages=None) if text:
            return {"type": "text", "text": text}
        case Image() | Document():
            return {"type": "image_url", "image_url": {"url": _IMAGE}}
        case Opaque(raw=raw):
            return {"type": "text", "text": raw.decode("utf-8", "replace")}
        case _:
            return None
