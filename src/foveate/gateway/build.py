"""Builds the gateway from the resolved configuration: store, engine, connections, web pages and jobs."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

from foveate.config.effective_settings import EffectiveSetting, redact_url
from foveate.config.live_settings import LiveSettings
from foveate.config.settings import Settings, TimeoutSettings, TlsSettings
from foveate.cost.admission import AdmissionOptions
from foveate.engine.background.cache_misses import CacheMissDetector
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.background.keepalive import KeepAliveScheduler
from foveate.engine.background.rate_limits import SaveRateLimits
from foveate.engine.background.request_archive import RequestArchiver
from foveate.engine.background.tracing import SaveTraces
from foveate.engine.build import build_engine
from foveate.engine.counting.calibration import SaveCalibrations, load_calibrations
from foveate.engine.counting.offline_counters import is_counter_loaded, load_counter
from foveate.engine.counting.remote_counter import RemoteCounter
from foveate.engine.embeddings import EmbeddingsEngine
from foveate.engine.metrics.registry import Sample
from foveate.engine.observer import NO_OBSERVER, Observer
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.engine.sections.collect import SpendingSource
from foveate.engine.sections.sources import SectionSources
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.spending.edit_planner import LoadActivity
from foveate.engine.spending.observed_admission import ObservedAdmission, adopt_orphans
from foveate.engine.steps.cache import SaveReuse, load_prefix_logs
from foveate.engine.steps.sections import InjectSections
from foveate.errors import FoveateError, StoreUnavailable
from foveate.gateway.app import PAGES_PREFIX, Gateway, GatewayOptions
from foveate.gateway.auth.page_access import guard_pages, is_loopback
from foveate.gateway.config import ResolvedConfig, describe_settings
from foveate.gateway.observability.health import health_to_json
from foveate.gateway.observability.instrumentation import Instrumentation, ObservedParts
from foveate.gateway.observability.request_observer import NO_REQUEST_OBSERVER
from foveate.gateway.request import AsgiApp
from foveate.http import JsonClient
from foveate.http.pool import ConnectionPool, Timeouts
from foveate.http.proxies import ProxyRules
from foveate.prompt_cache.rules import CACHE_BETA_VARIABLE
from foveate.session.recent_sessions import Broadcast
from foveate.session.rollups import RollupStore, TotalsGroup
from foveate.store import PruneResult, Store, is_server, open_store, store_name
from foveate.store.outbox import FileOutbox, FileWriteAheadLog

_LOG = logging.getLogger(__name__)
# Not at startup, when there is most to do, and often enough that each run is short.
RETENTION_DELAY_SECONDS = 300.0
RETENTION_INTERVAL_SECONDS = 6 * 3600.0
_DAY_SECONDS = 86_400.0
# The vocabularies of models used since then are loaded at startup, but not more: each takes 10 to 40 MB.
_RECENT_SECONDS = 7 * 24 * 3600.0
_MAX_RECENT_VOCABULARIES = 4


class TrimmedArchive(Protocol):
    async def trim(self, *, before: float, max_bytes: int) -> int:
        """Delete requests before that time, and the oldest beyond `max_bytes`."""


class RetentionStore(Protocol):
    @property
    def request_archive(self) -> TrimmedArchive: ...

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        """Delete what was not used for `keep_days`."""


@asynccontextmanager
async def run_retention(
    store: RetentionStore,
    settings: Callable[[], Settings],
    *,
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Until the end of the block, delete what the settings do not keep, every few hours."""
    task = asyncio.create_task(_retention_loop(store, settings, clock, wait))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _retention_loop(
    store: RetentionStore,
    settings: Callable[[], Settings],
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]],
) -> None:
    seconds = RETENTION_DELAY_SECONDS
    while True:
        await wait(seconds)
        seconds = RETENTION_INTERVAL_SECONDS
        now, days, archive = clock(), settings().store.keep_days, settings().keep_requests
        try:
            deleted = await store.prune(keep_days=days, now=now)
            expired_at = now - archive.days * _DAY_SECONDS
            await store.request_archive.trim(before=expired_at, max_bytes=archive.most_bytes)
        except FoveateError as error:
            _LOG.warning("old data could not be deleted, retrying later: %s", error)
            continue
        if deleted != PruneResult():
            _LOG.info(
                "deleted data not used for %g days: %d sessions, %d turns, %d compactions",
                days,
                deleted.sessions,
                deleted.turns,
                deleted.folds,
            )


_OTHER_GATEWAYS_INTERVAL_SECONDS = 2.0


class SharedStore(Protocol):
    async def has_other_gateways(self) -> bool: ...


