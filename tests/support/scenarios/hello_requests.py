"""The same short request in every API format."""

from typing import Any

CHAT = {
    "model": "gpt-4o",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "openai-chat": CHAT,
    "openai-responses": {"model": "gpt-4o", "instructions": "Be brief.", "input": "Hello!"},
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 10,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello!"}],
    },
    "gemini": {"model": "models/gemini-2.5-pro", "contents": [{"role": "user", "parts": [{"text": "Hello!"}]}]},
    "bedrock": {
        "modelId": "anthropic.claude-sonnet-4-5",
        "messages": [{"role": "user", "content": [{"text": "Hello!"}]}],
    },
}
