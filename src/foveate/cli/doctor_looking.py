"""What the doctor looks at, all of it side by side: nothing is changed, and nothing waited for long."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time

import msgspec

from foveate.cli import doctor_here as here
from foveate.cli import doctor_upstreams
from foveate.cli.doctor_findings import Check, Finding, failed, looked_into, ok, warning
from foveate.cli.doctor_store import HEALTH, StoreSeen, store_seen
from foveate.cli.usual import usual_config
from foveate.config.checking import problems_in
from foveate.config.documents import SETTINGS_LIMIT_BYTES
from foveate.config.files import read_bytes, shown
from foveate.config.settings import Settings
from foveate.engine.redacting import redacted
from foveate.errors import CannotListen, FoveateError, UpstreamError
from foveate.gateway.configured import Choices
from foveate.gateway.routing import Upstream
from foveate.gateway.serving import live_choices
from foveate.store import default_url
from foveate.store.threads import Threads
from foveate.upstream.pool import Pool, Timeouts, target, whole

# A dead upstream, and a disk that does not answer, cost no more than this.
_LIMIT_SECONDS = 5.0
_THREADS = 8


async def looked(config: Path | None, *, asks: bool) -> list[Finding]:
    """What all checks find. The store is looked at first, since it says which models are used."""
    environment = dict(os.environ)
    path = usual_config(config)
    threads = Threads(_THREADS, "foveate-doctor")
    choices, found = _choices(path, environment)
    settings, now = choices.settings, time()
    seen: list[StoreSeen] = []

    async def store() -> Sequence[Finding]:
        seen.append(await threads.run(lambda: store_seen(settings.store.url or default_url(), now=now)))
        return seen[0].findings

    stored = await looked_into([("store", store)], limit_seconds=_LIMIT_SECONDS)
    upstreams = choices.gateway.routing.upstreams
    models = here.models_of(settings, seen[0].models if seen else (), upstreams)
    is_counted = settings.context_optimization.token_counter.enabled
    clocks: list[float] = []
    checks: list[tuple[str, Check]] = [
        ("vocabularies", _beside(threads, lambda: here.vocabularies(list(models), is_counted=is_counted))),
        ("embedder", _beside(threads, here.embedder)),
        ("watchers", _beside(threads, lambda: here.watchers(settings))),
        ("prices", _beside(threads, lambda: _prices(choices, models, now=now))),
        ("local model", _beside(threads, here.local_model)),
        ("port", lambda: _port(settings, threads)),
    ]
    if asks:
        checks += _upstream_checks(settings, upstreams, models, clocks)
    rest = await looked_into(checks, limit_seconds=_LIMIT_SECONDS)
    health = [one for one in stored if one.check == HEALTH]
    newest = seen[0].newest_at if seen else None
    every = [
        *found,
        *here.file_modes(path),
        *here.cache_ttl(settings, [one.provider for one, _ in doctor_upstreams.wanted(settings, upstreams)]),
        *(one for one in stored if one not in health),
        *rest,
        *here.clock(now=now, newest_at=newest, others_at=clocks),
        *health,
    ]
    # What others say of an address says the address, and that may hold a password.
    return [replace(one, said=redacted(one.said), advice=redacted(one.advice)) for one in every]


def _prices(choices: Choices, models: Mapping[str, str], *, now: float) -> list[Finding]:
    return [
        *here.price_tables(choices.price_file, now=now),
        *here.prices(choices.cost.prices, models, now=now),
    ]


def _choices(path: Path | None, environment: Mapping[str, str]) -> tuple[Choices, list[Finding]]:
    """What the configuration decides, and how it stands with it; where it cannot be used, all by default."""
    advice = "mend it: `foveate serve` does not start like this, and the checks below go by the defaults"
    problems: Sequence[FoveateError] = ()
    try:
        if path is not None:
            problems = problems_in(read_bytes(path, limit_bytes=SETTINGS_LIMIT_BYTES), shown(path))
        if not problems:
            choices = live_choices(path, environment, tells=False).now().made
            said = "there is no foveate.yaml: all by default" if path is None else f"{path} can be used"
            return choices, [ok("config", said), *_keys(choices)]
    except FoveateError as error:
        problems = [error]
    return _by_default(environment), [failed("config", str(problem), advice) for problem in problems]


def _by_default(environment: Mapping[str, str]) -> Choices:
    """What holds without a file; without the environment too, where what it says cannot be."""
    try:
        return live_choices(None, environment, tells=False).now().made
    except FoveateError:
        return live_choices(None, {}, tells=False).now().made


def _keys(choices: Choices) -> list[Finding]:
    named = [name for name, upstream in choices.gateway.routing.upstreams.items() if upstream.key is not None]
    if not named:
        return [ok("config", "no keys of upstreams are set: clients bring their own")]
    return [ok("config", f"there are keys for {', '.join(named)}")]


def _beside(threads: Threads, work: Callable[[], Sequence[Finding]]) -> Check:
    async def run() -> Sequence[Finding]:
        return await threads.run(work)

    return run


async def _port(settings: Settings, threads: Threads) -> Sequence[Finding]:
    """Whether the gateway's port is free, or who has it."""
    host, port = settings.server.host, settings.server.port
    try:
        if await threads.run(lambda: here.port_is_free(host, port)):
            return [ok("port", f"{host}:{port} is free: `foveate serve` can listen there")]
    except CannotListen as error:
        return [failed("port", str(error), "mend server.host or server.port")]
    return [await _listener(host, port, is_secure=settings.server.tls is not None)]


async def _listener(host: str, port: int, *, is_secure: bool) -> Finding:
    """Who listens there: a gateway, which says how it is, or somebody else."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    url = f"{'https' if is_secure else 'http'}://{f'[{name}]' if ':' in name else name}:{port}/health"
    asked = f"lsof -i :{port}" if sys.platform == "darwin" else f"ss -ltnp 'sport = :{port}'"
    taken = warning(
        "port", f"{host}:{port} is taken", f"`{asked}` says by whom; `foveate serve --port` takes another"
    )
    try:
        async with (
            Pool(timeouts=Timeouts(connect_seconds=2, idle_seconds=2, total_seconds=2)) as pool,
            pool.asked("GET", target(url), [(b"accept", b"application/json")]) as answer,
        ):
            said = msgspec.json.decode(await whole(answer, most_bytes=1_000_000, url=url))
    except (UpstreamError, msgspec.DecodeError):
        return taken
    return here.gateway_seen(said, f"{host}:{port}", url) or taken


def _upstream_checks(
    settings: Settings, upstreams: Mapping[str, Upstream], models: Mapping[str, str], clocks: list[float]
) -> list[tuple[str, Check]]:
    """A check for each upstream that is configured, has a key here, or is the usual one."""

    def check_of(upstream: Upstream, *, is_named: bool) -> Check:
        own = [model for model, provider in models.items() if provider == upstream.provider]

        async def check() -> Sequence[Finding]:
            found = await doctor_upstreams.asked(upstream, is_named=is_named, models=own)
            if found.at is not None:
                clocks.append(found.at)
            return found.findings

        return check

    return [
        (f"{doctor_upstreams.CHECK} {upstream.name}", check_of(upstream, is_named=is_named))
        for upstream, is_named in doctor_upstreams.wanted(settings, upstreams)
    ]
