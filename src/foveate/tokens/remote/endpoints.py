"""What is known of each counting endpoint of this process: whether it can, and whether it is worth asking.

Learnt once per endpoint, not per model, and for as long as the process lives. A definite no (404, 405, 501, or
a success of the wrong shape) is remembered; a time-out or a 5xx is no answer to that question and only counts
against the breaker, because a busy server answers late.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from time import monotonic
from typing import Protocol

import msgspec

from foveate.caching import LruCache, hash_bytes
from foveate.errors import MalformedRequest, UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.formats.json_text.parse import parse_fields, parse_json, to_json
from foveate.http import JsonReply
from foveate.model import Request, TokenCount
from foveate.tokens.remote.circuit_breaker import CircuitBreaker
from foveate.tokens.tokenizers.bpe import replace_surrogates

UNSUPPORTED_STATUSES = frozenset((404, 405, 501))
# The server is well, it only will not count this: no reason to stop asking it about others.
REJECTED_BODY_STATUSES = frozenset((400, 413, 414, 415, 422))
# What a question is about, where it is not a request of some format.
TEXT = "text"
# No window is as long; whatever counts more has miscounted.
_MAX_TOKENS = 10**9


class Unsupported(Exception):
    """This endpoint does not count such a thing, which its text says; nothing is held against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """All that an endpoint's answer depends on, in JSON: equal questions have equal bytes."""

    subject: str
    model: str
    body: bytes


class EndpointCounter(Protocol):
    """A server that counts. `url` is what it is known by: its routes stand or fall together."""

    name: str
    url: str

    def text_query(self, text: str, model: str) -> CountQuery:
        """What to ask about a text, or `Unsupported`. Takes time where the text is long."""

    def request_query(self, request: Request) -> CountQuery:
        """What to ask about a whole request, or `Unsupported`. Takes time where the request is long."""

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        """The count, or an `UpstreamError`, or `Unsupported`."""


class TokenizeServer(StrEnum):
    """Who answers at `/tokenize`."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vLLM"


@dataclass(slots=True)
class ServerCapabilities:
    """What was found out about a server that tokenises; filled in by whoever asks it."""

    server: TokenizeServer | None = None
    unsupported_error: UpstreamError | None = None
    missing_routes: set[str] = field(default_factory=set)
    accepts_model_names: bool = True


class EndpointRegistry:
    """The memory of a process about the endpoints it asked."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}
        self._unsupported: dict[tuple[str, str], str] = {}
        # Models are named by clients, who may name as many as they like.
        self._unsupported_models: LruCache[str] = LruCache()
        self._capabilities: dict[str, ServerCapabilities] = {}
        self._last_errors: dict[str, str] = {}

    def unsupported_reason(self, url: str, subject: str, model: str = "") -> str | None:
        """The definite no of `url` to counting `subject` (a text, a format), or None while there is none.

        A no can also be to one model only, which the server does not have.
        """
        return self._unsupported.get((url, subject)) or self._unsupported_models.get(
            _model_key(url, subject, model)
        )

    def capabilities(self, url: str) -> ServerCapabilities:
        """What is known of the tokenizer at `url`, for all who ask it."""
        return self._capabilities.setdefault(url, ServerCapabilities())

    def breaker(self, url: str) -> CircuitBreaker:
        """The state of the breaker of `url`."""
        return self._breakers.get(url, CircuitBreaker())

    @property
    def last_errors(self) -> dict[str, str]:
        """Why an endpoint gave no count the last time, by its address; nothing of one that gave a count."""
        return dict(self._last_errors)

    def record_unsupported(self, url: str, reason: Unsupported) -> bool:
        """Keep in `troubles` why `url` could not be asked, and return whether that is new."""
        message = f"{url}: {reason}"
        is_new = self._last_errors.get(url) != message
        self._last_errors[url] = message
        return is_new

    async def try_call(
        self, url: str, subject: str, model: str, call: Callable[[], Awaitable[TokenCount]]
    ) -> TokenCount | None:
        """What `call` gives, or None where it is not worth making or fails.

        Raises:
            Unsupported: `call` did; nothing was learnt.
        """
        now = self._clock()
        before = self.breaker(url)
        if self.unsupported_reason(url, subject, model) or not before.allows(now):
            return None
        on_trial = self._breakers[url] = before.with_trial(now)
        try:
            count = await call()
        except UpstreamError as error:
            self._last_errors[url] = str(error)
            self._record_failure(url, subject, model, error)
            return None
        except (Unsupported, asyncio.CancelledError):
            if self._breakers[url] is on_trial:  # the trial has not taken place
                self._breakers[url] = before
            raise
        self._last_errors.pop(url, None)
        self._breakers[url] = self.breaker(url).with_success()
        return count

    def _record_failure(self, url: str, subject: str, model: str, error: UpstreamError) -> None:
        if is_permanent_failure(error):
            if is_unknown_model(error):
                self._unsupported_models.put(_model_key(url, subject, model), str(error))
            else:
                self._unsupported[url, subject] = str(error)
        elif not (isinstance(error, UpstreamStatus) and error.status in REJECTED_BODY_STATUSES):
            self._breakers[url] = self.breaker(url).with_failure(self._clock())
            return
        self._breakers[url] = self.breaker(url).with_success()


