"""Tells browsers that stay on a page that something has changed: server-sent events.

The store is asked once a second for all that look at the same thing, and only while somebody looks: so one sees
what other processes of the same store do as well.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from foveate.errors import StoreUnavailable
from foveate.web.inside import Inside

_LOG = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
# A connection on which nothing is said for long is taken for dead by what is in between.
_QUIET_BEATS = 15
MOST_LOOKING = 200
"""So many can be told at once."""


@dataclass
class _Heard:
    pulse: str | None = None
    listeners: set["asyncio.Queue[str]"] = field(default_factory=set)


class Live:
    """Who is told of what. For one event loop."""

    def __init__(self, inside: Inside, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._inside = inside
        self._every_seconds = every_seconds
        self._heard: dict[str | None, _Heard] = {}
        self._asking: asyncio.Task[None] | None = None

    @property
    def looking(self) -> int:
        """How many are told."""
        return sum(len(heard.listeners) for heard in self._heard.values())

    async def events(self, session_id: str | None) -> AsyncIterator[bytes]:
        """What is told of a session, or of everything, until whoever listens goes, or the gateway ends."""
        heard = self._heard.setdefault(session_id, _Heard())
        told: asyncio.Queue[str] = asyncio.Queue()
        heard.listeners.add(told)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            yield b"retry: 2000\n\n"
            while (event := await told.get()) != "end":
                yield b": still here\n\n" if event == "quiet" else f"event: {event}\ndata: -\n\n".encode()
        finally:
            heard.listeners.discard(told)
            if not heard.listeners:
                self._heard.pop(session_id, None)

    async def _ask(self) -> None:
        beats = 0
        while self._heard:
            beats += 1
            for session_id, heard in list(self._heard.items()):
                event = await self._event(session_id, heard)
                if event is None and beats % _QUIET_BEATS == 0:
                    event = "quiet"
                if event is not None:
                    for listener in heard.listeners:
                        listener.put_nowait(event)
            await asyncio.sleep(self._every_seconds)

    async def _event(self, session_id: str | None, heard: _Heard) -> str | None:
        if self._inside.is_ending():
            return "end"
        configured = self._inside.configured()
        try:
            found = await self._inside.store.totals.pulse(session_id)  # type: ignore[attr-defined]
        except StoreUnavailable as error:
            _LOG.debug("nobody can be told of changes: %s", error)
            found = "away"
        except Exception:  # noqa: BLE001 - nobody waits for it, and those who look are to be told of what comes next
            _LOG.exception("nobody can be told of changes")
            found = "away"
        pulse = f"{found} {configured.changes} {configured.problem}"
        before, heard.pulse = heard.pulse, pulse
        return "changed" if before is not None and before != pulse else None
