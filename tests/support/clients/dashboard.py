"""A client of the web pages, over a real store and a configuration in a file."""

import html
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from foveate.engine.metrics.registry import Sample
from foveate.engine.sections.sources import SectionSources
from foveate.gateway.build import build_web_ui
from foveate.gateway.observability.health import HealthStatus, health_to_json
from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.serve import load_live_config
from foveate.store import Store, open_store
from foveate.web.page import ADMIN, Viewer, set_viewer
from tests.support.stores.templates import ensure_store

NOW = 1_794_000_000.0
HEALTHY = HealthStatus(version="1", store="store.sqlite")
BUSY = "takes long"
"""Text of a page that does not wait for slow files."""
_TRIES = 30


@dataclass
class Clock:
    """A clock that only a test moves."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Dashboard:
    """A client of the pages, their store, the file of their configuration, and the clock of their sources."""

    client: httpx.AsyncClient
    store: Store
    file: Path
    clock: Clock

    async def page(self, address: str, status: int = 200) -> str:
        """Return the HTML of a page. Retries if a busy machine reads its files slowly."""
        for _ in range(_TRIES):
            response = await self.client.get(address)
            if BUSY not in response.text:
                break
        assert response.status_code == status, response.text
        return response.text

    async def text(self, address: str, status: int = 200) -> str:
        """Return the text of a page, without its markup."""
        return page_to_text(await self.page(address, status))


@asynccontextmanager
async def open_dashboard(
    folder: Path,
    text: str = "# all by default\n",
    *,
    health_status: HealthStatus = HEALTHY,
    samples: Sequence[Sample] = (),
    make_sources: Callable[[Clock], SectionSources] = SectionSources,
    viewer: Viewer = ADMIN,
    **environment: str,
) -> AsyncIterator[Dashboard]:
    """Open the pages of a gateway with this configuration, `health_status` and metrics.

    `make_sources` creates the sources that read files.
    """
    file = folder / "foveate.yaml"
    file.write_text(text, encoding="utf-8")
    live = load_live_config(file, environment)
    clock = Clock()
    sources = make_sources(clock)

    async def health() -> dict[str, object]:
        return health_to_json(health_status)

    async with await open_store(ensure_store(folder / "store.sqlite")) as store:
        pages = build_web_ui(
            live,
            environment,
            store,
            sources,
            version="1",
            samples=lambda: list(samples),
            health=health,
            is_shutting_down=lambda: False,
            clock=lambda: NOW,
        )

        async def page(scope: Scope, receive: Receive, send: Send) -> None:
            live.check_next_time()  # a test may change the file and load a page at once
            await pages["/"](set_viewer(scope, viewer), receive, send)

        transport = httpx.ASGITransport(page)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
                yield Dashboard(client, store, file, clock)
        finally:
            sources.close()


def page_to_text(page: str) -> str:
    """Return the text of a page, with one blank between words."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main.replace("<wbr>", ""))).split())
