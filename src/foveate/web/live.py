"""Tells browsers that stay on a page that something has changed: server-sent events.

The store is asked once a second for all that look at the same thing, and only while somebody looks: so one sees
what other processes of the same store do as well.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from foveate.errors import StoreUnavailable
from foveate.web.inside import Configured

_LOG = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
# A connection on which nothing is said for long is taken for dead by what is in between.
_QUIET_BEATS = 15
MOST_LOOKING = 200
"""So many can be told at once."""
_AWAY = "away"


@dataclass(eq=False)
class _Listener:
    """One that is told: which pulse its page is of (empty: of none yet), and whether there is another."""

    pulse: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Watched:
    """The changes that somebody watches: of a session, or of all sessions; of one agent, or of all agents."""

    session_id: str | None = None
    agent: str | None = None


@dataclass(eq=False)
class _Audience:
    pulse: str = ""
    listeners: set[_Listener] = field(default_factory=set)


class Live:
    """Who is told of what. For one event loop.

    `found` is what the store says of what is watched, which is another as soon as something has changed.
    However slowly somebody reads, nothing piles up for them: what happened meanwhile is told as one change.
    """

    def __init__(
        self,
        found: Callable[[Watched], Awaitable[str]],
        configured: Callable[[], Configured],
        *,
        is_ending: Callable[[], bool] = lambda: False,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._found = found
        self._configured = configured
        self._is_ending = is_ending
        self._every_seconds = every_seconds
        self._watched: dict[Watched, _Audience] = {}
        self._asking: asyncio.Task[None] | None = None

    @property
    def looking(self) -> int:
        """How many are told."""
        return sum(len(audience.listeners) for audience in self._watched.values())

    async def pulse(self, watched: Watched) -> str:
        """What is another as soon as something has changed of what is watched, or the configuration.

        Taken before a page is looked up, it tells whether that page is still the newest.
        """
        configured = self._configured()
        try:
            found = await self._found(watched)
        except StoreUnavailable as error:
            _LOG.debug("nobody can be told of changes: %s", error)
            found = _AWAY
        except Exception:  # noqa: BLE001 - nobody waits for it, and those who look are to be told of what comes next
            _LOG.exception("nobody can be told of changes")
            found = _AWAY
        said = f"{found} {configured.changes} {configured.problem}"
        return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:16]

    async def events(self, watched: Watched, since: str = "") -> AsyncIterator[bytes]:
        """What is told of changes until whoever listens goes, or the gateway ends.

        `since` is the pulse of the page that is shown; without it, what is there now is taken to be shown.
        """
        if self.looking >= MOST_LOOKING:
            yield b"retry: 60000\n\n"
            return
        audience = self._watched.setdefault(watched, _Audience())
        listener = _Listener(since or audience.pulse)
        audience.listeners.add(listener)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            yield b"retry: 2000\n\n"
            beats = 0
            # It looks by itself whether it is to end: the store may take its time.
            while not self._is_over():
                beats += 1
                if await _woken(listener.woken, within_seconds=self._every_seconds):
                    before, listener.pulse = listener.pulse, audience.pulse
                    if before:
                        yield f"id: {listener.pulse}\nevent: changed\ndata: -\n\n".encode()
                elif beats % _QUIET_BEATS == 0:
                    yield b": still here\n\n"
        finally:
            audience.listeners.discard(listener)
            if not audience.listeners and self._watched.get(watched) is audience:
                del self._watched[watched]

    def _is_over(self) -> bool:
        return self._is_ending() or not self._configured().settings.server.page

    async def _ask(self) -> None:
        while self._watched:
            for watched, audience in list(self._watched.items()):
                audience.pulse = await self.pulse(watched)
                for listener in audience.listeners:
                    if listener.pulse != audience.pulse:
                        listener.woken.set()
            await asyncio.sleep(self._every_seconds)


async def _woken(event: asyncio.Event, *, within_seconds: float) -> bool:
    try:
        async with asyncio.timeout(within_seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