@asynccontextmanager
async def watch_other_gateways(
    store: SharedStore, *, interval_seconds: float = _OTHER_GATEWAYS_INTERVAL_SECONDS
) -> AsyncIterator[Callable[[], bool]]:
    """Yield a function that returns whether other gateways used the store a moment ago; true if unknown."""
    latest = [True]
    try:
        latest[0] = await store.has_other_gateways()
    except StoreUnavailable as error:
        _LOG.warning("other gateways with this store cannot be found, assuming that there are some: %s", error)

    async def watch() -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            with suppress(FoveateError):
                latest[0] = await store.has_other_gateways()

    task = asyncio.create_task(watch())
    try:
        yield lambda: latest[0]
    finally:
        task.cancel()
        await asyncio.wait([task])


# Summaries of long histories are slow.
_SUMMARY_SECONDS = 300.0
# Time for everything in a call except waiting for the provider.
_MARGIN_SECONDS = 60.0
# With our breakpoints and two parameters, then without each of them.
_MAX_SENDS = 4
# The call timeout can be raised to this while the gateway runs.
_MAX_RAISED_SECONDS = 172_800.0


def admission_options(timeouts: TimeoutSettings) -> AdmissionOptions:
    """Return reservation lifetimes that are longer than any call can take.

    A call is sent again if the provider rejects our breakpoints or one of our parameters.
    """
    max_seconds = max(
        _MAX_SENDS * (timeouts.connect_seconds + timeouts.total_seconds), _SUMMARY_SECONDS, _MAX_RAISED_SECONDS
    )
    return AdmissionOptions(lifetime_seconds=max_seconds + _MARGIN_SECONDS)


def upstream_timeouts(timeouts: TimeoutSettings, *, lifetime_seconds: float) -> Timeouts:
    """Return the configured timeouts, limited so that no call outlives its reservation."""
    covered_seconds = (lifetime_seconds - _MARGIN_SECONDS) / _MAX_SENDS - timeouts.connect_seconds
    return Timeouts(
        connect_seconds=timeouts.connect_seconds,
        idle_seconds=timeouts.idle_seconds,
        total_seconds=min(timeouts.total_seconds, max(covered_seconds, _MARGIN_SECONDS)),
        keep_alive_seconds=timeouts.keep_alive_seconds,
    )


def build_web_ui(
    live: LiveSettings[ResolvedConfig],
    environment: Mapping[str, str],
    store: Store,
    sources: SectionSources,
    *,
    version: str,
    samples: Callable[[], list[Sample]],
    health: Callable[[], Awaitable[Mapping[str, Any]]],
    is_shutting_down: Callable[[], bool],
    clock: Callable[[], float],
) -> dict[str, AsgiApp]:
    # Importing the pages takes a tenth of a second, and only a served gateway needs them.
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    from foveate.web.app import ROOT_PATH, create_app
    from foveate.web.page import ConfigSnapshot, GatewayData

    def snapshot_config() -> ConfigSnapshot:
        now = live.current()
        return ConfigSnapshot(
            path=live.path,
            since=now.since,
            changes=now.changes,
            problem=now.problem,
            settings=now.value.settings,
            options=now.value.agents,
            caps=now.value.cost.caps,
            waiting={name: _display_value(value) for name, value in live.needs_restart.items()},
        )

    cached: list[tuple[ResolvedConfig, Sequence[EffectiveSetting]]] = []

    async def load_settings() -> Sequence[EffectiveSetting]:
        config, text, path = live.current().value, live.text, live.path
        if not cached or cached[0][0] is not config:
            settings = await asyncio.to_thread(describe_settings, config.settings, text, path, environment)
            cached[:] = [(config, settings)]
        return cached[0][1]

    data = GatewayData(
        version=version,
        store=store,
        sources=sources,
        current_config=snapshot_config,
        effective_settings=load_settings,
        samples=samples,
        health=health,
        is_shutting_down=is_shutting_down,
        clock=clock,
    )
    # Pages show the gateway's address as seen by a trusted proxy.
    trusted_proxies = environment.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
    app = cast("AsgiApp", ProxyHeadersMiddleware(cast("Any", create_app(data)), trusted_proxies))
    return {ROOT_PATH: app, PAGES_PREFIX: app}


