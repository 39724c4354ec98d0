"""A gateway under test by a fuzzer: its upstream, its ledger, and every fault that it logs."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from threading import get_ident

from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from foveate.engine.options import AgentOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, ThreadMode, Upstream
from tests.support.oracles.system_state import open_sockets, wait_until
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import Behaviour, ScriptedUpstream, running_upstream

_ROWS = """
SELECT call_id, picodollars, uncached, read, written_5m, written_1h, output_tokens, reasoning_tokens
FROM ledger_v1 WHERE category = 'main' ORDER BY rowid DESC LIMIT ?
"""
_COUNT = (
    "SELECT (SELECT count(*) FROM ledger_v1 WHERE category = 'main'), (SELECT count(*) FROM reservations_v1)"
)
_WAIT_SECONDS = 10.0
# A leak leaves one or more for each example.
_MAX_IDLE_TASKS = _MAX_IDLE_SOCKETS = 30


@dataclass(frozen=True)
class LedgerRow:
    """A charge in the ledger; `picodollars` is None if the cost is unknown."""

    call_id: str
    picodollars: int | None
    tokens: tuple[int, ...]


class _FaultLog(logging.Handler):
    """Collects errors, and whatever is logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.faults.append(logging.Formatter("%(name)s: %(message)s").format(record))


@dataclass
class FuzzedGateway:
    """A gateway in front of a scripted upstream. `faults` are errors that it logs.

    With `edits`, it may change requests beyond asking for usage.
    """

    gateway: RunningGateway
    upstream: ScriptedUpstream
    faults: list[str]
    edits: bool = True
    _connect: Callable[[], sqlite3.Connection] = field(repr=False, kw_only=True)
    _connections: dict[int, sqlite3.Connection] = field(default_factory=dict, repr=False)
    _seen_rows: int = 0

    def _store(self) -> sqlite3.Connection:
        thread = get_ident()
        if thread not in self._connections:
            self._connections[thread] = self._connect()
        return self._connections[thread]

    def new_rows(self, expected: int) -> Sequence[LedgerRow]:
        """Return the rows since the last call, once there are as many as expected and nothing is reserved.

        A row more than expected, or a reservation that stays, is found at the latest by the next call.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            rows, reserved = self._store().execute(_COUNT).fetchone()
            if (rows - self._seen_rows >= expected and not reserved) or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        assert not reserved, f"{reserved} reservations are left"
        new, self._seen_rows = rows - self._seen_rows, rows
        return [LedgerRow(row[0], row[1], row[2:8]) for row in self._store().execute(_ROWS, (new,))]

    def check_idle(self) -> None:
        """Check that no tasks and connections are left except those that serve all requests."""
        loop = self.gateway.loop
        assert loop is not None
        wait_until(lambda: len(asyncio.all_tasks(loop)), lambda tasks: tasks <= _MAX_IDLE_TASKS)
        assert len(asyncio.all_tasks(loop)) <= _MAX_IDLE_TASKS
        wait_until(open_sockets, lambda sockets: sockets <= _MAX_IDLE_SOCKETS)
        assert open_sockets() <= _MAX_IDLE_SOCKETS

    def take_faults(self) -> list[str]:
        """Return and forget the faults so far."""
        faults = list(self.faults)
        self.faults.clear()
        return faults


def _upstreams(url: str, threads: ThreadMode) -> Sequence[Upstream]:
    return (
        Upstream(
            name="anthropic", base_url=url, family=ApiFamily.ANTHROPIC, provider="anthropic", threads=threads
        ),
        Upstream(name="openai", base_url=f"{url}/v1", family=ApiFamily.OPENAI, provider="openai"),
        Upstream(name="azure", base_url=url, family=ApiFamily.AZURE, provider="azure"),
        Upstream(name="bedrock", base_url=url, family=ApiFamily.BEDROCK, provider="bedrock"),
        Upstream(name="vertex", base_url=url, family=ApiFamily.VERTEX, provider="vertex"),
    )


@contextmanager
def fuzzed_gateway(
    folder: Path,
    behave: Behaviour,
    *,
    options: AgentOptions,
    routes: Sequence[Route] = (),
    threads: ThreadMode = ThreadMode.HOLD,
) -> Iterator[FuzzedGateway]:
    """Run a gateway whose agents have a cap that is never reached: each call is reserved and released."""
    log = _FaultLog()
    caps = [Cap(scope=CapScope.AGENT, dollars=Decimal("1e6"), unknown=UnknownPricePolicy.ALLOW)]
    logging.getLogger().addHandler(log)
    try:
        with (
            running_upstream(behave) as upstream,
            running_gateway(
                upstream.url,
                folder,
                options=options,
                caps=caps,
                upstreams=_upstreams(upstream.url, threads),
                routes=routes,
            ) as gateway,
        ):
            store = folder / "gateway.sqlite"
            fuzzed = FuzzedGateway(
                gateway,
                upstream,
                log.faults,
                _connect=lambda: sqlite3.connect(
                    f"file:{store}?mode=ro", uri=True, timeout=20, isolation_level=None
                ),
            )
            yield fuzzed
            fuzzed.check_idle()
            for connection in fuzzed._connections.values():
                connection.close()
    finally:
        logging.getLogger().removeHandler(log)
