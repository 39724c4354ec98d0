"""Endpoints for the gateway's own calls (summaries, counts) on behalf of clients of Gemini and Azure OpenAI."""

from urllib.parse import parse_qsl

from foveate.fold.model import Endpoint
from foveate.gateway.asks import Ask
from foveate.gateway.callers import key_headers
from foveate.gateway.headers import GOOGLE_QUERY, KEYS
from foveate.gateway.routing import Upstream
from foveate.values import Format

# https://ai.google.dev/gemini-api/docs/openai (November 2026)
_GOOGLE_CHAT = "/v1beta/openai/chat/completions"
_COUNT = "/input_tokens"


def google_endpoint(ask: Ask, upstream: Upstream, model: str) -> Endpoint:
    """Google's endpoint for OpenAI's chat completions, which takes the same models and keys."""
    return Endpoint(
        url=upstream.url(_GOOGLE_CHAT),
        spoken=Format.CHAT,
        headers={"authorization": _google_credential(ask, upstream)},
        model=model,
        reuse=upstream.reuse,
    )


def azure_endpoint(ask: Ask, upstream: Upstream, model: str) -> Endpoint:
    """The address that the client itself asks, in the same format; `model` is the name of its deployment."""
    replaced = key_headers(ask, upstream)
    own = [(name, said) for name, said in ask.raw_headers if name in KEYS]
    headers = own if replaced is None else replaced
    return Endpoint(
        url=upstream.url(ask.raw_path.rstrip("/").removesuffix(_COUNT), ask.query),
        spoken=ask.spoken,
        headers={name.decode("latin-1"): said.decode("latin-1") for name, said in headers},
        model=model,
        reuse=upstream.reuse,
    )


def _google_credential(ask: Ask, upstream: Upstream) -> str:
    replaced = key_headers(ask, upstream)
    if replaced is not None:
        return f"Bearer {replaced[0][1].decode('latin-1')}" if replaced else ""
    in_query = next((said for name, said in parse_qsl(ask.query) if name in GOOGLE_QUERY), "")
    key = ask.headers.get("x-goog-api-key") or in_query
    return f"Bearer {key}" if key else ask.headers.get("authorization", "")
