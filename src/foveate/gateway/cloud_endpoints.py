"""Endpoints for the gateway's own calls (summaries, counts) on behalf of clients of Gemini."""

from urllib.parse import parse_qsl

from foveate.fold.model import Endpoint
from foveate.gateway.asks import Ask
from foveate.gateway.callers import key_headers
from foveate.gateway.headers import GOOGLE_QUERY
from foveate.gateway.routing import Upstream
from foveate.values import Format

# https://ai.google.dev/gemini-api/docs/openai (November 2026)
_GOOGLE_CHAT = "/v1beta/openai/chat/completions"


def google_endpoint(ask: Ask, upstream: Upstream) -> Endpoint:
    """Google's endpoint for OpenAI's chat completions, which takes the same models and keys."""
    return Endpoint(
        url=upstream.url(_GOOGLE_CHAT),
        spoken=Format.CHAT,
        headers={"authorization": _google_credential(ask, upstream)},
    )


def _google_credential(ask: Ask, upstream: Upstream) -> str:
    replaced = key_headers(ask, upstream)
    if replaced is not None:
        return f"Bearer {replaced[0][1].decode('latin-1')}" if replaced else ""
    in_query = next((said for name, said in parse_qsl(ask.query) if name in GOOGLE_QUERY), "")
    key = ask.headers.get("x-goog-api-key") or in_query
    return f"Bearer {key}" if key else ask.headers.get("authorization", "")
