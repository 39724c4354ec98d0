"""The page at the gateway's root, shown the gateway as it is."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from foveate.config.live import LiveSettings
from foveate.config.settings import Tls
from foveate.config.showing import Held, without_password
from foveate.engine.board import Sample
from foveate.engine.injecting.sources import Sources
from foveate.gateway.app import BELOW
from foveate.gateway.configured import Choices
from foveate.gateway.held import held_in
from foveate.gateway.pages import Page
from foveate.store import Store
from foveate.web.app import ROOT, page
from foveate.web.inside import Configured, Inside

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


def root_pages(
    live: LiveSettings[Choices],
    environment: Mapping[str, str],
    store: Store,
    sources: Sources,
    *,
    version: str,
    samples: Callable[[], list[Sample]],
    health: Callable[[], Awaitable[Mapping[str, Any]]],
    is_ending: Callable[[], bool],
    clock: Callable[[], float],
) -> dict[str, Page]:
    """The page, by the paths that it is at."""

    def configured() -> Configured:
        now = live.now()
        return Configured(
            path=live.path,
            since=now.since,
            changes=now.changes,
            problem=now.problem,
            settings=now.made.settings,
            options=now.made.agents,
            caps=now.made.cost.caps,
            waiting={name: _in_words(value) for name, value in live.waiting.items()},
        )

    known: list[tuple[Choices, Sequence[Held]]] = []

    async def held() -> Sequence[Held]:
        made, text, path = live.now().made, live.text, live.path
        if not known or known[0][0] is not made:
            found = await asyncio.to_thread(held_in, made.settings, text, path, environment)
            known[:] = [(made, found)]
        return known[0][1]

    inside = Inside(
        version=version,
        store=store,
        sources=sources,
        configured=configured,
        held=held,
        samples=samples,
        health=health,
        is_ending=is_ending,
        clock=clock,
    )
    # Its address is shown as a proxy before the gateway has it, if that is one to be believed.
    believed = environment.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
    shown_there = cast("Page", ProxyHeadersMiddleware(cast("ASGI3Application", page(inside)), believed))
    return {ROOT: shown_there, BELOW: shown_there}


def _in_words(value: object) -> str:
    """What is fixed at the start, as it can be shown."""
    match value:
        case None:
            return "nothing"
        case Tls():
            return str(value.certificate)
        case str():
            return without_password(value)
        case _:
            return str(value)
