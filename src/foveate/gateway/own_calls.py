"""Endpoints for calls that the gateway makes itself (summaries, counts), with the client's credentials."""

from urllib.parse import parse_qsl

from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.gateway.auth.callers import replacement_key_headers
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.headers import GOOGLE_KEY_PARAMETERS, KEY_HEADERS
from foveate.gateway.request import ClientRequest
from foveate.gateway.routing import Upstream
from foveate.model import Format

# https://ai.google.dev/gemini-api/docs/openai (November 2026)
_GOOGLE_CHAT_PATH = "/v1beta/openai/chat/completions"
_COUNT_SUFFIX = "/input_tokens"
# Headers that a provider needs with every request of a client.
_SUMMARY_HEADERS = KEY_HEADERS | {
    b"anthropic-version",
    b"anthropic-beta",
    b"openai-organization",
    b"openai-project",
}
_SUMMARY_PATHS = {
    Format.ANTHROPIC: "/v1/messages",
    Format.CHAT: "/v1/chat/completions",
    Format.RESPONSES: "/v1/responses",
}


def find_summary_endpoint(
    request: ClientRequest, upstream: Upstream, api_format: Format, model: str
) -> SummarizerEndpoint:
    """Find the endpoint for summaries of a session, with the credentials that its requests use.

    `model` is the name of the client's model at the upstream; empty if the engine uses the same name.
    """
    if request.endpoint.family is ApiFamily.GEMINI:
        return _find_google_endpoint(request, upstream, model)
    if request.endpoint.family is ApiFamily.AZURE:
        return _find_azure_endpoint(request, upstream, model)
    path = _SUMMARY_PATHS.get(api_format)
    if path is None:
        path, api_format = _SUMMARY_PATHS[Format.CHAT], Format.CHAT
    client_headers = [(name, value) for name, value in request.raw_headers if name in _SUMMARY_HEADERS]
    key = replacement_key_headers(request, upstream)
    pairs = (
        client_headers
        if key is None
        else [*(pair for pair in client_headers if pair[0] not in KEY_HEADERS), *key]
    )
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if (betas := request.headers.get("anthropic-beta")) is not None:  # all lines joined
        headers["anthropic-beta"] = betas
    return SummarizerEndpoint(
        url=upstream.url(path),
        api_format=api_format,
        headers=headers,
        model=model,
        reuse_connection=upstream.reuse,
    )


def _find_google_endpoint(request: ClientRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
    """Return Google's endpoint for chat completions, which accepts the same models and keys."""
    return SummarizerEndpoint(
        url=upstream.url(_GOOGLE_CHAT_PATH),
        api_format=Format.CHAT,
        headers={"authorization": _google_credential(request, upstream)},
        model=model,
        reuse_connection=upstream.reuse,
    )


def _find_azure_endpoint(request: ClientRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
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


def _google_credential(request: ClientRequest, upstream: Upstream) -> str:
    replacement = replacement_key_headers(request, upstream)
    if replacement is not None:
        return f"Bearer {replacement[0][1].decode('latin-1')}" if replacement else ""
    in_query = next((value for name, value in parse_qsl(request.query) if name in GOOGLE_KEY_PARAMETERS), "")
    key = request.headers.get("x-goog-api-key") or in_query
    return f"Bearer {key}" if key else request.headers.get("authorization", "")
