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

from foveate.errors import MalformedRequest, UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.tokens.bpe import without_surrogates
from foveate.tokens.breaker import Breaker
from foveate.tokens.memo import Memo, digest
from foveate.upstream import Reply
from foveate.values import Request, TokenCount
from foveate.wire.body import compact, fields, value

DEFINITE_NO = frozenset((404, 405, 501))
# The server is well, it only will not count this: no reason to stop asking it about others.
REFUSES_THIS = frozenset((400, 413, 414, 415, 422))
# What a question is about, where it is not a request of some format.
TEXT = "text"
# No window is as long; whatever counts more has miscounted.
_MOST_TOKENS = 10**9


class Unsupported(Exception):
    """This endpoint does not count such a thing, which its text says; nothing is held against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that an endpoint's answer depends on, in JSON: equal questions have equal bytes."""

    subject: str
    model: str
    body: bytes


class EndpointCounter(Protocol):
    """A server that counts. `url` is what it is known by: its routes stand or fall together."""

    name: str
    url: str

    def text(self, text: str, model: str) -> Question:
        """What to ask about a text, or `Unsupported`. Takes time where the text is long."""

    def request(self, request: Request) -> Question:
        """What to ask about a whole request, or `Unsupported`. Takes time where the request is long."""

    async def answer(self, question: Question) -> TokenCount:
        """The count, or an `UpstreamError`, or `Unsupported`."""


class Dialect(StrEnum):
    """Who answers at `/tokenize`."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vLLM"


@dataclass(slots=True)
class Learnt:
    """What was found out about a server that tokenises; filled in by whoever asks it."""

    dialect: Dialect | None = None
    definite_no: UpstreamError | None = None
    missing_routes: set[str] = field(default_factory=set)
    knows_our_names: bool = True


class Endpoints:
    """The memory of a process about the endpoints it asked."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self._cannot: dict[tuple[str, str], str] = {}
        # Models are named by clients, who may name as many as they like.
        self._cannot_for_model: Memo[str] = Memo()
        self._learnt: dict[str, Learnt] = {}
        self._troubles: dict[str, str] = {}

    def why_not(self, url: str, subject: str, model: str = "") -> str | None:
        """The definite no of `url` to counting `subject` (a text, a format), or None while there is none.

        A no can also be to one model only, which the server does not have.
        """
        return self._cannot.get((url, subject)) or self._cannot_for_model.get(_key(url, subject, model))

    def learnt(self, url: str) -> Learnt:
        """What is known of the tokenizer at `url`, for all who ask it."""
        return self._learnt.setdefault(url, Learnt())

    def breaker(self, url: str) -> Breaker:
        """The state of the breaker of `url`."""
        return self._breakers.get(url, Breaker())

    @property
    def troubles(self) -> dict[str, str]:
        """Why an endpoint gave no count the last time, by its address; nothing of one that gave a count."""
        return dict(self._troubles)

    def passed_over(self, url: str, reason: Unsupported) -> bool:
        """Keep in `troubles` why `url` could not be asked, and return whether that is new."""
        said = f"{url}: {reason}"
        is_new = self._troubles.get(url) != said
        self._troubles[url] = said
        return is_new

    async def ask(
        self, url: str, subject: str, model: str, call: Callable[[], Awaitable[TokenCount]]
    ) -> TokenCount | None:
        """What `call` gives, or None where it is not worth making or fails.

        Raises:
            Unsupported: `call` did; nothing was learnt.
        """
        now = self._clock()
        before = self.breaker(url)
        if self.why_not(url, subject, model) or not before.allows(now):
            return None
        during = self._breakers[url] = before.tried(now)
        try:
            count = await call()
        except UpstreamError as error:
            self._troubles[url] = str(error)
            self._note(url, subject, model, error)
            return None
        except (Unsupported, asyncio.CancelledError):
            if self._breakers[url] is during:  # the trial has not taken place
                self._breakers[url] = before
            raise
        self._troubles.pop(url, None)
        self._breakers[url] = self.breaker(url).succeeded()
        return count

    def _note(self, url: str, subject: str, model: str, error: UpstreamError) -> None:
        if is_definite_no(error):
            if blames_model(error):
                self._cannot_for_model.put(_key(url, subject, model), str(error))
            else:
                self._cannot[url, subject] = str(error)
        elif not (isinstance(error, UpstreamStatus) and error.status in REFUSES_THIS):
            self._breakers[url] = self.breaker(url).failed(self._clock())
            return
        self._breakers[url] = self.breaker(url).succeeded()


@cache
def shared_endpoints() -> Endpoints:
    """What this process knows: every `Counting` that is not given its own shares it."""
    return Endpoints()


def _key(*names: str) -> bytes:
    return digest(*(name.encode("utf-8", "surrogatepass") for name in names))


def is_definite_no(error: UpstreamError) -> bool:
    """Whether asking again would get the same answer."""
    if isinstance(error, UpstreamStatus):
        return error.status in DEFINITE_NO
    return isinstance(error, UpstreamGarbled)


def blames_model(error: UpstreamError) -> bool:
    """Whether a 404 is about the model and not the route.

    Anthropic: "model: claude-x"; OpenAI and vLLM: "The model `x` does not exist"; Gemini: "models/x is not
    found for API version v1beta" (November 2026). A route that is missing is called "Not Found" and no more.
    """
    return isinstance(error, UpstreamStatus) and error.status == 404 and "model" in error.detail.lower()


def number_in(reply: Reply, name: str, route: str) -> int:
    """The number called `name` in a reply.

    Raises:
        UpstreamGarbled: there is none, or one that no count can be.
    """
    found = value_in(reply, name, route)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _MOST_TOKENS:
        raise UpstreamGarbled(route, f"no number of tokens as `{name}` in the answer")
    return found


def value_in(reply: Reply, name: str, route: str) -> object:
    """What a reply says under `name`; None where it says nothing.

    Raises:
        UpstreamGarbled: it cannot be read.
    """
    try:
        return value(reply.get(name))
    except (MalformedRequest, ValueError):  # Python makes no number of thousands of digits
        raise UpstreamGarbled(route, f"`{name}` in the answer cannot be read") from None


def selected(body: bytes, names: frozenset[str], model: str = "") -> bytes:
    """The top-level fields of `body` that are in `names`, with `model`, sorted by name.

    What is inside a field stays in its order: a server's template may print a tool as it came.
    """
    kept: dict[str, msgspec.Raw | str] = {
        name: raw for name, raw in fields(body).items() if name in names and not (model and name == "model")
    }
    return in_order(kept | ({"model": without_surrogates(model)} if model else {}))


def in_order(kept: dict[str, msgspec.Raw | str]) -> bytes:
    """Fields as one JSON object, sorted by name."""
    return compact({name: kept[name] for name in sorted(kept)})
