"""Which door a request comes through: what it asks for, in which format, and of which provider."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.values import Format


class Asks(StrEnum):
    """What a request asks for."""

    ANSWER = "answer"
    COUNT = "count"
    MODELS = "models"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


class Family(StrEnum):
    """Whose API a client speaks."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GEMINI = "gemini"
    AZURE = "azure"
    BEDROCK = "bedrock"
    VERTEX = "vertex"


SIGNED = frozenset((Family.BEDROCK, Family.VERTEX))
"""APIs whose clients sign requests, or bring tokens of a cloud: these are passed on unchanged."""


@dataclass(frozen=True, slots=True)
class Door:
    """What is asked for, in the API of a family; `spoken` is the format of its body, where Foveate reads it.

    `model` is the model that the path names, and `region` the location. `streams`: the response is a stream
    whatever its content type.
    """

    asks: Asks
    family: Family
    spoken: Format | None = None
    model: str = ""
    streams: bool = False
    region: str = ""


_GOOGLE_HEADERS = frozenset(("x-goog-api-key", "x-goog-api-client"))
_ANTHROPIC_HEADERS = frozenset(("anthropic-version", "x-api-key", "anthropic-beta"))
_DOORS = {
    ("POST", "/v1/messages"): Door(Asks.ANSWER, Family.ANTHROPIC, Format.ANTHROPIC),
    ("POST", "/v1/messages/count_tokens"): Door(Asks.COUNT, Family.ANTHROPIC, Format.ANTHROPIC),
    ("POST", "/v1/chat/completions"): Door(Asks.ANSWER, Family.OPENAI, Format.CHAT),
    ("POST", "/v1/responses"): Door(Asks.ANSWER, Family.OPENAI, Format.RESPONSES),
    ("POST", "/v1/responses/input_tokens"): Door(Asks.COUNT, Family.OPENAI, Format.RESPONSES),
    # As llama.cpp has it; OpenAI has none for chats.
    ("POST", "/v1/chat/completions/input_tokens"): Door(Asks.COUNT, Family.OPENAI, Format.CHAT),
    ("POST", "/v1/embeddings"): Door(Asks.EMBEDDINGS, Family.OPENAI),
}
_MODELS = "/v1/models"
_PATHS = frozenset((*(path for _, path in _DOORS), _MODELS))
_SLASHES = re.compile("/+")
_VERSIONS = re.compile("(?:/v1)+(?=/)")

# Google's Gemini API: https://ai.google.dev/api/all-methods (November 2026). It shares `/v1` with others, where
# only methods of models are its own.
_GEMINI_METHOD = re.compile(r"/v1(?:beta\d?|alpha)?/(?:models|tunedModels|dynamic)/([^/:]+):(\w+)")
_GEMINI_MODELS = re.compile(r"/v1(?:beta\d?|alpha)?/models(?:/[^/:]+)?")
_GEMINI_PATH = re.compile(r"(?:/upload|/download)?/v1(?:beta\d?|alpha)(?:/|$)")
_GEMINI_OPERATIONS = {
    "generateContent": (Asks.ANSWER, False),
    "streamGenerateContent": (Asks.ANSWER, True),
    "countTokens": (Asks.COUNT, False),
}
# Azure OpenAI: https://learn.microsoft.com/azure/ai-foundry/openai/reference (November 2026). The path names a
# deployment, or, below `v1` and for Responses, the body does, as its model.
_AZURE_PATH = re.compile(r"/openai(?:/deployments/(?P<deployment>[^/]+)|/v1)?(?P<operation>/.*)?")
# Amazon Bedrock: https://docs.aws.amazon.com/bedrock/latest/APIReference (November 2026). A model id may be an
# ARN, with slashes in it.
_BEDROCK_METHOD = re.compile(r"/model/(.+)/(converse|invoke)(-stream|-with-response-stream)?")
_BEDROCK_PATH = re.compile(r"/model/.+/")
# Of InvokeModel, whose bodies are those of a model's maker. Nova's are as those of Converse.
_INVOKED = (("claude", Format.ANTHROPIC), ("amazon.nova", Format.BEDROCK))

# Vertex AI: https://cloud.google.com/vertex-ai/generative-ai/docs (November 2026).
_VERTEX_METHOD = re.compile(
    r"/v1(?:beta1)?/(?:projects/[^/]+/locations/([^/]+)/)?publishers/([^/]+)/models/([^/:]+):(\w+)"
)
_VERTEX_PATH = re.compile(r"/v1(?:beta1)?/(?:projects/[^/]+/locations/|publishers/)")
_VERTEX_CLAUDE = {"rawPredict": False, "streamRawPredict": True}


