"""Recognizes errors by which a provider rejects what Foveate added, and remembers who sent them.

Foveate adds cache breakpoints and optional parameters such as `prompt_cache_key`. A rejected request is sent
once more without them. Only if that succeeds is the rejection remembered: then they were the cause. So a
misread error costs one more failed request and nothing else, and errors can be matched generously.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import as_list, as_text, parse_json
from foveate.model import Edit, Format, RemoveBreakpoint, Request, SetParameter

_STATUSES = frozenset({400, 403, 422})  # 403: Bedrock, for a model without caching; 422: Mistral and vLLM
_NAMES_CACHING = re.compile(
    r"cache_?control|cache_?point\b|prompt_cache_(breakpoint|options|key|retention)|cache point|prompt caching",
    re.IGNORECASE,
)
# Breakpoints are accepted, but not their TTL: `cache_control.ephemeral.ttl: Extra inputs are …`.
_NAMES_TTL = re.compile(
    r"(cache_?control|cache_?point|prompt_cache_options)[\w.]{0,200}\bttl\b|\[ttl\]", re.IGNORECASE
)
# Breakpoints are accepted, but not at this position, in this order, or this many.
_NAMES_PLACEMENT = re.compile(
    r"maximum of \d|at most \d|too many|must not come after|can ?not be (set for|inserted|placed)"
    r"|thinking\.cache_",
    re.IGNORECASE,
)

# Fields with the error message, in all known formats: Anthropic and Vertex (`error.message`), OpenAI
# (`message`, `param`), OpenRouter (the provider's error as text in `metadata.raw`), Bedrock (`message`,
# `Message`), Google (`details`, `fieldViolations`), FastAPI, vLLM and Mistral (`detail`, `loc`, `msg`). Other
# fields can contain the user's own text, such as FastAPI's `input`.
_MESSAGE_FIELDS = frozenset(
    ("error", "errors", "message", "Message", "param", "metadata", "raw", "details", "fieldViolations", "field",
     "description", "reason", "detail", "msg", "upstream_error")
)  # fmt: skip
# The parts in which pydantic's errors repeat the input, in both of its formats.
_ECHOED_INPUT = re.compile(
    r"\binput_value=.*?(?=, input_type=|\n|$)|['\"]input['\"]: .*?(?=['\"]loc['\"]: |$)", re.DOTALL
)
# Quoted text is the user's, unless it starts with the field in question: "cache_control: not allowed".
_OPENING_QUOTE = re.compile(r"(?<!\w)(?P<quote>['\"`])(?P<first>[^\s'\"`]*+)\s")
_CLOSING_QUOTES = {quote: re.compile(rf"{quote}(?!\w)") for quote in "'\"`"}
_MAX_TEXT_CHARS = 32_768
_MAX_PARTS = 1_000

_DAY_SECONDS = 86_400.0
MAX_REMEMBERED = 1_024
_REJECTED_REASON = "the model does not accept cache breakpoints"


class Rejection(StrEnum):
    BREAKPOINTS = "marks"  # all breakpoints
    CLIENT_BREAKPOINTS = "client"  # all breakpoints, including the client's
    TTL = "ttl"  # the TTL of breakpoints
    PLACEMENT = "placing"  # position, order or number of the breakpoints in this request


REMEMBERED_SECONDS: Mapping[Rejection, float] = MappingProxyType(
    {
        Rejection.BREAKPOINTS: _DAY_SECONDS,
        Rejection.CLIENT_BREAKPOINTS: _DAY_SECONDS,
        Rejection.TTL: _DAY_SECONDS,
        Rejection.PLACEMENT: 600.0,
    }
)
"""Time for which each rejection is remembered. After that Foveate tries again, since providers change."""


def classify_rejection(status: int, body: bytes) -> Rejection | None:
    """Classify what an error response rejects of our breakpoints; None if it is about something else.

    Only the error's own message is considered, not what it repeats of the request.
    """
    if status not in _STATUSES:
        return None
    text = _error_text(body, _NAMES_CACHING)
    if not _NAMES_CACHING.search(text):
        return None
    if _NAMES_PLACEMENT.search(text):
        return Rejection.PLACEMENT
    return Rejection.TTL if _NAMES_TTL.search(text) else Rejection.BREAKPOINTS


def find_rejected_parameters(status: int, body: bytes, names: Collection[str]) -> frozenset[str]:
    if status not in _STATUSES:
        return frozenset()
    patterns = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in names}
    return frozenset(name for name, pattern in patterns.items() if pattern.search(_error_text(body, pattern)))


def _error_text(body: bytes, exempt: re.Pattern[str]) -> str:
    """The error's own message without quotes of the request, unless a quote begins with a match of `exempt`."""
    # Joined, since one part may name what another is about (`param` and `message`).
    text = "\n".join(_ECHOED_INPUT.sub(" ", part) for part in _message_texts(body))[:_MAX_TEXT_CHARS]
    return _remove_quotes(text, exempt)


