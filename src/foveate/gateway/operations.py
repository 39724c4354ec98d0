"""Which operations of a provider's API are forwarded, and which with the gateway's own credentials."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

from foveate.errors import BadPath, MethodRefused, OperationRefused
from foveate.gateway.asks import Ask
from foveate.gateway.credentials import replaces_credentials
from foveate.gateway.doors import Asks
from foveate.gateway.routing import Upstream

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""The methods that providers' APIs use."""

# A path that is encoded more often than this is decoded by nobody.
_MOST_ENCODINGS = 5
_NAMES = {
    Asks.ANSWER: "answers",
    Asks.COUNT: "counting",
    Asks.EMBEDDINGS: "embeddings",
    Asks.MODELS: "models",
}
_ALL = "all"
# Operations that are passed on unread.
_MODEL_LISTS = ("/v1", "/openai", "/openai/v1", "/v1beta", "/v1beta/openai", "/v1alpha")
_ANSWERS = ("/v1/completions", "/v1/responses/compact", "/v1beta/openai/chat/completions")
_BEDROCK = {"count-tokens": "counting", "invoke": "answers", "invoke-with-response-stream": "answers"}
_EMBEDDINGS = ("embedContent", "batchEmbedContents")


def check_request_line(ask: Ask) -> None:
    """Refuse methods that no API uses, and paths that lead out of an upstream's base URL.

    Raises:
        MethodRefused: no API uses the method.
        BadPath: the path contains dot segments, however they are encoded.
    """
    if ask.method not in METHODS:
        raise MethodRefused(ask.method[:20])
    path = ask.raw_path
    for _ in range(_MOST_ENCODINGS):
        segments = path.replace("\\", "/").split("/")
        if any(segment.partition(";")[0] in (".", "..") for segment in segments):
            raise BadPath(ask.path[:100])
        path = unquote(path)


def check_operation(ask: Ask, upstream: Upstream) -> None:
    """Refuse an operation for which the gateway would use credentials that its caller does not have.

    Raises:
        OperationRefused: `allow` of the upstream does not name it.
    """
    if replaces_credentials(ask, upstream) and not is_allowed(ask, upstream.allow):
        raise OperationRefused(f"{ask.method} {ask.path[:100]}", upstream.name)


def is_allowed(ask: Ask, allow: Sequence[str]) -> bool:
    """Tell whether `allow` names the operation of a request: by its kind, or by its method and path."""
    line = f"{ask.method} {ask.path}"
    kind = _NAMES.get(ask.door.asks) or _unread_kind(ask.method, ask.path)
    return any(each in (_ALL, kind) or fnmatchcase(line, each) for each in allow)


def _unread_kind(method: str, path: str) -> str | None:
    if method in ("GET", "HEAD"):
        root, _, name = path.partition("/models")
        is_one = not name or (name[0] == "/" and name.count("/") == 1 and ":" not in name)
        return "models" if root in _MODEL_LISTS and "/models" in path and is_one else None
    if method != "POST":
        return None
    if path in _ANSWERS:
        return "answers"
    if path.startswith("/model/"):
        return _BEDROCK.get(path.rpartition("/")[2])
    model, _, operation = path.rpartition("/models/")[2].partition(":")
    if operation in _EMBEDDINGS or (operation == "predict" and "embedding" in model):
        return "embeddings"
    return "counting" if (model, operation) == ("count-tokens", "rawPredict") else None