def plain_path(path: str) -> str:
    """A path without doubled slashes, and without one at its end."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/")


def meant_path(path: str) -> str:
    """The path of what Foveate reads, however it is written; any other as it came.

    Clients put one together from a base URL that somebody wrote: with the version though they add it
    themselves, without though they do not, or with a slash at its end. A provider takes some of these paths
    too, so that they must not pass the engine by; no provider has the version twice.
    """
    if path in _PATHS:
        return path
    plain = plain_path(path)
    had = _VERSIONS.match(plain)
    versioned = f"/v1{plain[had.end() if had else 0 :]}"
    is_doubled = had is not None and had[0] != "/v1"
    return versioned if is_doubled or _is_models(versioned) or versioned in _PATHS else path


def _is_models(path: str) -> bool:
    return path == _MODELS or path.startswith(f"{_MODELS}/")


def door_of(method: str, path: str, headers: Mapping[str, str]) -> Door:
    """The door of a request for a path that is meant; `headers` have their names in small letters.

    Where two providers share a path, the headers tell which one the client means.
    """
    known = _DOORS.get((method, path))
    if known is not None:
        return known
    plain = plain_path(path)
    door = (
        _vertex_door(method, plain)
        or _bedrock_door(method, plain)
        or _azure_door(method, plain)
        or _gemini_door(method, plain, headers)
    )
    if door is not None:
        return door
    is_anthropic = plain.startswith("/v1/messages") or not _ANTHROPIC_HEADERS.isdisjoint(headers)
    family = Family.ANTHROPIC if is_anthropic else Family.OPENAI
    return Door(Asks.MODELS if method == "GET" and _is_models(path) else Asks.OTHER, family)


def _gemini_door(method: str, path: str, headers: Mapping[str, str]) -> Door | None:
    found = _GEMINI_METHOD.fullmatch(path)
    if found is not None:
        known = _GEMINI_OPERATIONS.get(found[2]) if method == "POST" else None
        if known is None:
            return Door(Asks.OTHER, Family.GEMINI, model=found[1])
        asks, streams = known
        return Door(asks, Family.GEMINI, Format.GEMINI, model=found[1], streams=streams)
    if _GEMINI_PATH.match(path) is None and _GOOGLE_HEADERS.isdisjoint(headers):
        return None
    is_models = method == "GET" and _GEMINI_MODELS.fullmatch(path) is not None
    return Door(Asks.MODELS if is_models else Asks.OTHER, Family.GEMINI)


def _azure_door(method: str, path: str) -> Door | None:
    found = _AZURE_PATH.fullmatch(path)
    if found is None:
        return None
    known = _DOORS.get((method, f"/v1{found['operation'] or ''}"))
    is_openai = known is not None and known.family is Family.OPENAI
    asks, spoken = (known.asks, known.spoken) if known is not None and is_openai else (Asks.OTHER, None)
    return Door(asks, Family.AZURE, spoken, model=found["deployment"] or "")


def _bedrock_door(method: str, path: str) -> Door | None:
    found = _BEDROCK_METHOD.fullmatch(path) if method == "POST" else None
    if found is None:
        return Door(Asks.OTHER, Family.BEDROCK) if _BEDROCK_PATH.match(path) else None
    model, operation, streams = found[1], found[2], found[3] is not None
    spoken: Format | None = Format.BEDROCK
    if operation == "invoke":
        spoken = next((spoken for name, spoken in _INVOKED if name in model), None)
    asks = Asks.OTHER if spoken is None else Asks.ANSWER
    return Door(asks, Family.BEDROCK, spoken, model=model, streams=streams)


def _vertex_door(method: str, path: str) -> Door | None:
    found = _VERTEX_METHOD.fullmatch(path) if method == "POST" else None
    if found is None:
        return Door(Asks.OTHER, Family.VERTEX) if _VERTEX_PATH.match(path) else None
    region, publisher, model, operation = found[1] or "", found[2], found[3], found[4]
    if publisher == "google" and operation in _GEMINI_OPERATIONS:
        asks, streams = _GEMINI_OPERATIONS[operation]
        return Door(asks, Family.VERTEX, Format.GEMINI, model=model, streams=streams, region=region)
    if publisher == "anthropic" and operation in _VERTEX_CLAUDE and model != "count-tokens":
        streams = _VERTEX_CLAUDE[operation]
        return Door(Asks.ANSWER, Family.VERTEX, Format.ANTHROPIC, model=model, streams=streams, region=region)
    return Door(Asks.OTHER, Family.VERTEX, model=model)
