"""Which operations of a provider's API are forwarded, and which with the gateway's own credentials."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

from foveate.errors import BadPath, MethodRefused, OperationRefused
from foveate.gateway.asks import IncomingRequest
from foveate.gateway.credentials import replaces_credentials
from foveate.gateway.doors import Operation
from foveate.gateway.routing import Upstream

ALLOWED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""The methods that providers' APIs use."""

# A path that is encoded more often than this is decoded by nobody.
_MAX_DECODINGS = 5
_OPERATION_NAMES = {
    Operation.GENERATE: "answers",
    Operation.COUNT_TOKENS: "counting",
    Operation.EMBEDDINGS: "embeddings",
    Operation.LIST_MODELS: "models",
}
_ALL_OPERATIONS = "all"
# Operations that are passed on unread.
_MODEL_LIST_ROOTS = ("/v1", "/openai", "/openai/v1", "/v1beta", "/v1beta/openai", "/v1alpha")
_GENERATION_PATHS = ("/v1/completions", "/v1/responses/compact", "/v1beta/openai/chat/completions")
_BEDROCK_OPERATIONS = {
    "count-tokens": "counting",
    "invoke": "answers",
    "invoke-with-response-stream": "answers",
}
_EMBEDDING_METHODS = ("embedContent", "batchEmbedContents")


def check_request_line(request: IncomingRequest) -> None:
    """Refuse methods that no API uses, and paths that lead out of an upstream's base URL.

    Raises:
        MethodRefused: no API uses the method.
        BadPath: the path contains dot segments, however they are encoded.
    """
    if request.method not in ALLOWED_METHODS:
        raise MethodRefused(request.method[:20])
    path = request.raw_path
    for _ in range(_MAX_DECODINGS):
        segments = path.replace("\\", "/").split("/")
        if any(segment.partition(";")[0] in (".", "..") for segment in segments):
            raise BadPath(request.path[:100])
        path = unquote(path)


def check_operation(request: IncomingRequest, upstream: Upstream) -> None:
    """Refuse an operation for which the gateway would use credentials that its caller does not have.

    Raises:
        OperationRefused: `allow` of the upstream does not name it.
    """
    if replaces_credentials(request, upstream) and not is_allowed(request, upstream.allow):
        raise OperationRefused(f"{request.method} {request.path[:100]}", upstream.name)


def is_allowed(request: IncomingRequest, allow: Sequence[str]) -> bool:
    """Tell whether `allow` names the operation of a request: by its kind, or by its method and path."""
    line = f"{request.method} {request.path}"
    kind = _OPERATION_NAMES.get(request.endpoint.operation) or _classify_unparsed(request.method, request.path)
    return any(pattern in (_ALL_OPERATIONS, kind) or fnmatchcase(line, pattern) for pattern in allow)


def _classify_unparsed(method: str, path: str) -> str | None:
    if method in ("GET", "HEAD"):
        root, _, name = path.partition("/models")
        is_one = not name or (name[0] == "/" and name.count("/") == 1 and ":" not in name)
        return "models" if root in _MODEL_LIST_ROOTS and "/models" in path and is_one else None
    if method != "POST":
        return None
    if path in _GENERATION_PATHS:
        return "answers"
    if path.startswith("/model/"):
        return _BEDROCK_OPERATIONS.get(path.rpartition("/")[2])
    model, _, operation = path.rpartition("/models/")[2].partition(":")
    if operation in _EMBEDDING_METHODS or (operation == "predict" and "embedding" in model):
        return "embeddings"
    return "counting" if (model, operation) == ("count-tokens", "rawPredict") else None
