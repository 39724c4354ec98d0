"""Pages looked at as a browser would, over a real store and a configuration in a file."""

import html
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from foveate.engine.metrics.registry import Sample
from foveate.engine.sections.sources import SectionSources
from foveate.gateway.observability.health import HealthStatus, health_to_json
from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.serve import load_live_config
from foveate.gateway.web_ui import build_web_ui
from foveate.store import Store, open_store
from foveate.web.viewer import ADMIN, Viewer, set_viewer
from tests.support.stores.templates import ensure_store

NOW = 1_794_000_000.0
WELL = HealthStatus(version="1", store="store.sqlite")
BUSY = "long to be read"
"""What a page says of files that it does not wait for."""
_TRIES = 30


@dataclass
class Clock:
    """A clock that only a test moves."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Looking:
    """A page that can be asked for, its store, the file of its configuration, and the clock of its sources."""

    client: httpx.AsyncClient
    store: Store
    file: Path
    clock: Clock

    async def page(self, address: str, status: int = 200) -> str:
        """The HTML of a page; asked for again where a machine that is busy takes long for its files."""
        for _ in range(_TRIES):
            answer = await self.client.get(address)
            if BUSY not in answer.text:
                break
        assert answer.status_code == status, answer.text
        return answer.text

    async def text(self, address: str, status: int = 200) -> str:
        """What can be read on a page, without its markup."""
        return read(await self.page(address, status))


@asynccontextmanager
async def looking(
    folder: Path,
    text: str = "# all by default\n",
    *,
    vitals: HealthStatus = WELL,
    samples: Sequence[Sample] = (),
    made: Callable[[Clock], SectionSources] = SectionSources,
    viewer: Viewer = ADMIN,
    **environment: str,
) -> AsyncIterator[Looking]:
    """Pages over a configuration and a gateway that is as `vitals` and `samples` say, until the block ends.

    Files are read by the sources that are `made`.
    """
    file = folder / "foveate.yaml"
    file.write_text(text, encoding="utf-8")
    live = load_live_config(file, environment)
    clock = Clock()
    sources = made(clock)

    async def health() -> dict[str, object]:
        return health_to_json(vitals)

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
            live.check_next_time()  # however soon a test asks after it has changed the file
            await pages["/"](set_viewer(scope, viewer), receive, send)

        transport = httpx.ASGITransport(page)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
                yield Looking(client, store, file, clock)
        finally:
            sources.close()


def read(page: str) -> str:
    """What can be read on a page, with one blank between words."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main.replace("<wbr>", ""))).split())
