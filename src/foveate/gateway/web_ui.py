"""Connects the web pages to the running gateway."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from foveate.config.effective import EffectiveSetting, redact_url
from foveate.config.live import LiveSettings
from foveate.config.settings import TlsSettings
from foveate.engine.metrics.registry import Sample
from foveate.engine.sections.sources import SectionSources
from foveate.gateway.app import PAGES_PREFIX
from foveate.gateway.config import ResolvedConfig, describe_settings
from foveate.gateway.request import AsgiApp
from foveate.store import Store
from foveate.web.app import ROOT_PATH, create_app
from foveate.web.data import ConfigSnapshot, GatewayData

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


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
    """Return the web app by the paths that it serves."""

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
    app = cast("AsgiApp", ProxyHeadersMiddleware(cast("ASGI3Application", create_app(data)), trusted_proxies))
    return {ROOT_PATH: app, PAGES_PREFIX: app}


def _display_value(value: object) -> str:
    """Format a setting that is fixed at startup."""
    match value:
        case None:
            return "nothing"
        case TlsSettings():
            return str(value.certificate)
        case str():
            return redact_url(value)
        case _:
            return str(value)
