"""The gateway put together and served: store, engine, configuration, until somebody ends it."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from foveate.cache.beta_header import VARIABLE as BETA_VARIABLE
from foveate.config.live import LiveSettings
from foveate.config.loading import Configuration
from foveate.config.settings import Settings
from foveate.config.settings import Timeouts as Waits
from foveate.cost.admission import Admission, AdmissionOptions
from foveate.cost.price_book import PriceBook
from foveate.engine.building import build_engine
from foveate.engine.configured import options_by_agent
from foveate.engine.embeddings import Embeddings
from foveate.engine.folds import Folds
from foveate.engine.money import MoneyOptions
from foveate.engine.options import AgentOptions
from foveate.gateway.app import Gateway, GatewayOptions
from foveate.gateway.configured import gateway_options
from foveate.store import open_store
from foveate.upstream import Client
from foveate.upstream.pool import Pool, Timeouts

# How long answers under way may take when it is to end.
_GRACE_SECONDS = 30
# A summary of a long history takes its time.
_SUMMARY_SECONDS = 300.0
# What a call may take beyond waiting for its provider, until it is booked.
_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Choices:
    """All that a configuration decides, ready to be used."""

    settings: Settings
    gateway: GatewayOptions
    agents: Callable[[str], AgentOptions]
    cost: MoneyOptions


def choices_of(found: Configuration, environment: Mapping[str, str]) -> Choices:
    """What a configuration decides.

    Raises:
        BadOption: something in it does not fit together; `path` leads to it.
    """
    return Choices(
        settings=found.settings,
        gateway=gateway_options(found.settings, environment),
        agents=options_by_agent(found.settings),
        cost=MoneyOptions(caps=found.cost.caps, prices=PriceBook(found.cost.prices)),
    )


def admission_options(waits: Waits) -> AdmissionOptions:
    """How long something stays reserved for a call: for longer than any may take.

    One whose marks are refused is sent twice.
    """
    longest = max(2 * (waits.connect_seconds + waits.total_seconds), _SUMMARY_SECONDS)
    return AdmissionOptions(lifetime_seconds=longest + _MARGIN_SECONDS)


def live_choices(path: Path | None, environment: Mapping[str, str]) -> LiveSettings[Choices]:
    """What the configuration in a file decides, now and whenever it has changed.

    Raises:
        FoveateError: it cannot be used.
    """
    return LiveSettings(path, lambda found: choices_of(found, environment))


def serve(where: socket.socket, choices: LiveSettings[Choices], environment: Mapping[str, str]) -> None:
    """Be the gateway at a socket until somebody ends it; answers under way are finished first.

    Raises:
        StoreUnavailable: the store cannot be opened.
    """
    main = _served(where, choices, environment)
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _served(where: socket.socket, choices: LiveSettings[Choices], environment: Mapping[str, str]) -> None:
    import uvicorn

    settings = choices.now().made.settings
    waits = settings.server.timeouts
    pool = Pool(
        timeouts=Timeouts(
            connect_seconds=waits.connect_seconds,
            idle_seconds=waits.idle_seconds,
            total_seconds=waits.total_seconds,
        )
    )
    async with (
        await open_store(settings.store.url) as store,
        Client(timeout_seconds=_SUMMARY_SECONDS) as client,
    ):
        admission = Admission(store.ledger, clock=time.time, options=admission_options(waits))
        folds = Folds(
            store.journal,
            client,
            admission,
            lambda: choices.now().made.cost,
            holder=f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}",
            clock=time.time,
        )
        engine = build_engine(
            store.turns,
            store.journal,
            options=lambda agent: choices.now().made.agents(agent),
            clock=time.time,
            folds=folds,
            admission=admission,
            cost=lambda: choices.now().made.cost,
            beta_override=environment.get(BETA_VARIABLE),
        )
        embeddings = Embeddings(
            admission=admission,
            options=lambda: choices.now().made.cost,
            uncounted=engine.uncounted,
            clock=time.time,
        )
        gateway = Gateway(engine, pool, embeddings=embeddings, options=lambda: choices.now().made.gateway)
        tls = settings.server.tls
        server = uvicorn.Server(
            uvicorn.Config(
                gateway,
                http="httptools",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None else str(tls.key),
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        try:
            await server.serve(sockets=[where])
        finally:
            await folds.close()
            await pool.close()
            await admission.close()
