"""Notifies open pages of changes by server-sent events.

The store is polled once a second for each watched target, and only while a page is open. So changes by other
processes of the same store are noticed too.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from foveate.errors import StoreUnavailable
from foveate.web.page import ConfigSnapshot

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
# Proxies close connections that are silent for long.
_POLLS_BETWEEN_KEEP_ALIVES = 15
MAX_SUBSCRIBERS = 200
"""Limit for open pages."""
_STORE_UNAVAILABLE = "away"


@dataclass(eq=False)
class _Subscriber:
    """An open page: the digest of what it shows (empty if unknown), and whether that has changed."""

    digest: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """Scope that a page watches: one session or all, of one agent or all."""

    session_id: str | None = None
    agent: str | None = None


@dataclass(eq=False)
class _TargetState:
    digest: str = ""
    subscribers: set[_Subscriber] = field(default_factory=set)


class ChangeFeed:
    """Notifies subscribers of changes. Use it in one event loop only.

    `read_state` returns a value that differs whenever the target has changed. A slow reader gets all changes
    since its last event as one.
    """

    def __init__(
        self,
        read_state: Callable[[WatchTarget], Awaitable[str]],
        current_config: Callable[[], ConfigSnapshot],
        *,
        is_shutting_down: Callable[[], bool] = lambda: False,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._read_state = read_state
        self._current_config = current_config
        self._is_shutting_down = is_shutting_down
        self._poll_seconds = poll_seconds
        self._targets: dict[WatchTarget, _TargetState] = {}
        self._poll_task: asyncio.Task[None] | None = None

    @property
    def subscriber_count(self) -> int:
        return sum(len(target_state.subscribers) for target_state in self._targets.values())

    async def compute_digest(self, target: WatchTarget) -> str:
        """Return a digest that differs whenever the target or the configuration has changed.

        Computed before a page is loaded, it tells whether that page is still current.
        """
        config = self._current_config()
        try:
            state = await self._read_state(target)
        except StoreUnavailable as error:
            _LOG.debug("live updates of the dashboard are paused, the store is unavailable: %s", error)
            state = _STORE_UNAVAILABLE
        except Exception:  # noqa: BLE001 - outermost border: polling must go on
            _LOG.exception("live updates of the dashboard failed, trying again")
            state = _STORE_UNAVAILABLE
        text = f"{state} {config.changes} {config.problem}"
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    async def events(self, target: WatchTarget, since: str = "") -> AsyncIterator[bytes]:
        """Yield events until the subscriber disconnects or the gateway ends.

        `since` is the digest of the open page; without it, the page is taken to be current.
        """
        if self.subscriber_count >= MAX_SUBSCRIBERS:
            yield b"retry: 60000\n\n"
            return
        target_state = self._targets.setdefault(target, _TargetState())
        subscriber = _Subscriber(since or target_state.digest)
        target_state.subscribers.add(subscriber)
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_loop())
        try:
            yield b"retry: 2000\n\n"
            polls = 0
            # Checked here too, since polling the store can be slow.
            while not self._has_ended():
                polls += 1
                if await _wait_for_event(subscriber.changed, within_seconds=self._poll_seconds):
                    previous_digest, subscriber.digest = subscriber.digest, target_state.digest
                    if previous_digest:
                        yield f"id: {subscriber.digest}\nevent: changed\ndata: -\n\n".encode()
                elif polls % _POLLS_BETWEEN_KEEP_ALIVES == 0:
                    yield b": keep-alive\n\n"
        finally:
            target_state.subscribers.discard(subscriber)
            if not target_state.subscribers and self._targets.get(target) is target_state:
                del self._targets[target]

    def _has_ended(self) -> bool:
        return self._is_shutting_down() or not self._current_config().settings.server.page

    async def _poll_loop(self) -> None:
        while self._targets:
            for target, target_state in list(self._targets.items()):
                target_state.digest = await self.compute_digest(target)
                for subscriber in target_state.subscribers:
                    if subscriber.digest != target_state.digest:
                        subscriber.changed.set()
            await asyncio.sleep(self._poll_seconds)


async def _wait_for_event(event: asyncio.Event, *, within_seconds: float) -> bool:
    try:
        async with asyncio.timeout(within_seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
