"""Refusals: which error says that a provider does not want what we added, and who is known to have said so.

That is a cache mark, or an optional parameter such as `prompt_cache_key`.

A request whose marks were refused is sent once more without them. Only where that one is taken is the refusal
remembered: then it was the marks. So an error that was misread costs one more refused request and nothing else,
and there is no harm in reading errors generously.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from foveate.errors import MalformedRequest
from foveate.wire.body import as_list, as_text, value

_STATUSES = frozenset({400, 403, 422})  # 403 is Bedrock's for a model without caching, 422 Mistral's and vLLM's
_NAMED = re.compile(
    r"cache_?control|cache_?point\b|prompt_cache_(breakpoint|options|key|retention)|cache point|prompt caching",
    re.IGNORECASE,
)
# The mark is known, but not that it says for how long: `cache_control.ephemeral.ttl: Extra inputs are …`.
_TTL = re.compile(
    r"(cache_?control|cache_?point|prompt_cache_options)[\w.]{0,200}\bttl\b|\[ttl\]", re.IGNORECASE
)
# Marks are known, but not in this place, in this order, or in this number.
_PLACING = re.compile(
    r"maximum of \d|at most \d|too many|must not come after|can ?not be (set for|inserted|placed)"
    r"|thinking\.cache_",
    re.IGNORECASE,
)

# Where errors say what is wrong, over all shapes that are known: Anthropic and Vertex (`error.message`), OpenAI
# (`message`, `param`), OpenRouter (the provider's own error as a text in `metadata.raw`), Bedrock (`message`,
# `Message`), Google (`details`, `fieldViolations`), FastAPI, vLLM and Mistral (`detail`, `loc`, `msg`). What
# else an error holds can be the user's own words, such as FastAPI's `input`.
_SAYS = frozenset(
    ("error", "errors", "message", "Message", "param", "metadata", "raw", "details", "fieldViolations", "field",
     "description", "reason", "detail", "msg", "upstream_error")
)  # fmt: skip
# Where an error goes on to show what it was given: pydantic's two ways.
_SHOWN = re.compile(
    r"\binput_value=.*?(?=, input_type=|\n|$)|['\"]input['\"]: .*?(?=['\"]loc['\"]: |$)", re.DOTALL
)
# Words in quotes are the user's, unless the field that is meant stands first: "cache_control: not allowed".
# Bounded, so that a text full of quotes is not read to its end from each of them.
_QUOTED = re.compile(r"(?<!\w)(['\"`])(?P<first>[^\s'\"`]*+)\s(?:(?!\1(?!\w)).){0,400}+\1(?!\w)", re.DOTALL)
_LONGEST_CHARS = 32_768
_MOST_PARTS = 1_000

_DAY_SECONDS = 86_400.0
MOST_REMEMBERED = 1_024


class Refusal(StrEnum):
    """What was refused."""

    MARKS = "marks"  # every mark
    CLIENT = "client"  # every mark, the client's own too
    TTL = "ttl"  # that a mark says for how long
    PLACING = "placing"  # where the marks stood in this request, or how many they were


REMEMBERED_SECONDS: Mapping[Refusal, float] = MappingProxyType(
    {
        Refusal.MARKS: _DAY_SECONDS,
        Refusal.CLIENT: _DAY_SECONDS,
        Refusal.TTL: _DAY_SECONDS,
        Refusal.PLACING: 600.0,
    }
)
"""For how long; then it is tried again, since providers learn."""


def refusal(status: int, body: bytes) -> Refusal | None:
    """What of our marks the answer to a request refuses; None where it is about something else.

    Only what the error itself says is looked at, not what it shows of the request.
    """
    if status not in _STATUSES:
        return None
    own = _error_text(body, _NAMED)
    if not _NAMED.search(own):
        return None
    if _PLACING.search(own):
        return Refusal.PLACING
    return Refusal.TTL if _TTL.search(own) else Refusal.MARKS


def refused_parameters(status: int, body: bytes, names: Collection[str]) -> frozenset[str]:
    """Find which of the parameters `names` the error response to a request names."""
    if status not in _STATUSES:
        return frozenset()
    patterns = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in names}
    return frozenset(name for name, pattern in patterns.items() if pattern.search(_error_text(body, pattern)))


def _error_text(body: bytes, named: re.Pattern[str]) -> str:
    """The error's own words, without quotes of the request, unless a quote begins with what is `named`."""
    # A newline apart: what one part names, another may be about (`param` and `message`).
    said = "\n".join(_SHOWN.sub(" ", part) for part in _said(body))[:_LONGEST_CHARS]
    return _QUOTED.sub(lambda quoted: quoted[0] if named.search(quoted["first"]) else " ", said)


