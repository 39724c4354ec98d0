"""Prefix logs of all agents, and the background task that saves which prefixes are reused."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from foveate.engine.background.debounce import Debouncer
from foveate.engine.exchange import Exchange
from foveate.errors import StoreUnavailable
from foveate.prompt_cache.placement.prefix_log import PrefixLog
from foveate.prompt_cache.placement.reuse import UNKNOWN_AGENT, AgentReuse, ReuseStore

_LOG = logging.getLogger(__name__)

MAX_LOGS = 256
"""Maximum number of agents whose prefixes are remembered."""
MAX_AGENTS = 1024
"""Maximum number of agents whose reuse of prefixes is known."""
SAVE_SECONDS = 5.0


class PrefixLogs:
    """A log per agent, most recently used first. For one event loop."""

    def __init__(self, known: Mapping[str, AgentReuse] | None = None) -> None:
        self._logs: OrderedDict[str, PrefixLog] = OrderedDict()
        self._known_reuse = OrderedDict(known or {})
        self._changed: set[str] = set()

    def open(self, agent: str) -> PrefixLog:
        log = self._logs.get(agent)
        if log is None:
            log = self._logs[agent] = PrefixLog(self._known_reuse.get(agent, UNKNOWN_AGENT))
            if len(self._logs) > MAX_LOGS:
                oldest, closed = self._logs.popitem(last=False)
                self._set_reuse(oldest, closed.reuse)
        self._logs.move_to_end(agent)
        self._changed.add(agent)
        if len(self._changed) > MAX_AGENTS:
            self._changed.pop()
        return log

    def adopt(self, others: Mapping[str, AgentReuse]) -> None:
        """Take over what other gateways have learned from more requests."""
        for agent, reuse in others.items():
            if reuse.requests > self._reuse(agent).requests:
                self._set_reuse(agent, reuse)
                if agent in self._logs:
                    self._logs[agent].reuse = reuse

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> dict[str, AgentReuse]:
        changed, self._changed = self._changed, set()
        return {agent: self._reuse(agent) for agent in changed}

    def _reuse(self, agent: str) -> AgentReuse:
        log = self._logs.get(agent)
        return self._known_reuse.get(agent, UNKNOWN_AGENT) if log is None else log.reuse

    def _set_reuse(self, agent: str, reuse: AgentReuse) -> None:
        self._known_reuse[agent] = reuse
        self._known_reuse.move_to_end(agent)
        if len(self._known_reuse) > MAX_AGENTS:
            self._known_reuse.popitem(last=False)


class SaveReuse:
    """Saves changes of the logs every few seconds, and loads those of other gateways. Close it with `close`."""

    def __init__(
        self,
        store: ReuseStore,
        logs: PrefixLogs,
        *,
        clock: Callable[[], float],
        interval_seconds: float = SAVE_SECONDS,
    ) -> None:
        self._store = store
        self._logs = logs
        self._clock = clock
        self._loaded_at = clock()
        self._debouncer = Debouncer(self._sync, interval_seconds)

    def __call__(self, exchange: Exchange) -> None:
        if self._logs.has_changes:
            self._debouncer.request()

    async def close(self) -> None:
        await self._debouncer.close()

    async def _sync(self) -> None:
        changes = self._logs.take_changes()
        if not changes:
            return
        now = self._clock()
        try:
            await self._store.save(changes, now=now)
            # Clocks of other gateways may be slightly behind.
            others = await self._store.load(since=self._loaded_at - 2 * SAVE_SECONDS, limit=MAX_AGENTS)
        except StoreUnavailable as error:  # the agents' next requests change it again
            _LOG.warning("prefix reuse of %d agents could not be saved: %s", len(changes), error)
            return
        self._loaded_at = now
        self._logs.adopt(others)


async def load_prefix_logs(store: ReuseStore) -> PrefixLogs:
    """Load saved logs; empty ones if the store cannot be read."""
    try:
        return PrefixLogs(await store.load(since=0.0, limit=MAX_AGENTS))
    except StoreUnavailable as error:
        _LOG.warning("prefix reuse could not be loaded, starting without it: %s", error)
        return PrefixLogs()
