"""What is known of each counting endpoint of this process: whether it can, and whether it is worth asking.

Learnt once per endpoint, not per model. A definite no (404, 405, 501, or a success of the wrong shape) is
remembered; a time-out or a 5xx is no answer to that question and only counts against the breaker, because a
busy server answers late.
"""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from foveate.errors import (
    UpstreamError,
    UpstreamGarbled,
    UpstreamStatus,
)
from foveate.tokens.breaker import Breaker
from foveate.values import Request, TokenCount

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
        self._cannot: dict[tuple[str, str], str] = {}

    def why_not(self, url: str, subject: str) -> str | None:
        """The definite no of `url` to counting `subject` (a text, a format), or None while there is none."""
        return self._cannot.get((url, subject))

    def breaker(self, url: str) -> Breaker:
        """The state of the breaker of `url`."""
        return self._breakers.get(url, Breaker())

    async def ask(self, url: str, subject: str, call: Callable[[], Awaitable[TokenCount]]) -> TokenCount | None:
        """What `call` gives, or None where it is not worth making, fails, or cannot answer."""
        now = self._clock()
        breaker = self.breaker(url)
        if (url, subject) in self._cannot or not breaker.allows(now):
            return None
        self._breakers[url] = breaker.tried(now)
        try:
            count = await call()
        except Unsupported:
            self._breakers[url] = breaker
            return None
        except UpstreamError as error:
            self._note(url, subject, error)
            return None
        self._breakers[url] = self.breaker(url).succeeded()
        return count

    def _note(self, url: str, subject: str, error: UpstreamError) -> None:
        if isinstance(error, UpstreamGarbled) or (
            isinstance(error, UpstreamStatus) and error.status in DEFINITE_NO
        ):
            self._cannot[url, subject] = str(error)
            self._breakers[url] = self.breaker(url).succeeded()
        elif isinstance(error, UpstreamStatus) and error.status in REFUSES_THIS:
            self._breakers[url] = self.breaker(url).succeeded()
        else:
            self._breakers[url] = self.breaker(url).failed(self._clock())
