"""Small conversations full of facts, written by hand or drawn at random."""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from foveate.model import Format, Message, Part, Text, Thinking, ToolCall, ToolResult

WORDS = (
    "src/app/main.py", r"C:\Users\ana\x.txt", "load_all", "maxSize", "15 ms", "4096", "v1.2.3", "Ana Lopez",
    "`run me`", "https://x.org/a?b=c", "#42", "never touch main.", "you must test it.", "TODO: write docs",
    "- [ ] ship it", "ValueError: no such key", "we decided to wait.", "必须使用中文。", "the", "and so on",
    "\n", "…", "🙂", "\u0000",
)  # fmt: skip


def user_message(text: str) -> Message:
    return Message(role="user", parts=(Text(text),))


def model_message(*parts: Part | str) -> Message:
    message = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message(role="assistant", parts=message)


def tool_call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=json.dumps(arguments), format=Format.ANTHROPIC, id="1")


def result_message(text: str, *, is_error: bool = False) -> Message:
    return Message(role="user", parts=(ToolResult(parts=(Text(text),), id="1", is_error=is_error),))


def conversation_text(messages: Sequence[Message]) -> str:
    """All of a conversation as one text."""

    def texts(part: Part) -> list[str]:
        match part:
            case Text() | Thinking():
                return [part.text]
            case ToolCall():
                return [str(value) for value in json.loads(part.arguments).values()]
            case ToolResult():
                return [text for inner in part.parts for text in texts(inner)]
            case _:
                return []

    return "\n".join(text for message in messages for part in message.parts for text in texts(part))


_TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join),
    st.text(max_size=60),
)


def _step(text: str, kind: str) -> Message:
    match kind:
        case "user":
            return user_message(text)
        case "model":
            return model_message(Thinking(text), text)
        case "call":
            return model_message(tool_call("Edit", file_path="src/app/main.py", new=text))
        case _:
            return result_message(text, is_error=kind == "error")


conversations = st.lists(
    st.builds(_step, _TEXTS, st.sampled_from(("user", "model", "call", "result", "error"))), max_size=12
)
