"""A small request as the gateway hands it to the engine."""

from foveate.engine.request import IncomingRequest
from foveate.model import Format

BODY = b'{"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


def make_incoming_request(body: bytes = BODY) -> IncomingRequest:
    return IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=body
    )
