"""The gateway put together from what a configuration decides: store, engine, money and connections."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

from foveate.cache.beta_header import VARIABLE as BETA_VARIABLE
from foveate.config.settings import Timeouts as Waits
from foveate.cost.admission import AdmissionOptions
from foveate.engine.asking import Asking
from foveate.engine.billing import ToldAdmission, adopt_orphans
from foveate.engine.building import build_engine
from foveate.engine.embeddings import Embeddings
from foveate.engine.explaining import Breaks
from foveate.engine.folds import Folds
from foveate.engine.injecting.gathering import Money
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import Sources
from foveate.engine.keeping import KeepRequests
from foveate.engine.lessons import KeepLessons, calibrations_of
from foveate.engine.pinging import Pings
from foveate.engine.prefix_logs import SaveReuse, load_prefix_logs
from foveate.engine.rate_limits import KeepRateLimits
from foveate.engine.remembered import Remembered
from foveate.engine.steps.sections import Inject
from foveate.engine.tracing import KeepTraces
from foveate.engine.watch import UNWATCHED, Watch
from foveate.gateway.admin import guarded, is_loopback
from foveate.gateway.app import Gateway, GatewayOptions, Page
from foveate.gateway.configured import Choices
from foveate.gateway.observing import Observing, Parts
from foveate.gateway.pages import health_object
from foveate.gateway.retention import forgetting
from foveate.gateway.traffic import UNSEEN
from foveate.store import Store, is_server, open_store, store_name
from foveate.store.notes import BillNotes
from foveate.store.spool import BillSpool
from foveate.upstream import Client
from foveate.upstream.pool import Pool, Timeouts

# A summary of a long history takes its time.
_SUMMARY_SECONDS = 300.0
# What a call may take beyond waiting for its provider, until it is booked.
_MARGIN_SECONDS = 60.0
# With our breakpoints and two parameters, and without each of them.
_MAX_SENDS = 4
# Up to this, the time for a call may be raised while the gateway runs.
_RAISED_SECONDS = 172_800.0


def admission_options(waits: Waits) -> AdmissionOptions:
    """How long something stays reserved for a call: for longer than any may take.

    One is sent again if our breakpoints are refused, or one of our parameters.
    """
    longest = max(_MAX_SENDS * (waits.connect_seconds + waits.total_seconds), _SUMMARY_SECONDS, _RAISED_SECONDS)
    return AdmissionOptions(lifetime_seconds=longest + _MARGIN_SECONDS)


def upstream_timeouts(waits: Waits, *, lifetime_seconds: float) -> Timeouts:
    """How long upstreams are waited for: as is said, and no longer than something stays reserved for a call."""
    covered = (lifetime_seconds - _MARGIN_SECONDS) / _MAX_SENDS - waits.connect_seconds
    return Timeouts(
        connect_seconds=waits.connect_seconds,
        idle_seconds=waits.idle_seconds,
        total_seconds=min(waits.total_seconds, max(covered, _MARGIN_SECONDS)),
    )


def _root(
    observing: Observing,
    parts: Parts,
    environment: Mapping[str, str],
    store: Store,
    sources: Sources,
    clock: Callable[[], float],
) -> dict[str, Page]:
    from foveate.gateway.page import (
        root_pages,  # a tenth of a second, which only a gateway that is served needs
    )

    async def health() -> Mapping[str, Any]:
        return health_object(await observing.look(parts))

    return root_pages(
        observing.settings,
        environment,
        store,
        sources,
        version=observing.version,
        samples=observing.samples,
        health=health,
        is_ending=observing.is_ending,
        clock=clock,
    )


def _sections_of(chosen: Choices) -> Iterator[SectionOptions]:
    """What is to be injected into requests, of all agents that are named."""
    for agent in chosen.settings.agents:
        sections = chosen.agents(agent.id).sections
        if sections is not None:
            yield sections


@asynccontextmanager
async def assembled(
    choices: Callable[[], Choices],
    *,
    environment: Mapping[str, str],
    clock: Callable[[], float] = time.time,
    watch: Watch = UNWATCHED,
    forgets: bool = False,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    observing: Observing | None = None,
    spool_folder: Path | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway that does what `choices` says at each request, until the end of the block.

    The store is the one that is chosen now. One that `forgets` has what is old forgotten now and then;
    `wait` passes the time until then.
    `observing` watches it in the place of `watch`, and has its pages. In `spool_folder` bills wait while the
    store is away, and those are found that others of the same store have left there.

    Raises:
        StoreUnavailable: the store cannot be opened.
    """
    watch = watch if observing is None else observing.metrics
    settings = choices().settings
    waits = settings.server.timeouts
    async with (
        await open_store(settings.store.url) as store,
        Client(timeout_seconds=_SUMMARY_SECONDS) as client,
        Pool() as pool,
        forgetting(store, lambda: choices().settings.store.keep_days, clock=clock, wait=wait)
        if forgets
        else nullcontext(),
    ):
        reserving, waited = admission_options(waits), list[Waits]()

        def options() -> GatewayOptions:
            now = choices()
            said = now.settings.server.timeouts
            if not waited or waited[0] is not said:
                waited[:] = [said]
                pool.timeouts = upstream_timeouts(said, lifetime_seconds=reserving.lifetime_seconds)
            return now.gateway

        own_folder = None if spool_folder is None else spool_folder / store_name(settings.store.url)
        spool = None if own_folder is None else BillSpool(own_folder)
        notes = None if own_folder is None else BillNotes(own_folder)
        if notes is not None:
            await asyncio.to_thread(notes.open)
        admission = ToldAdmission(
            store.ledger, clock=clock, options=reserving, watch=watch, spool=spool, notes=notes
        )
        adopting = None if spool is None else asyncio.ensure_future(adopt_orphans(spool, admission))
        folds = Folds(
            store.journal,
            client,
            admission,
            lambda: choices().cost,
            holder=f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}",
            clock=clock,
            told=watch.folded,
        )
        asking = Asking(admission, clock)
        remembered = Remembered()
        pings = Pings(
            client,
            admission,
            lambda: choices().cost,
            lambda agent: choices().agents(agent),
            remembered,
            clock=clock,
        )
        sources = Sources()
        warming = asyncio.ensure_future(sources.warm(_sections_of(choices())))
        tracing = KeepTraces(store.traces)
        calibrations = await calibrations_of(store.lessons)
        lessons = KeepLessons(store.lessons, calibrations, clock=clock)
        prefix_logs = await load_prefix_logs(store.reuse)
        save_reuse = SaveReuse(store.reuse, prefix_logs, clock=clock)
        rate_limits = KeepRateLimits(store.rate_limits, clock=clock)
        breaks = Breaks(lambda: choices().cost, watch=watch, told=tracing.broke)
        keeping = KeepRequests(store.requests, lambda: choices().settings.keep_requests, clock=clock)
        engine = build_engine(
            store.turns,
            store.journal,
            options=lambda agent: choices().agents(agent),
            clock=clock,
            folds=folds,
            admission=admission,
            cost=lambda: choices().cost,
            watch=watch,
            beta_override=environment.get(BETA_VARIABLE),
            asking=asking,
            remembered=remembered,
            pings=pings,
            breaks=breaks,
            keeping=keeping,
            tracing=tracing,
            calibrations=calibrations,
            lessons=lessons,
            prefix_logs=prefix_logs,
            save_reuse=save_reuse,
            rate_limits=rate_limits,
            has_others=settings.server.workers != 1 or is_server(settings.store.url),
            keeps_text=lambda: choices().settings.keep_requests.enabled,
            inject=Inject(
                sources,
                Money(
                    caps=lambda: choices().cost.caps,
                    standing=lambda accounts, now: store.ledger.standing(accounts, now=now),
                ),
            ),
        )
        embeddings = Embeddings(
            admission=admission,
            options=lambda: choices().cost,
            uncounted=engine.uncounted,
            clock=clock,
            watch=watch,
            behind=engine.behind,
        )
        try:
            parts = Parts(
                store=store.where,
                probe=lambda: store.journal.fold(""),
                bills=lambda: (admission.waiting, admission.lost, admission.lapsed),
                workspaces=sources.counts,
            )
            shown: AbstractAsyncContextManager[dict[str, Page]] = (
                nullcontext({}) if observing is None else observing.running(parts)
            )
            async with shown as pages:
                scoped: dict[str, Page] = {}
                if observing is not None:
                    scoped = await asyncio.to_thread(
                        _root, observing, parts, environment, store, sources, clock
                    )
                yield Gateway(
                    engine,
                    pool,
                    embeddings=embeddings,
                    options=options,
                    pages=guarded(
                        pages,
                        scoped,
                        host=settings.server.host,
                        keys=lambda: choices().gateway.keys,
                    ),
                    traffic=UNSEEN if observing is None else observing.traffic,
                    is_open=not is_loopback(settings.server.host),
                )
        finally:
            await engine.close()
            if adopting is not None:
                adopting.cancel()
                await asyncio.wait([adopting])
            await folds.close()
            await breaks.close()
            await keeping.close()
            await tracing.close()
            await lessons.close()
            await save_reuse.close()
            await rate_limits.close()
            await pings.close()
            await asking.close()
            warming.cancel()
            sources.close()
            await admission.close()
            if spool is not None and notes is not None:
                notes.close()
                await spool.close()
