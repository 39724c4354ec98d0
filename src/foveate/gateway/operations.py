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

_NAMES = {
    Asks.ANSWER: "answers",
    Asks.COUNT: "counting",
    Asks.EMBEDDINGS: "embeddings",
    Asks.MODELS: "models",
}
_ALL = "all"


def check_request_line(ask: Ask) -> None:
    """Refuse methods that no API uses, and paths that lead out of an upstream's base URL.

    Raises:
        MethodRefused: no API uses the method.
        BadPath: the path contains dot segments, however they are encoded.
    """
    if ask.method not in METHODS:
        raise MethodRefused(ask.method[:20])
    for path in (ask.path, unquote(ask.raw_path), unquote(unquote(ask.raw_path))):
        if not {".", ".."}.isdisjoint(path.replace("\\", "/").split("/")):
            raise BadPath(ask.path[:100])


def check_operation(ask: Ask, upstream: Upstream) -> None:
    """Refuse an operation for which the gateway would use credentials that its caller does not have.

    Raises:
        OperationRefused: `allow` of the upstream does not name it.
    """
    if replaces_credentials(ask, upstream) and not is_allowed(ask, upstream.allow):
        raise OperationRefused(f"{ask.method} {ask.path[:100]}", upstream.name)


def is_allowed(ask: Ask, allow: Sequence[str]) -> bool:
    """Tell whether `allow` names the operation of a request: by its kind, or by its method and path."""
    kind, line = _NAMES.get(ask.door.asks), f"{ask.method} {ask.path}"
    return any(each in (_ALL, kind) or fnmatchcase(line, each) for each in allow)
