"""Who is asked, and by whom: the provider that a request means, and the key that it brings.

A request as it reaches the sandbox, and what is to be sent back.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl

from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import Format

MAX_BODY_BYTES = 32 * 1024 * 1024
"""The most bytes of a body that either provider takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """A request over HTTP, byte for byte; the names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    """What is sent back: the pieces of a body, and where there is more than one, as a stream.

    After `delay_seconds` it begins, between two pieces `pace_seconds` pass. Where it `breaks_off`, the
    connection is cut after the last piece, though the client was promised more. `before_last` is called before
    the last piece of one that is whole is sent, and `at_end` once nothing more is.
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


class Provider(StrEnum):
    """The providers that the sandbox stands in for."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"


_GOOGLE_HEADERS = frozenset(("x-goog-api-key", "x-goog-api-client"))
_GEMINI_METHOD = re.compile(r"/v1(?:beta|alpha)?/models/([^/:]+):(\w+)")
_GEMINI_PATH = re.compile(r"/v1(?:beta|alpha)(?:/|$)")
_AZURE_PATH = re.compile(
    r"/openai(?:/deployments/(?P<deployment>[^/]+)|(?P<v1>/v1))?(?P<operation>/(?!deployments|v1).+)"
)
_GOOGLE_CHAT = "/v1beta/openai/"


def parse_gemini_path(http_request: SandboxRequest) -> tuple[str, str] | None:
    """The model and the method that a path of Google's names; None for other paths."""
    found = _GEMINI_METHOD.fullmatch(http_request.path.rstrip("/"))
    return None if found is None else (found[1], found[2])


@dataclass(frozen=True, slots=True)
class AzureRoute:
    """A path of Azure OpenAI: the same as OpenAI has it, and the deployment that it names."""

    path: str
    deployment: str
    needs_version: bool


def parse_azure_path(path: str) -> AzureRoute | None:
    """What a path of Azure OpenAI means; None for other paths."""
    found = _AZURE_PATH.fullmatch(path.rstrip("/"))
    if found is None:
        return None
    return AzureRoute(f"/v1{found['operation']}", found["deployment"] or "", found["v1"] is None)


def is_google_chat(http_request: SandboxRequest) -> bool:
    """Whether a request is for Google's models in OpenAI's format."""
    return http_request.path.startswith(_GOOGLE_CHAT)


def to_openai_path(path: str) -> str:
    """A path of Google's for clients of OpenAI as OpenAI has it; any other as it is."""
    return f"/v1/{path.removeprefix(_GOOGLE_CHAT)}" if path.startswith(_GOOGLE_CHAT) else path


def detect_format(http_request: SandboxRequest, providers: Collection[Provider]) -> Format:
    """The format that a request is in, by its path, or else by its headers where two providers share a path."""
    if Provider.GOOGLE in providers and (_is_for_google(http_request) or providers == {Provider.GOOGLE}):
        return Format.CHAT if is_google_chat(http_request) else Format.GEMINI
    if Provider.OPENAI not in providers:
        return Format.ANTHROPIC
    if Provider.ANTHROPIC in providers and _is_for_anthropic(http_request):
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
    """The key that a request brings, whatever it is, or why the provider would not let it in."""
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
    """The betas of Anthropic's that a request asks for."""
    return tuple(beta.strip() for beta in http_request.headers.get("anthropic-beta", "").split(","))