def _display_value(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case TlsSettings():
            return str(value.certificate)
        case str():
            return redact_url(value)
        case _:
            return str(value)


def _build_observed_web_ui(
    instrumentation: Instrumentation,
    parts: ObservedParts,
    environment: Mapping[str, str],
    store: Store,
    sources: SectionSources,
    clock: Callable[[], float],
) -> dict[str, AsgiApp]:
    async def health() -> Mapping[str, Any]:
        return health_to_json(await instrumentation.check_health(parts))

    return build_web_ui(
        instrumentation.settings,
        environment,
        store,
        sources,
        version=instrumentation.version,
        samples=instrumentation.samples,
        health=health,
        is_shutting_down=instrumentation.is_shutting_down,
        clock=clock,
    )


def _list_configured_sections(config: ResolvedConfig) -> Iterator[SectionOptions]:
    for agent in config.settings.agents:
        sections = config.agents(agent.id).sections
        if sections is not None:
            yield sections


async def load_recent_vocabularies(
    totals: RollupStore, options: Callable[[str], AgentOptions], now: float
) -> None:
    """Load the vocabularies of the models that were used most in the last days.

    The tokenizer's engine holds the GIL while it loads one, up to 250 ms, in which no request is served. If the
    store cannot be read, each is loaded by its first request.
    """
    try:
        rows = await totals.sum_totals([TotalsGroup.AGENT, TotalsGroup.MODEL], since=now - _RECENT_SECONDS)
    except StoreUnavailable as error:
        _LOG.warning("recent models could not be read, starting without their vocabularies: %s", error)
        return
    remaining = _MAX_RECENT_VOCABULARIES
    for (agent, model), _ in sorted(rows, key=lambda row: row[1].calls, reverse=True):
        counter_options = options(agent).counter
        if remaining and not is_counter_loaded(counter_options, model):
            await load_counter(counter_options, model)
            remaining -= 1


@asynccontextmanager
async def open_gateway(
    current_config: Callable[[], ResolvedConfig],
    *,
    environment: Mapping[str, str],
    clock: Callable[[], float] = time.time,
    observer: Observer = NO_OBSERVER,
    runs_retention: bool = False,
    broadcast: Broadcast | None = None,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    instrumentation: Instrumentation | None = None,
    outbox_folder: Path | None = None,
) -> AsyncIterator[Gateway]:
    """Open a gateway that uses `current_config()` for each request, and close it at the end of the block.

    The store is the one configured now. `instrumentation` replaces `observer` and adds the gateway's pages.
    With `runs_retention`, old data is deleted regularly; `wait` sleeps in between. `broadcast` reaches the
    other workers of this gateway. Charges wait in `outbox_folder` while the store is unavailable, and charges
    left there by other processes of the same store are adopted.

    Raises:
        StoreUnavailable: the store cannot be opened.
    """
    observer = observer if instrumentation is None else instrumentation.metrics
    settings = current_config().settings
    timeouts = settings.server.timeouts
    proxies = ProxyRules.from_environment(environment, settings.server.proxy)
    async with (
        await open_store(
            settings.store.url, gateway_id=secrets.token_hex(4) if broadcast is None else broadcast.gateway_id
        ) as store,
        JsonClient(timeout_seconds=_SUMMARY_SECONDS, proxies=proxies) as client,
        ConnectionPool(proxies=proxies) as pool,
        run_retention(store, lambda: current_config().settings, clock=clock, wait=wait)
        if runs_retention
        else nullcontext(),
        watch_other_gateways(store)
        if is_server(settings.store.url)
        else nullcontext(bool) as has_other_gateways,
    ):
        reservation_options, applied_timeouts = admission_options(timeouts), list[TimeoutSettings]()

        def options() -> GatewayOptions:
            config = current_config()
            configured_timeouts = config.settings.server.timeouts
            if not applied_timeouts or applied_timeouts[0] is not configured_timeouts:
                applied_timeouts[:] = [configured_timeouts]
                pool.timeouts = upstream_timeouts(
                    configured_timeouts, lifetime_seconds=reservation_options.lifetime_seconds
                )
            return config.gateway

        store_outbox_folder = None if outbox_folder is None else outbox_folder / store_name(settings.store.url)
        outbox = None if store_outbox_folder is None else FileOutbox(store_outbox_folder)
        write_ahead_log = None if store_outbox_folder is None else FileWriteAheadLog(store_outbox_folder)
        if write_ahead_log is not None:
            await asyncio.to_thread(write_ahead_log.open)
        admission = ObservedAdmission(
            store.ledger,
            clock=clock,
            options=reservation_options,
            observer=observer,
            outbox=outbox,
            write_ahead_log=write_ahead_log,
        )
        adoption_task = None if outbox is None else asyncio.ensure_future(adopt_orphans(outbox, admission))
        session_states = SessionStates()
        compactor = SessionCompactor(
            store.compactions,
            client,
            admission,
            lambda: current_config().cost,
            holder=f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}",
            clock=clock,
            session_states=session_states,
            on_result=observer.on_compaction,
        )
        remote_counter = RemoteCounter(admission, clock, proxies=proxies)
        keep_alive = KeepAliveScheduler(
            client,
            admission,
            lambda: current_config().cost,
            lambda agent: current_config().agents(agent),
            session_states,
            clock=clock,
        )
        sources = SectionSources(proxies=proxies)
        preload_task = asyncio.ensure_future(sources.preload(_list_configured_sections(current_config())))
        tracing = SaveTraces(store.traces)
        if instrumentation is not None:  # a server, with more than one client
            await load_recent_vocabularies(store.totals, lambda agent: current_config().agents(agent), clock())
        calibrations = await load_calibrations(store.calibrations)
        save_calibrations = SaveCalibrations(store.calibrations, calibrations, clock=clock)
        prefix_logs = await load_prefix_logs(store.prefix_reuse)
        save_reuse = SaveReuse(store.prefix_reuse, prefix_logs, clock=clock)
        rate_limits = SaveRateLimits(store.rate_limits, clock=clock)
        load_activity = LoadActivity(store.activity, session_states, clock=clock)
        load_activity.start()
        cache_misses = CacheMissDetector(
            lambda: current_config().cost, observer=observer, on_miss=tracing.add_cache_miss
        )
        request_archiver = RequestArchiver(
            store.request_archive, lambda: current_config().settings.keep_requests, clock=clock
        )
        engine = build_engine(
            store.sessions,
            store.compactions,
            options=lambda agent: current_config().agents(agent),
            clock=clock,
            compactor=compactor,
            admission=admission,
            spending=lambda: current_config().cost,
            observer=observer,
            beta_override=environment.get(CACHE_BETA_VARIABLE),
            remote_counter=remote_counter,
            session_states=session_states,
            keep_alive=keep_alive,
            cache_misses=cache_misses,
            request_archive=request_archiver,
            tracing=tracing,
            calibrations=calibrations,
            save_calibrations=save_calibrations,
            prefix_logs=prefix_logs,
            save_reuse=save_reuse,
            rate_limits=rate_limits,
            load_activity=load_activity,
            has_other_processes=settings.server.workers != 1 or is_server(settings.store.url),
            broadcast=broadcast,
            has_other_gateways=has_other_gateways,
            may_store_text=lambda: current_config().settings.keep_requests.enabled,
            inject=InjectSections(
                sources,
                SpendingSource(
                    caps=lambda: current_config().cost.caps,
                    read_balances=lambda accounts, now: store.ledger.get_balances(accounts, now=now),
                ),
                moves=compactor,
            ),
        )
        embeddings = EmbeddingsEngine(
            admission=admission,
            charges=ChargeRecorder(admission, lambda: current_config().cost),
            options=lambda: current_config().cost,
            admit_uncounted=engine.admit_uncounted,
            clock=clock,
            observer=observer,
            completion_queue=engine.completion_queue,
        )
        try:
            parts = ObservedParts(
                store=store.location,
                probe=lambda: store.compactions.get_compaction(""),
                count_charges=lambda: (admission.waiting_count, admission.lost_count, admission.lapsed_count),
                workspaces=sources.workspace_counts,
            )
            running_pages: AbstractAsyncContextManager[dict[str, AsgiApp]] = (
                nullcontext({}) if instrumentation is None else instrumentation.serve_pages(parts)
            )
            async with running_pages as pages:
                scoped_pages: dict[str, AsgiApp] = {}
                if instrumentation is not None:
                    scoped_pages = await asyncio.to_thread(
                        _build_observed_web_ui, instrumentation, parts, environment, store, sources, clock
                    )
                yield Gateway(
                    engine,
                    pool,
                    embeddings=embeddings,
                    options=options,
                    pages=guard_pages(
                        pages,
                        scoped_pages,
                        host=settings.server.host,
                        keys=lambda: current_config().gateway.keys,
                    ),
                    observer=NO_REQUEST_OBSERVER
                    if instrumentation is None
                    else instrumentation.request_observer,
                    is_open=not is_loopback(settings.server.host),
                )
        finally:
            await engine.close()
            if adoption_task is not None:
                adoption_task.cancel()
                await asyncio.wait([adoption_task])
            await compactor.close()
            await cache_misses.close()
            await request_archiver.close()
            await tracing.close()
            await save_calibrations.close()
            await save_reuse.close()
            await rate_limits.close()
            await load_activity.close()
            await keep_alive.close()
            await remote_counter.close()
            preload_task.cancel()
            sources.close()
            await admission.close()
            if outbox is not None and write_ahead_log is not None:
                write_ahead_log.close()
                await outbox.close()
