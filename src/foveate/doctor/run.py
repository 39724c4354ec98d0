"""Run all checks concurrently. They change nothing, and none takes long."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time

import msgspec

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.files import display_path, read_bytes
from foveate.config.load import find_problems
from foveate.config.settings import Settings
from foveate.doctor import local_checks, upstream_checks
from foveate.doctor.findings import Check, Finding, failed_finding, ok_finding, run_checks, warning_finding
from foveate.doctor.store_checks import HEALTH, StoreCheck, check_store
from foveate.engine.redaction import redact_keys
from foveate.errors import CannotListen, FoveateError, UpstreamError
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.routing import Upstream
from foveate.gateway.server.serve import load_live_config
from foveate.http.listening_sockets import find_listener_command
from foveate.http.pool import ConnectionPool, Timeouts, parse_url, read_body
from foveate.http.proxies import ProxyRules
from foveate.store import default_url
from foveate.store.thread_pool import DaemonThreadPool

# Limit for a dead upstream or a disk that does not respond.
_LIMIT_SECONDS = 5.0
_THREADS = 8


async def run_doctor(config: Path | None, *, checks_upstreams: bool) -> list[Finding]:
    """The store is checked first, because it knows which models are used."""
    environment = dict(os.environ)
    threads = DaemonThreadPool(_THREADS, "foveate-doctor")
    config_now, config_findings = _load_config(config, environment)
    settings, now = config_now.settings, time()
    store_results: list[StoreCheck] = []

    async def run_store_check() -> Sequence[Finding]:
        store_results.append(
            await threads.run(lambda: check_store(settings.store.url or default_url(), now=now))
        )
        return store_results[0].findings

    store_findings = await run_checks([("store", run_store_check)], limit_seconds=_LIMIT_SECONDS)
    upstreams = config_now.gateway.routing.upstreams
    models = local_checks.collect_models(settings, store_results[0].models if store_results else (), upstreams)
    is_counted = settings.context_optimization.token_counter.enabled
    upstream_times: list[float] = []
    checks: list[tuple[str, Check]] = [
        (
            "vocabularies",
            _in_thread(threads, lambda: local_checks.check_vocabularies(list(models), is_counted=is_counted)),
        ),
        ("embedder", _in_thread(threads, local_checks.check_embedder)),
        ("watchers", _in_thread(threads, lambda: local_checks.check_watchers(settings))),
        ("prices", _in_thread(threads, lambda: _check_prices(config_now, models, now=now))),
        ("local model", _in_thread(threads, local_checks.check_local_model)),
        ("port", lambda: _check_port(settings, threads)),
        (
            local_checks.AGENTS,
            _in_thread(threads, lambda: local_checks.check_agents(environment, Path(), _gateway_url(settings))),
        ),
    ]
    if checks_upstreams:
        proxies = ProxyRules.from_environment(environment, settings.server.proxy)
        checks += _upstream_checks(settings, upstreams, models, upstream_times, proxies)
    other_findings = await run_checks(checks, limit_seconds=_LIMIT_SECONDS)
    health = [finding for finding in store_findings if finding.check == HEALTH]
    newest = store_results[0].newest_at if store_results else None
    all_findings = [
        *config_findings,
        *local_checks.check_file_modes(config),
        *local_checks.check_cache_ttl(
            settings,
            [finding.provider for finding, _ in upstream_checks.select_upstreams(settings, upstreams)],
        ),
        *(finding for finding in store_findings if finding not in health),
        *other_findings,
        *local_checks.check_clock(now=now, newest_at=newest, upstream_times=upstream_times),
        *health,
    ]
    # Messages may contain URLs with passwords.
    return [
        replace(finding, message=redact_keys(finding.message), advice=redact_keys(finding.advice))
        for finding in all_findings
    ]


def _check_prices(config_now: ResolvedConfig, models: Mapping[str, str], *, now: float) -> list[Finding]:
    return [
        *local_checks.check_price_tables(config_now.price_file, now=now),
        *local_checks.check_prices(config_now.cost.prices, models, now=now),
    ]


def _load_config(path: Path | None, environment: Mapping[str, str]) -> tuple[ResolvedConfig, list[Finding]]:
    """Load the configuration and judge it. If it is invalid, return the default configuration."""
    advice = "correct it: `foveate serve` cannot start with it; the checks below use the defaults"
    problems: Sequence[FoveateError] = ()
    try:
        if path is not None:
            problems = find_problems(read_bytes(path, limit_bytes=MAX_SETTINGS_BYTES), display_path(path))
        if not problems:
            config_now = load_live_config(path, environment, logs_changes=False).current().value
            message = "there is no foveate.yaml; the defaults apply" if path is None else f"{path} is valid"
            return config_now, [ok_finding("config", message), *_check_keys(config_now)]
    except FoveateError as error:
        problems = [error]
    return _default_config(environment), [
        failed_finding("config", str(problem), advice) for problem in problems
    ]


def _default_config(environment: Mapping[str, str]) -> ResolvedConfig:
    """Return the configuration without a file, and without the environment if that is invalid."""
    try:
        return load_live_config(None, environment, logs_changes=False).current().value
    except FoveateError:
        return load_live_config(None, {}, logs_changes=False).current().value


def _check_keys(config_now: ResolvedConfig) -> list[Finding]:
    upstreams_with_key = [
        name for name, upstream in config_now.gateway.routing.upstreams.items() if upstream.key is not None
    ]
    if not upstreams_with_key:
        return [ok_finding("config", "no upstream keys are set; clients send their own")]
    return [ok_finding("config", f"keys are set for {', '.join(upstreams_with_key)}")]


def _in_thread(threads: DaemonThreadPool, check: Callable[[], Sequence[Finding]]) -> Check:
    async def run() -> Sequence[Finding]:
        return await threads.run(check)

    return run


async def _check_port(settings: Settings, threads: DaemonThreadPool) -> Sequence[Finding]:
    host, port = settings.server.host, settings.server.port
    try:
        if await threads.run(lambda: local_checks.is_port_free(host, port)):
            return [ok_finding("port", f"{host}:{port} is free for `foveate serve`")]
    except CannotListen as error:
        return [failed_finding("port", str(error), "correct server.host or server.port")]
    return [await _check_listener(settings)]


def _gateway_url(settings: Settings) -> str:
    host = settings.server.host
    name = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    scheme = "http" if settings.server.tls is None else "https"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{settings.server.port}"


async def _check_listener(settings: Settings) -> Finding:
    host, port = settings.server.host, settings.server.port
    url = f"{_gateway_url(settings)}/health"
    other_listener = warning_finding(
        "port",
        f"another program uses {host}:{port}",
        f"choose another port with --port, or find the program: {find_listener_command(port, sys.platform)}",
    )
    try:
        async with (
            ConnectionPool(timeouts=Timeouts(connect_seconds=2, idle_seconds=2, total_seconds=2)) as pool,
            pool.stream("GET", parse_url(url), [(b"accept", b"application/json")]) as response,
        ):
            health = msgspec.json.decode(await read_body(response, max_bytes=1_000_000, url=url))
    except (UpstreamError, msgspec.DecodeError):
        return other_listener
    return (
        local_checks.check_gateway_health(health, f"{host}:{port}", url, settings.store.url or default_url())
        or other_listener
    )


def _upstream_checks(
    settings: Settings,
    upstreams: Mapping[str, Upstream],
    models: Mapping[str, str],
    upstream_times: list[float],
    proxies: ProxyRules,
) -> list[tuple[str, Check]]:
    """Return a check for each upstream that is configured, has a key, or is a default one."""

    def make_check(upstream: Upstream, *, is_named: bool) -> Check:
        upstream_models = [model for model, provider in models.items() if provider == upstream.provider]

        async def check() -> Sequence[Finding]:
            result = await upstream_checks.check_upstream(
                upstream, is_named=is_named, models=upstream_models, proxies=proxies
            )
            if result.at is not None:
                upstream_times.append(result.at)
            return result.findings

        return check

    return [
        (f"{upstream_checks.CHECK} {upstream.name}", make_check(upstream, is_named=is_named))
        for upstream, is_named in upstream_checks.select_upstreams(settings, upstreams)
    ]
