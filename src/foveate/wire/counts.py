"""A count as providers answer it."""

from foveate.values import Format
from foveate.wire.body import compact


def count_body(spoken: Format, tokens: int) -> bytes:
    """The answer of a format's counting route: Anthropic's, OpenAI's, llama.cpp's for chats, or Google's."""
    if spoken is Format.GEMINI:
        return compact({"totalTokens": tokens})
    if spoken is Format.RESPONSES:
        return compact({"object": "response.input_tokens", "input_tokens": tokens})
    return compact({"input_tokens": tokens})