def _said(body: bytes) -> Iterator[str]:
    """Every text in which an error says what is wrong, also those of an error within an error."""
    parts: list[object] = [body.decode("utf-8", "replace")]
    for _ in range(_MOST_PARTS):
        if not parts:
            return
        part = parts.pop()
        match part:
            case str():
                around, found = _inner(part) or (part, None)
                yield around
                parts.append(found)
            case dict():
                path = ".".join(map(str, as_list(part.get("loc"))))
                yield f"{path}: {as_text(part.get('msg'))}"
                parts += [said for name, said in part.items() if name in _SAYS]
            case list():
                parts += part


def _inner(text: str) -> tuple[str, object] | None:
    """What stands around an error in JSON within a text, and that error."""
    start = min((at for at in (text.find("{"), text.find("[{")) if at >= 0), default=-1)
    if start < 0:
        return None
    for end in (len(text), text.rfind("]") + 1, text.rfind("}") + 1):
        try:
            return f"{text[:start]} {text[end:]}", value(text[start:end].encode())
        except MalformedRequest:
            continue
    return None


@dataclass(frozen=True, slots=True)
class _Remembered:
    refusal: Refusal
    at: float


_Key = tuple[str, str, str]
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Who is known to refuse what we add: an upstream for a model, or for a session where it was the placing.

    A value: what happens gives the next one. It holds so many refusals, and forgets the oldest first. Where a
    clock is put back by more than a refusal is remembered for, that is forgotten too.
    """

    most: int = MOST_REMEMBERED
    remembered: Mapping[_Key, _Remembered] = field(default_factory=dict)
    parameters: Mapping[_Key, float] = field(default_factory=dict)  # by their names, with the time

    def takes_marks(self, upstream: str, model: str, *, session: str, at: float) -> bool:
        """Whether to send marks at all."""
        return (
            self._held(upstream, model, "", at) not in (Refusal.MARKS, Refusal.CLIENT)
            and self._held(upstream, model, session, at) is not Refusal.PLACING
        )

    def takes_client_marks(self, upstream: str, model: str, *, at: float) -> bool:
        """Whether to send the client's own marks."""
        return self._held(upstream, model, "", at) is not Refusal.CLIENT

    def takes_ttl(self, upstream: str, model: str, *, at: float) -> bool:
        """Whether a mark may say for how long."""
        return self._held(upstream, model, "", at) is not Refusal.TTL

    def takes_parameter(self, upstream: str, model: str, name: str, *, at: float) -> bool:
        """Whether to add an optional parameter."""
        refused_at = self.parameters.get((upstream, model, name))
        return refused_at is None or abs(at - refused_at) >= _DAY_SECONDS

    def remembering_parameter(self, name: str, upstream: str, model: str, *, at: float) -> "Refusals":
        """What is known once the same request was taken without a parameter."""
        return replace(self, parameters=self._with(self.parameters, (upstream, model, name), at))

    def remembering(
        self, refused: Refusal, upstream: str, model: str, *, session: str, at: float
    ) -> "Refusals":
        """What is known once the same request was taken without marks."""
        key = upstream, model, _scope(refused, session)
        return replace(self, remembered=self._with(self.remembered, key, _Remembered(refused, at)))

    def _with(self, known: Mapping[_Key, _Entry], key: _Key, entry: _Entry) -> Mapping[_Key, _Entry]:
        """What is known with one more entry, and without the oldest if there are too many."""
        others = [(other, one) for other, one in known.items() if other != key]
        return {**dict(others[-(self.most - 1) :] if self.most > 1 else []), key: entry}

    def _held(self, upstream: str, model: str, scope: str, at: float) -> Refusal | None:
        known = self.remembered.get((upstream, model, scope))
        if known is None or abs(at - known.at) >= REMEMBERED_SECONDS[known.refusal]:
            return None
        return known.refusal


def _scope(refused: Refusal, session: str) -> str:
    # One client that places its own marks wrongly takes nobody else's away.
    return session if refused is Refusal.PLACING else ""
