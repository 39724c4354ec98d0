"""Loads how agents have worked so far, for forecasts of their sessions."""

import asyncio
import logging
import math
from collections.abc import Callable

from foveate.compaction.forecast import ActivityStore
from foveate.engine.exchange import Exchange
from foveate.engine.session_state import SessionStates
from foveate.errors import StoreUnavailable

_LOG = logging.getLogger(__name__)

# Sessions that are idle for longer have ended, as far as forecasts are concerned.
_ENDED_SECONDS = 3600.0
_INTERVAL_SECONDS = 600.0


class LoadActivity:
    """Loads the activity of all agents in the background: with `start`, and later every few minutes as long as
    requests arrive. So it survives restarts, and includes what other processes serve.
    """

    def __init__(
        self, store: ActivityStore, session_states: SessionStates, *, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._session_states = session_states
        self._clock = clock
        self._loaded_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    def __call__(self, exchange: Exchange) -> None:
        if self._clock() - self._loaded_at >= _INTERVAL_SECONDS:
            self.start()

    def start(self) -> None:
        self._loaded_at = self._clock()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._load())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load(self) -> None:
        try:
            activities = await self._store.load(ended_before=self._clock() - _ENDED_SECONDS)
        except StoreUnavailable as error:
            _LOG.warning("activity of agents could not be loaded, forecasts go on without it: %s", error)
        else:
            self._session_states.set_activities(activities)
