"""The page at the gateway's root, shown the gateway as it is."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from foveate.config.live import LiveSettings
from foveate.engine.board import Sample
from foveate.engine.injecting.sources import Sources
from foveate.gateway.app import BELOW
from foveate.gateway.held import held_now
from foveate.gateway.pages import Page
from foveate.store import Store
from foveate.web.app import ROOT, page
from foveate.web.inside import Configured, Inside

if TYPE_CHECKING:
    from foveate.gateway.assembly import Choices


def root_pages(
    live: "LiveSettings[Choices]",
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
        )

    inside = Inside(
        version=version,
        store=store,
        sources=sources,
        configured=configured,
        held=lambda: held_now(live, environment),
        samples=samples,
        health=health,
        is_ending=is_ending,
        clock=clock,
    )
    shown_there = page(inside)
    return {ROOT: shown_there, BELOW: shown_there}
