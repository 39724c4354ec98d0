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
_SLASHES = re.compile("/+")


def plain_path(path: str) -> str:
    """A path without doubled slashes, and without one at its end."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/")


def door_of(method: str, path: str, headers: Mapping[str, str]) -> Door:
    """The door of a request; `headers` have their names in small letters.

    Where two providers share a path, the headers tell which one the client means. Doubled slashes and one at
    the end make no other path, since servers overlook them.
    """
    path = plain_path(path)
    known = _DOORS.get((method, path))
    if known is not None:
        return known
    is_anthropic = path.startswith("/v1/messages") or not _ANTHROPIC_HEADERS.isdisjoint(headers)
    family = Family.ANTHROPIC if is_anthropic else Family.OPENAI
    is_models = method == "GET" and (path == _MODELS or path.startswith(f"{_MODELS}/"))
    return Door(Asks.MODELS if is_models else Asks.OTHER, family)
