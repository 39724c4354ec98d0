"""HTTP requests to the sandbox, its replies, and which provider and API key a request is for."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl

from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import Format

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Providers reject larger bodies."""
_GOOGLE_HEADERS = frozenset(("x-goog-api-key", "x-goog-api-client"))
_GEMINI_METHOD = re.compile(r"/v1(?:beta|alpha)?/models/([^/:]+):(\w+)")
_GEMINI_PATH = re.compile(r"/v1(?:beta|alpha)(?:/|$)")
_AZURE_PATH = re.compile(
    r"/openai(?:/deployments/(?P<deployment>[^/]+)|(?P<v1>/v1))?(?P<operation>/(?!deployments|v1).+)"
)
_GOOGLE_CHAT = "/v1beta/openai/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """An HTTP request. Header names are lowercase."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    """A reply as the chunks of its body; `is_streaming` if they are sent one by one.

    It starts after `delay_seconds`, with `pace_seconds` between chunks. If it `disconnects`, the connection is
    cut after the last chunk although the client expects more. `before_last_chunk` is called before the last
    chunk of a complete reply, and `on_end` when nothing more is sent.
    """

    status: int
    headers: Mapping[str, str]
    chunks: tuple[bytes, ...]
    is_streaming: bool = False
    delay_seconds: float = 0
    pace_seconds: float = 0
    disconnects: bool = False
    before_last_chunk: Callable[[], None] | None = None
    on_end: Callable[[], None] | None = None


class SandboxProvider(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"


def parse_gemini_path(http_request: SandboxRequest) -> tuple[str, str] | None:
    """Return the model and method in a Gemini API path; None for other paths."""
    match = _GEMINI_METHOD.fullmatch(http_request.path.rstrip("/"))
    return None if match is None else (match[1], match[2])


@dataclass(frozen=True, slots=True)
class AzureRoute:
    """An Azure OpenAI path: the corresponding OpenAI path, and the deployment."""

    path: str
    deployment: str
    needs_version: bool


def parse_azure_path(path: str) -> AzureRoute | None:
    match = _AZURE_PATH.fullmatch(path.rstrip("/"))
    if match is None:
        return None
    return AzureRoute(f"/v1{match['operation']}", match["deployment"] or "", match["v1"] is None)


def is_google_chat(http_request: SandboxRequest) -> bool:
    """Return whether a request is for Google's models in OpenAI's format."""
    return http_request.path.startswith(_GOOGLE_CHAT)


def to_openai_path(path: str) -> str:
    """Convert a path of Google's OpenAI-compatible API to OpenAI's; return other paths unchanged."""
    return f"/v1/{path.removeprefix(_GOOGLE_CHAT)}" if path.startswith(_GOOGLE_CHAT) else path


def detect_route_format(http_request: SandboxRequest, providers: Collection[SandboxProvider]) -> Format:
    """Return the API format of a request, by its path, or by its headers if two providers share the path."""
    if SandboxProvider.GOOGLE in providers and (
        _is_for_google(http_request) or providers == {SandboxProvider.GOOGLE}
    ):
        return Format.CHAT if is_google_chat(http_request) else Format.GEMINI
    if SandboxProvider.OPENAI not in providers:
        return Format.ANTHROPIC
    if SandboxProvider.ANTHROPIC in providers and _is_for_anthropic(http_request):
        return Format.ANTHROPIC
    azure = parse_azure_path(http_request.path)
    path = http_request.path if azure is None else azure.path
    return Format.RESPONSES if path.startswith("/v1/responses") else Format.CHAT


def _is_for_google(http_request: SandboxRequest) -> bool:
    if _GEMINI_PATH.match(http_request.path) or parse_gemini_path(http_request) is not None:
        return True
    return http_request.path.startswith("/v1/models") and not _GOOGLE_HEADERS.isdisjoint(http_request.headers)


def _is_for_anthropic(http_request: SandboxRequest) -> bool:
    if http_request.path.startswith("/v1/messages"):
        return True
    own_paths = ("/v1/chat", "/v1/responses", "/v1/completions", "/v1/embeddings")
    return not http_request.path.startswith(own_paths) and not {"anthropic-version", "x-api-key"}.isdisjoint(
        http_request.headers
    )


def read_api_key(http_request: SandboxRequest, api_format: Format) -> str | ErrorResponse:
    scheme, _, bearer = http_request.headers.get("authorization", "").partition(" ")
    token = bearer.strip() if scheme.lower() == "bearer" else ""
    if api_format is Format.GEMINI:
        query_key = dict(parse_qsl(http_request.query)).get("key", "")
        return (
            http_request.headers.get("x-goog-api-key")
            or query_key
            or token
            or make_status_error(
                api_format,
                403,
                "Method doesn't allow unregistered callers (callers without established identity). Please use"
                " API Key or other form of API consumer identity to call this API.",
            )
        )
    if parse_azure_path(http_request.path) is not None:
        return (
            http_request.headers.get("api-key")
            or token
            or make_status_error(
                api_format,
                401,
                "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a"
                " valid key for an active subscription and use a correct regional API endpoint for your"
                " resource.",
            )
        )
    if api_format is not Format.ANTHROPIC:
        return token or make_status_error(
            api_format,
            401,
            "You didn't provide an API key. You need to provide your API key in an Authorization header using "
            "Bearer auth (i.e. Authorization: Bearer YOUR_KEY). The sandbox takes any.",
        )
    key = http_request.headers.get("x-api-key", "").strip() or token
    if not key:
        return make_status_error(api_format, 401, "x-api-key header is required")
    if not http_request.headers.get("anthropic-version"):
        return make_status_error(api_format, 400, "anthropic-version: header is required")
    return key


def read_betas(http_request: SandboxRequest) -> tuple[str, ...]:
    return tuple(beta.strip() for beta in http_request.headers.get("anthropic-beta", "").split(","))