@cache
def shared_endpoint_registry() -> EndpointRegistry:
    """What this process knows: every `Counting` that is not given its own shares it."""
    return EndpointRegistry()


def _model_key(*names: str) -> bytes:
    return hash_bytes(*(name.encode("utf-8", "surrogatepass") for name in names))


def is_permanent_failure(error: UpstreamError) -> bool:
    """Whether asking again would get the same answer."""
    if isinstance(error, UpstreamStatus):
        return error.status in UNSUPPORTED_STATUSES
    return isinstance(error, UpstreamGarbled)


def is_unknown_model(error: UpstreamError) -> bool:
    """Whether a 404 is about the model and not the route.

    Anthropic: "model: claude-x"; OpenAI and vLLM: "The model `x` does not exist"; Gemini: "models/x is not
    found for API version v1beta" (November 2026). A route that is missing is called "Not Found" and no more.
    """
    return isinstance(error, UpstreamStatus) and error.status == 404 and "model" in error.detail.lower()


def parse_token_number(response: JsonReply, name: str, route: str) -> int:
    """The number called `name` in a reply.

    Raises:
        UpstreamGarbled: there is none, or one that no count can be.
    """
    number = parse_field(response, name, route)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_TOKENS:
        raise UpstreamGarbled(route, f"no number of tokens as `{name}` in the answer")
    return number


def parse_field(response: JsonReply, name: str, route: str) -> object:
    """What a reply says under `name`; None where it says nothing.

    Raises:
        UpstreamGarbled: it cannot be read.
    """
    try:
        return parse_json(response.get(name))
    except (MalformedRequest, ValueError):  # Python makes no number of thousands of digits
        raise UpstreamGarbled(route, f"`{name}` in the answer cannot be read") from None


def select_fields(body: bytes, names: frozenset[str], model: str = "") -> bytes:
    """The top-level fields of `body` that are in `names`, with `model`, sorted by name.

    What is inside a field stays in its order: a server's template may print a tool as it came.
    """
    selected: dict[str, msgspec.Raw | str] = {
        name: raw
        for name, raw in parse_fields(body).items()
        if name in names and not (model and name == "model")
    }
    return to_sorted_json(selected | ({"model": replace_surrogates(model)} if model else {}))


def to_sorted_json(fields_by_name: dict[str, msgspec.Raw | str]) -> bytes:
    """Fields as one JSON object, sorted by name."""
    return to_json({name: fields_by_name[name] for name in sorted(fields_by_name)})
