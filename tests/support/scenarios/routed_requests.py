"""A small request as the gateway hands it to the engine."""

from foveate.engine.request import RoutedRequest
from foveate.model import Format

BODY = b'{"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


def make_routed_request(body: bytes = BODY) -> RoutedRequest:
    return RoutedRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=body
    )
