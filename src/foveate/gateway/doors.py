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


@dataclass(frozen=True, slots=True)
class Door:
    """What is asked for, in the API of a family; `spoken` is the format of its body, where Foveate reads it."""

    asks: Asks
    family: Family
    spoken: Format | None = None


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
    is_anthropic = plain_path(path).startswith("/v1/messages") or not _ANTHROPIC_HEADERS.isdisjoint(headers)
    family = Family.ANTHROPIC if is_anthropic else Family.OPENAI
    return Door(Asks.MODELS if method == "GET" and _is_models(path) else Asks.OTHER, family)
