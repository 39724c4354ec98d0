"""Endpoints of provider APIs: which operation, API family and format a request path means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.model import Format


class Operation(StrEnum):
    GENERATE = "answer"
    COUNT_TOKENS = "count"
    LIST_MODELS = "models"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


class ApiFamily(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GEMINI = "gemini"
    AZURE = "azure"
    BEDROCK = "bedrock"
    VERTEX = "vertex"


SIGNED_FAMILIES = frozenset((ApiFamily.BEDROCK, ApiFamily.VERTEX))
"""APIs whose clients sign requests or send cloud tokens; such requests are forwarded unchanged."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An operation in the API of a family. `api_format` is the format of the body, if Foveate parses it.

    `model` and `region` are named by the path. `is_streaming`: the response is a stream whatever its content
    type.
    """

    operation: Operation
    family: ApiFamily
    api_format: Format | None = None
    model: str = ""
    is_streaming: bool = False
    region: str = ""


_GOOGLE_HEADERS = frozenset(("x-goog-api-key", "x-goog-api-client"))
_ANTHROPIC_HEADERS = frozenset(("anthropic-version", "x-api-key", "anthropic-beta"))
_ENDPOINTS = {
    ("POST", "/v1/messages"): Endpoint(Operation.GENERATE, ApiFamily.ANTHROPIC, Format.ANTHROPIC),
    ("POST", "/v1/messages/count_tokens"): Endpoint(
        Operation.COUNT_TOKENS, ApiFamily.ANTHROPIC, Format.ANTHROPIC
    ),
    ("POST", "/v1/chat/completions"): Endpoint(Operation.GENERATE, ApiFamily.OPENAI, Format.CHAT),
    ("POST", "/v1/responses"): Endpoint(Operation.GENERATE, ApiFamily.OPENAI, Format.RESPONSES),
    ("POST", "/v1/responses/input_tokens"): Endpoint(
        Operation.COUNT_TOKENS, ApiFamily.OPENAI, Format.RESPONSES
    ),
    # llama.cpp has this; OpenAI has none for chat completions.
    ("POST", "/v1/chat/completions/input_tokens"): Endpoint(
        Operation.COUNT_TOKENS, ApiFamily.OPENAI, Format.CHAT
    ),
    ("POST", "/v1/embeddings"): Endpoint(Operation.EMBEDDINGS, ApiFamily.OPENAI),
}
_MODELS_PATH = "/v1/models"
_KNOWN_PATHS = frozenset((*(path for _, path in _ENDPOINTS), _MODELS_PATH))
_SLASHES = re.compile("/+")
_VERSIONS = re.compile("(?:/v1)+(?=/)")

# Google's Gemini API: https://ai.google.dev/api/all-methods (November 2026). It shares `/v1` with other APIs;
# only methods of models are its own there.
_GEMINI_METHOD = re.compile(r"/v1(?:beta\d?|alpha)?/(?:models|tunedModels|dynamic)/([^/:]+):(\w+)")
_GEMINI_MODELS = re.compile(r"/v1(?:beta\d?|alpha)?/models(?:/[^/:]+)?")
_GEMINI_PATH = re.compile(r"(?:/upload|/download)?/v1(?:beta\d?|alpha)(?:/|$)")
_GEMINI_OPERATIONS = {
    "generateContent": (Operation.GENERATE, False),
    "streamGenerateContent": (Operation.GENERATE, True),
    "countTokens": (Operation.COUNT_TOKENS, False),
}
# Azure OpenAI: https://learn.microsoft.com/azure/ai-foundry/openai/reference (November 2026). The path names a
# deployment; below `v1` and for Responses, the `model` of the body does.
_AZURE_PATH = re.compile(r"/openai(?:/deployments/(?P<deployment>[^/]+)|/v1)?(?P<operation>/.*)?")
# Amazon Bedrock: https://docs.aws.amazon.com/bedrock/latest/APIReference (November 2026). A model id may be an
# ARN that contains slashes.
_BEDROCK_METHOD = re.compile(r"/model/(.+)/(converse|invoke)(-stream|-with-response-stream)?")
_BEDROCK_PATH = re.compile(r"/model/.+/")
# Body formats of InvokeModel by model: each maker has its own. Nova uses the format of Converse.
_INVOKE_FORMATS = (("claude", Format.ANTHROPIC), ("amazon.nova", Format.BEDROCK))

# Vertex AI: https://cloud.google.com/vertex-ai/generative-ai/docs (November 2026).
_VERTEX_METHOD = re.compile(
    r"/v1(?:beta1)?/(?:projects/[^/]+/locations/([^/]+)/)?publishers/([^/]+)/models/([^/:]+):(\w+)"
)
_VERTEX_PATH = re.compile(r"/v1(?:beta1)?/(?:projects/[^/]+/locations/|publishers/)")
_VERTEX_CLAUDE_OPERATIONS = {"rawPredict": False, "streamRawPredict": True}


def normalize_slashes(path: str) -> str:
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/")


def canonicalize_path(path: str) -> str:
    """Return the canonical form of a path that Foveate parses; any other path unchanged.

    Clients append paths to a base URL that somebody typed: with the version although they add it themselves,
    without it although they do not, or with a trailing slash. Providers accept some of these paths, so these
    must not bypass the engine. No provider has the version twice.
    """
    if path in _KNOWN_PATHS:
        return path
    normalized = normalize_slashes(path)
    version_prefix = _VERSIONS.match(normalized)
    versioned = f"/v1{normalized[version_prefix.end() if version_prefix else 0 :]}"
    is_doubled = version_prefix is not None and version_prefix[0] != "/v1"
    return versioned if is_doubled or _is_models_path(versioned) or versioned in _KNOWN_PATHS else path


def _is_models_path(path: str) -> bool:
    return path == _MODELS_PATH or path.startswith(f"{_MODELS_PATH}/")


def match_endpoint(method: str, path: str, headers: Mapping[str, str]) -> Endpoint:
    """Find the endpoint of a request with a canonical path; header names are lower case.

    If two providers share a path, the headers tell which one the client means.
    """
    known = _ENDPOINTS.get((method, path))
    if known is not None:
        return known
    normalized = normalize_slashes(path)
    endpoint = (
        _match_vertex(method, normalized)
        or _match_bedrock(method, normalized)
        or _match_azure(method, normalized)
        or _match_gemini(method, normalized, headers)
    )
    if endpoint is not None:
        return endpoint
    is_anthropic = normalized.startswith("/v1/messages") or not _ANTHROPIC_HEADERS.isdisjoint(headers)
    family = ApiFamily.ANTHROPIC if is_anthropic else ApiFamily.OPENAI
    return Endpoint(
        Operation.LIST_MODELS if method == "GET" and _is_models_path(path) else Operation.OTHER, family
    )


def _match_gemini(method: str, path: str, headers: Mapping[str, str]) -> Endpoint | None:
    match = _GEMINI_METHOD.fullmatch(path)
    if match is not None:
        known = _GEMINI_OPERATIONS.get(match[2]) if method == "POST" else None
        if known is None:
            return Endpoint(Operation.OTHER, ApiFamily.GEMINI, model=match[1])
        operation, is_streaming = known
        return Endpoint(operation, ApiFamily.GEMINI, Format.GEMINI, model=match[1], is_streaming=is_streaming)
    if _GEMINI_PATH.match(path) is None and _GOOGLE_HEADERS.isdisjoint(headers):
        return None
    is_models = method == "GET" and _GEMINI_MODELS.fullmatch(path) is not None
    return Endpoint(Operation.LIST_MODELS if is_models else Operation.OTHER, ApiFamily.GEMINI)


def _match_azure(method: str, path: str) -> Endpoint | None:
    match = _AZURE_PATH.fullmatch(path)
    if match is None:
        return None
    known = _ENDPOINTS.get((method, f"/v1{match['operation'] or ''}"))
    is_openai = known is not None and known.family is ApiFamily.OPENAI
    operation, api_format = (
        (known.operation, known.api_format) if known is not None and is_openai else (Operation.OTHER, None)
    )
    return Endpoint(operation, ApiFamily.AZURE, api_format, model=match["deployment"] or "")


def _match_bedrock(method: str, path: str) -> Endpoint | None:
    match = _BEDROCK_METHOD.fullmatch(path) if method == "POST" else None
    if match is None:
        return Endpoint(Operation.OTHER, ApiFamily.BEDROCK) if _BEDROCK_PATH.match(path) else None
    model, method_name, is_streaming = match[1], match[2], match[3] is not None
    api_format: Format | None = Format.BEDROCK
    if method_name == "invoke":
        api_format = next((api_format for name, api_format in _INVOKE_FORMATS if name in model), None)
    operation = Operation.OTHER if api_format is None else Operation.GENERATE
    return Endpoint(operation, ApiFamily.BEDROCK, api_format, model=model, is_streaming=is_streaming)


def _match_vertex(method: str, path: str) -> Endpoint | None:
    match = _VERTEX_METHOD.fullmatch(path) if method == "POST" else None
    if match is None:
        return Endpoint(Operation.OTHER, ApiFamily.VERTEX) if _VERTEX_PATH.match(path) else None
    region, publisher, model, method_name = match[1] or "", match[2], match[3], match[4]
    if publisher == "google" and method_name in _GEMINI_OPERATIONS:
        operation, is_streaming = _GEMINI_OPERATIONS[method_name]
        return Endpoint(
            operation, ApiFamily.VERTEX, Format.GEMINI, model=model, is_streaming=is_streaming, region=region
        )
    if publisher == "anthropic" and method_name in _VERTEX_CLAUDE_OPERATIONS and model != "count-tokens":
        is_streaming = _VERTEX_CLAUDE_OPERATIONS[method_name]
        return Endpoint(
            Operation.GENERATE,
            ApiFamily.VERTEX,
            Format.ANTHROPIC,
            model=model,
            is_streaming=is_streaming,
            region=region,
        )
    return Endpoint(Operation.OTHER, ApiFamily.VERTEX, model=model)
