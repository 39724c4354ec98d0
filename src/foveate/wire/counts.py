"""A count as providers answer it."""

from foveate.values import Format
from foveate.wire.body import to_json


def count_response_body(api_format: Format, tokens: int) -> bytes:
    """The answer of a format's counting route: Anthropic's, OpenAI's, llama.cpp's for chats, or Google's."""
    if api_format is Format.GEMINI:
        return to_json({"totalTokens": tokens})
    if api_format is Format.RESPONSES:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})
    return to_json({"input_tokens": tokens})
