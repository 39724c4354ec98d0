"""What is known of each counting endpoint of this process: whether it can, and whether it is worth asking.

Learnt once per endpoint, not per model. A definite no (404, 405, 501, or a success of the wrong shape) is
remembered; a time-out or a 5xx is no answer to that question and only counts against the breaker, because a
busy server answers late.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from foveate.errors import UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.tokens.breaker import Breaker
from foveate.upstream import Reply
from foveate.values import Request, TokenCount
from foveate.wire.body import value

DEFINITE_NO = frozenset((404, 405, 501))
# The server is well, it only will not count this: no reason to stop asking it about others.
REFUSES_THIS = frozenset((400, 413, 414, 415, 422))


class Unsupported(Exception):
    """This endpoint does not count such a thing; nothing is held against it."""


class EndpointCounter(Protocol):
    """A server that counts. `url` is what it is known by: its routes stand or fall together."""

    name: str
    url: str

    async def text(self, text: str, model: str) -> TokenCount:
        """The count of a text, or an `UpstreamError`, or `Unsupported`."""

    async def request(self, request: Request) -> TokenCount:
        """The count of a whole request, or an `UpstreamError`, or `Unsupported`."""


class Endpoints:
    """The memory of a process about the endpoints it asked."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self._cannot: dict[tuple[str, ...], str] = {}
        self._troubles: dict[str, str] = {}

    def why_not(self, url: str, subject: str, model: str = "") -> str | None:
        """The definite no of `url` to counting `subject` (a text, a format), or None while there is none.

        A no can also be to one model only, which the server does not have.
        """
        return self._cannot.get((url, subject)) or self._cannot.get((url, subject, model))

    def breaker(self, url: str) -> Breaker:
        """The state of the breaker of `url`."""
        return self._breakers.get(url, Breaker())

    @property
    def troubles(self) -> dict[str, str]:
        """Why the last call to an endpoint gave no count, by its address; nothing of one that gave a count."""
        return dict(self._troubles)

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
            self._cannot[(url, subject, model) if blames_model(error) else (url, subject)] = str(error)
        elif not (isinstance(error, UpstreamStatus) and error.status in REFUSES_THIS):
            self._breakers[url] = self.breaker(url).failed(self._clock())
            return
        self._breakers[url] = self.breaker(url).succeeded()


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
        UpstreamGarbled: there is none.
    """
    found = value(reply.get(name))
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise UpstreamGarbled(route, f"no `{name}` in the answer")
    return found
