"""Counting endpoints: their interface, and what this process knows about each of them.

Capabilities are learned once per endpoint, not per model, for the lifetime of the process. A permanent
failure (404, 405, 501, or a success with the wrong content) is remembered. A timeout or a 5xx says nothing
about capabilities, since a busy server responds late. It only counts towards the circuit breaker: three
failures open it, and each failed trial doubles the wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
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
from foveate.tokens.tokenizers.bpe import replace_surrogates


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """State of a circuit breaker, as a value: each event returns the next state, and time is an argument."""

    failures_to_open: int = 3
    first_wait_seconds: float = 30.0
    max_wait_seconds: float = 300.0
    failures: int = 0
    wait_seconds: float = 0.0
    open_until: float = 0.0
    on_trial: bool = False

    @property
    def is_closed(self) -> bool:
        """Return whether no wait is running and no trial is due."""
        return self.wait_seconds == 0.0

    def allows(self, now: float) -> bool:
        return self.is_closed or now >= self.open_until

    def with_trial(self, now: float) -> "CircuitBreaker":
        """Start a trial if open. Other calls keep waiting, so only one call tries at a time."""
        if self.is_closed:
            return self
        return replace(self, open_until=now + self.wait_seconds, on_trial=True)

    def with_failure(self, now: float) -> "CircuitBreaker":
        """Record a failure: the third opens the breaker, and a failed trial doubles the wait.

        Calls that were under way when it opened do not count, or a burst of them would cause the longest wait.
        """
        failures = self.failures + 1
        if self.is_closed and failures < self.failures_to_open:
            return replace(self, failures=failures)
        if not self.is_closed and not self.on_trial:
            return self
        wait = min(self.wait_seconds * 2 or self.first_wait_seconds, self.max_wait_seconds)
        return replace(self, failures=failures, wait_seconds=wait, open_until=now + wait, on_trial=False)

    def with_success(self) -> "CircuitBreaker":
        return replace(self, failures=0, wait_seconds=0.0, open_until=0.0, on_trial=False)


UNSUPPORTED_STATUSES = frozenset((404, 405, 501))
# The server works, but rejects this body. Other bodies may be accepted.
REJECTED_BODY_STATUSES = frozenset((400, 413, 414, 415, 422))
# Subject of a query that is not a request in some format.
TEXT = "text"
# No context window is as large, so a larger count is wrong.
_MAX_TOKENS = 10**9


class Unsupported(Exception):
    """The endpoint does not count this; the message says why. Not a failure of the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """Everything that the response depends on, as JSON. Equal queries have equal bytes."""

    subject: str
    model: str
    body: bytes


class EndpointCounter(Protocol):
    """`url` identifies the server: all its routes share one circuit breaker."""

    name: str
    url: str

    def text_query(self, text: str, model: str) -> CountQuery:
        """Build the query for a text, or raise `Unsupported`. Takes long for a long text."""

    def request_query(self, request: Request) -> CountQuery:
        """Build the query for a whole request, or raise `Unsupported`. Takes long for a long request."""

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        """Fetch the count, or raise an `UpstreamError` or `Unsupported`."""


class TokenizeServer(StrEnum):
    LLAMA_CPP = "llama.cpp"
    VLLM = "vLLM"


@dataclass(slots=True)
class ServerCapabilities:
    """Known properties of a tokenize server. Updated by the counters that ask it."""

    server: TokenizeServer | None = None
    unsupported_error: UpstreamError | None = None
    missing_routes: set[str] = field(default_factory=set)
    accepts_model_names: bool = True


class EndpointRegistry:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}
        self._unsupported: dict[tuple[str, str], str] = {}
        # Bounded, since clients can name any number of models.
        self._unsupported_models: LruCache[str] = LruCache()
        self._capabilities: dict[str, ServerCapabilities] = {}
        self._last_errors: dict[str, str] = {}

    def unsupported_reason(self, url: str, subject: str, model: str = "") -> str | None:
        """Return why `url` cannot count `subject` (a text, or a format), or None.

        If the server lacks a model, only that model is unsupported.
        """
        return self._unsupported.get((url, subject)) or self._unsupported_models.get(
            _model_key(url, subject, model)
        )

    def capabilities(self, url: str) -> ServerCapabilities:
        return self._capabilities.setdefault(url, ServerCapabilities())

    def breaker(self, url: str) -> CircuitBreaker:
        return self._breakers.get(url, CircuitBreaker())

    @property
    def last_errors(self) -> dict[str, str]:
        """The last error of each endpoint, by address. A success clears it."""
        return dict(self._last_errors)

    def record_unsupported(self, url: str, reason: Unsupported) -> bool:
        """Record in `last_errors` why `url` was not asked, and return whether the reason is new."""
        message = f"{url}: {reason}"
        is_new = self._last_errors.get(url) != message
        self._last_errors[url] = message
        return is_new

    async def try_call(
        self, url: str, subject: str, model: str, call: Callable[[], Awaitable[TokenCount]]
    ) -> TokenCount | None:
        """Return the result of `call`, or None if it fails or the endpoint should not be asked now.

        Raises:
            Unsupported: raised by `call`; the state of the endpoint does not change.
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
            if self._breakers[url] is on_trial:  # the trial did not happen
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
    """The registry of the process, used by every `ConnectedCounter` without its own."""
    return EndpointRegistry()


def _model_key(*names: str) -> bytes:
    return hash_bytes(*(name.encode("utf-8", "surrogatepass") for name in names))


def is_permanent_failure(error: UpstreamError) -> bool:
    if isinstance(error, UpstreamStatus):
        return error.status in UNSUPPORTED_STATUSES
    return isinstance(error, UpstreamGarbled)


def is_unknown_model(error: UpstreamError) -> bool:
    """Return whether a 404 is about the model and not the route.

    Anthropic: "model: claude-x"; OpenAI and vLLM: "The model `x` does not exist"; Gemini: "models/x is not
    found for API version v1beta" (November 2026). For a missing route the message is just "Not Found".
    """
    return isinstance(error, UpstreamStatus) and error.status == 404 and "model" in error.detail.lower()


def parse_token_number(response: JsonReply, name: str, route: str) -> int:
    """Return the number called `name` in a response.

    Raises:
        UpstreamGarbled: it is missing, or not a plausible count.
    """
    number = parse_field(response, name, route)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_TOKENS:
        raise UpstreamGarbled(route, f"the response has no token count `{name}`")
    return number


def parse_field(response: JsonReply, name: str, route: str) -> object:
    """Return the value of `name` in a response, or None.

    Raises:
        UpstreamGarbled: it cannot be parsed.
    """
    try:
        return parse_json(response.get(name))
    except (MalformedRequest, ValueError):  # Python does not parse numbers of thousands of digits
        raise UpstreamGarbled(route, f"`{name}` in the response cannot be read") from None


def select_count_fields(body: bytes, names: frozenset[str], model: str = "") -> bytes:
    """Return a JSON object of the top-level fields of `body` in `names`, and `model`, sorted by name.

    The order inside a field is kept, since a server's template may print a tool as it is.
    """
    selected: dict[str, msgspec.Raw | str] = {
        name: raw
        for name, raw in parse_fields(body).items()
        if name in names and not (model and name == "model")
    }
    return to_sorted_json(selected | ({"model": replace_surrogates(model)} if model else {}))


def to_sorted_json(fields_by_name: dict[str, msgspec.Raw | str]) -> bytes:
    return to_json({name: fields_by_name[name] for name in sorted(fields_by_name)})