def _remove_quotes(text: str, exempt: re.Pattern[str]) -> str:
    kept: list[str] = []
    kept_to = searched_to = 0
    unclosed: set[str] = set()  # not searched again, so that many quotes take linear time
    while opening := _OPENING_QUOTE.search(text, searched_to):
        quote = opening["quote"]
        closing = None if quote in unclosed else _CLOSING_QUOTES[quote].search(text, opening.end())
        if closing is None:
            unclosed.add(quote)
            searched_to = opening.start() + 1
            continue
        searched_to = closing.end()
        if not exempt.search(opening["first"]):
            kept += (text[kept_to : opening.start()], " ")
            kept_to = searched_to
    return "".join((*kept, text[kept_to:]))


def _message_texts(body: bytes) -> Iterator[str]:
    """All texts in which an error says what is wrong, including those of nested errors."""
    parts: list[object] = [body.decode("utf-8", "replace")]
    for _ in range(_MAX_PARTS):
        if not parts:
            return
        part = parts.pop()
        match part:
            case str():
                surrounding, nested_error = _extract_nested_error(part) or (part, None)
                yield surrounding
                parts.append(nested_error)
            case dict():
                path = ".".join(map(str, as_list(part.get("loc"))))
                yield f"{path}: {as_text(part.get('msg'))}"
                parts += [nested for name, nested in part.items() if name in _MESSAGE_FIELDS]
            case list():
                parts += part


def _extract_nested_error(text: str) -> tuple[str, object] | None:
    """The text around a JSON error in `text`, and that error."""
    start = min((at for at in (text.find("{"), text.find("[{")) if at >= 0), default=-1)
    if start < 0:
        return None
    for end in (len(text), text.rfind("]") + 1, text.rfind("}") + 1):
        try:
            return f"{text[:start]} {text[end:]}", parse_json(text[start:end].encode())
        except MalformedRequest:
            continue
    return None


@dataclass(frozen=True, slots=True)
class _RememberedRejection:
    rejection: Rejection
    at: float


_RejectionKey = tuple[str, str, str]
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRejections:
    """Upstreams with what they reject, by model; by session if it was the placement.

    Immutable: each change returns a new value. Bounded; the oldest rejection is dropped first. A rejection is
    also dropped if the clock is set back by more than the time that it is remembered.
    """

    limit: int = MAX_REMEMBERED
    remembered: Mapping[_RejectionKey, _RememberedRejection] = field(default_factory=dict)
    parameters: Mapping[_RejectionKey, float] = field(default_factory=dict)  # by name, with the time

    def accepts_breakpoints(self, upstream: str, model: str, *, session: str, at: float) -> bool:
        return (
            self._find_rejection(upstream, model, "", at)
            not in (Rejection.BREAKPOINTS, Rejection.CLIENT_BREAKPOINTS)
            and self._find_rejection(upstream, model, session, at) is not Rejection.PLACEMENT
        )

    def accepts_client_breakpoints(self, upstream: str, model: str, *, at: float) -> bool:
        return self._find_rejection(upstream, model, "", at) is not Rejection.CLIENT_BREAKPOINTS

    def accepts_ttl(self, upstream: str, model: str, *, at: float) -> bool:
        return self._find_rejection(upstream, model, "", at) is not Rejection.TTL

    def accepts_parameter(self, upstream: str, model: str, name: str, *, at: float) -> bool:
        rejected_at = self.parameters.get((upstream, model, name))
        return rejected_at is None or abs(at - rejected_at) >= _DAY_SECONDS

    def with_rejected_parameter(self, name: str, upstream: str, model: str, *, at: float) -> "KnownRejections":
        """Remember that the same request succeeded without a parameter."""
        return replace(self, parameters=self._add_entry(self.parameters, (upstream, model, name), at))

    def with_rejection(
        self, rejection: Rejection, upstream: str, model: str, *, session: str, at: float
    ) -> "KnownRejections":
        """Remember that the same request succeeded without breakpoints."""
        key = upstream, model, _scope(rejection, session)
        return replace(
            self, remembered=self._add_entry(self.remembered, key, _RememberedRejection(rejection, at))
        )

    def _add_entry(
        self, known: Mapping[_RejectionKey, _Entry], key: _RejectionKey, entry: _Entry
    ) -> Mapping[_RejectionKey, _Entry]:
        others = [(other, value) for other, value in known.items() if other != key]
        return {**dict(others[-(self.limit - 1) :] if self.limit > 1 else []), key: entry}

    def _find_rejection(self, upstream: str, model: str, scope: str, at: float) -> Rejection | None:
        known = self.remembered.get((upstream, model, scope))
        if known is None or abs(at - known.at) >= REMEMBERED_SECONDS[known.rejection]:
            return None
        return known.rejection


def _scope(rejection: Rejection, session: str) -> str:
    # A client that misplaces its own breakpoints must not disable those of other sessions.
    return session if rejection is Rejection.PLACEMENT else ""


def remove_client_breakpoints(request: Request) -> list[Edit]:
    if request.format is not Format.ANTHROPIC or b"cache_control" not in request.body:
        return []
    places = [block.place for block in formats.request_blocks(request) if block.breakpoint_ttl is not None]
    edits: list[Edit] = [RemoveBreakpoint(place=place, reason=_REJECTED_REASON) for place in places]
    if "cache_control" in get_parameters(request):
        edits.append(SetParameter(path=("cache_control",), value=None, reason=_REJECTED_REASON))
    return edits
