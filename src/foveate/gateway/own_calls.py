"""Endpoints for the gateway's own calls (summaries, counts) for clients of Gemini and Azure OpenAI."""

from urllib.parse import parse_qsl

from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.gateway.auth.callers import replacement_key_headers
from foveate.gateway.headers import GOOGLE_KEY_PARAMETERS, KEY_HEADERS
from foveate.gateway.request import IncomingRequest
from foveate.gateway.routing import Upstream
from foveate.model import Format

# https://ai.google.dev/gemini-api/docs/openai (November 2026)
_GOOGLE_CHAT_PATH = "/v1beta/openai/chat/completions"
_COUNT_SUFFIX = "/input_tokens"


def find_google_endpoint(request: IncomingRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
    """Return Google's endpoint for chat completions, which accepts the same models and keys."""
    return SummarizerEndpoint(
        url=upstream.url(_GOOGLE_CHAT_PATH),
        api_format=Format.CHAT,
        headers={"authorization": _google_credential(request, upstream)},
        model=model,
        reuse_connection=upstream.reuse,
    )


def find_azure_endpoint(request: IncomingRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
    """Return the endpoint that the client itself calls; `model` is the name of its deployment."""
    replacement = replacement_key_headers(request, upstream)
    client_keys = [(name, value) for name, value in request.raw_headers if name in KEY_HEADERS]
    headers = client_keys if replacement is None else replacement
    return SummarizerEndpoint(
        url=upstream.url(request.raw_path.rstrip("/").removesuffix(_COUNT_SUFFIX), request.query),
        api_format=request.api_format,
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
        model=model,
        reuse_connection=upstream.reuse,
    )


def _google_credential(request: IncomingRequest, upstream: Upstream) -> str:
    replacement = replacement_key_headers(request, upstream)
    if replacement is not None:
        return f"Bearer {replacement[0][1].decode('latin-1')}" if replacement else ""
    in_query = next((value for name, value in parse_qsl(request.query) if name in GOOGLE_KEY_PARAMETERS), "")
    key = request.headers.get("x-goog-api-key") or in_query
    return f"Bearer {key}" if key else request.headers.get("authorization", "")
